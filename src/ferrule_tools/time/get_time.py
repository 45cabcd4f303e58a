"""`get_time`: what time it is anywhere, which day a date is, and how far two dates are apart.

It runs `get_time.yaml`. Dates and zones are read by `ferrule_tools.time.dates` and `ferrule.texts.time_zones`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

from ferrule.core.call import ToolExecutionContext
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry
from ferrule.texts.language import contains_chinese
from ferrule.texts.time_zones import TimeZone, find_time_zone, format_offset
from ferrule_tools.time.dates import Duration, ParsedDate, parse_date

_CHINESE_LANGUAGES: Final = ("zh", "chinese", "mandarin", "中", "汉", "漢", "普通话")
# No widths: %1000000000d would be that long.
_FORMAT: Final = lazy_pattern(r"(?:[^%]|%[aAbBcdDeFHIjmMnpRSTuUVwWxXyYzZG%])*")
_MAX_FORMAT: Final = 100
_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_CHINESE_WEEKDAYS: Final = tuple(f"星期{char}" for char in "一二三四五六日")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

_NEAR_DAYS: Final = {-1: ("Yesterday was", "昨天"), 0: ("Today is", "今天"), 1: ("Tomorrow is", "明天")}
_MIN_DAYS_IN_YEARS: Final = 730


async def get_time(
    timezone: str | None = None,
    when: str | None = None,
    until: str | None = None,
    format: str | None = None,
    language: str | None = None,
    other_place: str | None = None,
    context: ToolExecutionContext | None = None,
) -> dict[str, Any]:
    """Describe the current time, in the language of the question where the call names none."""
    if language is None and context is not None:
        language = context.variables.get("language")
    if language is None:
        chinese = contains_chinese(" ".join(filter(None, (timezone, when, until, other_place))))
    else:
        chinese = language.strip().casefold().startswith(_CHINESE_LANGUAGES)
    return describe_time(datetime.now(UTC), timezone, when, until, format, other_place, chinese=chinese)


def describe_time(
    now: datetime,
    timezone: str | None,
    when: str | None,
    until: str | None,
    format: str | None,
    other_place: str | None = None,
    *,
    chinese: bool,
) -> dict[str, Any]:
    """Describe a time, given the current time."""
    zone = find_time_zone(timezone)
    now = now.astimezone(zone.tz)
    first = parse_date(when, now) if when and when.strip() else None
    date = first or ParsedDate(at=now, has_time=True)
    output: dict[str, Any] = {
        "time": date.at.isoformat(timespec="seconds"),
        "zone": zone.name,
        "weekday": _weekday_name(date.at, chinese=chinese),
    }
    if format:
        output["formatted"] = _format_time(date.at, format)
    if other_place and other_place.strip():
        other = find_time_zone(other_place)
        other_at = date.at.astimezone(other.tz)
        output |= {"other_time": other_at.isoformat(timespec="seconds"), "other_zone": other.name}
        return {**output, "text": _comparison_sentence(first, date.at, other_at, zone, other, chinese=chinese)}
    if until and until.strip():
        second = parse_date(until, now, prefers_future=True)
        # Days are counted from today, and not from this minute, unless a time of day was given.
        start = first or ParsedDate(at=now, has_time=second.has_time)
        output["until"] = second.at.isoformat(timespec="seconds")
        output["difference"] = {
            "days": (second.at.date() - start.at.date()).days,
            "seconds": round(_seconds_between(start.at, second.at)),
            "text": _format_length_between(start, second, chinese=chinese),
        }
        length, end = output["difference"]["text"], _format_moment(second, chinese)
        if first is None and not _is_past(second, now):
            return {**output, "text": f"离{end}还有{length}。" if chinese else f"It is {length} until {end}."}
        begin = _format_moment(start, chinese)
        text = f"从{begin}到{end}相差{length}。" if chinese else f"From {begin} to {end} it is {length}."
        return {**output, "text": text}
    if first is not None:
        return {**output, "text": _day_sentence(first, now, zone, chinese=chinese)}
    return {**output, "text": _clock_sentence(now, zone, chinese=chinese)}


def _format_time(at: datetime, format: str) -> str:
    match format.strip().lower():
        case "iso" | "iso8601" | "iso 8601":
            return at.isoformat(timespec="seconds")
        case "date":
            return f"{at:%Y-%m-%d}"
        case "time":
            return f"{at:%H:%M:%S}"
        case "unix" | "timestamp" | "epoch":
            return str(int(at.timestamp()))
        case "rfc2822" | "email" | "http":
            return format_datetime(at)
    if len(format) > _MAX_FORMAT or _FORMAT.fullmatch(format) is None or "%" not in format:
        raise Retry(
            f"{format[:40]!r} is not a format. Write one like %Y-%m-%d %H:%M, or iso, date, time, unix or rfc2822."
        )
    return at.strftime(format)


# Sentences, in English and Chinese


def _clock_sentence(now: datetime, zone: TimeZone, *, chinese: bool) -> str:
    """Say what time it is in a zone."""
    place = _place_name(zone)
    where = format_offset(now) if place else _zone_with_offset(now, zone, chinese)
    if chinese:
        place = place if contains_chinese(place) else ""
        return f"{place}现在是{_format_date(now, True)}{_weekday_name(now, chinese=True)}{now:%H:%M}（{where}）。"
    place = f" in {place}" if place else ""
    return f"It is {now:%H:%M} on {_weekday_name(now, chinese=False)}, {_format_date(now, False)}{place} ({where})."


def _comparison_sentence(
    stated: ParsedDate | None, at: datetime, other_at: datetime, zone: TimeZone, other: TimeZone, *, chinese: bool
) -> str:
    """Say what time it is in two places, and how far they are apart."""
    first, second = _place_name(zone) or zone.name, _place_name(other) or other.name
    if stated is not None and stated.has_time:
        days = (other_at.date() - at.date()).days + 1
        if chinese:
            return f"{first}{at:%H:%M}是{second}{('前一天', '', '第二天')[days]}{other_at:%H:%M}。"
        day = (" the day before", "", " the next day")[days]
        return f"{at:%H:%M} in {first} is {other_at:%H:%M} in {second}{day}."
    minutes = round(((at.utcoffset() or timedelta()) - (other_at.utcoffset() or timedelta())).total_seconds() / 60)
    units = ("小时", "分钟") if chinese else ("hour", "minute")
    parts = [_format_count(n, unit, chinese) for n, unit in zip(divmod(abs(minutes), 60), units, strict=True) if n]
    length = ("" if chinese else " and ").join(parts)
    if chinese:
        relation = f"比{second}{'早' if minutes > 0 else '晚'}{length}" if minutes else f"和{second}没有时差"
        return f"{first}{relation}：{first}{at:%H:%M}，{second}{other_at:%H:%M}。"
    relation = f"is {length} {'ahead of' if minutes > 0 else 'behind'}" if minutes else "has the same time as"
    return f"{first} {relation} {second}: {at:%H:%M} in {first} is {other_at:%H:%M} in {second}."


def _place_name(zone: TimeZone) -> str:
    """Return the place as the caller named it, or the city of the zone; empty for a zone without a city."""
    if zone.place != zone.name:
        return zone.place
    return zone.name.rpartition("/")[2].replace("_", " ") if "/" in zone.name and zone.name[:4] != "Etc/" else ""


def _day_sentence(day: ParsedDate, now: datetime, zone: TimeZone, *, chinese: bool) -> str:
    """Say which day a date is, and how far it is from now."""
    at = day.at
    text, name = _format_date(at, chinese), _weekday_name(at, chinese=chinese)
    near = _NEAR_DAYS.get((at.date() - now.date()).days) if not day.has_time else None
    if near is not None:
        return f"{near[1]}是{text}，{name}。" if chinese else f"{near[0]} {name}, {text}."
    today, is_past = ParsedDate(at=now, has_time=day.has_time), _is_past(day, now)
    length = _format_length_between(*((day, today) if is_past else (today, day)), chinese=chinese)
    clock = f"{at:%H:%M}" if day.has_time else ""
    where = f"（{_zone_with_offset(at, zone, True)}）" if chinese else f" ({_zone_with_offset(at, zone, False)})"
    where = where if day.has_time else ""
    if chinese:
        return f"{text}{clock}是{name}，{length}{'前' if is_past else '后'}{where}。"
    distance = f"{length} ago" if is_past else f"{length} from {'now' if day.has_time else 'today'}"
    verb = "was" if is_past else "is"
    return f"{text}{', ' + clock if clock else ''}{where} {verb} a {name}, {distance}."


def _format_length_between(first: ParsedDate, second: ParsedDate, *, chinese: bool) -> str:
    """Return `285 days (40 weeks and 5 days)`; with hours and minutes if a time of day was given."""
    sign = ("负" if chinese else "minus ") if second.at < first.at else ""
    if not (first.has_time or second.has_time):
        return sign + _format_days(min(first.at, second.at), max(first.at, second.at), chinese)
    minutes = round(abs(_seconds_between(first.at, second.at)) / 60)
    days, minutes = divmod(minutes, 1440)
    hours, minutes = divmod(minutes, 60)
    units = ("天", "小时", "分钟") if chinese else ("day", "hour", "minute")
    parts = [
        _format_count(count, unit, chinese) for count, unit in zip((days, hours, minutes), units, strict=True) if count
    ]
    return sign + (("" if chinese else " ").join(parts) or _format_count(0, units[-1], chinese))


def _seconds_between(first: datetime, second: datetime) -> float:
    # Within one zone Python subtracts what the clocks show, which is an hour wrong when summer time begins or ends.
    return (second.astimezone(UTC) - first.astimezone(UTC)).total_seconds()


def _format_days(first: datetime, second: datetime, chinese: bool) -> str:
    """Return `21 days (3 weeks)`, `1,200 days (3 years and 104 days)`."""
    days, unit = (second.date() - first.date()).days, "周" if chinese else "week"
    whole = _format_count(days, "天" if chinese else "day", chinese)
    if days < 14:
        return whole
    count, rest = divmod(days, 7)
    if days >= _MIN_DAYS_IN_YEARS:
        count, unit = second.year - first.year, "年" if chinese else "year"
        count -= Duration(months=12 * count).after(first).date() > second.date()
        rest = (second.date() - Duration(months=12 * count).after(first).date()).days
    if chinese:
        return f"{whole}（{count}{unit}{f'零{rest}天' if rest else ''}）"
    return f"{whole} ({_format_count(count, unit, False)}{' and ' + _format_count(rest, 'day', False) if rest else ''})"


def _is_past(day: ParsedDate, now: datetime) -> bool:
    return day.at < now if day.has_time else day.at.date() < now.date()


def _weekday_name(at: datetime, *, chinese: bool) -> str:
    return (_CHINESE_WEEKDAYS if chinese else _WEEKDAYS)[at.weekday()]


def _format_date(at: datetime, chinese: bool) -> str:
    return f"{at.year}年{at.month}月{at.day}日" if chinese else f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def _format_moment(day: ParsedDate, chinese: bool) -> str:
    return _format_date(day.at, chinese) + (f" {day.at:%H:%M}" if day.has_time else "")


def _zone_with_offset(at: datetime, zone: TimeZone, chinese: bool) -> str:
    offset = format_offset(at)
    return zone.name if zone.name == offset else f"{zone.name}{'，' if chinese else ', '}{offset}"


def _format_count(count: int, unit: str, chinese: bool) -> str:
    return f"{count}{unit}" if chinese else f"{count:,} {unit}{'' if count == 1 else 's'}"
