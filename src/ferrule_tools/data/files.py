"""Files of the workspace as tables that DuckDB can read, by file descriptor and never by path.

A file is opened like all files of the workspace, and DuckDB reads that open file. Text in an encoding other than UTF-8,
and sheets of workbooks, are first converted into an unnamed temporary file.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from ferrule.core.content import encode_json
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import ExecutionFailed, MissingExtra, Refuse, Retry
from ferrule_tools.files.content import normalize_encoding, read_content_kind, wrap_as_text
from ferrule_tools.files.path_rules import Parts
from ferrule_tools.files.workspace import Workspace, display_path

KINDS: Final = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".geojson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".xlsx": "workbook",
    ".xlsm": "workbook",
    ".xlsb": "workbook",
    ".xls": "workbook",
    ".ods": "workbook",
}
_TAB_SUFFIXES: Final = frozenset({".tsv", ".tab"})
_UNCHANGED_ENCODINGS: Final = frozenset({"utf-8", "ascii"})
_CHUNK: Final = 1 << 20
_MAX_LINE: Final = 2_000_000
"""Bytes, as in DuckDB."""
# The folder in which a process sees its own open files, on Linux and elsewhere.
_DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class TypeDetection(IntEnum):
    """How column types are detected: from the beginning of a file, from all of it, or not at all (only text)."""

    SAMPLE = 0
    WHOLE_FILE = 1
    ALL_TEXT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file, and how to read it: which sheet of a workbook; encoding, delimiter and header of a CSV file."""

    path: str
    sheet: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    """Whether the first line has the names of the columns; None: detected."""

    @classmethod
    def of(cls, options: str | Mapping[str, Any]) -> DataFile:
        """Read the path or the object that a caller gave."""
        if isinstance(options, str):
            return cls(path=options)
        for name, value in options.items():
            kind = _FILE_KEYS.get(name)
            if kind is None:
                raise Retry(f"a file has no {name!r}.{did_you_mean(name, _FILE_KEYS)} Use {', '.join(_FILE_KEYS)}.")
            if value is not None and not isinstance(value, kind):
                raise Retry(f"{name!r} of a file must be a {kind.__name__}, not {value!r}.")
        if not options.get("path"):
            raise Retry("a file needs a path: {'path': 'data/sales.csv'}.")
        return cls(**options)


_FILE_KEYS: Final = {"path": str, "sheet": str, "encoding": str, "delimiter": str, "header": bool}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    path: str
    """In the workspace."""
    kind: str
    address: str
    """The path by which DuckDB opens it."""
    size: int
    """In bytes."""
    options: dict[str, str] = field(default_factory=dict)
    """Arguments of the function that reads it, as SQL."""
    details: dict[str, Any] = field(default_factory=dict)
    """For the tool's output."""

    def read_sql(self, detection: TypeDetection) -> str:
        options = {**self.options, **_DETECTION_OPTIONS.get((self.kind, detection), {})}
        arguments = "".join(f", {name} = {value}" for name, value in options.items())
        return f"read_{self.kind}({quote_text(self.address)}{arguments})"


_DETECTION_OPTIONS: Final[dict[tuple[str, TypeDetection], dict[str, str]]] = {
    ("csv", TypeDetection.WHOLE_FILE): {"sample_size": "-1"},
    ("csv", TypeDetection.ALL_TEXT): {"all_varchar": "true", "null_padding": "true", "strict_mode": "false"},
    ("json", TypeDetection.WHOLE_FILE): {"sample_size": "-1"},
    ("json", TypeDetection.ALL_TEXT): {"maximum_depth": "1"},
}


@contextmanager
def open_table(workspace: Workspace, data_file: DataFile, scratch: Path, max_bytes: int) -> Iterator[OpenTable]:
    """Open a file of the workspace as a table."""
    if "://" in data_file.path:
        raise Refuse(f"{data_file.path[:200]!r} is a URL: only files of the workspace are read. Download it first.")
    parts = workspace.file_parts(data_file.path)
    suffix = PurePosixPath(parts[-1]).suffix.lower()
    kind = KINDS.get(suffix)
    if kind is None:
        raise Retry(f"{display_path(parts)!r} is not a data file: give one that ends in {', '.join(KINDS)}.")
    if data_file.sheet is not None and kind != "workbook":
        raise Retry(f"{display_path(parts)!r} has no sheets: leave out sheet={data_file.sheet!r}.")
    with (
        workspace.open_file(parts) as file,
        tempfile.TemporaryFile(dir=scratch) as copy,
    ):
        if kind == "parquet":
            yield _build_table(display_path(parts), kind, file)
        elif kind == "workbook":
            options, details = _convert_sheet(file, copy, data_file.sheet, display_path(parts), data_file.header)
            yield _build_table(display_path(parts), "json", copy, options, details)
        else:
            encoding = _choose_encoding(file, parts, data_file)
            if kind == "csv":
                _require_short_lines(file, display_path(parts))
            if encoding not in _UNCHANGED_ENCODINGS:
                _convert_to_utf8(file, copy, encoding, display_path(parts), max_bytes)
            options = _csv_options(data_file, suffix) if kind == "csv" else {}
            source = file if encoding in _UNCHANGED_ENCODINGS else copy
            yield _build_table(display_path(parts), kind, source, options, {"encoding": encoding})


def _build_table(
    path: str, kind: str, file: Any, options: dict[str, str] | None = None, details: dict[str, Any] | None = None
) -> OpenTable:
    file.flush()
    file.seek(0)
    address, size = f"{_DESCRIPTORS}/{file.fileno()}", os.fstat(file.fileno()).st_size
    return OpenTable(path=path, kind=kind, address=address, size=size, options=options or {}, details=details or {})


def _choose_encoding(file: BinaryIO, parts: Parts, data_file: DataFile) -> str:
    if data_file.encoding is not None:
        return normalize_encoding(data_file.encoding)
    kind = read_content_kind(file, parts)
    if kind.encoding is None:
        raise Refuse(
            f"{display_path(parts)!r} is not readable as text. If it is text, give its encoding: "
            f"{{'path': {display_path(parts)!r}, 'encoding': 'utf-16-le'}}."
        )
    return kind.encoding


def _require_short_lines(file: BinaryIO, path: str) -> None:
    """Refuse a file with a very long line, which DuckDB would take a long time to detect."""
    file.seek(0)
    sample = file.read(2 * _MAX_LINE).replace(b"\r", b"\n")
    if any(len(line) > _MAX_LINE for line in sample.split(b"\n")):
        raise Refuse(f"{path!r} has a line of more than {_MAX_LINE:,} bytes: it is not a CSV file.")


def _convert_to_utf8(file: BinaryIO, copy: Any, encoding: str, path: str, max_bytes: int) -> None:
    """Write the text in UTF-8 into `copy`."""
    size = 0
    with wrap_as_text(file, encoding) as text:
        while piece := text.read(_CHUNK):
            size += copy.write(piece.encode("utf-8", "replace"))
            if size > max_bytes:
                raise Refuse(f"{path!r} is too large to be converted to UTF-8: more than {max_bytes:,} bytes.")


def _csv_options(data_file: DataFile, suffix: str) -> dict[str, str]:
    delimiter = data_file.delimiter or ("\t" if suffix in _TAB_SUFFIXES else None)
    if delimiter is not None and (len(delimiter.encode("utf-8", "replace")) > 4 or delimiter in "\r\n\0"):
        raise Retry(f"{delimiter[:20]!r} cannot be a delimiter: give one character, such as ';'.")
    options = {} if delimiter is None else {"delim": quote_text(delimiter)}
    return options if data_file.header is None else {**options, "header": str(data_file.header).lower()}


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# Workbooks: a sheet becomes a JSON file with known column types. Workbooks are packed: a small file can hold more than
# fits into memory, and a cell in the last corner of a sheet makes the sheet huge. Both are checked before reading.

_MAX_UNPACKED: Final = 300_000_000
"""Bytes of a whole workbook."""
_MAX_ARCHIVE_PARTS: Final = 10_000
_MAX_CELLS: Final = 10_000_000
_ARCHIVE_CHUNK: Final = 1 << 20
_CELL_REFERENCE: Final = lazy_pattern(rb"""\sr=["']([A-Z]{0,3})(\d{1,7})["']""")
_MAX_NAMES: Final = 20

_EMPTY_CELL: Final = ""
"""What the reader returns for one."""
_TYPES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "BOOLEAN"),
    (float, "DOUBLE"),
    (int, "DOUBLE"),
    (datetime.datetime, "TIMESTAMP"),
    (datetime.date, "DATE"),
    (datetime.time, "TIME"),
    (datetime.timedelta, "INTERVAL"),
)
"""The order matters: a bool is an int, and a datetime is a date."""


def _convert_sheet(
    file: BinaryIO, copy: Any, name: str | None, path: str, header: bool | None
) -> tuple[dict[str, str], dict[str, Any]]:
    """Write the sheet of this name, or the first one, into `copy` as lines of JSON.

    Return the options to read them, and details for the tool's output.
    """
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError:
        raise MissingExtra("python-calamine", "data") from None
    _require_safe_workbook(file, path)
    try:
        file.seek(0)
        workbook = CalamineWorkbook.from_filelike(file)
        sheet = _choose_sheet(workbook.sheet_names, name, path)
        rows = workbook.get_sheet_by_name(sheet).to_python()
    except (CalamineError, OSError, ValueError) as error:
        raise ExecutionFailed(f"{path!r} cannot be read as a workbook: {str(error)[:300]}") from None
    titles, rows = _split_header(rows, header)
    types = [_common_sql_type(row[index] for row in rows) for index in range(len(titles))]
    for row in rows:
        cells = dict(zip(titles, map(_to_json_cell, row, types), strict=True))
        copy.write(encode_json(cells) + b"\n")
    columns = ", ".join(f"{quote_text(title)}: {quote_text(kind)}" for title, kind in zip(titles, types, strict=True))
    details: dict[str, Any] = {"sheet": sheet}
    if len(workbook.sheet_names) > 1:
        details["sheets"] = workbook.sheet_names[:_MAX_NAMES]
    options = {"format": "'newline_delimited'", "maximum_object_size": "50000000", "columns": f"{{{columns}}}"}
    return options, details


def _require_safe_workbook(file: BinaryIO, path: str) -> None:
    file.seek(0)
    if not zipfile.is_zipfile(file):
        return  # .xls files are not packed
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
            unpacked = sum(part.file_size for part in parts)
            if unpacked > _MAX_UNPACKED or len(parts) > _MAX_ARCHIVE_PARTS:
                raise Refuse(f"{path!r} has {unpacked:,} bytes when unpacked; the limit is {_MAX_UNPACKED:,}.")
            for part in parts:
                with archive.open(part) as stream:
                    # Each part is read completely: the size in its header may be wrong.
                    _require_few_cells(stream, path, counts=part.filename.lower().endswith(".xml"))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ExecutionFailed(f"{path!r} cannot be read as a workbook: {str(error)[:300]}") from None


def _require_few_cells(part: Any, path: str, *, counts: bool) -> None:
    """Check the cell references: the reader creates all cells between the first and the last."""
    rows, columns, rest = 1, 1, b""
    while piece := part.read(_ARCHIVE_CHUNK):
        text = rest + piece
        for letters, number in _CELL_REFERENCE.findall(text) if counts else ():
            rows, columns = max(rows, int(number)), max(columns, _column_number(letters))
        rest = text[-32:]
    if rows * columns > _MAX_CELLS:
        raise Refuse(
            f"{path!r} has a sheet of {rows:,} rows and {columns:,} columns: the limit is {_MAX_CELLS:,} cells. "
            "Save it as CSV or Parquet."
        )


def _column_number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number


def _choose_sheet(names: Sequence[str], name: str | None, path: str) -> str:
    if not names:
        raise ExecutionFailed(f"{path!r} has no sheets.")
    if name is None or name in names:
        return name or names[0]
    listed = ", ".join(map(repr, names[:_MAX_NAMES]))
    raise Retry(f"{path!r} has no sheet {name!r}.{did_you_mean(name, names)} Its sheets are: {listed}.")


def _split_header(rows: list[list[Any]], header: bool | None) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the columns, and the rows below them."""
    if not rows:
        return ["column1"], []
    has_header = header if header is not None else _looks_like_header(rows)
    titles: list[str] = []
    for index, cell in enumerate(rows[0]):
        title = (_cell_text(cell).strip() if has_header else "") or f"column{index + 1}"
        unique, number = title, 1
        while unique.casefold() in {each.casefold() for each in titles}:  # DuckDB ignores case in names
            unique, number = f"{title}_{number}", number + 1
        titles.append(unique)
    return titles, rows[1:] if has_header else rows


def _looks_like_header(rows: list[list[Any]]) -> bool:
    """Return whether all cells are texts, or texts and years above other values."""
    filled = [index for index, cell in enumerate(rows[0]) if cell != _EMPTY_CELL]
    texts = [index for index in filled if isinstance(rows[0][index], str)]
    years = [index for index in filled if _is_year(rows[0][index])]
    if not texts or len(texts) + len(years) != len(filled):
        return False
    cells_below = ([row[index] for row in rows[1:] if row[index] != _EMPTY_CELL] for index in years)
    return not any(below and all(map(_is_year, below)) for below in cells_below)


def _is_year(cell: Any) -> bool:
    return isinstance(cell, float) and cell.is_integer() and 1900 <= cell <= 2100


def _common_sql_type(cells: Iterable[Any]) -> str:
    """Return the SQL type of all cells if they have the same one, else text."""
    types = set()
    for cell in cells:
        # Workbooks have no integer type.
        if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
            types.add("BIGINT")
        elif cell != _EMPTY_CELL:
            types.add(next((name for kind, name in _TYPES if isinstance(cell, kind)), "VARCHAR"))
    if types == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    if types == {"DATE", "TIMESTAMP"}:
        return "TIMESTAMP"
    return types.pop() if len(types) == 1 else "VARCHAR"


def _to_json_cell(cell: Any, kind: str) -> Any:
    if cell == _EMPTY_CELL:
        return None
    if kind == "BIGINT":
        return int(cell)
    return _cell_text(cell) if kind in ("VARCHAR", "INTERVAL") else cell


def _cell_text(cell: Any) -> str:
    """Return a cell as text. Whole numbers have no decimals: a year is 2024, not 2024.0."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
