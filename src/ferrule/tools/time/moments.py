"""Days and moments as people say them: 2026-12-25, next monday at 3pm, 三天后, 下周一下午三点, 15:00 in Tokyo.

A text is taken apart piece by piece: lengths of time, days, times of day. What is left over was not understood, and
the caller is told so: a guess would be a wrong date.
"""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from ferrule.errors import Retry
from ferrule.tools.time.amounts import NUMERAL, number_of, take_amounts
from ferrule.tools.time.zones import zone_of

_LONGEST: Final = 120
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = (
    r"\b(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?\b"
_YEAR: Final = r"(?:,?\s*(?P<year>\d{4})\b)?"
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CHINESE_WEEKDAYS: Final = {char: number % 7 for number, char in enumerate("一二三四五六日天")}
_DAYS_AWAY: Final = {
    word: away
    for away, words in {
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
_IS_NOW: Final = frozenset({"now", "right now", "现在", "此刻", "目前", "当前"})
_SIDES: Final = {"next": 1, "coming": 1, "this": 0, "last": -1, "previous": -1, "下下": 2, "下": 1, "本": 0, "这": 0}
_SIDES_OF_YEARS: Final = {"明年": 1, "后年": 2, "今年": 0, "去年": -1, "前年": -2}
_HALVES: Final = {"下午": 12, "晚上": 12, "傍晚": 12, "晚": 12, "夜里": 12, "中午": 12}
_EARLY: Final = ("上午", "早上", "早晨", "清晨", "凌晨", "早")
_FILLER: Final = re.compile(r"(?:\b(?:at|on|the|of|in|and|day|date|from|after|to|o'?clock)\b|[,，。.的点钟、是在\s])+")
_ELSEWHERE: Final = (
    re.compile(r"(?P<rest>.+?)\s+(?:in|at)\s+(?P<place>[^\W\d][^\d]*)"),
    re.compile(r"(?P<place>[\u4e00-\u9fff]{2,8})(?:时间|時間)(?P<rest>.+)"),
)
_EXAMPLES: Final = "Write it like 2026-12-25, 2026-12-25 14:30, next monday, +3 days, 三天后 or 下周一."


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment, and whether a time of day was said."""

    at: datetime
    has_time: bool


@dataclass(slots=True)
class _Said:
    """What a text has said so far."""

    now: datetime
    is_ahead: bool
    day: date | None = None
    clock: time | None = None
    is_now: bool = False
    is_evening: bool = False
    is_year: bool = False
    """The day stands for its year, and not for its month."""


def read_moment(text: str, now: datetime, *, is_ahead: bool = False) -> Moment:
    """The moment a text means, for somebody who reads the clock at `now`.

    `is_ahead`: a day without a year is the next one of that name, not that of this year.
    """
    if len(text) > _LONGEST:
        raise Retry(f"A date of {len(text)} characters cannot be read. {_EXAMPLES}")
    plain = unicodedata.normalize("NFKC", text).strip().lower()
    exact = _exact(plain, now)
    if exact is not None:
        return exact
    elsewhere = _elsewhere(plain, now, is_ahead)
    if elsewhere is not None:
        return elsewhere
    amount, rest = take_amounts(plain)
    said = _Said(now=now, is_ahead=is_ahead)
    written = _exact(rest.strip(" ,"), now)
    if written is None:
        rest = _take_apart(rest, said)
        if _FILLER.sub("", rest) or (amount is None and said.day is None and said.clock is None):
            left = _FILLER.sub(" ", rest).strip()
            raise Retry(f"{text.strip()!r} cannot be read as a date{_because(left, plain)}. {_EXAMPLES}")
    base = written or _put_together(said)
    if amount is None:
        return base
    return Moment(at=amount.after(base.at), has_time=base.has_time or bool(amount.seconds))


def _because(left: str, plain: str) -> str:
    return f": {left!r} is not understood" if left and left != plain else ""


def _exact(text: str, now: datetime) -> Moment | None:
    """ISO 8601, or seconds since 1970."""
    if re.fullmatch(r"@?\d{10}|@?\d{13}", text):
        seconds = int(text.lstrip("@")) / (1_000 if len(text.lstrip("@")) == 13 else 1)
        return Moment(at=datetime.fromtimestamp(seconds, now.tzinfo), has_time=True)
    if not re.match(r"\d{4}-?(?:\d\d|w)", text):
        return None
    try:
        read = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    has_time = len(text) > 10 and (":" in text or "t" in text)
    at = read.replace(tzinfo=now.tzinfo) if read.tzinfo is None else read
    return Moment(at=_real(at, now), has_time=has_time)


def _elsewhere(plain: str, now: datetime, is_ahead: bool) -> Moment | None:
    """`15:00 in tokyo`: read there, told here."""
    for pattern in _ELSEWHERE:
        match = pattern.fullmatch(plain)
        if match is None:
            continue
        try:
            zone = zone_of(match["place"])
        except Retry:
            continue
        there = read_moment(match["rest"], now.astimezone(zone.tz), is_ahead=is_ahead)
        return Moment(at=there.at.astimezone(now.tzinfo), has_time=True)
    return None


def _take_apart(text: str, said: _Said) -> str:
    for pattern, note in _PATTERNS:
        match = pattern.search(text)
        if match is not None:
            note(match, said)
            text = f"{text[: match.start()]} {text[match.end() :]}"
    return text


def _put_together(said: _Said) -> Moment:
    if said.clock is None and (said.day is None or said.is_now):
        return Moment(at=said.now, has_time=said.is_now)
    day = said.day or said.now.date()
    at = datetime.combine(day, said.clock or time(), said.now.tzinfo)
    return Moment(at=_real(at, said.now), has_time=said.clock is not None)


def _real(at: datetime, now: datetime) -> datetime:
    """A time of day that the start of summer time leaves out becomes the one the clock shows then."""
    try:
        return at.astimezone(UTC).astimezone(now.tzinfo)
    except OverflowError:
        raise Retry("That is beyond the years 1 to 9999, and the calendar has no others.") from None


# What the pieces mean


def _numbers(match: re.Match[str], said: _Said) -> None:
    _set_day(said, match["year"], int(match["month"]), int(match["day"]))


def _three_numbers(match: re.Match[str], said: _Said) -> None:
    first, second = int(match["first"]), int(match["second"])
    if match["sign"] == "/" and first <= 12 and second <= 12 and first != second:
        raise Retry(f"{match.group()!r} can be read in two ways. Write the year first: {match['year']}-12-25.")
    day, month = (second, first) if match["sign"] == "/" and second > 12 else (first, second)
    _set_day(said, match["year"], month, day)


def _named_month(match: re.Match[str], said: _Said) -> None:
    _set_day(said, match["year"], _MONTHS.index(match["month"][:3]) + 1, int(match["day"]))


def _chinese_date(match: re.Match[str], said: _Said) -> None:
    year = match["year"]
    if match["side"]:
        year = str(said.now.year + _SIDES_OF_YEARS[match["side"]])
    _set_day(said, year, int(number_of(match["month"])), int(number_of(match["day"])))


def _set_day(said: _Said, year: str | None, month: int, day: int) -> None:
    try:
        if year is None and (month, day) == (2, 29):
            raise Retry("29 February is not in every year: say the year.")
        said.day = date(int(year) if year else said.now.year, month, day)
    except ValueError:
        where = f"{year or said.now.year}-{month}-{day}"
        raise Retry(f"There is no day {where} in the calendar.") from None
    if year is None and said.is_ahead and said.day < said.now.date():
        said.day = said.day.replace(year=said.day.year + 1)


def _day_word(match: re.Match[str], said: _Said) -> None:
    word = match.group().removeprefix("the ")
    said.day = _shifted(said.now.date(), _DAYS_AWAY[word])
    said.is_now = word in _IS_NOW
    said.is_evening = word == "tonight" or word.endswith("晚")


def _weekday(match: re.Match[str], said: _Said) -> None:
    ahead = (_WEEKDAYS.index(match["weekday"][:3]) - said.now.weekday()) % 7
    side = match["side"] or ""
    if side in ("last", "previous"):
        ahead -= 7
    elif side in ("next", "coming") and ahead == 0:
        ahead = 7
    said.day = _shifted(said.now.date(), ahead)


def _chinese_weekday(match: re.Match[str], said: _Said) -> None:
    """Weeks begin on Monday, and 下周一 is that of the next one."""
    day, side = _CHINESE_WEEKDAYS[match["weekday"]], match["side"]
    away = day - said.now.weekday()
    if side is None:
        away %= 7
    else:
        away += 7 * (_SIDES[side] if side in _SIDES else -1 * len(side))
    said.day = _shifted(said.now.date(), away)


def _span(match: re.Match[str], said: _Said) -> None:
    """Next week, last month, 下个月: as far from today as that is long."""
    side, unit = match["side"], match["unit"]
    count = _SIDES[side] if side in _SIDES else -1 * len(side)
    if unit in ("week", "周", "星期", "礼拜"):
        said.day = _shifted(said.now.date(), 7 * count)
        return
    said.is_year = unit == "year"
    said.day = _months_away(said.now.date(), count * (12 if said.is_year else 1))


def _year_word(match: re.Match[str], said: _Said) -> None:
    said.is_year = True
    said.day = _months_away(said.now.date(), 12 * _SIDES_OF_YEARS[match.group()])


def _end_of(match: re.Match[str], said: _Said) -> None:
    today = said.day or said.now.date()
    is_year = said.is_year or match["unit"] in ("year", "年")
    month = 12 if is_year else today.month
    said.day = date(today.year, month, monthrange(today.year, month)[1])


def _shifted(day: date, days: int) -> date:
    try:
        return day + timedelta(days=days)
    except OverflowError:
        raise Retry("That is beyond the years 1 to 9999, and the calendar has no others.") from None


def _months_away(day: date, months: int) -> date:
    years, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return date(years, month + 1, min(day.day, monthrange(years, month + 1)[1]))


def _clock(match: re.Match[str], said: _Said) -> None:
    hour, half = int(match["hour"]), (match["half"] or "").replace(".", "")
    if half:
        if not 1 <= hour <= 12:
            raise Retry(f"{match.group().strip()!r} is no time of day: hours before am and pm go from 1 to 12.")
        hour = hour % 12 + (12 if half == "pm" else 0)
    _set_clock(said, match, hour, int(match["minute"] or 0), int(match["second"] or 0))


def _hour_alone(match: re.Match[str], said: _Said) -> None:
    hour = int(match["hour"])
    if not 1 <= hour <= 12:
        raise Retry(f"{match.group().strip()!r} is no time of day: hours before am and pm go from 1 to 12.")
    _set_clock(said, match, hour % 12 + (12 if match["half"].startswith("p") else 0), 0, 0)


def _hour(match: re.Match[str], said: _Said) -> None:
    hour = int(match["hour"])
    _set_clock(said, match, hour + (12 if said.is_evening and hour < 12 else 0), 0, 0)


def _clock_word(match: re.Match[str], said: _Said) -> None:
    said.clock = time(0) if match.group() in ("midnight", "午夜", "零点") else time(12)


def _chinese_clock(match: re.Match[str], said: _Said) -> None:
    hour, part = int(number_of(match["hour"])), match["part"] or ""
    if hour < 12 and ((not part and said.is_evening) or (part in _HALVES and not (part == "中午" and hour > 10))):
        hour += 12
    minute = 30 if match["half"] else {"一刻": 15, "三刻": 45}.get(match["quarter"] or "", 0)
    if match["minute"]:
        minute = int(number_of(match["minute"]))
    _set_clock(said, match, hour, minute, 0)


def _set_clock(said: _Said, match: re.Match[str], hour: int, minute: int, second: int) -> None:
    try:
        said.clock = time(hour, minute, second)
    except ValueError:
        raise Retry(f"{match.group().strip()!r} is no time of day.") from None


_PART: Final = "|".join(sorted([*_HALVES, *_EARLY], key=len, reverse=True))
_DAY_WORD: Final = "|".join(
    rf"\b(?:the )?{word}\b" if word.isascii() else word for word in sorted(_DAYS_AWAY, key=len, reverse=True)
)
_CHINESE_NUMBER: Final = rf"(?:\d{{1,2}}|{NUMERAL})"
_PATTERNS: Final[list[tuple[re.Pattern[str], Callable[[re.Match[str], _Said], None]]]] = [
    (re.compile(pattern), note)
    for pattern, note in (
        (r"(?<!\d)(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?!\d)", _numbers),
        (r"(?<!\d)(?P<first>\d{1,2})(?P<sign>[./])(?P<second>\d{1,2})(?P=sign)(?P<year>\d{4})(?!\d)", _three_numbers),
        (rf"{_MONTH}\s*{_DAY}{_YEAR}", _named_month),
        (rf"\b{_DAY}\s*(?:of\s+)?{_MONTH}{_YEAR}", _named_month),
        (
            rf"(?:(?P<year>\d{{4}})年|(?P<side>{'|'.join(_SIDES_OF_YEARS)}))?"
            rf"(?P<month>{_CHINESE_NUMBER})月(?P<day>{_CHINESE_NUMBER})[日号號]?",
            _chinese_date,
        ),
        (_DAY_WORD, _day_word),
        (
            rf"(?P<part>{_PART})?(?P<hour>{_CHINESE_NUMBER})[点點](?!钟?[后前])"
            rf"(?:(?P<half>半)|(?P<quarter>[一三]刻)|(?P<minute>{_CHINESE_NUMBER})分?)?钟?",
            _chinese_clock,
        ),
        (
            r"(?<![\d:.])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?\s*(?P<half>[ap]\.?m\b\.?)?(?![\d:])",
            _clock,
        ),
        (r"(?<![\d:.])(?P<hour>\d{1,2})\s*(?P<half>[ap])\.?m\b\.?", _hour_alone),
        (r"\bat\s+(?P<hour>\d{1,2})(?![\d:./-])", _hour),
        (r"\b(?:noon|midday|midnight)\b|正午|中午|午夜|零点", _clock_word),
        (
            r"\b(?:(?P<side>next|coming|this|last|previous)\s+)?(?P<weekday>mon|tue|wed|thu|fri|sat|sun)"
            r"(?:s|nes|rs|ur)?(?:day)?\b",
            _weekday,
        ),
        (
            r"(?P<side>下下|上上|下|上|本|这)?个?(?:周|週|星期|礼拜)(?P<weekday>[一二三四五六日天])",
            _chinese_weekday,
        ),
        (r"\b(?P<side>next|this|last|previous)\s+(?P<unit>week|month|year)\b", _span),
        (r"(?P<side>下下|上上|下|上|本|这)个?(?P<unit>周|星期|礼拜|月)", _span),
        ("|".join(_SIDES_OF_YEARS), _year_word),
        (r"\bend of\b(?: the| this)?(?: (?P<unit>month|year)\b)?", _end_of),
        (r"(?P<unit>[月年])?[底末]", _end_of),
    )
]
