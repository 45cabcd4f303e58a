"""Rows of a database as JSON of limited length."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import Any, Final

from ferrule.core.content import encode_json

MAX_CELL: Final = 5_000
"""Characters of one value."""
MAX_CHARACTERS: Final = 60_000
"""Characters of all values of an output."""
_MAX_DEPTH: Final = 20
_MAX_EXACT_DIGITS: Final = 15
"""Decimals with more digits become text: most programs read JSON numbers as floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    """Empty if the database does not report it."""


def rows_output(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], max_rows: int, *, advice: str
) -> dict[str, Any]:
    """A tool's output with up to `max_rows` rows; `advice` says how to get fewer or other rows."""
    cells: list[list[Any]] = []
    remaining, omission = MAX_CHARACTERS, ""
    for row in rows:
        if len(cells) == max_rows:
            omission = f"only the first {max_rows:,} rows are here, and there are more. {advice}"
            break
        values = [to_json_cell(value) for value in row]
        remaining -= sum(map(_cell_length, values))
        if remaining < 0 and cells:
            omission = f"only the first {len(cells):,} rows are here, because they are long. {advice}"
            break
        cells.append(values)
    output: dict[str, Any] = {
        "columns": [{"name": each.name, **({"type": each.type} if each.type else {})} for each in columns],
        "rows": cells,
        "row_count": len(cells),
    }
    return {**output, "left_out": omission} if omission else output


def to_json_cell(value: Any) -> Any:
    """A value as JSON; a long one becomes the beginning of its text."""
    plain = _to_json(value, _MAX_DEPTH)
    if isinstance(plain, str):
        return _shorten_text(plain)
    if isinstance(plain, (list, dict)):
        text = encode_json(plain).decode()
        return plain if len(text) <= MAX_CELL else _shorten_text(text)
    return plain


def _to_json(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return _decimal_to_json(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _encode_base64(bytes(value))
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {str(_to_json(key, 1)): _to_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item, depth - 1) for item in value]
    return str(value)


def _decimal_to_json(value: Decimal) -> int | float | str:
    """A JSON number if it represents the decimal exactly, else its digits as text."""
    if (
        not value.is_finite()
        or len(value.as_tuple().digits) > _MAX_EXACT_DIGITS
        or abs(value.adjusted()) > _MAX_EXACT_DIGITS
    ):
        return str(value)
    return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)


def _encode_base64(data: bytes) -> str:
    beginning = data[: MAX_CELL // 2]
    suffix = f"… ({len(data):,} bytes)" if len(data) > len(beginning) else ""
    return base64.b64encode(beginning).decode() + suffix


def _shorten_text(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}… ({len(text):,} characters)"


def _cell_length(cell: Any) -> int:
    if isinstance(cell, str):
        return len(cell) + 3
    return len(encode_json(cell)) + 1
