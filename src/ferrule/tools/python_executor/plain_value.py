"""From what a script hands out to plain JSON, without letting it make us work.

A few lists that hold each other many times over are small in the sandbox and endless when written down. So what is
handed out is counted while it is taken over, and refused when it is too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

from ferrule.errors import Retry

MOST: Final = 1_000_000
"""Bytes, about, that a value may have as JSON."""
DEEPEST: Final = 100
_LONGEST_INTEGER: Final = 13_000
"""Bits; Python writes no longer ones."""
_LARGEST_DECIMAL: Final = 4_000
"""Bytes; to write a longer one takes seconds, also if only its beginning is wanted."""
_CONTAINER: Final = 10
"""What a list or a dictionary counts, so that not even empty ones are many."""
_SHOWN: Final = 1_000
_DATES: Final = (date, time)
_SHORT: Final = (Decimal, timedelta, complex, PurePath, BaseException, type)


def plain_value(value: Any, *, what: str) -> Any:
    """The value as plain JSON; `Retry` where it is too large. `what` it is stands in the message."""
    return _Taking(what).take(value, DEEPEST)


class _Taking:
    def __init__(self, what: str) -> None:
        self._what, self._left = what, MOST

    def take(self, value: Any, depth: int) -> Any:
        if depth == 0:
            raise Retry(f"{self._what} is nested more than {DEEPEST} deep: make it flatter.")
        match value:
            case None | bool():
                self._pay(5)
                return value
            case int():
                return self._integer(value)
            case float():
                self._pay(20)
                return value if math.isfinite(value) else repr(value)
            case str():
                self._pay(len(value))
                return value
            case dict():
                return self._mapping(value, depth)
            case list() | tuple():
                return self._items(value, depth)
            case set() | frozenset():
                self._pay(len(value))
                return self._items(sorted(value, key=_in_order), depth)
            case _:
                return self._other(value, depth)

    def _pay(self, bytes_: int) -> None:
        self._left -= bytes_ + 2
        if self._left < 0:
            raise Retry(f"{self._what} is larger than {MOST:,} bytes: use a part or a summary of it.")

    def _integer(self, value: int) -> int | str:
        bits = value.bit_length()
        if bits > _LONGEST_INTEGER:
            self._pay(40)
            return f"an integer of {bits:,} bits"
        self._pay(bits // 3)
        return int(value)

    def _mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        self._pay(_CONTAINER)
        taken = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else str(self.take(key, depth - 1))
            self._pay(len(name))
            taken[name] = self.take(item, depth - 1)
        return taken

    def _items(self, value: Iterable[Any], depth: int) -> list[Any]:
        self._pay(_CONTAINER)
        return [self.take(item, depth - 1) for item in value]

    def _other(self, value: Any, depth: int) -> Any:
        """Dates, decimals, bytes, paths, instances of a script's own classes."""
        attributes = getattr(value, "attributes", None)  # of the stand-in for an instance
        if isinstance(attributes, dict):
            return self._mapping(attributes, depth)
        if isinstance(value, bytes):
            self._pay(4 * len(value))
            return repr(value)
        if isinstance(value, _DATES):
            text = value.isoformat()
        elif isinstance(value, Decimal) and value.__sizeof__() > _LARGEST_DECIMAL:
            text = f"a decimal of {value.__sizeof__():,} bytes"
        elif isinstance(value, _SHORT):
            text = str(value)[:_SHOWN]
        else:  # not its own words, which may have no end
            text = f"<{type(value).__name__} {getattr(value, 'name', '')}".rstrip() + ">"
        self._pay(len(text))
        return text


def _in_order(item: Any) -> tuple[str, Any]:
    """Numbers by size, texts by letter, all else by kind."""
    if isinstance(item, int) or (isinstance(item, float) and math.isfinite(item)):
        return "", item
    return type(item).__name__, item if isinstance(item, str) else ""
