"""`:name` in SQL, which stands for a value that is sent beside it.

In texts, quoted names and comments it stands for nothing. That matters where a driver itself writes values into SQL,
as those of MySQL do: a value in quotes would end up outside of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ferrule.errors import Retry

_PIECES: Final = re.compile(
    r"""
      (?P<apart>
          [eE]'(?:[^'\\]|''|\\.)*'?        # with escapes, which may go on in the next line
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

_QUESTIONS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})


def pieces(sql: str) -> Iterator[re.Match[str]]:
    """The words and signs of SQL; texts, quoted names and comments are `apart`."""
    return _PIECES.finditer(sql)


def with_percent_signs(sql: str) -> str:
    """`:name` as `%(name)s`, and what is a percent sign already as two of them."""
    return "".join(f"%({piece['name']})s" if piece["name"] else piece[0].replace("%", "%%") for piece in pieces(sql))


def for_sqlalchemy(sql: str) -> str:
    """The same for SQLAlchemy's `text`, which would look into texts and comments too: a colon there is marked."""
    return "".join(piece[0] if piece["name"] else piece[0].replace(":", "\\:") for piece in pieces(sql))


def values_for(sql: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The values that SQL asks for, all of them and no others."""
    asked = {piece["name"]: None for piece in pieces(sql) if piece["name"]}
    missing = [f":{name}" for name in asked if name not in parameters]
    if missing:
        raise Retry(f"give a value in parameters for {', '.join(missing)}.")
    return {name: parameters[name] for name in asked}


def is_question(sql: str) -> bool:
    """Whether SQL begins as a query does."""
    found = list(pieces(sql))
    if any(piece[0].startswith(("/*!", "/*M!")) for piece in found):
        return False  # no comment to MySQL, which runs what stands in it
    words = (piece[0] for piece in found if not piece["apart"] and not piece[0].isspace() and piece[0] != "(")
    return next(words, "").upper() in _QUESTIONS
