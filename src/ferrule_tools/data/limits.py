"""What one call may use and return: the section `[tools.data_analyzer]`, memory, space on disk, rows of output."""

from __future__ import annotations

import base64
import fcntl
import math
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from datetime import time as clock_time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from ferrule.core.content import encode_json, number_to_json
from ferrule.errors import SetupError

_RESERVE_BYTES: Final = 1 << 30
"""For memory that DuckDB does not count, and for address space that is only reserved."""
_MEMORY_STATUS: Final = Path("/proc/self/statm")
_FOLDER_PREFIX: Final = "ferrule-data-"
_MIN_FOLDER_AGE: Final = 60.0
"""Seconds in which a new folder gets its lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAnalyzerConfig:
    """How much one call may use."""

    memory_mb: int = 512
    """What a query may hold in memory; more goes to disk. The process may take 1 GB in addition."""
    disk_mb: int = 4096
    """What a query may put on disk while it runs."""
    threads: int = 2
    timeout: float = 60.0
    """Seconds a call may take."""
    max_rows: int = 10_000
    """The most rows that a call can ask for."""

    def __post_init__(self) -> None:
        for name, minimum in (("memory_mb", 64), ("disk_mb", 0), ("threads", 1), ("max_rows", 1)):
            if getattr(self, name) < minimum:
                raise SetupError(f"{name} must be at least {minimum}, not {getattr(self, name)!r}")
        if not self.timeout > 0:
            raise SetupError(f"timeout must be more than 0 seconds, not {self.timeout!r}")


@contextmanager
def limit_memory(megabytes: int) -> Iterator[None]:
    """Let this process allocate up to `megabytes` more than it has now, plus 1 GB. No effect without /proc.

    DuckDB counts what its tables and sorts hold, but not each text it creates; workbook readers and database drivers
    count nothing. The system does: beyond the limit an allocation fails, and with it the call, not the machine.
    """
    if not _MEMORY_STATUS.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    current = int(_MEMORY_STATUS.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = [current + (megabytes << 20) + _RESERVE_BYTES]
    limits += [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a private temporary folder, and remove it afterwards.

    A call that is killed cannot remove its folder, so the next call does: a folder without a lock is unused.
    """
    _remove_unused_folders(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unused_folders(parent: Path) -> None:
    for folder in parent.glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):  # another user's, or already removed
            status = folder.lstat()
            if status.st_uid != os.getuid() or status.st_mtime >= time.time() - _MIN_FOLDER_AGE:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


# Rows of a database as JSON of limited length

MAX_CELL: Final = 5_000
"""Characters of one value."""
MAX_CHARACTERS: Final = 60_000
"""Characters of all values of an output."""
_MAX_DEPTH: Final = 20
_MAX_EXACT_DIGITS: Final = 15
"""Decimals with more digits become text: most programs read JSON numbers as floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    """Empty if the database does not report it."""


def rows_output(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], max_rows: int, *, advice: str
) -> dict[str, Any]:
    """Return a tool's output with up to `max_rows` rows; `advice` says how to get fewer or other rows."""
    cells: list[list[Any]] = []
    remaining, omission = MAX_CHARACTERS, ""
    for row in rows:
        if len(cells) == max_rows:
            omission = f"only the first {max_rows:,} rows are here, and there are more. {advice}"
            break
        values = [to_json_cell(value) for value in row]
        remaining -= sum(len(cell) + 3 if isinstance(cell, str) else len(encode_json(cell)) + 1 for cell in values)
        if remaining < 0 and cells:
            omission = f"only the first {len(cells):,} rows are here, because they are long. {advice}"
            break
        cells.append(values)
    output: dict[str, Any] = {
        "columns": [{"name": each.name, **({"type": each.type} if each.type else {})} for each in columns],
        "rows": cells,
        "row_count": len(cells),
    }
    return {**output, "left_out": omission} if omission else output


def to_json_cell(value: Any) -> Any:
    """Return a value as JSON; a long value becomes the beginning of its text."""
    plain = _to_json(value, _MAX_DEPTH)
    if isinstance(plain, str):
        return _shorten_text(plain)
    if isinstance(plain, (list, dict)):
        text = encode_json(plain).decode()
        return plain if len(text) <= MAX_CELL else _shorten_text(text)
    return plain


def _to_json(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        digits = max(len(value.as_tuple().digits), abs(value.adjusted())) if value.is_finite() else math.inf
        return number_to_json(value) if digits <= _MAX_EXACT_DIGITS else str(value)
    if isinstance(value, (date, clock_time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        beginning = bytes(value[: MAX_CELL // 2])
        suffix = f"… ({len(value):,} bytes)" if len(value) > len(beginning) else ""
        return base64.b64encode(beginning).decode() + suffix
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {str(_to_json(key, 1)): _to_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item, depth - 1) for item in value]
    return str(value)


def _shorten_text(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}… ({len(text):,} characters)"
