"""`get_time`: what time it is anywhere, which day a date is, and how far two of them are apart."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

from ferrule.errors import Retry
from ferrule.tools.time.moments import Moment, read_moment
from ferrule.tools.time.sentences import (
    clock_sentence,
    day_sentence,
    difference_sentence,
    length_between,
    seconds_between,
    weekday,
)
from ferrule.tools.time.zones import zone_of

_CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")
_CHINESE_NAMES: Final = ("zh", "chinese", "mandarin", "中", "汉", "漢", "普通话")
# No widths: %1000000000d would be that long.
_FORMAT: Final = re.compile(r"(?:[^%]|%[aAbBcdDeFHIjmMnpRSTuUVwWxXyYzZG%])*")
_LONGEST_FORMAT: Final = 100


async def get_time(
    timezone: str | None = None,
    when: str | None = None,
    until: str | None = None,
    format: str | None = None,
    language: str | None = None,
) -> dict[str, Any]:
    """The answer at this moment."""
    asked = " ".join(filter(None, (timezone, when, until)))
    chinese = _CHINESE.search(asked) is not None if language is None else _is_chinese(language)
    return tell_time(datetime.now(UTC), timezone, when, until, format, chinese=chinese)


def tell_time(
    now: datetime, timezone: str | None, when: str | None, until: str | None, format: str | None, *, chinese: bool
) -> dict[str, Any]:
    """The answer at a given moment."""
    zone = zone_of(timezone)
    now = now.astimezone(zone.tz)
    first = read_moment(when, now) if when and when.strip() else None
    shown = first or Moment(at=now, has_time=True)
    told: dict[str, Any] = {
        "time": shown.at.isoformat(timespec="seconds"),
        "zone": zone.name,
        "weekday": weekday(shown.at, chinese=chinese),
    }
    if format:
        told["formatted"] = _formatted(shown.at, format)
    if until and until.strip():
        second = read_moment(until, now, is_ahead=True)
        # Days are counted from today, and not from this minute, unless a minute was said.
        start = first or Moment(at=now, has_time=second.has_time)
        told["until"] = second.at.isoformat(timespec="seconds")
        told["difference"] = {
            "days": (second.at.date() - start.at.date()).days,
            "seconds": round(seconds_between(start.at, second.at)),
            "text": length_between(start, second, chinese=chinese),
        }
        return {**told, "text": difference_sentence(start, second, chinese=chinese)}
    if first is not None:
        return {**told, "text": day_sentence(first, now, zone, chinese=chinese)}
    return {**told, "text": clock_sentence(now, zone, chinese=chinese)}


def _formatted(at: datetime, format: str) -> str:
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
    if len(format) > _LONGEST_FORMAT or _FORMAT.fullmatch(format) is None or "%" not in format:
        raise Retry(
            f"{format[:40]!r} is no format. Write one like %Y-%m-%d %H:%M, or iso, date, time, unix or rfc2822."
        )
    return at.strftime(format)


def _is_chinese(language: str) -> bool:
    return language.strip().casefold().startswith(_CHINESE_NAMES)
