"""What a database is asked through, whichever it is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ferrule.errors import TimedOut
from ferrule.tools.data_analyzer.rows import Column

if TYPE_CHECKING:
    from sqlalchemy import Connection

AT_ONCE: Final = 200
"""Rows fetched in one go."""
TOO_LARGE: Final = "the answer takes more memory than it may use: ask for fewer or shorter values."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a statement."""

    columns: list[Column]
    """None where it gives no rows."""
    rows: Iterator[tuple[Any, ...]]
    changed: int | None = None
    """Rows that were changed, where the database says so."""


class Session(Protocol):
    """An open database; what goes wrong in it is raised as one of our errors."""

    def ask(self, sql: str, parameters: Mapping[str, Any], /) -> Answer: ...

    def inspected(self) -> AbstractContextManager[Connection]:
        """The same for SQLAlchemy, which looks at its tables."""


class Clock:
    """How long a statement may still take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()

    def is_over(self) -> bool:
        return self.left() <= 0

    def time_out(self) -> TimedOut:
        return TimedOut(
            f"the statement took longer than {self.seconds:g} seconds, and was stopped in the database. Ask for less: "
            "a WHERE, fewer joins, or an aggregate over fewer rows."
        )
