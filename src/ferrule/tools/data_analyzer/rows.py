"""Rows of a database as JSON that is not too long."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import Any, Final

from ferrule.content import encode_json

LONGEST_CELL: Final = 5_000
"""Characters of one value."""
MOST_CHARACTERS: Final = 60_000
"""Of all values of an answer."""
_DEEPEST: Final = 20
_EXACT_DIGITS: Final = 15
"""Of a decimal that can be a JSON number, which most programs read as a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    """Empty where the database does not say."""


def told_rows(columns: Sequence[Column], rows: Iterable[Sequence[Any]], most: int, *, less: str) -> dict[str, Any]:
    """An answer with so many rows at most; `less` says how to ask for fewer or others."""
    told: list[list[Any]] = []
    left, why = MOST_CHARACTERS, ""
    for row in rows:
        if len(told) == most:
            why = f"only the first {most:,} rows are here, and there are more. {less}"
            break
        cells = [as_cell(value) for value in row]
        left -= sum(map(_length, cells))
        if left < 0 and told:
            why = f"only the first {len(told):,} rows are here, as they are long. {less}"
            break
        told.append(cells)
    said: dict[str, Any] = {
        "columns": [{"name": each.name, **({"type": each.type} if each.type else {})} for each in columns],
        "rows": told,
        "row_count": len(told),
    }
    return {**said, "left_out": why} if why else said


def as_cell(value: Any) -> Any:
    """A value as JSON; a long one as the beginning of its text."""
    plain = _plain(value, _DEEPEST)
    if isinstance(plain, str):
        return _cut(plain)
    if isinstance(plain, (list, dict)):
        text = encode_json(plain).decode()
        return plain if len(text) <= LONGEST_CELL else _cut(text)
    return plain


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _base64(bytes(value))
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {str(_plain(key, 1)): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth - 1) for item in value]
    return str(value)


def _number(value: Decimal) -> int | float | str:
    """A number if it is the same number then; else its digits as text."""
    if not value.is_finite() or len(value.as_tuple().digits) > _EXACT_DIGITS or abs(value.adjusted()) > _EXACT_DIGITS:
        return str(value)
    return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)


def _base64(data: bytes) -> str:
    shown = data[: LONGEST_CELL // 2]
    more = f"… ({len(data):,} bytes)" if len(data) > len(shown) else ""
    return base64.b64encode(shown).decode() + more


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}… ({len(text):,} characters)"


def _length(cell: Any) -> int:
    if isinstance(cell, str):
        return len(cell) + 3
    return len(encode_json(cell)) + 1
