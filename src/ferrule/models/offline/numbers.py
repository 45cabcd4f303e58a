"""Numbers as people write them: digits, English words, Chinese numerals."""

from __future__ import annotations

import re

from ferrule.models.offline.reading import Found

_SMALL = {
    word: number
    for number, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
_TENS = {
    word: 10 * n
    for n, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
_LARGE = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_WORDS = "|".join(sorted([*_SMALL, *_TENS, *_LARGE], key=len, reverse=True))
_DIGITS = {char: n for n, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_UNITS = {"十": 10, "百": 100, "千": 1_000}
_MYRIADS = {"万": 10_000, "亿": 100_000_000}

DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?"
WORDS = rf"(?:{_WORDS})(?:[ -](?:and )?(?:{_WORDS}))*"
CHINESE = r"[零〇一二两三四五六七八九十百千万亿]+(?:点[零〇一二三四五六七八九]+)?"
OPERAND = rf"(?:-?{DIGITS}%?|\b(?:{WORDS})\b|{CHINESE})"
"""A number in any of the three ways, for patterns that know that a number must stand there."""

_NUMBER = re.compile(
    rf"(?P<digits>(?<![\w.,])[-+]?{DIGITS}(?![\w]|\.\d))"
    rf"|(?P<beside>(?<![A-Za-z0-9_.,-]){DIGITS}(?=[\u4e00-\u9fff]))"
    rf"|(?P<joined>(?<![A-Za-z0-9_.,-]){DIGITS}(?=(?:k?[mg]|[cm]m|km|kb|[mg]b|°?[cf]|h|hrs?|mins?|s|x|th|st|nd|rd)\b))"
    rf"|(?P<words>\b(?:{WORDS})\b)"
    rf"|(?P<chinese>{CHINESE})",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"[一两](?=[个下些样起直定般切共点种名只])|(?<=[第统唯万])一")
"""一 that counts nothing: 一下, 一些, 统一."""


def numbers_in(text: str) -> list[Found]:
    """The numbers of a text, in order."""
    articles = {match.start() for match in _ARTICLE.finditer(text)}
    found = []
    for match in _NUMBER.finditer(text):
        if match.lastgroup == "chinese" and (match.start() in articles or match.group() in _MYRIADS):
            continue
        if match.lastgroup == "words" and match.group().lower() in (*_LARGE, "one"):
            continue  # "the one I like", "a million thanks"
        number = number_of(match.group())
        if number is not None:
            found.append(Found(number, match.start(), match.end()))
    return found


def number_of(text: str) -> int | float | None:
    """What a number means, however it is written."""
    text = text.strip().lower().removesuffix("%")
    if re.fullmatch(rf"[-+]?{DIGITS}", text):
        plain = text.replace(",", "")
        return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)
    if re.fullmatch(CHINESE, text):
        return _of_chinese(text)
    return _of_words(text)


def _of_words(text: str) -> int | None:
    total, group, seen = 0, 0, False
    for word in re.split(r"[ -]+", text):
        if word in _SMALL or word in _TENS:
            group += _SMALL.get(word, _TENS.get(word, 0))
        elif word == "hundred":
            group = max(group, 1) * 100
        elif word in _LARGE:
            total, group = total + max(group, 1) * _LARGE[word], 0
        elif word != "and":
            return None
        seen = True
    return total + group if seen else None


def _of_chinese(text: str) -> int | float | None:
    whole, _, fraction = text.partition("点")
    if not any(char in _UNITS or char in _MYRIADS for char in whole):
        value = int("".join(str(_DIGITS[char]) for char in whole))  # 二〇二五
    else:
        value = _with_units(whole)
    return float(f"{value}.{''.join(str(_DIGITS[char]) for char in fraction)}") if fraction else value


def _with_units(text: str) -> int:
    total, section, digit = 0, 0, 0
    for char in text:
        if char in _DIGITS:
            digit = _DIGITS[char]
        elif char in _UNITS:
            section, digit = section + (digit or 1) * _UNITS[char], 0
        else:
            total, section, digit = (total + section + digit or 1) * _MYRIADS[char], 0, 0
    return total + section + digit
