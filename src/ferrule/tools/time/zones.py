"""The time zone somebody means: an IANA name, a city in English or Chinese, an offset, or where this machine is."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ferrule.errors import ExecutionFailed, Retry
from ferrule.tools.time.cities import cities, unclear_places

_HERE: Final = frozenset({"", "local", "here", "local time", "本地", "本地时间", "这里", "当地"})
_OFFSET: Final = re.compile(r"(?:utc|gmt)?\s*([+-])\s*(\d{1,2})(?::?(\d{2}))?")
_CONTINENTS: Final = (
    *("Africa/", "America/", "Antarctica/", "Arctic/", "Asia/"),
    *("Atlantic/", "Australia/", "Europe/", "Indian/", "Pacific/"),
)
_TAIL: Final = re.compile(r"(?: time(?: ?zone)?| city|市|时间|时区|當地|当地)+\Z")
_WHERE_LOCALTIME_IS: Final = "/etc/localtime"
_LONGEST: Final = 100
_NEAR: Final = 0.75
"""How alike names must be: among so many, any word is a little like some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A time zone under the name it was asked for."""

    tz: tzinfo
    name: str
    """As IANA has it, or `UTC+08:00`."""
    place: str
    """As people say it."""


def zone_of(said: str | None) -> Zone:
    """The zone a text names; `Retry` says what to write where it names none, or several."""
    text = said or ""
    if len(text) > _LONGEST:
        raise Retry(f"timezone has {len(text)} characters: name a city such as Tokyo, or a zone such as Asia/Tokyo.")
    wanted = folded(text)
    if wanted in _HERE:
        return _local()
    found = _named(wanted) or _fixed(wanted) or _of_city_and_country(wanted)
    if found is None:
        raise _unknown(text.strip(), wanted)
    return Zone(tz=found.tz, name=found.name, place=_as_said(text, found.name))


def folded(text: str) -> str:
    """Small letters, no accents, single spaces: names that differ only in writing are the same."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(char for char in letters if not unicodedata.combining(char))
    return re.sub(r"[\s_]+", " ", bare.replace("’", "'").replace(".", "")).strip(" ,，")


def _named(wanted: str) -> Zone | None:
    for name in dict.fromkeys((wanted, _TAIL.sub("", wanted), wanted.removeprefix("the "))):
        if name in unclear_places():
            raise Retry(f"{name!r} has more than one time zone: name a city, such as {unclear_places()[name]}.")
        zone = cities().get(name) or _iana().get(name)
        if zone is not None:
            return _zone(zone)
    return None


def _of_city_and_country(wanted: str) -> Zone | None:
    """`paris, france`; not `paris, texas`, which is somewhere else than the Paris we know."""
    city, comma, country = (part.strip() for part in wanted.replace("，", ",").partition(","))
    found = _named(city) if comma else None
    if found is None or country in unclear_places():
        return found
    where = _named(country)
    if where is not None and where.name != found.name:
        raise Retry(f"{city!r} is known in {found.name}, but {country!r} keeps {where.name}: say which of the two.")
    return found


def _fixed(wanted: str) -> Zone | None:
    match = _OFFSET.fullmatch(wanted)
    if match is None:
        return None
    sign, hours, minutes = match.groups()
    away = timedelta(hours=int(hours), minutes=int(minutes or 0))
    if away > timedelta(hours=18):
        raise Retry(f"{wanted!r} is no offset that any place has: they go from UTC-12:00 to UTC+14:00.")
    tz = timezone(-away if sign == "-" else away)
    name = offset_of(datetime.now(tz))
    return Zone(tz=tz, name=name, place=name)


def _zone(name: str) -> Zone:
    if name == "UTC":
        return Zone(tz=UTC, name=name, place=name)
    try:
        return Zone(tz=ZoneInfo(name), name=name, place=name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ExecutionFailed(
            f"This machine has no time zone data for {name!r}. Install it with: pip install tzdata"
        ) from error


def _local() -> Zone:
    """The zone of this machine, by name where it says its name."""
    path = os.path.realpath(_WHERE_LOCALTIME_IS)
    named = os.environ.get("TZ", "").removeprefix(":") or path.partition("zoneinfo/")[2]
    if named in available_timezones():
        return _zone(named)
    now = datetime.now().astimezone()
    return Zone(tz=now.tzinfo or UTC, name=offset_of(now), place=offset_of(now))


def offset_of(moment: datetime) -> str:
    """`UTC+09:00`."""
    written = moment.strftime("%z")
    return "UTC" if written == "+0000" else f"UTC{written[:3]}:{written[3:5]}"


@cache
def _iana() -> dict[str, str]:
    """Every zone by its own name, and those of continents by the city in it."""
    zones = sorted(available_timezones())
    found = {folded(name.rpartition("/")[2]): name for name in zones if name.startswith(_CONTINENTS)}
    return found | {folded(name): name for name in zones if not name.startswith(("posix", "right", "localtime"))}


def _unknown(text: str, wanted: str) -> Retry:
    near = get_close_matches(wanted, {**_iana(), **cities()}, n=3, cutoff=_NEAR)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    advice = meant or " Name a large city, a country with one time zone, or a zone such as Asia/Tokyo or UTC+8."
    return Retry(f"No time zone is known for {text!r}.{advice}")


def _as_said(text: str, name: str) -> str:
    said = _TAIL.sub("", " ".join(text.replace("_", " ").split()).strip(" ,，"))
    return name if folded(said) == folded(name) or name.startswith("UTC") else said
