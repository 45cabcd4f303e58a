"""Values that an error itself names: `must be one of …`, `Did you mean …?`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ferrule.memory.adjustments.call import Adjustment, FailedCall, shown
from ferrule.names import near_names

_MEANT = re.compile(
    r"(?:did you mean|do you mean|maybe you meant|perhaps you meant|是不是要找|是否想用|你是指)[:：]?"
    r" ?([^?？\n]{1,300})",
    re.I,
)
_ONE_OF = re.compile(
    r"(?:one of|either|(?:valid|allowed|available|possible|supported|known|permitted) [\w ]{1,30}?(?:are|is|:|include)"
    r"|expected|choose from|可选值|有效值|支持的\w{0,8}|可用的\w{0,8})(?:[:：]| are| is|为|是)?"
    r" ?[\[({]?([^\])}\n。]{1,1000})",
    re.I,
)
_QUOTED = re.compile(r"[\"'`‘“]([^\"'`’”\n]{1,100})[\"'`’”]")
_BARE = re.compile(r"[^\s,，、|/;；\[\](){}]{1,100}")
_MOST: Final = 200


def choices_named_by_the_error(call: FailedCall) -> Iterator[Adjustment]:
    meant, listed = _options(_MEANT, call.error), _options(_ONE_OF, call.error)
    for name, value in call.texts():
        if not call.blames(value) or name not in call.properties:
            continue
        for option in near_names(value, meant, most=2):
            reason = f"The error itself asks whether {shown(option)} was meant for {name!r}, which was {shown(value)}."
            yield call.with_value(name, option, reason, 0.8)
        for option in near_names(value, listed, most=2):
            reason = f"The error lists {shown(option)} as possible; {name!r} was {shown(value)}."
            yield call.with_value(name, option, reason, 0.65)


def meant_by_the_error(error: str) -> list[str]:
    """What an error offers with `Did you mean …?`."""
    return _options(_MEANT, error)


def _options(pattern: re.Pattern[str], error: str) -> list[str]:
    found: dict[str, None] = {}
    for match in pattern.finditer(error):
        words = _QUOTED.findall(match[1]) or [word.rstrip(".?。？") for word in _BARE.findall(match[1])]
        found.update(dict.fromkeys(word for word in words if word))
        if len(found) > _MOST:
            break
    return list(found)[:_MOST]
