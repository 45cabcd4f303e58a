"""Dates and times as people write them: 2026-12-25, next monday at 3pm, 三天后, 下周一下午三点.

`parse_date` reads a text that is a date, and takes it apart piece by piece: durations, days, times of day. If anything
is left over it was not understood, and the caller gets an error: a guess would be a wrong date.
"""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, TypeVar

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry
from ferrule.texts.language import SPACE_BESIDE_CHINESE, contains_chinese
from ferrule.texts.numbers import CHINESE_INTEGER, WORDS, parse_number

_Day = TypeVar("_Day", bound=date)
_MONTHS_PER_UNIT: Final = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1_200}
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
_LONG_UNIT: Final = _alternation([*_MONTHS_PER_UNIT, *_DAYS, *_SECONDS, "yr", "wk", "hr", "min", "sec"])
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
        """Return the time after this duration. Days and months keep the time of day; hours pass in real time."""
        try:
            day = add_months(start, self.months) + timedelta(days=self.days)
            return (day.astimezone(UTC) + timedelta(seconds=self.seconds)).astimezone(start.tzinfo)
        except (OverflowError, ValueError):
            raise Retry(OUT_OF_RANGE) from None


def extract_durations(text: str) -> tuple[Duration | None, str]:
    """Return the sum of all durations in a text, and the text without them."""
    total: Duration | None = None
    for _ in range(_MAX_DURATIONS):
        match = _DURATION.search(text) or _CHINESE_DURATION.search(text)
        if match is None:
            return total, text
        groups = match.groupdict()
        sign, direction = groups["sign"] or "", groups["direction"] or groups.get("bare_direction") or ""
        is_backward = (direction in _BACKWARD or direction.endswith("前")) if direction else sign in _BACKWARD
        for part in _PART.finditer(groups["parts"] or groups["bare_parts"]):
            total = (total or Duration()) + _parse_duration_part(part, -1 if is_backward else 1)
        text = f"{text[: match.start()]} {text[match.end() :]}".strip()
    raise Retry(f"The text has more than {_MAX_DURATIONS} durations: use several calls.")


def _parse_duration_part(part: re.Match[str], sign: int) -> Duration:
    count = sign * (_parse_count(part["count"]) + (0.5 if part["middle"] or part["half"] else 0.0))
    unit = part["unit"].removesuffix("s")
    unit = _UNIT_NAMES.get(unit, unit)
    if unit in _SECONDS:
        return Duration(seconds=count * _SECONDS[unit])
    if unit in _DAYS:
        days = int(count * _DAYS[unit])
        return Duration(days=days, seconds=(count * _DAYS[unit] - days) * 86_400)
    months = count * _MONTHS_PER_UNIT[unit]
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
    """Return the same day of another month, or its last day if it is shorter."""
    years, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    return start.replace(year=years, month=month + 1, day=min(start.day, monthrange(years, month + 1)[1]))


# Dates

_MAX_LENGTH: Final = 120
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = (
    r"\b(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?\b"
_YEAR: Final = r"(?:,?\s*(?P<year>\d{4})\b)?"
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CHINESE_WEEKDAYS: Final = {char: number % 7 for number, char in enumerate("一二三四五六日天")}
_RELATIVE_DAYS: Final = {
    word: days
    for days, words in {
        -3: "大前天",
        -2: "day before yesterday,前天",
        -1: "yesterday,昨天,昨日,昨晚",
        0: "today,tonight,now,right now,今天,今日,今晚,今早,现在,此刻,目前,当前",
        1: "tomorrow,明天,明日,明早,明晚",
        2: "day after tomorrow,后天,後天",
        3: "大后天,大後天",
    }.items()
    for word in words.split(",")
}
_NOW: Final = frozenset({"now", "right now", "现在", "此刻", "目前", "当前"})
_RELATIVE: Final = {"next": 1, "coming": 1, "this": 0, "last": -1, "previous": -1, "下下": 2, "下": 1, "本": 0, "这": 0}
_RELATIVE_YEARS: Final = {"明年": 1, "后年": 2, "今年": 0, "去年": -1, "前年": -2}
_AFTERNOON: Final = ("下午", "晚上", "傍晚", "晚", "夜里", "中午")
_MORNING: Final = ("上午", "早上", "早晨", "清晨", "凌晨", "早")
_FILLER: Final = lazy_pattern(
    r"(?:\b(?:at|on|the|of|in|and|day|date|from|after|to|o'?clock)\b|[,，。.的点钟、是在\s])+"
)
_EXAMPLES: Final = "Write it like 2026-12-25, 2026-12-25 14:30, next monday, +3 days, 三天后 or 下周一."
_HOUR_ERROR: Final = "is not a time of day: hours before am and pm go from 1 to 12."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDate:
    """A point in time, and which parts of it the text states."""

    at: datetime
    has_time: bool


@dataclass(slots=True)
class _DateParts:
    """The parts that were read so far."""

    now: datetime
    prefers_future: bool
    day: date | None = None
    clock: time | None = None
    is_now: bool = False
    is_evening: bool = False


def parse_date(text: str, now: datetime, *, prefers_future: bool = False) -> ParsedDate:
    """Return the point in time that a text states, relative to `now` (with a time zone).

    `prefers_future`: a day without a year is the next one of that name, not that of this year.
    """
    if len(text) > _MAX_LENGTH:
        raise Retry(f"A date of {len(text)} characters cannot be read. {_EXAMPLES}")
    plain = SPACE_BESIDE_CHINESE.sub("", unicodedata.normalize("NFKC", text).strip().lower())
    exact = _parse_iso_or_timestamp(plain, now)
    if exact is not None:
        return exact
    duration, rest = extract_durations(plain)
    parts = _DateParts(now=now, prefers_future=prefers_future)
    start = _parse_iso_or_timestamp(rest.strip(" ,"), now)
    if start is None:
        for pattern, read in _PATTERNS:
            match = pattern.search(rest)
            if match is not None:
                read(match, parts)
                rest = f"{rest[: match.start()]} {rest[match.end() :]}"
        if _FILLER.sub("", rest) or (duration is None and parts.day is None and parts.clock is None):
            unknown = _FILLER.sub(" ", rest).strip()
            reason = f": {unknown!r} is not understood" if unknown and unknown != plain else ""
            if contains_chinese(text):
                raise Retry(f"无法把“{text.strip()}”读成日期。可以写成 2026-12-25、三天后或下周一。")
            raise Retry(f"{text.strip()!r} cannot be read as a date{reason}. {_EXAMPLES}")
        start = _combine_parts(parts)
    if duration is None:
        return start
    return ParsedDate(at=duration.after(start.at), has_time=start.has_time or bool(duration.seconds))


def _parse_iso_or_timestamp(text: str, now: datetime) -> ParsedDate | None:
    """Parse ISO 8601, or seconds since 1970."""
    if re.fullmatch(r"@?\d{10}|@?\d{13}", text):
        seconds = int(text.lstrip("@")) / (1_000 if len(text.lstrip("@")) == 13 else 1)
        return ParsedDate(at=datetime.fromtimestamp(seconds, now.tzinfo), has_time=True)
    if not re.match(r"\d{4}-?(?:\d\d|w)", text):
        return None
    try:
        parsed = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    has_time = len(text) > 10 and (":" in text or "t" in text)
    at = parsed.replace(tzinfo=now.tzinfo) if parsed.tzinfo is None else parsed
    return ParsedDate(at=_to_existing_time(at, now), has_time=has_time)


def _combine_parts(parts: _DateParts) -> ParsedDate:
    if parts.clock is None and (parts.day is None or parts.is_now):
        return ParsedDate(at=parts.now, has_time=parts.is_now)
    day = parts.day or parts.now.date()
    at = datetime.combine(day, parts.clock or time(), parts.now.tzinfo)
    has_time = parts.clock is not None
    if parts.prefers_future and parts.day is None and at < parts.now:
        at = datetime.combine(_add_days(day, 1), at.timetz())
    return ParsedDate(at=_to_existing_time(at, parts.now), has_time=has_time)


def _to_existing_time(at: datetime, now: datetime) -> datetime:
    """Convert a time of day that the start of summer time skips into the time that the clock shows then."""
    try:
        return at.astimezone(UTC).astimezone(now.tzinfo)
    except OverflowError:
        raise Retry(OUT_OF_RANGE) from None


# The patterns, and how the parts they match are read


def _read_numeric_date(match: re.Match[str], parts: _DateParts) -> None:
    _set_day(parts, match["year"], int(match["month"]), int(match["day"]))


def _read_numeric_date_year_last(match: re.Match[str], parts: _DateParts) -> None:
    first, second = int(match["first"]), int(match["second"])
    if match["sign"] == "/" and first <= 12 and second <= 12 and first != second:
        raise Retry(f"{match.group()!r} can be read in two ways. Write the year first: {match['year']}-12-25.")
    day, month = (second, first) if match["sign"] == "/" and second > 12 else (first, second)
    _set_day(parts, match["year"], month, day)


def _read_named_month(match: re.Match[str], parts: _DateParts) -> None:
    _set_day(parts, match["year"], _MONTHS.index(match["month"][:3]) + 1, int(match["day"]))


def _read_chinese_date(match: re.Match[str], parts: _DateParts) -> None:
    year = match["year"]
    if match["relative"]:
        year = str(parts.now.year + _RELATIVE_YEARS[match["relative"]])
    _set_day(parts, year, _parse_integer(match["month"]), _parse_integer(match["day"]))


def _set_day(parts: _DateParts, year: str | None, month: int, day: int) -> None:
    try:
        if year is None and (month, day) == (2, 29):
            raise Retry("29 February is not in every year: write the year.")
        parts.day = date(int(year) if year else parts.now.year, month, day)
    except ValueError:
        raise Retry(f"There is no day {year or parts.now.year}-{month}-{day} in the calendar.") from None
    if year is None and parts.prefers_future and parts.day < parts.now.date():
        parts.day = parts.day.replace(year=parts.day.year + 1)


def _read_relative_day(match: re.Match[str], parts: _DateParts) -> None:
    word = match.group().removeprefix("the ")
    parts.day = _add_days(parts.now.date(), _RELATIVE_DAYS[word])
    parts.is_now = word in _NOW
    parts.is_evening = word == "tonight" or word.endswith("晚")


def _read_weekday(match: re.Match[str], parts: _DateParts) -> None:
    days = (_WEEKDAYS.index(match["weekday"][:3]) - parts.now.weekday()) % 7
    if match["relative"] in ("last", "previous"):
        days -= 7
    elif match["relative"] in ("next", "coming") and days == 0:
        days = 7
    parts.day = _add_days(parts.now.date(), days)


def _read_chinese_weekday(match: re.Match[str], parts: _DateParts) -> None:
    """Read a weekday. Weeks begin on Monday, and 下周一 is the Monday of the next week."""
    days = _CHINESE_WEEKDAYS[match["weekday"]] - parts.now.weekday()
    relative = match["relative"]
    days = days % 7 if relative is None else days + 7 * _relative_count(relative)
    parts.day = _add_days(parts.now.date(), days)


def _read_period(match: re.Match[str], parts: _DateParts) -> None:
    """Read next week, last month, 下个月: as far from today as the period is long."""
    count, unit = _relative_count(match["relative"]), match["unit"]
    day = parts.day or parts.now.date()  # `5 March next year`
    if unit in ("week", "周", "星期", "礼拜"):
        parts.day = _add_days(parts.now.date(), 7 * count)
    elif unit == "year":
        parts.day = add_months(day, 12 * (parts.now.year + count - day.year))
    else:
        parts.day = add_months(parts.now.date(), count)


def _relative_count(word: str) -> int:
    return _RELATIVE[word] if word in _RELATIVE else -len(word)  # 上 and 上上


def _add_days(day: date, days: int) -> date:
    try:
        return day + timedelta(days=days)
    except OverflowError:
        raise Retry(OUT_OF_RANGE) from None


def _read_clock(match: re.Match[str], parts: _DateParts) -> None:
    """Read 14:30, 2:30 pm or 2pm."""
    hour, groups = int(match["hour"]), match.groupdict()
    if half := groups["half"]:
        if not 1 <= hour <= 12:
            raise Retry(f"{match.group().strip()!r} {_HOUR_ERROR}")
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    _set_clock(parts, match, hour, int(groups.get("minute") or 0), int(groups.get("second") or 0))


def _read_hour(match: re.Match[str], parts: _DateParts) -> None:
    hour = int(match["hour"])
    _set_clock(parts, match, hour + (12 if parts.is_evening and hour < 12 else 0), 0, 0)


def _read_named_time(match: re.Match[str], parts: _DateParts) -> None:
    parts.clock = time(0) if match.group() in ("midnight", "午夜", "零点") else time(12)


def _read_chinese_clock(match: re.Match[str], parts: _DateParts) -> None:
    hour, part = _parse_integer(match["hour"]), match["part"] or ""
    is_late = part in _AFTERNOON and not (part == "中午" and hour > 10)
    if hour < 12 and (is_late or (not part and parts.is_evening)):
        hour += 12
    minute = 30 if match["half"] else {"一刻": 15, "三刻": 45}.get(match["quarter"] or "", 0)
    if match["minute"]:
        minute = _parse_integer(match["minute"])
    _set_clock(parts, match, hour, minute, 0)


def _set_clock(parts: _DateParts, match: re.Match[str], hour: int, minute: int, second: int) -> None:
    try:
        parts.clock = time(hour, minute, second)
    except ValueError:
        raise Retry(f"{match.group().strip()!r} is not a time of day.") from None


def _parse_integer(text: str) -> int:
    return int(parse_number(text) or 0)


_PART_OF_DAY: Final = "|".join(sorted([*_AFTERNOON, *_MORNING], key=len, reverse=True))
_RELATIVE_DAY: Final = "|".join(
    rf"\b(?:the )?{word}\b" if word.isascii() else word for word in sorted(_RELATIVE_DAYS, key=len, reverse=True)
)
_NUMBER: Final = rf"(?:\d{{1,2}}|{CHINESE_NUMERAL})"
_PATTERNS: Final[list[tuple[re.Pattern[str], Callable[[re.Match[str], _DateParts], None]]]] = [
    (lazy_pattern(pattern), read)
    for pattern, read in (
        (r"(?<!\d)(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?!\d)", _read_numeric_date),
        (
            r"(?<!\d)(?P<first>\d{1,2})(?P<sign>[./])(?P<second>\d{1,2})(?P=sign)(?P<year>\d{4})(?!\d)",
            _read_numeric_date_year_last,
        ),
        (rf"{_MONTH}\s*{_DAY}{_YEAR}", _read_named_month),
        (rf"\b{_DAY}\s*(?:of\s+)?{_MONTH}{_YEAR}", _read_named_month),
        (
            rf"(?:(?P<year>\d{{4}})年|(?P<relative>{'|'.join(_RELATIVE_YEARS)}))?"
            rf"(?P<month>{_NUMBER})月(?P<day>{_NUMBER})[日号號]?",
            _read_chinese_date,
        ),
        (_RELATIVE_DAY, _read_relative_day),
        (
            rf"(?P<part>{_PART_OF_DAY})?(?P<hour>{_NUMBER})[点點](?!钟?[后前])"
            rf"(?:(?P<half>半)|(?P<quarter>[一三]刻)|(?P<minute>{_NUMBER})分?)?钟?",
            _read_chinese_clock,
        ),
        (
            r"(?<![\d:.])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?\s*(?P<half>[ap]\.?m\b\.?)?(?![\d:])",
            _read_clock,
        ),
        (r"(?<![\d:.])(?P<hour>\d{1,2})\s*(?P<half>[ap])\.?m\b\.?", _read_clock),
        (r"\bat\s+(?P<hour>\d{1,2})(?![\d:./-])", _read_hour),
        (r"\b(?:noon|midday|midnight)\b|正午|中午|午夜|零点", _read_named_time),
        (
            r"\b(?:(?P<relative>next|coming|this|last|previous)\s+)?(?P<weekday>mon|tue|wed|thu|fri|sat|sun)"
            r"(?:s|nes|rs|ur)?(?:day)?\b",
            _read_weekday,
        ),
        (
            r"(?P<relative>下下|上上|下|上|本|这)?个?(?:周|週|星期|礼拜)(?P<weekday>[一二三四五六日天])",
            _read_chinese_weekday,
        ),
        (r"\b(?P<relative>next|this|last|previous)\s+(?P<unit>week|month|year)\b", _read_period),
        (r"(?P<relative>下下|上上|下|上|本|这)个?(?P<unit>周|星期|礼拜|月)", _read_period),
    )
]
