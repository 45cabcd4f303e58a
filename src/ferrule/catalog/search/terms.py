"""Splitting text of any language into search terms.

Words of alphabets are split at case, underscores, dots and the like, and reduced to their stems. A word of mixed case
counts as its parts and as a whole: `GitHub` is found by `git`, `hub` and `github`. Chinese, Japanese and Korean have
no spaces to split at: every two neighbouring characters are a term, which needs no dictionary.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache

from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import CJK, begins_with_cjk

_ASCII_WORD = lazy_pattern(r"[A-Za-z0-9]+")
_WORD = lazy_pattern(rf"[{CJK}]+|[^\W_{CJK}]+")
_WORD_PART = lazy_pattern(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")
_PUNCTUATION = lazy_pattern(r"[\W_]+")
_CJK_PARTICLES = lazy_pattern("[的吗呢吧啊我你您们]")

_STOP_WORDS = """
a an the this that these those it its i me my we our you your he she they them their and or but not no of to in
on at by for from with into as is are was were be been being am do does did has have had can could will would
should may might must if then than so such there here what which who whom whose when where why how any some all
each please want need like using use used via about
请 帮 帮我 请帮 一 个 一个 一下 如何 怎么 怎样 什么 可以 需要 想要 用于 或者 以及 并且 是 在 和 与 或 了 把 将 从 对
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English and Chinese words that do not tell what a tool does."""


def extract_terms(text: str) -> list[str]:
    """Return the terms of a text, in order, as often as they occur, without stop words."""
    if text.isascii():
        return [term for word in _ASCII_WORD.findall(text) for term in _extract_word_terms(word)]
    terms: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text)):
        if begins_with_cjk(word):
            for run in _CJK_PARTICLES.split(word):
                terms += _character_pairs(run)
        else:
            terms += _extract_word_terms(word)
    return terms


def extract_index_terms(text: str) -> list[str]:
    """Return the terms of a text for the index: with single Chinese characters, for queries that are that short."""
    terms = extract_terms(text)
    if text.isascii():
        return terms
    return terms + [
        char for char in unicodedata.normalize("NFKC", text) if begins_with_cjk(char) and char not in STOP_WORDS
    ]


def remove_case_and_punctuation(name: str) -> str:
    """Make `Get-Weather`, `get_weather` and `getWeather` the same."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).casefold()
    return _PUNCTUATION.sub("", name.lower())


def _character_pairs(run: str) -> list[str]:
    if len(run) < 2:
        return [run] if run and run not in STOP_WORDS else []
    return [pair for pair in map("".join, zip(run, run[1:], strict=False)) if pair not in STOP_WORDS]


@lru_cache(maxsize=50_000)
def _extract_word_terms(word: str) -> tuple[str, ...]:
    whole = _remove_accents(word)
    if whole in STOP_WORDS:
        return ()
    stemmed = stem(whole)
    if word.isupper() or word[1:].islower() or not word.isascii() or word.isdigit() or len(word) == 1:
        return (stemmed,)
    parts = [stem(part.lower()) for part in _WORD_PART.findall(word) if part.lower() not in STOP_WORDS]
    return (*parts, stemmed) if len(parts) > 1 else (stemmed,)


def _remove_accents(word: str) -> str:
    """Return lower case without accents, which people often leave out."""
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(char for char in decomposed if not unicodedata.combining(char)))


_MIN_PREFIX = 3
_MIN_MISSPELT = 5
_MAX_SIMILAR = 5


def similar_terms(term: str, known_terms: Sequence[str]) -> list[str]:
    """Return terms that begin with an unknown one, shortest first; else those with a similar spelling."""
    if len(term) < _MIN_PREFIX or not term.isalpha():
        return []
    longer = [other for other in known_terms if other.startswith(term)]
    if longer:
        return sorted(longer, key=lambda other: (len(other), other))[:_MAX_SIMILAR]
    if len(term) < _MIN_MISSPELT:
        return []
    candidates = [other for other in known_terms if abs(len(other) - len(term)) <= 2 and other.isalpha()]
    return get_close_matches(term, candidates, n=_MAX_SIMILAR, cutoff=0.8)


# Stems of English words, so that `files`, `searching` and `calculator` match `file`, `search` and `calculate`. An odd
# stem does no harm, because the words of tools and of queries get the same one.

_VOWEL = lazy_pattern(r"[aeiouy]")
_SHORT_STEM = lazy_pattern(r"[^aeiou][aeiou][^aeiouwxy]\Z")
"""The rest of `saving` or `named`, which end in e."""


def stem(word: str) -> str:
    """Return the stem of a lower-case word of plain letters."""
    return _strip_e(_strip_verb_ending(_to_singular(word)))


def _to_singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes", "zzes")):
        return word[:-2]
    return word[:-1]


def _strip_verb_ending(word: str) -> str:
    if len(word) >= 8 and word.endswith("ation"):
        return word[:-3]
    if len(word) >= 8 and word.endswith("ator"):
        return word[:-2]
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest) and not word.endswith("eed"):
            return _restore_ending(rest)
    return word


def _restore_ending(rest: str) -> str:
    if len(rest) >= 4 and rest[-1] == rest[-2] and rest[-1] not in "lsz":
        return rest[:-1]
    return rest + "e" if len(rest) == 3 and _SHORT_STEM.match(rest) else rest


def _strip_e(word: str) -> str:
    return word[:-1] if len(word) >= 5 and word.endswith("e") else word
