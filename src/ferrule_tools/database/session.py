"""What all databases have in common: a session, its timer, and parameters in SQL."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry, TimedOut
from ferrule_tools.data.rows import Column

if TYPE_CHECKING:
    from sqlalchemy import Connection

FETCH_ROWS: Final = 200
"""Rows per fetch."""
TOO_LARGE: Final = "the result needs more memory than a query may use: select fewer or shorter values."


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementResult:
    """The result of a statement."""

    columns: list[Column]
    """Empty if it returns no rows."""
    rows: Iterator[tuple[Any, ...]]
    changed: int | None = None
    """Number of rows changed, where the database reports it."""


class DatabaseSession(Protocol):
    """An open database. It raises all failures as our errors."""

    def run_statement(self, sql: str, parameters: Mapping[str, Any], /) -> StatementResult: ...

    def inspect_connection(self) -> AbstractContextManager[Connection]:
        """A SQLAlchemy connection, to inspect the tables."""


class StatementTimer:
    """How long a statement may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        return self._end - time.monotonic()

    def has_expired(self) -> bool:
        return self.remaining() <= 0

    def timeout_error(self) -> TimedOut:
        return TimedOut(
            f"the statement took longer than {self.seconds:g} seconds and was stopped in the database. Ask for less: "
            "a WHERE, fewer joins, or an aggregate over fewer rows."
        )


# Parameters: `:name` in SQL stands for a value that is sent beside it, except in string literals, quoted names and
# comments. The difference is a matter of security with drivers that write values into the SQL themselves, as those of
# MySQL do: a value put inside quotes could end them.

_TOKENS: Final = lazy_pattern(
    r"""
      (?P<quoted>
          [eE]'(?:[^'\\]|''|\\.)*'?        # with escapes; may continue on the next line
          (?:[ \t\f\v]*+[\n\r]\s*+(?:--[^\n\r]*+\s*+)*'(?:[^'\\]|''|\\.)*'?)*
        | '(?:[^']|'')*'?
        | "(?:[^"]|"")*"?
        | `(?:[^`]|``)*`?
        | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)
        | --[^\n\r]*
        | /\*.*?(?:\*/|\Z)
      )
    | (?P<cast>::)
    | (?<![\w:\[]):(?P<name>[A-Za-z_]\w*)
    | (?P<code>\w[\w$]*|.)
    """,
    re.VERBOSE | re.DOTALL,
)

_QUERY_KEYWORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})


def tokenize_sql(sql: str) -> Iterator[re.Match[str]]:
    """The tokens of SQL; string literals, quoted names and comments are `quoted`."""
    return _TOKENS.finditer(sql)


def to_psycopg_placeholders(sql: str) -> str:
    """`:name` as `%(name)s`, with percent signs doubled."""
    return "".join(
        f"%({token['name']})s" if token["name"] else token[0].replace("%", "%%") for token in tokenize_sql(sql)
    )


def escape_for_sqlalchemy(sql: str) -> str:
    """For SQLAlchemy's `text`, which looks into literals and comments too: colons there are escaped."""
    return "".join(token[0] if token["name"] else token[0].replace(":", "\\:") for token in tokenize_sql(sql))


def bind_values(sql: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the parameters in the SQL; raises Retry if one is missing."""
    names = {token["name"]: None for token in tokenize_sql(sql) if token["name"]}
    missing = [f":{name}" for name in names if name not in parameters]
    if missing:
        raise Retry(f"give a value in parameters for {', '.join(missing)}.")
    return {name: parameters[name] for name in names}


def is_query(sql: str) -> bool:
    """Whether SQL begins like a query."""
    parsed = list(tokenize_sql(sql))
    if any(token[0].startswith(("/*!", "/*M!")) for token in parsed):
        return False  # MySQL runs the content of such comments
    words = (token[0] for token in parsed if not token["quoted"] and not token[0].isspace() and token[0] != "(")
    return next(words, "").upper() in _QUERY_KEYWORDS
