"""What one call may use: the section `[tools.data_analyzer]` of `ferrule.toml`, memory, and space on disk."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    """A private temporary folder, removed afterwards.

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
            if status.st_uid == os.getuid() and status.st_mtime < time.time() - _MIN_FOLDER_AGE:
                _remove_unless_locked(folder)


def _remove_unless_locked(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
