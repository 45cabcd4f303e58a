"""A summary without a model: the sentences of a text that say most of what it is about.

Words that occur often in a text are what it is about, and a sentence counts for the words in it. What one sentence has
said counts less for the next, so that the same thing is not told twice. The first sentences of a text and of its
paragraphs tell more than others. The sentences stand as they were written, in their own order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ferrule.search.words import is_cjk, terms_of
from ferrule.tools.ai.texts import sentences_of

FOCUS: Final = 8.0
"""How many times as much a word counts that was asked for."""
FIRST: Final = 1.6
EARLY: Final = 1.2
_OPENING: Final = 0.1
"""The share of a text that is its beginning."""
UNENDED: Final = 0.5
"""What has no stop at its end may be a caption or a menu."""
_FEW_TERMS: Final = 4
"""Fewer say too little to stand alone."""
_NO_PROSE: Final = ("#", "|", "│", "┌", "└", "├", "---", "===")
_MARKER: Final = re.compile(r"\A(?:[-*•>]|\d{1,3}[.)])\s+")
_CHINESE_STOPS: Final = tuple("。！？…；”’」』）")
_STOPS: Final = (*_CHINESE_STOPS, *".!?\"')")


def extract(text: str, count: int, focus: str = "") -> str:
    """At most so many sentences of the text."""
    sentences = sentences_of(_prose(text)) or sentences_of(text)
    chosen = range(len(sentences)) if len(sentences) <= count else _chosen(sentences, count, focus)
    return _joined([_MARKER.sub("", sentences[index]) for index in sorted(chosen or range(min(count, len(sentences))))])


def _prose(text: str) -> str:
    """The text without program code, tables and headings, which are no sentences."""
    outside = "\n\n".join(text.split("```")[::2])
    return "\n".join("" if line.lstrip().startswith(_NO_PROSE) else line for line in outside.split("\n"))


def _chosen(sentences: Sequence[str], count: int, focus: str) -> list[int]:
    terms = [frozenset(terms_of(sentence)) for sentence in sentences]
    weights = _weights(terms, focus)
    left = [index for index, own in enumerate(terms) if own]
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda index: _score(terms[index], weights) * _standing(index, sentences))
        chosen.append(best)
        left = [index for index in left if index != best and sentences[index] != sentences[best]]
        for term in terms[best]:
            weights[term] *= 0.2
    return chosen


def _weights(terms: Sequence[frozenset[str]], focus: str) -> dict[str, float]:
    occurring = Counter(term for own in terms for term in own)
    # What stands in nearly every sentence tells none from another.
    weights = {term: n * (1.0 - 0.5 * n / len(terms)) for term, n in occurring.items()}
    wanted = set(terms_of(focus))
    most = FOCUS * max(weights.values(), default=1.0)
    return {term: most if _is_wanted(term, wanted) else weight for term, weight in weights.items()}


def _is_wanted(term: str, wanted: set[str]) -> bool:
    """Chinese terms are pairs of characters; what was asked for may be a single one."""
    return term in wanted or (is_cjk(term) and any(char in wanted for char in term))


def _score(terms: frozenset[str], weights: dict[str, float]) -> float:
    return sum(weights[term] for term in terms) / (len(terms) + _FEW_TERMS)


def _standing(index: int, sentences: Sequence[str]) -> float:
    """How much a sentence counts for its place and its form."""
    place = FIRST if index == 0 else EARLY if index < _OPENING * len(sentences) else 1.0
    return place if sentences[index].endswith(_STOPS) else place * UNENDED


def _joined(sentences: Sequence[str]) -> str:
    """Chinese is written without spaces between sentences."""
    text = ""
    for sentence in sentences:
        space = "" if not text or (is_cjk(sentence) and text.endswith(_CHINESE_STOPS)) else " "
        text += space + sentence
    return text
