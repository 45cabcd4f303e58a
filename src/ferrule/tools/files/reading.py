"""A part of a text file, however long the file or its lines are."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final

from ferrule.errors import Retry

MOST_CHARACTERS: Final = 50_000
"""Of one answer."""
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Some lines of a text, and where it goes on."""

    text: str
    first_line: int
    last_line: int
    goes_on_at: tuple[int, int] | None
    """Line and column of what follows; None at the end."""


def read_passage(text: io.TextIOWrapper, first_line: int, column: int, lines: int) -> Passage:
    """So many lines from one of them on, or fewer if they are long."""
    for line in range(1, first_line):
        if not _skip_line(text):
            raise Retry(f"the file has {line - 1} lines: there is no line {first_line}.")
    _skip_columns(text, column - 1)
    pieces: list[str] = []
    line, left = first_line, MOST_CHARACTERS
    while left and line < first_line + lines:
        piece = text.readline(left)
        if not piece:
            return Passage(text="".join(pieces), first_line=first_line, last_line=_last(line, pieces), goes_on_at=None)
        pieces.append(piece)
        left -= len(piece)
        column = 1 if piece.endswith("\n") else column + len(piece)
        line += piece.endswith("\n")
    goes_on = (line, column) if text.read(1) else None
    return Passage(text="".join(pieces), first_line=first_line, last_line=_last(line, pieces), goes_on_at=goes_on)


def count_lines(text: io.TextIOWrapper) -> int:
    """A last line without an end counts too."""
    count, last = 0, "\n"
    while piece := text.read(_CHUNK):
        count, last = count + piece.count("\n"), piece[-1]
    return count + (last != "\n")


def _last(line: int, pieces: list[str]) -> int:
    """The line that was read last, when the next one to read is `line`."""
    return line - 1 if pieces and pieces[-1].endswith("\n") else line


def _skip_line(text: io.TextIOWrapper) -> bool:
    piece = text.readline(_CHUNK)
    found = bool(piece)
    while piece and not piece.endswith("\n"):
        piece = text.readline(_CHUNK)
    return found


def _skip_columns(text: io.TextIOWrapper, count: int) -> None:
    while count:
        piece = text.readline(min(count, _CHUNK))
        if not piece or piece.endswith("\n"):
            raise Retry("the line is shorter than that: there is no such column.")
        count -= len(piece)
