"""What DuckDB says, as our errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, TimedOut, Transient

_LONGEST: Final = 700
_MENDABLE: Final = (
    "ParserException",
    "SyntaxException",
    "BinderException",
    "CatalogException",
    "ConversionException",
    "OutOfRangeException",
    "TypeMismatchException",
    "InvalidTypeException",
    "InvalidInputException",
    "NotImplementedException",
    "SequenceException",
)
"""Who asks can ask otherwise."""
_OF_THE_FILE: Final = re.compile(r"CSV Error on Line|Error when sniffing file|JSON transform error")
_NO_TABLE: Final = re.compile(r"Table with name (.+?) does not exist")
_SETTINGS: Final = re.compile(r"\n*(Possible (solutions|fixes):|The search space used was:).*", re.DOTALL)
"""Advice for whoever can change settings."""
_LONGEST_LINE: Final = 200
_IN_QUOTES: Final = "A file stands in quotes: FROM 'data/sales.csv'."


class UnlikeItsBeginning(ExecutionFailed):
    """A file does not go on as its beginning looked."""


@contextmanager
def told_failures(files: Mapping[str, str] = MappingProxyType({}), tables: Collection[str] = ()) -> Iterator[None]:
    """Raise what DuckDB says as our errors; `files` are the paths of what it knows by other addresses."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise _failure(error, files, tables) from None
    except MemoryError:
        raise too_much() from None


def _failure(error: Exception, files: Mapping[str, str], tables: Collection[str]) -> CallError:
    name, text = type(error).__name__, str(error)
    swapped = [path for address, path in files.items() if address in text and name == "PermissionException"]
    for address, path in files.items():
        text = text.replace(address, path)
    if name == "InterruptException":
        return TimedOut("the query took too long, and was stopped. Ask for less: fewer rows, columns or joins.")
    if name == "OutOfMemoryException":
        return too_much()
    if swapped:
        return Transient(f"{swapped[0]!r} was put in another's place while it was read. Ask again.")
    if name == "PermissionException":
        return Refuse(f"that is not allowed: {_short(text)}. {_IN_QUOTES}")
    if _OF_THE_FILE.search(text):
        return UnlikeItsBeginning(_short(text))
    if missing := _NO_TABLE.search(text):
        there = f"The tables here are: {', '.join(map(repr, tables))}. " if tables else ""
        return Retry(f"there is no table {missing[1]!r}. {there}{_IN_QUOTES}")
    return Retry(_short(text)) if name in _MENDABLE else ExecutionFailed(_short(text))


def too_much() -> CallError:
    """What a call is told that ran into its bounds."""
    return Retry(
        "the query needs more memory or disk than it may use. Ask for less: fewer rows or columns, a WHERE, a GROUP BY."
    )


def _short(text: str) -> str:
    lines = _SETTINGS.sub("", text).strip().splitlines()
    text = "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in lines)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
