"""Time zones by the names people use: an IANA name, a city or country in English or Chinese, an offset.

The names of large cities, and of countries with one time zone, are in `time_zones.txt`; beside these every zone is
known by the city in its own name. Names are compared in lower case and without accents.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import ExecutionFailed, Retry
from ferrule.texts.numbers import ValueSpan

_NAMES_FILE: Final = Path(__file__).with_suffix(".txt")
_LOCAL_NAMES: Final = frozenset({"", "local", "here", "local time", "本地", "本地时间", "这里", "当地"})
_OFFSET: Final = lazy_pattern(r"(?:utc|gmt)?\s*([+-])\s*(\d{1,2})(?::?(\d{2}))?")
_CONTINENTS: Final = (
    *("Africa/", "America/", "Antarctica/", "Arctic/", "Asia/"),
    *("Atlantic/", "Australia/", "Europe/", "Indian/", "Pacific/"),
)
_SUFFIX: Final = lazy_pattern(r"(?: time(?: ?zone)?| city|市|时间|时区|當地|当地)+\Z")
_IANA_NAME: Final = lazy_pattern(r"\b[A-Z][A-Za-z]+(?:/[A-Z][A-Za-z_+-]+)+\b|\bUTC\b|\bGMT\b")
_LOCALTIME_PATH: Final = "/etc/localtime"
_MAX_LENGTH: Final = 100
_MIN_SIMILARITY: Final = 0.75
"""For suggestions. There are hundreds of names, so any word is a little similar to some of them."""
_ENGLISH_WORDS: Final = frozenset({"nice", "split", "male", "turkey", "cork", "universal", "zulu", "bali", "center"})
"""Names that are also English words: in a sentence they count only with a capital letter, and so do short ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeZone:
    """A time zone under the name it was requested by."""

    tz: tzinfo
    name: str
    """The IANA name, or `UTC+08:00`."""
    place: str
    """The name in the request."""


def find_time_zone(name: str | None) -> TimeZone:
    """Return the zone with a name, that of this machine without one; `Retry` if there is none, or more than one."""
    text = name or ""
    if len(text) > _MAX_LENGTH:
        raise Retry(f"timezone has {len(text)} characters: name a city such as Tokyo, or a zone such as Asia/Tokyo.")
    key = normalize_name(text)
    if key in _LOCAL_NAMES:
        return _find_local_zone()
    zone = _zone_by_name(key) or _zone_by_offset(key) or _zone_by_city_and_country(key)
    if zone is None:
        near = get_close_matches(key, {**_iana_names(), **place_names()}, n=3, cutoff=_MIN_SIMILARITY)
        suggestion = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        advice = (
            suggestion or " Name a large city, a country with one time zone, or a zone such as Asia/Tokyo or UTC+8."
        )
        raise Retry(f"No time zone is known for {text.strip()!r}.{advice}")
    place = _SUFFIX.sub("", " ".join(text.replace("_", " ").split()).strip(" ,，"))
    if normalize_name(place) == normalize_name(zone.name) or zone.name.startswith("UTC"):
        place = zone.name
    elif place.islower():
        place = place.title() if len(place) > 3 else place.upper()
    return TimeZone(tz=zone.tz, name=zone.name, place=place)


def find_time_zones_in_text(text: str) -> list[ValueSpan]:
    """Return the IANA names of the zones that a sentence mentions, in order."""
    zones = _zone_names()
    exact = [ValueSpan(m.group(), *m.span()) for m in _IANA_NAME.finditer(text) if m.group() in available_timezones()]
    lowered = "".join(unicodedata.normalize("NFKD", char)[0] for char in text.lower())  # without accents
    if exact or len(lowered) != len(text):
        return exact
    return [
        ValueSpan(zones[name], start, start + len(name))
        for name, start in _find_names(lowered)
        if not name.isascii() or text[start].isupper() or (len(name) > 3 and name not in _ENGLISH_WORDS)
    ]


def _find_names(lowered: str) -> Iterator[tuple[str, int]]:
    """Yield the longest name of a zone at each place of a text, with its start. ASCII names are whole words."""
    zones, at = _zone_names(), 0
    lengths = sorted(set(map(len, zones)), reverse=True)
    while at < len(lowered):
        for length in lengths:
            name, end = lowered[at : at + length], at + length
            is_part_of_word = "a" <= lowered[at - 1 : at] <= "z" or "a" <= lowered[end : end + 1] <= "z"
            if name in zones and not (name.isascii() and is_part_of_word):
                yield name, at
                at += len(name) - 1
                break
        at += 1


def normalize_name(text: str) -> str:
    """Lower case, no accents, single spaces."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(char for char in letters if not unicodedata.combining(char))
    return re.sub(r"[\s_]+", " ", bare.replace("’", "'").replace(".", "")).strip(" ,，")


def format_offset(at: datetime) -> str:
    """`UTC+09:00`."""
    offset = at.strftime("%z")
    return "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"


# Looking up one name


def _zone_by_name(key: str) -> TimeZone | None:
    for name in dict.fromkeys((key, _SUFFIX.sub("", key), key.removeprefix("the "))):
        zone = place_names().get(name) or _iana_names().get(name)
        if zone is not None and not _is_zone(zone):
            raise Retry(f"{name!r} has more than one time zone: name a city, such as {zone}.")
        if zone is not None:
            return _load_zone(zone)
    return None


def _zone_by_city_and_country(key: str) -> TimeZone | None:
    """`paris, france`; but not `paris, texas`, which is another Paris than the one in the table."""
    city, comma, country = (part.strip() for part in key.replace("，", ",").partition(","))
    zone = _zone_by_name(city) if comma else None
    if zone is None or not _is_zone(place_names().get(country, zone.name)):
        return zone
    other = _zone_by_name(country)
    if other is not None and other.name != zone.name:
        raise Retry(f"{city!r} is in {zone.name}, but {country!r} is in {other.name}: name one of the two.")
    return zone


def _zone_by_offset(key: str) -> TimeZone | None:
    match = _OFFSET.fullmatch(key)
    if match is None:
        return None
    sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    if offset > timedelta(hours=18):
        raise Retry(f"No place has the offset {key!r}: offsets go from UTC-12:00 to UTC+14:00.")
    tz = timezone(-offset if sign == "-" else offset)
    name = format_offset(datetime.now(tz))
    return TimeZone(tz=tz, name=name, place=name)


def _load_zone(name: str) -> TimeZone:
    if name == "UTC":
        return TimeZone(tz=UTC, name=name, place=name)
    try:
        return TimeZone(tz=ZoneInfo(name), name=name, place=name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ExecutionFailed(
            f"This machine has no time zone data for {name!r}. Install it with: pip install tzdata"
        ) from error


def _is_zone(name: str) -> bool:
    return "/" in name.partition(" ")[0] or name == "UTC"


def _find_local_zone() -> TimeZone:
    """Return the zone of this machine, by name if the machine has one."""
    path = os.path.realpath(_LOCALTIME_PATH)
    name = os.environ.get("TZ", "").removeprefix(":") or path.partition("zoneinfo/")[2]
    if name in available_timezones():
        return _load_zone(name)
    now = datetime.now().astimezone()
    return TimeZone(tz=now.tzinfo or UTC, name=format_offset(now), place=format_offset(now))


# Tables


@cache
def place_names() -> dict[str, str]:
    """Names of places, and the zone of each; if it has several, cities to name instead."""
    names: dict[str, str] = {}
    for line in _NAMES_FILE.read_text(encoding="utf-8").splitlines():
        zone, _, places = line.partition(": ")
        if not zone.startswith("#"):
            names.update(dict.fromkeys(places.split(", "), zone))
    return names


@cache
def _iana_names() -> dict[str, str]:
    """Return every zone by its own name, and those of continents by the city in it."""
    zones = sorted(available_timezones())
    cities = {normalize_name(name.rpartition("/")[2]): name for name in zones if name.startswith(_CONTINENTS)}
    return cities | {
        normalize_name(name): name for name in zones if not name.startswith(("posix", "right", "localtime"))
    }


@cache
def _zone_names() -> dict[str, str]:
    """Names to look for in sentences: places, and the cities in the names of zones."""
    zones = [name for name in sorted(available_timezones()) if name.startswith(_CONTINENTS) and name.count("/") == 1]
    places = {place: zone for place, zone in place_names().items() if _is_zone(zone)}
    return {normalize_name(name.rpartition("/")[2]): name for name in zones} | places
