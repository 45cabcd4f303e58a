"""Lengths of time as people say them: 3 days, two weeks ago, 半小时后, - 1 month."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ferrule.errors import Retry

_SMALL: Final = "zero one two three four five six seven eight nine ten eleven twelve"
_WORDS: Final = {word: float(number) for number, word in enumerate(_SMALL.split())} | {
    word: number
    for number, words in {
        0.5: "half a,half an",
        1.0: "a,an",
        20.0: "twenty",
        30.0: "thirty",
        100.0: "a hundred",
    }.items()
    for word in words.split(",")
}
_DIGITS: Final = {char: number for number, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_TENS: Final = {"十": 10, "百": 100, "千": 1_000, "万": 10_000}
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1_200}
_DAYS: Final = {"day": 1, "week": 7, "fortnight": 14}
_SECONDS: Final = {"hour": 3600, "minute": 60, "second": 1}
_SHORT: Final = {
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
NUMERAL: Final = r"[零〇一二两兩三四五六七八九十百千万]{1,9}"
_NUMBER: Final = r"\d{1,7}(?:\.\d{1,3})?"


def _any_of(words: list[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_LONG_UNIT: Final = _any_of([*_MONTHS, *_DAYS, *_SECONDS, "yr", "wk", "hr", "min", "sec"])
_ENGLISH_UNIT: Final = rf"(?:centuries|(?:{_LONG_UNIT})s?|[dh])"
_CHINESE_UNIT: Final = _any_of([unit for unit in _SHORT if not unit.isascii() and unit != "月"])
_ENGLISH: Final = rf"(?:{_NUMBER}\s*|\b(?:{_any_of(list(_WORDS))})\s+){_ENGLISH_UNIT}\b"
_CHINESE: Final = rf"(?:{_NUMBER}|{NUMERAL}|半)(?:个半(?:月|小时|钟头|星期|礼拜)|(?:{_CHINESE_UNIT})半?)"
_PIECE: Final = re.compile(
    rf"(?P<count>{_NUMBER}|{NUMERAL}|半|\b(?:{_any_of(list(_WORDS))})\b)\s*"
    rf"(?P<middle>(?:个半)?)(?P<unit>\b{_ENGLISH_UNIT}\b|(?<=\d){_ENGLISH_UNIT}\b|{_CHINESE_UNIT}|月)(?P<half>半?)"
)
_AMOUNT: Final = re.compile(
    rf"(?P<lead>\b(?:in|plus|add|minus|subtract)\b|[+\-−])?\s*(?P<run>{_ENGLISH}(?:\s*(?:,|and)?\s*{_ENGLISH})*)"
    r"\s*(?P<way>(?:ago|earlier|before|prior to|from now|from today|from|later|after)\b)?"
)
_CHINESE_RUN: Final = rf"{_CHINESE}(?:又?{_CHINESE})*"
_CHINESE_AMOUNT: Final = re.compile(
    # Without a sign before or a word behind it 25日 is no length of time, but part of a date.
    rf"(?P<lead>[+\-−加减再过])\s*(?P<run>{_CHINESE_RUN})(?P<way>(?:之|以)?[后後前])?"
    rf"|(?P<bare_run>{_CHINESE_RUN})(?P<bare_way>(?:之|以)?[后後前])"
)
_BACK: Final = frozenset({"-", "−", "minus", "subtract", "减", "ago", "earlier", "before", "prior to"})
_MOST: Final = 6
"""Amounts in one text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How far to go, each unit as the calendar has it."""

    months: int = 0
    days: int = 0
    seconds: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            months=self.months + other.months, days=self.days + other.days, seconds=self.seconds + other.seconds
        )

    def after(self, moment: datetime) -> datetime:
        """The moment so much later: the same time of day so many days away, and hours as they really pass."""
        try:
            wall = _months_later(moment, self.months) + timedelta(days=self.days)
            return (wall.astimezone(UTC) + timedelta(seconds=self.seconds)).astimezone(moment.tzinfo)
        except (OverflowError, ValueError):
            raise Retry("That is beyond the years 1 to 9999, and the calendar has no others.") from None


def take_amounts(text: str) -> tuple[Amount | None, str]:
    """All the amounts of a text together, and the text without them."""
    total: Amount | None = None
    for _ in range(_MOST):
        match = _AMOUNT.search(text) or _CHINESE_AMOUNT.search(text)
        if match is None:
            return total, text
        amount = _read(match)
        total = amount if total is None else total + amount
        text = f"{text[: match.start()]} {text[match.end() :]}".strip()
    raise Retry(f"There are more than {_MOST} lengths of time in it: ask in several calls.")


def number_of(text: str) -> float:
    """Digits, an English word or a Chinese numeral."""
    if text[0].isdigit() and text.isascii():
        return float(text)
    if text in _WORDS:
        return _WORDS[text]
    total = current = 0
    for char in text:
        if char in _TENS:
            total += (current or 1) * _TENS[char]
            current = 0
        else:
            current = _DIGITS[char]
    return float(total + current)


def _read(match: re.Match[str]) -> Amount:
    said = match.groupdict()
    lead, way = said["lead"] or "", said["way"] or said.get("bare_way") or ""
    is_back = (way in _BACK or way.endswith("前")) if way else lead in _BACK
    total = Amount()
    for piece in _PIECE.finditer(said["run"] or said["bare_run"]):
        total += _amount(piece, -1 if is_back else 1)
    return total


def _amount(piece: re.Match[str], sign: int) -> Amount:
    count = 0.5 if piece["count"] == "半" else number_of(piece["count"])
    count = sign * (count + (0.5 if piece["middle"] or piece["half"] else 0.0))
    unit = piece["unit"].removesuffix("s")
    unit = _SHORT.get(unit, unit)
    if unit in _SECONDS:
        return Amount(seconds=count * _SECONDS[unit])
    if unit in _DAYS:
        days = int(count * _DAYS[unit])
        return Amount(days=days, seconds=(count * _DAYS[unit] - days) * 86_400)
    months = count * _MONTHS[unit]
    if months != int(months):
        raise Retry(f"{piece.group().strip()!r} is no whole number of months: say it in weeks or days.")
    return Amount(months=int(months))


def _months_later(moment: datetime, months: int) -> datetime:
    """The same day of another month, or its last one where it has none of that number."""
    if not months:
        return moment
    years, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    return moment.replace(year=years, month=month + 1, day=min(moment.day, monthrange(years, month + 1)[1]))
