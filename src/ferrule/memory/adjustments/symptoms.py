"""What an error message complains about."""

from __future__ import annotations

import re

_TIME_OUT = re.compile(r"time[sd]?[\s_-]?out|timeout|deadline exceeded|took (?:too long|longer)|超时", re.I)
_MISSING = re.compile(
    r"not[\s_-]?found|no such|no (?:element|node|match|file)|does(?:n't| not) exist|not exist|ENOENT"
    r"|(?:could(?:n't| not)|cannot|can't|unable to|failed to) (?:find|locate|open)|waiting for|0 elements"
    r"|找不到|未找到|没有找到|不存在|无法定位",
    re.I,
)
_UNUSABLE_ELEMENT = re.compile(
    r"not (?:visible|interactable|clickable|attached)|intercepts pointer|strict mode violation|stale element"
    r"|(?:in|not a )valid selector|不可见|不可点击",
    re.I,
)


def says_time_out(error: str) -> bool:
    return _TIME_OUT.search(error) is not None


def says_missing(error: str) -> bool:
    return _MISSING.search(error) is not None


def says_unusable_element(error: str) -> bool:
    return _UNUSABLE_ELEMENT.search(error) is not None
