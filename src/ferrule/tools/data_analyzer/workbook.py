"""A sheet of a workbook as a CSV file whose types are known.

Workbooks are packed: a small one can hold more than there is memory for, and a cell in the last corner of a sheet
makes the whole sheet. Both are looked at before anything is read.
"""

from __future__ import annotations

import datetime
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from ferrule.errors import ExecutionFailed, MissingExtra, Refuse, Retry
from ferrule.names import did_you_mean
from ferrule.tools.data_analyzer.sql_text import quoted_text

_MOST_UNPACKED: Final = 300_000_000
"""Bytes of XML in one workbook."""
_MOST_PARTS: Final = 10_000
_MOST_CELLS: Final = 10_000_000
_CHUNK: Final = 1 << 20
_PLACE: Final = re.compile(rb"""\sr=["']([A-Z]{0,3})(\d{1,7})["']""")
_MOST_NAMED: Final = 20

_EMPTY: Final = ""
"""How an empty cell is read."""
_TYPES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "BOOLEAN"),
    (float, "DOUBLE"),
    (int, "DOUBLE"),
    (datetime.datetime, "TIMESTAMP"),
    (datetime.date, "DATE"),
    (datetime.time, "TIME"),
    (datetime.timedelta, "INTERVAL"),
)
"""In this order: a bool is an int too, and a datetime a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetAsCsv:
    options: dict[str, str]
    """With which the CSV file is read."""
    facts: dict[str, Any]


def sheet_as_csv(file: BinaryIO, copy: Any, name: str | None, path: str, *, header: bool | None) -> SheetAsCsv:
    """Write a sheet into `copy`: the one of this name, or else the first."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError:
        raise MissingExtra("python-calamine", "data") from None
    _require_harmless(file, path)
    try:
        file.seek(0)
        workbook = CalamineWorkbook.from_filelike(file)
        chosen = _chosen(workbook.sheet_names, name, path)
        rows = workbook.get_sheet_by_name(chosen).to_python()
    except (CalamineError, OSError, ValueError) as error:
        raise ExecutionFailed(f"{path!r} cannot be read as a workbook: {str(error)[:300]}") from None
    titles, rows = _without_header(rows, header)
    types = [_type_of(row[index] for row in rows) for index in range(len(titles))]
    for row in rows:
        line = ",".join(map(_as_csv, row, types))
        copy.write(f"{line}\n".encode("utf-8", "replace"))
    columns = ", ".join(f"{quoted_text(title)}: {quoted_text(kind)}" for title, kind in zip(titles, types, strict=True))
    facts: dict[str, Any] = {"sheet": chosen}
    if len(workbook.sheet_names) > 1:
        facts["sheets"] = workbook.sheet_names[:_MOST_NAMED]
    return SheetAsCsv(options={**_WRITTEN_AS, "columns": f"{{{columns}}}"}, facts=facts)


_WRITTEN_AS: Final = {
    "auto_detect": "false",
    "header": "false",
    "delim": "','",
    "quote": "'\"'",
    "escape": "'\"'",
    "nullstr": "''",
    "allow_quoted_nulls": "false",
    "dateformat": "'%Y-%m-%d'",
    "timestampformat": "'%Y-%m-%dT%H:%M:%S.%f'",
    "max_line_size": "50000000",
}


def _require_harmless(file: BinaryIO, path: str) -> None:
    file.seek(0)
    if not zipfile.is_zipfile(file):
        return  # an .xls is not packed
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
            unpacked = sum(part.file_size for part in parts)
            if unpacked > _MOST_UNPACKED or len(parts) > _MOST_PARTS:
                raise Refuse(f"{path!r} holds {unpacked:,} bytes when it is unpacked: more than {_MOST_UNPACKED:,}.")
            for part in parts:
                with archive.open(part) as opened:
                    # All of them are read: what a part says of its own size may be a lie.
                    _require_few_cells(opened, path, counts=part.filename.lower().endswith(".xml"))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ExecutionFailed(f"{path!r} cannot be read as a workbook: {str(error)[:300]}") from None


def _require_few_cells(part: Any, path: str, *, counts: bool) -> None:
    """By the places that cells name: all between the first and the last are made."""
    rows, columns, rest = 1, 1, b""
    while piece := part.read(_CHUNK):
        text = rest + piece
        for letters, number in _PLACE.findall(text) if counts else ():
            rows, columns = max(rows, int(number)), max(columns, _column_number(letters))
        rest = text[-32:]
    if rows * columns > _MOST_CELLS:
        raise Refuse(
            f"{path!r} has a sheet of {rows:,} rows and {columns:,} columns: more than {_MOST_CELLS:,} cells are not "
            "read. Save it as CSV or Parquet."
        )


def _column_number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number


def _chosen(names: Sequence[str], wanted: str | None, path: str) -> str:
    if not names:
        raise ExecutionFailed(f"{path!r} has no sheets.")
    if wanted is None or wanted in names:
        return wanted or names[0]
    listed = ", ".join(map(repr, names[:_MOST_NAMED]))
    raise Retry(f"{path!r} has no sheet {wanted!r}.{did_you_mean(wanted, names)} Its sheets are: {listed}.")


def _without_header(rows: list[list[Any]], header: bool | None) -> tuple[list[str], list[list[Any]]]:
    """The names of the columns, and the rows below them."""
    if not rows:
        return ["column1"], []
    has_header = header if header is not None else _looks_like_header(rows)
    said = [_plain(cell).strip() for cell in rows[0]] if has_header else []
    titles: list[str] = []
    for index in range(len(rows[0])):
        titles.append(_fresh(said[index] if said and said[index] else f"column{index + 1}", titles))
    return titles, rows[1:] if has_header else rows


def _looks_like_header(rows: list[list[Any]]) -> bool:
    """All are texts, or some are and the others are years over something else."""
    filled = [index for index, cell in enumerate(rows[0]) if cell != _EMPTY]
    texts = [index for index in filled if isinstance(rows[0][index], str)]
    years = [index for index in filled if _is_year(rows[0][index])]
    is_titled = bool(texts) and len(texts) + len(years) == len(filled)
    return is_titled and not any(_stands_over_years(rows, index) for index in years)


def _stands_over_years(rows: list[list[Any]], index: int) -> bool:
    below = [row[index] for row in rows[1:] if row[index] != _EMPTY]
    return bool(below) and all(map(_is_year, below))


def _is_year(cell: Any) -> bool:
    return isinstance(cell, float) and cell.is_integer() and 1900 <= cell <= 2100


def _fresh(title: str, taken: list[str]) -> str:
    """DuckDB knows no capital letters in names."""
    known = {each.casefold() for each in taken}
    fresh, number = title, 1
    while fresh.casefold() in known:
        fresh, number = f"{title}_{number}", number + 1
    return fresh


def _type_of(cells: Iterable[Any]) -> str:
    """That of all cells, or text."""
    found = {_type_name(cell) for cell in cells if cell != _EMPTY}
    if found == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    if found == {"DATE", "TIMESTAMP"}:
        return "TIMESTAMP"
    return found.pop() if len(found) == 1 else "VARCHAR"


def _type_name(cell: Any) -> str:
    # A workbook has no integers: it has numbers, and some of them are whole.
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return "BIGINT"
    return next((name for kind, name in _TYPES if isinstance(cell, kind)), "VARCHAR")


def _as_csv(cell: Any, kind: str) -> str:
    if cell == _EMPTY:
        return ""
    if kind == "BIGINT":
        return str(int(cell))
    if kind == "TIMESTAMP":
        return _moment(cell)
    text = _plain(cell) if kind == "VARCHAR" else str(cell)
    return '"' + text.replace('"', '""') + '"'


def _plain(cell: Any) -> str:
    """A year is 2024 and not 2024.0."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _moment(cell: datetime.date) -> str:
    if not isinstance(cell, datetime.datetime):
        cell = datetime.datetime.combine(cell, datetime.time())
    return cell.strftime("%Y-%m-%dT%H:%M:%S.%f")
