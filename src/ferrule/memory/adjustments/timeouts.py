"""More time for a call that ran out of it: twice as much, up to a minute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ferrule.memory.adjustments.call import Adjustment, FailedCall
from ferrule.memory.adjustments.numbers import Number, as_allowed, highest, is_number
from ferrule.memory.adjustments.symptoms import says_time_out
from ferrule.spec import JsonSchema

LONGEST: Final = 60.0
"""Seconds."""

_ABOUT_TIME = re.compile(
    r"time[_-]?out|(?:\A|[_-])(?:max[_-]?)?wait(?:ing)?(?:[_-]|\Z)|wait(?:For|Time|Ms)|deadline", re.I
)
_UNITS: Final = (
    (
        "milliseconds",
        0.001,
        re.compile(r"(?:[_-]|(?<=[a-z])(?=M))ms\Z|milli", re.I),
        re.compile(r"milli|\bms\b|毫秒", re.I),
    ),
    ("minutes", 60.0, re.compile(r"[_-]?min(?:ute)?s?\Z", re.I), re.compile(r"\bminutes?\b|\bmins?\b|分钟", re.I)),
    (
        "seconds",
        1.0,
        re.compile(r"[_-]s(?:ecs?|econds?)?\Z|seconds?\Z", re.I),
        re.compile(r"\bseconds?\b|\bsecs?\b|秒", re.I),
    ),
)
_SURELY_MILLISECONDS: Final = 1000


def longer_timeouts(call: FailedCall) -> Iterator[Adjustment]:
    if not says_time_out(call.error):
        return
    for name in dict.fromkeys([*call.parameters, *call.properties]):
        schema = call.schema_of(name)
        now = call.parameters.get(name, schema.get("default"))
        if not _ABOUT_TIME.search(name) or not is_number(now) or now <= 0:
            continue
        unit, seconds = _unit_of(name, schema, now)
        longer = _twice(now, LONGEST / seconds, schema)
        if longer > now:
            more = "twice as long" if longer == 2 * now else "as long as is allowed"
            reason = f"The call ran out of time: {name!r} is {more}, {longer} {unit} instead of {now}."
            yield call.with_value(name, longer, reason, 0.6 if name in call.parameters else 0.55)


def _twice(now: Number, longest: float, schema: JsonSchema) -> Number:
    most = [2 * now, int(longest) if isinstance(now, int) else longest]
    allowed = highest(schema)
    return as_allowed(min([*most, allowed] if allowed is not None else most), schema)


def _unit_of(name: str, schema: JsonSchema, now: Number) -> tuple[str, float]:
    """The unit a parameter counts in, and its seconds: its name says it, its description, or its size."""
    description = f"{schema.get('description', '')} {schema.get('title', '')}"
    for text, place in ((name, 2), (description, 3)):
        for unit in _UNITS:
            pattern: Any = unit[place]
            if pattern.search(text):
                return unit[0], unit[1]
    sizes = (schema.get("maximum"), schema.get("default"), now)
    large = any(is_number(size) and size >= _SURELY_MILLISECONDS for size in sizes)
    return ("milliseconds", 0.001) if large else ("seconds", 1.0)
