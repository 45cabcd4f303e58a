"""Dates and times as people say them: 2025-03-01, March 5, tomorrow at 9am, in 3 days, 下周一下午三点."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta

from ferrule.models.offline.numbers import CHINESE, WORDS, number_of

_MONTHS = {
    name: n
    for n, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1)
}
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_YEAR = r"(?:,?\s+(?P<year>\d{4})\b)?"
_DAYS = {name: n for n, name in enumerate(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])}
_CHINESE_DAYS = {"一": 0, "二": 1, "三": 2, "四": 3, "五": 4, "六": 5, "日": 6, "天": 6}
_COUNT = rf"(?P<count>\d+|{WORDS}|an?)"
_UNIT = r"(?P<unit>days?|weeks?|hours?|minutes?|mins?)\b"
_RELATIVE = {
    "day after tomorrow": 2,
    "day before yesterday": -2,
    "today": 0,
    "tonight": 0,
    "tomorrow": 1,
    "yesterday": -1,
    "大后天": 3,
    "后天": 2,
    "前天": -2,
    "今天": 0,
    "今": 0,
    "今日": 0,
    "明天": 1,
    "明日": 1,
    "明": 1,
    "昨天": -1,
}
_UNITS = {"minute": 60, "min": 60, "hour": 3600, "分钟": 60, "小时": 3600}


@dataclass(frozen=True, slots=True)
class Moment:
    """A day, a time of day, or both; and where in the text it was said."""

    start: int
    end: int
    day: date | None = None
    time: time | None = None


def moments_in(text: str, now: datetime) -> list[Moment]:
    """The dates and times of a text, in order; a date and a time that belong together are one."""
    found: list[Moment] = []
    left = text
    for pattern, read in _PATTERNS:
        for match in pattern.finditer(left):
            moment = read(match, now)
            if moment is not None:
                found.append(moment)
                left = left[: match.start()] + "\0" * len(match.group()) + left[match.end() :]
    return _merged(sorted(found, key=lambda moment: moment.start), text)


def _merged(moments: list[Moment], text: str) -> list[Moment]:
    merged: list[Moment] = []
    for moment in moments:
        before = merged[-1] if merged else None
        if before is not None and re.fullmatch(r"[\s,的T]*(?:at|on)?\s*", text[before.end : moment.start]):
            if before.day is None and moment.day is not None and moment.time is None:
                merged[-1] = replace(before, end=moment.end, day=moment.day)
                continue
            if before.time is None and moment.time is not None and moment.day is None:
                merged[-1] = replace(before, end=moment.end, time=moment.time)
                continue
        merged.append(moment)
    return merged


def _iso(match: re.Match[str], now: datetime) -> Moment | None:
    try:
        day = date(int(match[1]), int(match[2]), int(match[3]))
        clock = time(int(match[4]), int(match[5]), int(match[6] or 0)) if match[4] else None
    except ValueError:
        return None
    return Moment(match.start(), match.end(), day, clock)


def _named_month(match: re.Match[str], now: datetime) -> Moment | None:
    month = _MONTHS[match["month"][:3].lower()]
    return _on(match, match["year"], month, int(match["day"]), now)


def _chinese_date(match: re.Match[str], now: datetime) -> Moment | None:
    month, day = number_of(match["month"]), number_of(match["day"])
    return _on(match, match["year"], int(month or 0), int(day or 0), now)


def _on(match: re.Match[str], year: str | None, month: int, day: int, now: datetime) -> Moment | None:
    try:
        said = date(int(year) if year else now.year, month, day)
    except ValueError:
        return None
    return Moment(match.start(), match.end(), said)


def _relative(match: re.Match[str], now: datetime) -> Moment:
    word = match.group().lower().removeprefix("the ")
    return Moment(match.start(), match.end(), now.date() + timedelta(days=_RELATIVE[word]))


def _days_away(match: re.Match[str], now: datetime) -> Moment | None:
    count = _count(match["count"])
    if count is None:
        return None
    unit = match["unit"].lower().removesuffix("s")
    sign = -1 if re.search(r"ago|前", match.group(), re.IGNORECASE) else 1
    if unit in _UNITS:
        at = now + timedelta(seconds=sign * count * _UNITS[unit])
        return Moment(match.start(), match.end(), at.date(), at.time().replace(second=0, microsecond=0))
    days = count * (7 if unit in ("week", "周", "星期", "个星期") else 1)
    return Moment(match.start(), match.end(), now.date() + timedelta(days=sign * days))


def _weekday(match: re.Match[str], now: datetime) -> Moment:
    ahead = (_DAYS[match["day"][:3].lower()] - now.weekday()) % 7
    if ahead == 0 and match.group().lower().startswith("next"):
        ahead = 7
    return Moment(match.start(), match.end(), now.date() + timedelta(days=ahead))


def _chinese_weekday(match: re.Match[str], now: datetime) -> Moment:
    ahead = _CHINESE_DAYS[match["day"]] - now.weekday()
    ahead = ahead + 7 if match.group().startswith("下") else ahead % 7
    return Moment(match.start(), match.end(), now.date() + timedelta(days=ahead))


def _clock(match: re.Match[str], now: datetime) -> Moment | None:
    hour, minute, second = int(match["hour"]), int(match["minute"] or 0), int(match["second"] or 0)
    half = (match["half"] or "").lower().replace(".", "")
    if half and not 1 <= hour <= 12:
        return None
    hour = hour % 12 + (12 if half == "pm" else 0) if half else hour
    return Moment(match.start(), match.end(), None, time(hour, minute, second)) if hour < 24 and minute < 60 else None


def _chinese_clock(match: re.Match[str], now: datetime) -> Moment | None:
    hour = number_of(match["hour"])
    minute = 30 if match["half"] else number_of(match["minute"]) if match["minute"] else 0
    if hour is None or minute is None or not (0 <= hour < 24 and 0 <= minute < 60):
        return None
    part = match["part"] or ""
    if hour < 12 and (part in ("下午", "晚上", "傍晚", "晚") or (part == "中午" and hour < 11)):
        hour += 12
    return Moment(match.start(), match.end(), None, time(int(hour), int(minute)))


def _named_clock(match: re.Match[str], now: datetime) -> Moment:
    return Moment(match.start(), match.end(), None, time(0 if match.group().lower() == "midnight" else 12))


def _count(text: str) -> int | None:
    if text.lower() in ("a", "an"):
        return 1
    number = number_of(text)
    return int(number) if number is not None and number < 100_000 else None


def _written(word: str) -> str:
    if word.isascii():
        return rf"\b(?:the )?{word}\b"
    return word if len(word) > 1 else f"{word}(?=晚)"  # the evening of 今晚 belongs to the 八点 that follows


_PATTERNS: list[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], Moment | None]]] = [
    (re.compile(pattern, re.IGNORECASE), read)
    for pattern, read in (
        (r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ](\d{1,2}):(\d{2})(?::(\d{2}))?)?(?!\d)", _iso),
        (rf"\b{_MONTH}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b{_YEAR}", _named_month),
        (rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}{_YEAR}", _named_month),
        (
            rf"(?:(?P<year>\d{{4}})年)?(?P<month>\d{{1,2}}|{CHINESE})月(?P<day>\d{{1,2}}|{CHINESE})[日号]?",
            _chinese_date,
        ),
        ("|".join(_written(word) for word in _RELATIVE), _relative),
        (rf"\bin {_COUNT} {_UNIT}", _days_away),
        (rf"\b{_COUNT} {_UNIT} (?:ago|from now)\b", _days_away),
        (rf"(?P<count>\d+|{CHINESE})(?P<unit>天|周|个?星期|小时|分钟)(?:之|以)?(?:后|前)", _days_away),
        (r"\b(?:next |this |on )?(?P<day>mon|tues|wednes|thurs|fri|satur|sun)day\b", _weekday),
        (r"[下这本]?个?(?:周|星期|礼拜)(?P<day>[一二三四五六日天])", _chinese_weekday),
        (
            r"(?<![\d:.])(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?(?::(?P<second>\d{2}))?\s?(?P<half>[ap]\.?m\b\.?)",
            _clock,
        ),
        (r"(?<![\d:.])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?P<half>)(?![\d:])", _clock),
        (r"\b(?:noon|midday|midnight)\b", _named_clock),
        (
            r"(?P<part>上午|下午|晚上|傍晚|早上|中午|凌晨|晚)?"
            rf"(?P<hour>\d{{1,2}}|{CHINESE})点(?:(?P<half>半)|(?P<minute>\d{{1,2}}|{CHINESE})分?)?",
            _chinese_clock,
        ),
    )
]
