"""What the types of columns are good for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ferrule.errors import Retry
from ferrule.names import did_you_mean
from ferrule.tools.data_analyzer.rows import Column

_NUMBERS: Final = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|BIGNUM|DECIMAL\(\d+,\s*\d+\)")
_MOMENTS: Final = re.compile(r"DATE|TIME\b.*|TIMESTAMP.*")
_NAMED: Final = 30


def is_number(kind: str) -> bool:
    return bool(_NUMBERS.fullmatch(kind))


def is_moment(kind: str) -> bool:
    return bool(_MOMENTS.fullmatch(kind)) and not kind.endswith("]")


def is_plain(kind: str) -> bool:
    """Whether its values can be counted and compared with sense: no lists, structures or JSON."""
    return is_number(kind) or is_moment(kind) or kind in ("VARCHAR", "BOOLEAN", "UUID") or kind.startswith("ENUM")


def require_columns(wanted: Iterable[str], columns: Sequence[Column], where: str) -> list[Column]:
    """The columns of these names, in whichever case they were written."""
    known = {column.name.casefold(): column for column in columns}
    found = []
    for name in wanted:
        if name.casefold() not in known:
            names = [column.name for column in columns]
            listed = ", ".join(map(repr, names[:_NAMED])) + (" …" if len(names) > _NAMED else "")
            raise Retry(f"{where} has no column {name!r}.{did_you_mean(name, names)} Its columns are: {listed}.")
        found.append(known[name.casefold()])
    return found
