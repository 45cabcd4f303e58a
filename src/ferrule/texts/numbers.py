"""Numbers as people write them: digits, English words, Chinese numerals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern

_UNITS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL_NUMBERS: Final = {word: number for number, word in enumerate(_UNITS.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), 2)
}
_LARGE_NUMBERS: Final = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_WORD: Final = "|".join(sorted([*_SMALL_NUMBERS, *_LARGE_NUMBERS], key=len, reverse=True))
_CHINESE_DIGITS: Final = {"〇": 0, "两": 2, "兩": 2} | {c: number for number, c in enumerate("零一二三四五六七八九")}
_CHINESE_UNITS: Final = {"十": 10, "百": 100, "千": 1_000}
_CHINESE_MYRIADS: Final = {"万": 10_000, "亿": 100_000_000}

DIGITS: Final = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?"
SCALED: Final = rf"{DIGITS}(?:[ ](?:{'|'.join(_LARGE_NUMBERS)})\b|[万亿])?"
"""Digits, perhaps with a word that multiplies them: 2.5 million, 3万."""
WORDS: Final = rf"(?:{_WORD})(?:[ -](?:and )?(?:{_WORD}))*"
CHINESE_INTEGER: Final = r"[零〇一二两兩三四五六七八九十百千万亿]"
"""One character of a Chinese numeral."""
_CHINESE: Final = rf"{CHINESE_INTEGER}+(?:点[零〇一二三四五六七八九]+)?"
_MAX_LENGTH: Final = 300
NUMBER: Final = rf"(?:-?{SCALED}%?|\b(?:{WORDS})\b|{_CHINESE})"
"""Any of the three, for patterns that expect a number at that place."""

_NUMBER_IN_TEXT: Final = lazy_pattern(
    rf"(?P<digits>(?<![\w.,])[-+]?{SCALED}(?![\w]|\.\d))"
    rf"|(?P<before_chinese>(?<![A-Za-z0-9_.,-]){SCALED}(?=[\u4e00-\u9fff]))"
    rf"|(?P<with_unit>(?<![A-Za-z0-9_.,-]){DIGITS}"
    r"(?=(?:k?[mg]|[cm]m|km|kb|[mg]b|°?[cf]|h|hrs?|mins?|s|x|th|st|nd|rd)\b))"
    rf"|(?P<words>\b(?:{WORDS})\b)"
    rf"|(?P<chinese>{_CHINESE})",
    re.IGNORECASE,
)
CHINESE_ARTICLE: Final = lazy_pattern(r"[一两](?=[个下些样起直定般切共点种名只件条台本张辆双套瓶家])|(?<=[第统唯万])一")
"""Numerals that count nothing: 一下, 一些, 统一."""


@dataclass(frozen=True, slots=True)
class ValueSpan:
    """A value that a text contains, and where."""

    value: Any
    start: int
    end: int


def parse_number(text: str) -> int | float | None:
    """Return the value of a number, however it is written; None for any other text."""
    text = text.strip().lower().removesuffix("%")
    if len(text) > _MAX_LENGTH:  # int() refuses thousands of digits
        return None
    if re.fullmatch(rf"[-+]?{SCALED}", text):
        digits, scale = re.fullmatch(r"([-+\d.,e]*\d) ?(\D*)", text).groups()  # type: ignore[union-attr]
        digits = digits.replace(",", "")
        number = int(digits) if re.fullmatch(r"[-+]?\d+", digits) else float(digits)
        if not scale:
            return number
        product = Fraction(str(number)) * {**_LARGE_NUMBERS, **_CHINESE_MYRIADS}[scale]
        return int(product) if product.denominator == 1 else float(product)
    if re.fullmatch(_CHINESE, text):
        return _parse_chinese(text)
    return _parse_words(text)


def find_numbers(text: str) -> list[ValueSpan]:
    """Return the numbers of a text, in order."""
    articles = {match.start() for match in CHINESE_ARTICLE.finditer(text)}
    numbers = []
    for match in _NUMBER_IN_TEXT.finditer(text):
        if match.lastgroup == "chinese" and (match.start() in articles or match.group() in _CHINESE_MYRIADS):
            continue
        if match.lastgroup == "words" and match.group().lower() in (*_LARGE_NUMBERS, "one"):
            continue  # "the one I like", "a million thanks"
        value = parse_number(match.group())
        if value is not None:
            numbers.append(ValueSpan(value, match.start(), match.end()))
    return numbers


def _parse_words(text: str) -> int | None:
    total = group = 0
    for word in re.split(r"[ -]+", text):
        if word in _SMALL_NUMBERS:
            group += _SMALL_NUMBERS[word]
        elif word == "hundred":
            group = max(group, 1) * 100
        elif word in _LARGE_NUMBERS:
            total, group = total + max(group, 1) * _LARGE_NUMBERS[word], 0
        elif word != "and" or word == text:
            return None
    return total + group


def _parse_chinese(text: str) -> int | float:
    whole, _, fraction = text.partition("点")
    if any(char in _CHINESE_UNITS or char in _CHINESE_MYRIADS for char in whole):
        value = _parse_chinese_units(whole)
    else:
        value = int("".join(str(_CHINESE_DIGITS[char]) for char in whole))  # 二〇二五
    return float(f"{value}.{''.join(str(_CHINESE_DIGITS[char]) for char in fraction)}") if fraction else value


def _parse_chinese_units(text: str) -> int:
    total = section = digit = 0
    for char in text:
        if char in _CHINESE_DIGITS:
            digit = _CHINESE_DIGITS[char]
        elif char in _CHINESE_UNITS:
            section, digit = section + (digit or 1) * _CHINESE_UNITS[char], 0
        else:
            total, section, digit = (total + section + digit or 1) * _CHINESE_MYRIADS[char], 0, 0
    return total + section + digit
