"""What the clock and the calendar say, as a sentence in English or Chinese."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from ferrule.tools.time.moments import Moment
from ferrule.tools.time.zones import Zone, offset_of

WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_CHINESE_WEEKDAYS: Final = tuple(f"星期{char}" for char in "一二三四五六日")


def weekday(at: datetime, *, chinese: bool) -> str:
    return (_CHINESE_WEEKDAYS if chinese else WEEKDAYS)[at.weekday()]


def clock_sentence(now: datetime, zone: Zone, *, chinese: bool) -> str:
    """What time it is somewhere."""
    where = _where(now, zone, chinese)
    if chinese:
        place = "" if zone.place == zone.name else zone.place
        return f"{place}现在是{_date(now, True)}{weekday(now, chinese=True)}{now:%H:%M}（{where}）。"
    place = "" if zone.place == zone.name else f" in {zone.place}"
    return f"It is {now:%H:%M} on {weekday(now, chinese=False)}, {_date(now, False)}{place} ({where})."


def day_sentence(moment: Moment, now: datetime, zone: Zone, *, chinese: bool) -> str:
    """Which day a date is, and how far it is from now."""
    at = moment.at
    day, name = _date(at, chinese), weekday(at, chinese=chinese)
    away = _away(moment, now, chinese)
    clock = f"{at:%H:%M}" if moment.has_time else ""
    where = f"（{_where(at, zone, True)}）" if chinese else f" ({_where(at, zone, False)})"
    where = where if moment.has_time else ""
    if chinese:
        return f"{day}{clock}是{name}，{away}{where}。"
    verb = "was" if _is_past(moment, now) else "is"
    return f"{day}{', ' + clock if clock else ''}{where} {verb} a {name}, {away}."


def difference_sentence(first: Moment, second: Moment, *, chinese: bool) -> str:
    """How far two moments are apart."""
    length = length_between(first, second, chinese=chinese)
    ends = [_date(m.at, chinese) + (f" {m.at:%H:%M}" if m.has_time else "") for m in (first, second)]
    if chinese:
        return f"从{ends[0]}到{ends[1]}相差{length}。"
    return f"From {ends[0]} to {ends[1]} it is {length}."


def length_between(first: Moment, second: Moment, *, chinese: bool) -> str:
    """`285 days (40 weeks and 5 days)`; with hours and minutes where times of day were said."""
    sign = ("负" if chinese else "minus ") if second.at < first.at else ""
    if not (first.has_time or second.has_time):
        return sign + _days(abs((second.at.date() - first.at.date()).days), chinese)
    minutes = round(abs(seconds_between(first.at, second.at)) / 60)
    days, minutes = divmod(minutes, 1440)
    hours, minutes = divmod(minutes, 60)
    units = ("天", "小时", "分钟") if chinese else ("day", "hour", "minute")
    parts = [_counted(count, unit, chinese) for count, unit in zip((days, hours, minutes), units, strict=True) if count]
    return sign + (("" if chinese else " ").join(parts) or _counted(0, units[-1], chinese))


def seconds_between(first: datetime, second: datetime) -> float:
    # In one zone Python would subtract what the clocks show, an hour too much or too little over a change of them.
    return (second.astimezone(UTC) - first.astimezone(UTC)).total_seconds()


def _days(days: int, chinese: bool) -> str:
    whole = _counted(days, "天" if chinese else "day", chinese)
    if days < 14:
        return whole
    weeks, rest = divmod(days, 7)
    if chinese:
        return f"{whole}（{weeks}周{f'零{rest}天' if rest else ''}）"
    return f"{whole} ({_counted(weeks, 'week', False)}{' and ' + _counted(rest, 'day', False) if rest else ''})"


def _away(moment: Moment, now: datetime, chinese: bool) -> str:
    days = (moment.at.date() - now.date()).days
    if not moment.has_time and days == 0:
        return "就是今天" if chinese else "today"
    here = Moment(at=now, has_time=moment.has_time)
    earlier, later = (moment, here) if _is_past(moment, now) else (here, moment)
    length = length_between(earlier, later, chinese=chinese)
    if chinese:
        return f"{length}{'前' if earlier is moment else '后'}"
    return f"{length} ago" if earlier is moment else f"{length} from {'now' if moment.has_time else 'today'}"


def _is_past(moment: Moment, now: datetime) -> bool:
    return moment.at < now if moment.has_time else moment.at.date() < now.date()


def _date(at: datetime, chinese: bool) -> str:
    return f"{at.year}年{at.month}月{at.day}日" if chinese else f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def _where(at: datetime, zone: Zone, chinese: bool) -> str:
    offset = offset_of(at)
    return zone.name if zone.name == offset else f"{zone.name}{'，' if chinese else ', '}{offset}"


def _counted(count: int, unit: str, chinese: bool) -> str:
    return f"{count}{unit}" if chinese else f"{count:,} {unit}{'' if count == 1 else 's'}"
