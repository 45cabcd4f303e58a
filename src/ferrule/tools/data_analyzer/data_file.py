"""A file of the workspace as a table that DuckDB can read, by its descriptor and never by its path.

The file is opened as all files of the workspace are, and what DuckDB gets to see is that open file. Texts in another
encoding than UTF-8, and sheets of workbooks, are written to a nameless file first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from ferrule.errors import Refuse, Retry
from ferrule.names import did_you_mean
from ferrule.tools.data_analyzer.sql_text import quoted_text
from ferrule.tools.data_analyzer.workbook import sheet_as_csv
from ferrule.tools.files.contents import as_text, kind_of_content
from ferrule.tools.files.encodings import known_encoding
from ferrule.tools.files.workspace import Parts, Workspace, shown

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
_TABBED: Final = frozenset({".tsv", ".tab"})
_AS_IT_IS: Final = frozenset({"utf-8", "ascii"})
_CHUNK: Final = 1 << 20
_LONGEST_LINE: Final = 2_000_000
"""Bytes, as in DuckDB."""
# What a program sees as its own open files, on Linux and elsewhere.
_DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class Care(IntEnum):
    """How carefully the types of columns are found out: by the beginning of a file, by all of it, or not at all."""

    BEGINNING = 0
    WHOLE = 1
    NONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file, and how to read it: which sheet of a workbook; encoding, delimiter and header of a CSV file."""

    path: str
    sheet: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    """Whether the first line has the names of the columns; None: that is found out."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> DataFile:
        """As a caller says it."""
        for name, value in said.items():
            kind = _SAID_AS.get(name)
            if kind is None:
                raise Retry(f"a file has no {name!r}.{did_you_mean(name, _SAID_AS)} Say {', '.join(_SAID_AS)}.")
            if value is not None and not isinstance(value, kind):
                raise Retry(f"{name!r} of a file must be a {kind.__name__}, not {value!r}.")
        if not said.get("path"):
            raise Retry("a file needs a path: {'path': 'data/sales.csv'}.")
        return cls(**said)


_SAID_AS: Final = {"path": str, "sheet": str, "encoding": str, "delimiter": str, "header": bool}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """An open file with a table in it."""

    path: str
    """As callers write it."""
    kind: str
    address: str
    """Where DuckDB finds it."""
    size: int
    """Bytes that DuckDB reads of it at most."""
    options: dict[str, str] = field(default_factory=dict)
    """Of the function that reads it, as SQL."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What is worth telling about it."""

    def reading(self, care: Care) -> str:
        """The SQL that reads it."""
        options = {**self.options, **_CAREFULLY.get((self.kind, care), {})}
        said = "".join(f", {name} = {value}" for name, value in options.items())
        return f"read_{self.kind}({quoted_text(self.address)}{said})"


_CAREFULLY: Final[dict[tuple[str, Care], dict[str, str]]] = {
    ("csv", Care.WHOLE): {"sample_size": "-1"},
    ("csv", Care.NONE): {"all_varchar": "true", "null_padding": "true", "strict_mode": "false"},
    ("json", Care.WHOLE): {"sample_size": "-1"},
    ("json", Care.NONE): {"maximum_depth": "1"},
}


@contextmanager
def opened_table(workspace: Workspace, wanted: DataFile, scratch: Path, most_bytes: int) -> Iterator[OpenTable]:
    """A file of the workspace, open for as long as its table is needed."""
    if "://" in wanted.path:
        raise Refuse(f"{wanted.path[:200]!r} is an address: only files of the workspace are read. Fetch it first.")
    parts = workspace.file_parts(wanted.path)
    suffix = PurePosixPath(parts[-1]).suffix.lower()
    kind = KINDS.get(suffix)
    if kind is None:
        raise Retry(f"{shown(parts)!r} is no table: give a file that ends in {', '.join(KINDS)}.")
    if wanted.sheet is not None and kind != "workbook":
        raise Retry(f"{shown(parts)!r} has no sheets: leave out sheet={wanted.sheet!r}.")
    with (
        workspace.open_file(parts) as opened,
        open(opened, "rb", closefd=False) as file,
        tempfile.TemporaryFile(dir=scratch) as copy,
    ):
        if kind == "parquet":
            yield _table(shown(parts), kind, file)
        elif kind == "workbook":
            sheet = sheet_as_csv(file, copy, wanted.sheet, shown(parts), header=wanted.header)
            yield _table(shown(parts), "csv", copy, sheet.options, sheet.facts)
        else:
            encoding = _encoding(file, parts, wanted)
            if kind == "csv":
                _require_lines(file, shown(parts))
            if encoding not in _AS_IT_IS:
                _translate(file, copy, encoding, shown(parts), most_bytes)
            options = _csv_options(wanted, suffix) if kind == "csv" else {}
            yield _table(shown(parts), kind, file if encoding in _AS_IT_IS else copy, options, {"encoding": encoding})


def _table(
    path: str, kind: str, file: Any, options: dict[str, str] | None = None, facts: dict[str, Any] | None = None
) -> OpenTable:
    file.flush()
    file.seek(0)
    address, size = f"{_DESCRIPTORS}/{file.fileno()}", os.fstat(file.fileno()).st_size
    return OpenTable(path=path, kind=kind, address=address, size=size, options=options or {}, facts=facts or {})


def _encoding(file: BinaryIO, parts: Parts, wanted: DataFile) -> str:
    if wanted.encoding is not None:
        return known_encoding(wanted.encoding)
    kind = kind_of_content(file, parts)
    if kind.encoding is None:
        raise Refuse(
            f"{shown(parts)!r} holds no text that can be read as a table. If it does, say in which encoding: "
            f"{{'path': {shown(parts)!r}, 'encoding': 'utf-16-le'}}."
        )
    return kind.encoding


def _require_lines(file: BinaryIO, path: str) -> None:
    """What is no line to DuckDB takes it very long to find out about."""
    file.seek(0)
    sample = file.read(2 * _LONGEST_LINE).replace(b"\r", b"\n")
    if any(len(line) > _LONGEST_LINE for line in sample.split(b"\n")):
        raise Refuse(f"{path!r} has a line of more than {_LONGEST_LINE:,} bytes: it is no table of lines.")


def _translate(file: BinaryIO, copy: Any, encoding: str, path: str, most_bytes: int) -> None:
    """The same text in UTF-8."""
    written = 0
    with as_text(file, encoding) as text:
        while piece := text.read(_CHUNK):
            written += copy.write(piece.encode("utf-8", "replace"))
            if written > most_bytes:
                raise Refuse(f"{path!r} is too large to be put into UTF-8 first: more than {most_bytes:,} bytes.")


def _csv_options(wanted: DataFile, suffix: str) -> dict[str, str]:
    delimiter = wanted.delimiter or ("\t" if suffix in _TABBED else None)
    if delimiter is not None and (len(delimiter.encode("utf-8", "replace")) > 4 or delimiter in "\r\n\0"):
        raise Retry(f"{delimiter[:20]!r} cannot be a delimiter: give one character, such as ';'.")
    options = {} if delimiter is None else {"delim": quoted_text(delimiter)}
    return options if wanted.header is None else {**options, "header": str(wanted.header).lower()}
