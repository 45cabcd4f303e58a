"""Text of any language to the terms it is found by.

Words of alphabets are split at case, underscores, dots and the like, and lose their endings. A word of mixed case
counts as its parts and as a whole: `GitHub` is found by `git`, `hub` and `github`. Chinese, Japanese and Korean have
no spaces to split at: every two neighbouring characters are a term. That needs no dictionary, and finds whatever is
written with the same characters.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from ferrule.search.stemming import stem

_CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
_WORD = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IS_CJK = re.compile(rf"[{_CJK}]")
_PART_OF_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")
_NO_PART_OF_NAME = re.compile(r"[\W_]+")
_BETWEEN_CJK_WORDS = re.compile("[的吗呢吧啊我你您们]")

_SAYING_NOTHING = """
a an the this that these those it its i me my we our you your he she they them their and or but not no of to in
on at by for from with into as is are was were be been being am do does did has have had can could will would
should may might must if then than so such there here what which who whom whose when where why how any some all
each please want need like using use used via about
请 帮 帮我 请帮 一 个 一个 一下 如何 怎么 怎样 什么 可以 需要 想要 用于 或者 以及 并且 是 在 和 与 或 了 把 将 从 对
"""
STOP_WORDS = frozenset(_SAYING_NOTHING.split())
"""Words that say nothing about what a tool does, in English and Chinese."""


def terms_of(text: str) -> list[str]:
    """The terms of a text, in order, as often as they occur. Stop words are left out."""
    if text.isascii():
        return [term for word in _ASCII_WORD.findall(text) for term in _terms_of_word(word)]
    found: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text)):
        if is_cjk(word):
            for run in _BETWEEN_CJK_WORDS.split(word):
                found += _pairs(run)
        else:
            found += _terms_of_word(word)
    return found


def terms_to_find_by(text: str) -> list[str]:
    """The terms of a text that is kept in an index: single characters too, for queries that are that short."""
    terms = terms_of(text)
    if text.isascii():
        return terms
    return terms + [char for char in unicodedata.normalize("NFKC", text) if is_cjk(char) and char not in STOP_WORDS]


def is_cjk(text: str) -> bool:
    """Whether a text begins with a Chinese, Japanese or Korean character."""
    return _IS_CJK.match(text) is not None


def fold(name: str) -> str:
    """A name without what people write differently: `Get-Weather`, `get_weather` and `getWeather` are one."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).casefold()
    return _NO_PART_OF_NAME.sub("", name.lower())


def _pairs(run: str) -> list[str]:
    if len(run) < 2:
        return [run] if run and run not in STOP_WORDS else []
    return [pair for pair in map("".join, zip(run, run[1:], strict=False)) if pair not in STOP_WORDS]


@lru_cache(maxsize=50_000)
def _terms_of_word(word: str) -> tuple[str, ...]:
    whole = _plain(word)
    if whole in STOP_WORDS:
        return ()
    stemmed = stem(whole)
    if word.isupper() or word[1:].islower() or not word.isascii() or word.isdigit() or len(word) == 1:
        return (stemmed,)
    parts = [stem(part.lower()) for part in _PART_OF_WORD.findall(word) if part.lower() not in STOP_WORDS]
    return (*parts, stemmed) if len(parts) > 1 else (stemmed,)


def _plain(word: str) -> str:
    """Lower case, and without accents: people leave them out."""
    if word.isascii():
        return word.lower()
    parted = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(char for char in parted if not unicodedata.combining(char)))
