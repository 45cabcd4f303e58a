"""Numbers that an error calls too large or too small, though the schema says nothing about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ferrule.memory.adjustments.call import Adjustment, FailedCall
from ferrule.memory.adjustments.numbers import Number, between, is_number

_NUMBER: Final = r"(-?\d{1,15}(?:\.\d{1,15})?)(?![\d.,]*\d)"
_BETWEEN = re.compile(
    rf"(?:between|from|range|介于|范围)[^\d\n-]{{0,20}}{_NUMBER}(?: ?(?:and|to|,|-|–|\.\.|到|至|和) ?){_NUMBER}", re.I
)
_AT_MOST = re.compile(
    rf"(?:at most|no more than|not exceed|less than or equal to|<=|≤|max(?:imum)?(?: \w+)?(?: is| of|:)?"
    rf"|最大(?:值)?(?:为|是)?|最多|不能超过|不超过) ?{_NUMBER}",
    re.I,
)
_AT_LEAST = re.compile(
    rf"(?:at least|no less than|greater than or equal to|>=|≥|min(?:imum)?(?: \w+)?(?: is| of|:)?"
    rf"|最小(?:值)?(?:为|是)?|至少|不能小于|不小于) ?{_NUMBER}",
    re.I,
)


def numbers_within_range(call: FailedCall) -> Iterator[Adjustment]:
    low, high = _range_in(call.error)
    beyond = [(name, now) for name, now in call.numbers() if is_number(now) and between(now, low, high) != now]
    named = [(name, now) for name, now in beyond if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", call.error)]
    for name, now in named or (beyond if len(beyond) == 1 else []):
        bound = between(now, low, high)
        nearest = int(bound) if isinstance(now, int) and bound == int(bound) else bound
        side = "at least" if nearest > now else "at most"
        yield call.with_value(name, nearest, f"The error says {side} {nearest} where {name!r} was {now}.", 0.7)


def _range_in(error: str) -> tuple[Number | None, Number | None]:
    if found := _BETWEEN.search(error):
        low, high = float(found[1]), float(found[2])
        return (low, high) if low <= high else (None, None)
    most, least = _AT_MOST.search(error), _AT_LEAST.search(error)
    return (float(least[1]) if least else None), (float(most[1]) if most else None)
