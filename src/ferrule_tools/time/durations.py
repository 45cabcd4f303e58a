"""Durations as people write them: 3 days, two weeks ago, 半小时后, - 1 month."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry
from ferrule.texts.numbers import CHINESE_INTEGER, WORDS, parse_number

_Day = TypeVar("_Day", bound=date)
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1_200}
_DAYS: Final = {"day": 1, "week": 7, "fortnight": 14}
_SECONDS: Final = {"hour": 3600, "minute": 60, "second": 1}
_UNIT_NAMES: Final = {
    word: unit
    for unit, words in {
        "century": "centurie",
        "year": "yr 年",
        "quarter": "个季度",
        "month": "个月 月",
        "week": "wk 周 週 个星期 星期 个礼拜 礼拜",
        "day": "d 天 日",
        "hour": "hr h 个小时 小时 个钟头 钟头",
        "minute": "min 分钟 分",
        "second": "sec 秒 秒钟",
    }.items()
    for word in words.split()
}
"""A bare 月 counts only after 个半: 12月 is December."""
CHINESE_NUMERAL: Final = rf"{CHINESE_INTEGER}{{1,9}}"


def _alternation(words: list[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_DIGITS: Final = r"\d{1,7}(?:\.\d{1,3})?"
_NUMBER_WORD: Final = rf"(?:half an?|a hundred|an?|{WORDS})"
_LONG_UNIT: Final = _alternation([*_MONTHS, *_DAYS, *_SECONDS, "yr", "wk", "hr", "min", "sec"])
_ENGLISH_UNIT: Final = rf"(?:centuries|(?:{_LONG_UNIT})s?|[dh])"
_CHINESE_UNIT: Final = _alternation([unit for unit in _UNIT_NAMES if not unit.isascii() and unit != "月"])
_ENGLISH: Final = rf"(?:{_DIGITS}\s*|\b{_NUMBER_WORD}\s+){_ENGLISH_UNIT}\b"
_CHINESE: Final = rf"(?:{_DIGITS}|{CHINESE_NUMERAL}|半)(?:个半(?:月|小时|钟头|星期|礼拜)|(?:{_CHINESE_UNIT})半?)"
_CHINESE_LIST: Final = rf"{_CHINESE}(?:又?{_CHINESE})*"
_PART: Final = lazy_pattern(
    rf"(?P<count>{_DIGITS}|{CHINESE_NUMERAL}|半|\b{_NUMBER_WORD}\b)\s*"
    rf"(?P<middle>(?:个半)?)(?P<unit>\b{_ENGLISH_UNIT}\b|(?<=\d){_ENGLISH_UNIT}\b|{_CHINESE_UNIT}|月)(?P<half>半?)"
)
_DURATION: Final = lazy_pattern(
    rf"(?P<sign>\b(?:in|plus|add|minus|subtract)\b|[+\-−])?\s*(?P<parts>{_ENGLISH}(?:\s*(?:,|and)?\s*{_ENGLISH})*)"
    r"\s*(?P<direction>(?:ago|earlier|before|prior to|from now|from today|from|later|after)\b)?"
)
_CHINESE_DURATION: Final = lazy_pattern(
    # Without a sign before it or a direction after it, 25日 is not a duration but part of a date.
    rf"(?P<sign>[+\-−加减再过])\s*(?P<parts>{_CHINESE_LIST})(?P<direction>(?:之|以)?[后後前])?"
    rf"|(?P<bare_parts>{_CHINESE_LIST})(?P<bare_direction>(?:之|以)?[后後前])"
)
_BACKWARD: Final = frozenset({"-", "−", "minus", "subtract", "减", "ago", "earlier", "before", "prior to"})
_MAX_DURATIONS: Final = 6
OUT_OF_RANGE: Final = "That is outside the years 1 to 9999, which are all that the calendar supports."


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """How far to go. Months and days follow the calendar, seconds are real time."""

    months: int = 0
    days: int = 0
    seconds: float = 0.0

    def __add__(self, other: Duration) -> Duration:
        return Duration(
            months=self.months + other.months, days=self.days + other.days, seconds=self.seconds + other.seconds
        )

    def after(self, start: datetime) -> datetime:
        """The time after this duration. Days and months keep the time of day; hours pass in real time."""
        try:
            day = add_months(start, self.months) + timedelta(days=self.days)
            return (day.astimezone(UTC) + timedelta(seconds=self.seconds)).astimezone(start.tzinfo)
        except (OverflowError, ValueError):
            raise Retry(OUT_OF_RANGE) from None


def extract_durations(text: str) -> tuple[Duration | None, str]:
    """The sum of all durations in a text, and the text without them."""
    total: Duration | None = None
    for _ in range(_MAX_DURATIONS):
        match = _DURATION.search(text) or _CHINESE_DURATION.search(text)
        if match is None:
            return total, text
        duration = _parse_duration(match)
        total = duration if total is None else total + duration
        text = f"{text[: match.start()]} {text[match.end() :]}".strip()
    raise Retry(f"The text has more than {_MAX_DURATIONS} durations: use several calls.")


def _parse_duration(match: re.Match[str]) -> Duration:
    groups = match.groupdict()
    sign, direction = groups["sign"] or "", groups["direction"] or groups.get("bare_direction") or ""
    is_backward = (direction in _BACKWARD or direction.endswith("前")) if direction else sign in _BACKWARD
    total = Duration()
    for part in _PART.finditer(groups["parts"] or groups["bare_parts"]):
        total += _parse_duration_part(part, -1 if is_backward else 1)
    return total


def _parse_duration_part(part: re.Match[str], sign: int) -> Duration:
    count = sign * (_parse_count(part["count"]) + (0.5 if part["middle"] or part["half"] else 0.0))
    unit = part["unit"].removesuffix("s")
    unit = _UNIT_NAMES.get(unit, unit)
    if unit in _SECONDS:
        return Duration(seconds=count * _SECONDS[unit])
    if unit in _DAYS:
        days = int(count * _DAYS[unit])
        return Duration(days=days, seconds=(count * _DAYS[unit] - days) * 86_400)
    months = count * _MONTHS[unit]
    if months != int(months):
        raise Retry(f"{part.group().strip()!r} is not a whole number of months: write it in weeks or days.")
    return Duration(months=int(months))


def _parse_count(text: str) -> float:
    if text == "半" or text.startswith("half"):
        return 0.5
    if text in ("a", "an"):
        return 1.0
    return float(parse_number(text.removeprefix("a ")) or 0)


def add_months(start: _Day, months: int) -> _Day:
    """The same day of another month, or its last day if it is shorter."""
    years, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    return start.replace(year=years, month=month + 1, day=min(start.day, monthrange(years, month + 1)[1]))
