"""Holidays by name: those with a fixed date, those that follow a rule, and those of the Chinese lunar calendar."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Final, TypeAlias

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry

_LUNAR_YEARS: Final = range(2020, 2051)
_SPRING_FESTIVAL: Final = (
    "0125 0212 0201 0122 0210 0129 0217 0206 0126 0213 0203 0123 0211 0131 0219 0208 "
    "0128 0215 0204 0124 0212 0201 0122 0210 0130 0217 0206 0126 0214 0202 0123"
)
_DRAGON_BOAT_FESTIVAL: Final = (
    "0625 0614 0603 0622 0610 0531 0619 0609 0528 0616 0605 0624 0612 0601 0620 0610 "
    "0530 0618 0607 0527 0614 0603 0622 0611 0531 0619 0608 0529 0615 0604 0623"
)
_MID_AUTUMN_FESTIVAL: Final = (
    "1001 0921 0910 0929 0917 1006 0925 0915 1003 0922 0912 1001 0919 0908 0927 0916 "
    "1004 0924 0913 1002 0920 0910 0928 0917 1005 0925 0915 1004 0922 0911 0930"
)
"""Month and day, of one year after the other."""

_Rule: TypeAlias = Callable[[int], date]
"""The date of a holiday in a year."""


def _on(month: int, day: int) -> _Rule:
    return lambda year: date(year, month, day)


def _nth_weekday(month: int, weekday: int, count: int) -> _Rule:
    """The second Sunday of May: `_nth_weekday(5, 6, 2)`."""
    return lambda year: (
        date(year, month, 1) + timedelta(days=(weekday - date(year, month, 1).weekday()) % 7 + 7 * (count - 1))
    )


def _days_after(rule: _Rule, days: int) -> _Rule:
    return lambda year: rule(year) + timedelta(days=days)


def _easter(year: int) -> date:
    """By the Gregorian computus."""
    century, golden = year // 100, year % 19
    epact = (19 * golden + century - century // 4 - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (year % 100 // 4) - epact - year % 4) % 7
    correction = (golden + 11 * epact + 22 * weekday) // 451
    month, day = divmod(epact + weekday - 7 * correction + 114, 31)
    return date(year, month, day + 1)


def _in_table(dates: str) -> _Rule:
    def look_up(year: int) -> date:
        if year not in _LUNAR_YEARS:
            first, last = _LUNAR_YEARS[0], _LUNAR_YEARS[-1]
            raise Retry(f"Holidays of the Chinese calendar are known from {first} to {last}, not for {year}.")
        digits = dates.split()[year - _LUNAR_YEARS[0]]
        return date(year, int(digits[:2]), int(digits[2:]))

    return look_up


_THANKSGIVING: Final = _nth_weekday(11, 3, 4)
_SPRING: Final = _in_table(_SPRING_FESTIVAL)
_RULES: Final[tuple[tuple[str, _Rule], ...]] = (
    (r"\b(?:christmas|xmas) eve\b|平安夜", _on(12, 24)),
    (r"\b(?:christmas|xmas)(?: day)?\b|圣诞节?", _on(12, 25)),
    (r"\bboxing day\b", _on(12, 26)),
    (r"\b(?:chinese|lunar) new year['’]?s eve\b|除夕夜?|大年三十", _days_after(_SPRING, -1)),
    (r"\b(?:the )?(?:chinese|lunar) new year\b|\b(?:the )?spring festival\b|春节|农历新年|大年初一", _SPRING),
    (r"\b(?:the )?lantern festival\b|元宵节?", _days_after(_SPRING, 14)),
    (r"\b(?:the )?dragon boat festival\b|端午节?", _in_table(_DRAGON_BOAT_FESTIVAL)),
    (r"\b(?:the )?(?:mid[- ]autumn|moon) festival\b|中秋节?", _in_table(_MID_AUTUMN_FESTIVAL)),
    (r"\bnew year['’]?s eve\b|跨年夜?", _on(12, 31)),
    (r"\b(?:the )?new year(?:['’]?s(?: day)?)?\b|元旦节?|新年", _on(1, 1)),
    (r"\bvalentine['’]?s?(?: day)?\b|情人节", _on(2, 14)),
    (r"\bst\.? patrick['’]?s(?: day)?\b", _on(3, 17)),
    (r"\bapril fools?['’]?s?(?: day)?\b|愚人节", _on(4, 1)),
    (r"\bgood friday\b|耶稣受难日", _days_after(_easter, -2)),
    (r"\beaster(?: sunday)?\b|复活节", _easter),
    (r"\bmother['’]?s['’]? day\b|母亲节", _nth_weekday(5, 6, 2)),
    (r"\bfather['’]?s['’]? day\b|父亲节", _nth_weekday(6, 6, 3)),
    (r"\bindependence day\b", _on(7, 4)),
    (r"\bhalloween\b|万圣节", _on(10, 31)),
    (r"\bblack friday\b|黑色星期五", _days_after(_THANKSGIVING, 1)),
    (r"\bthanksgiving(?: day)?\b|感恩节", _THANKSGIVING),
    (r"妇女节", _on(3, 8)),
    (r"劳动节|五一(?:节|劳动节)?(?!\w)", _on(5, 1)),
    (r"儿童节", _on(6, 1)),
    (r"教师节", _on(9, 10)),
    (r"国庆节?", _on(10, 1)),
)
HOLIDAY: Final = "|".join(f"(?:{names})" for names, _ in _RULES)
"""A pattern for the name of a holiday, in lower case."""
_RELATIVE_YEARS: Final = {"next": 1, "this": 0, "last": -1, "明": 1, "今": 0, "去": -1, "后": 2, "前": -2}
_HOLIDAYS: Final = [
    (
        lazy_pattern(
            r"(?:\b(?:the )?(?P<order>next|coming|this|last|previous) |(?P<direction>[上下])一?个)?"
            r"(?:(?P<year>\d{4}) ?年?的? ?|(?P<relative>[明今去后前])年的?)?"
            rf"(?:{names})"
            r"(?:,? (?:(?:in|of) )?(?P<year_after>\d{4})\b| (?P<relative_after>next|this|last) year\b)?"
        ),
        rule,
    )
    for names, rule in _RULES
]


def replace_holidays(text: str, today: date, *, prefers_future: bool) -> str:
    """The text, in lower case, with the dates of the holidays that it names: `2026-12-25` for `christmas`.

    A holiday without a year is that of this year, or with `prefers_future` the next one.
    """
    for pattern, rule in _HOLIDAYS:
        text = pattern.sub(lambda match: f" {_find_date(match, rule, today, prefers_future)} ", text)  # noqa: B023
    return text.strip()


def _find_date(match: re.Match[str], rule: _Rule, today: date, prefers_future: bool) -> date:
    year, relative = match["year"] or match["year_after"], match["relative"] or match["relative_after"]
    try:
        if year or relative:
            return rule(int(year) if year else today.year + _RELATIVE_YEARS[relative])
        day, order = rule(today.year), match["order"] or match["direction"]
        if order in ("last", "previous", "上"):
            return day if day < today else rule(today.year - 1)
        is_next = order in ("next", "coming", "下") or (prefers_future and order is None)
        return rule(today.year + 1) if is_next and day < today else day
    except ValueError:
        raise Retry(f"{match.group().strip()!r} is outside the years 1 to 9999.") from None
