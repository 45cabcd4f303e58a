"""A summary without a model: the most important sentences of a text.

Frequent words show what a text is about, and a sentence scores by its words. Words of a sentence that was picked count
less for the next ones, so that the summary does not repeat itself. Sentences at the beginning score more. The sentences
are returned unchanged and in their original order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ferrule.catalog.search.terms import extract_terms
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry
from ferrule.texts.language import begins_with_cjk
from ferrule.texts.shorten import single_line

MAX_SENTENCE: Final = 400
"""Characters; longer ones are split at a suitable place."""
_SAMPLE_SIZE: Final = 20_000
_MIN_LEGIBLE: Final = 0.85
"""The share of printable characters that a text must have."""

# Possessive quantifiers and lookbehinds: a run of stops is matched once, from its start. Matching from each of its
# characters would take quadratic time.
_SENTENCE_END: Final = lazy_pattern(
    r"""(?<![。！？…；])[。！？…；]++[”’」』）]*+
    | (?<![.!?])[.!?]++["')\]”’]*+(?=\s|\Z|[\u4e00-\u9fff])
    | \n[^\S\n]*+\n\s*+
    | \n(?=[^\S\n]*+(?:[-*•#>|]|\d{1,3}[.)]\s))""",
    re.VERBOSE,
)
_ABBREVIATION: Final = lazy_pattern(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|vs|etc|e\.g|i\.e|cf|fig|inc|ltd|co|jr|sr|approx|dept|vol|pp|jan|feb|mar|apr|jun|"
    r"jul|aug|sept|sep|oct|nov|dec)|\b[A-Za-z](?:\.[A-Za-z])*)\Z",
    re.IGNORECASE,
)
_SPLIT_CHARACTERS: Final = (("\n",), ("，", "、", "；", ", ", "; ", ": "), (" ",))
"""Where a sentence that is too long is split, best first."""


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be sent to a model."""
    return text.encode("utf-8", "replace").decode()


def clean_text(text: str, max_length: int) -> str:
    """Prepare a text for a summary; raises Retry if it cannot be summarized."""
    text = replace_surrogates(text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip()
    if not text:
        raise Retry("The text is empty: give the text to summarize.")
    if len(text) > max_length:
        raise Retry(f"The text has {len(text):,} characters; the limit is {max_length:,}. Summarize it in parts.")
    sample = text[:_SAMPLE_SIZE]
    legible = sum(char.isprintable() or char.isspace() for char in sample) - sample.count("\ufffd")
    if legible < _MIN_LEGIBLE * len(sample) or not any(char.isalnum() for char in text):
        raise Retry("This is not readable text: it looks like binary data.")
    return text


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in any language that ends them with a full stop; each on one line."""
    pieces, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        if end[0] == "." and _is_abbreviation(text, start, end):
            continue
        pieces += _split_long_sentence(text[start : end.end()])
        start = end.end()
    pieces += _split_long_sentence(text[start:])
    return [sentence for piece in pieces if (sentence := single_line(piece))]


def _is_abbreviation(text: str, start: int, stop: re.Match[str]) -> bool:
    """Whether a full stop belongs to a word: `Dr.`, `U.S.`, or one that a lowercase letter follows."""
    after = text[stop.end() : stop.end() + 2].lstrip(" ")[:1]
    return after.islower() or _ABBREVIATION.search(text, max(start, stop.start() - 12), stop.start()) is not None


def split_text(text: str, max_length: int) -> list[str]:
    """Split a text into parts, each ending with a paragraph or a sentence where possible."""
    parts = []
    while len(text) > max_length:
        end = _find_last_break(text, max_length)
        parts.append(text[:end])
        text = text[end:]
    return [*parts, text]


def _find_last_break(text: str, max_length: int) -> int:
    paragraph = text.rfind("\n\n", max_length // 2, max_length)
    if paragraph > 0:
        return paragraph + 2
    ends = [end.end() for end in _SENTENCE_END.finditer(text, max_length // 2, max_length)]
    if ends:
        return ends[-1]
    space = text.rfind(" ", max_length // 2, max_length)
    return space + 1 if space > 0 else max_length


def _split_long_sentence(sentence: str) -> list[str]:
    pieces = []
    while len(sentence) > MAX_SENTENCE:
        end = _find_split_position(sentence)
        pieces.append(sentence[:end])
        sentence = sentence[end:]
    return [*pieces, sentence]


def _find_split_position(sentence: str) -> int:
    for signs in _SPLIT_CHARACTERS:
        positions = [sentence.rfind(sign, MAX_SENTENCE // 3, MAX_SENTENCE) + len(sign) for sign in signs]
        if (last := max(positions)) > MAX_SENTENCE // 3:
            return last
    return MAX_SENTENCE


# Picking sentences

_FOCUS_WEIGHT: Final = 8.0
"""Factor for words of the focus."""
_FIRST_FACTOR: Final = 1.6
_EARLY_FACTOR: Final = 1.2
_EARLY_SHARE: Final = 0.1
"""The share of a text that is its beginning."""
_UNFINISHED_FACTOR: Final = 0.5
"""Without a full stop it may be a caption or a menu."""
_MIN_TERMS: Final = 4
"""Added to the length of a sentence, so that very short ones score little."""
_NON_PROSE_PREFIXES: Final = ("#", "|", "│", "┌", "└", "├", "---", "===")
_LIST_MARKER: Final = lazy_pattern(r"\A(?:[-*•>]|\d{1,3}[.)])\s+")
_CHINESE_STOPS: Final = tuple("。！？…；”’」』）")
_SENTENCE_STOPS: Final = (*_CHINESE_STOPS, *".!?\"')")


def extract_sentences(text: str, count: int, focus: str = "") -> str:
    """The `count` most important sentences of a text, or fewer."""
    sentences = split_sentences(_keep_prose(text)) or split_sentences(text)
    chosen = range(len(sentences)) if len(sentences) <= count else _choose_sentences(sentences, count, focus)
    return _join_sentences(
        [_LIST_MARKER.sub("", sentences[index]) for index in sorted(chosen or range(min(count, len(sentences))))]
    )


def _keep_prose(text: str) -> str:
    """The text without code, tables and headings."""
    outside = "\n\n".join(text.split("```")[::2])
    return "\n".join("" if line.lstrip().startswith(_NON_PROSE_PREFIXES) else line for line in outside.split("\n"))


def _choose_sentences(sentences: Sequence[str], count: int, focus: str) -> list[int]:
    terms = [frozenset(extract_terms(sentence)) for sentence in sentences]
    weights = _weigh_terms(terms, focus)
    candidates = [index for index, sentence in enumerate(terms) if sentence]
    chosen: list[int] = []
    while candidates and len(chosen) < count:
        best = max(
            candidates, key=lambda index: _score_sentence(terms[index], weights) * _position_factor(index, sentences)
        )
        chosen.append(best)
        candidates = [index for index in candidates if index != best and sentences[index] != sentences[best]]
        for term in terms[best]:
            weights[term] *= 0.2
    return chosen


def _weigh_terms(terms: Sequence[frozenset[str]], focus: str) -> dict[str, float]:
    occurring = Counter(term for sentence in terms for term in sentence)
    # A word in nearly every sentence does not distinguish any.
    weights = {term: n * (1.0 - 0.5 * n / len(terms)) for term, n in occurring.items()}
    focus_terms = set(extract_terms(focus))
    focus_weight = _FOCUS_WEIGHT * max(weights.values(), default=1.0)
    return {term: focus_weight if _is_in_focus(term, focus_terms) else weight for term, weight in weights.items()}


def _is_in_focus(term: str, focus_terms: set[str]) -> bool:
    """Chinese terms are pairs of characters; the focus may be a single one."""
    return term in focus_terms or (begins_with_cjk(term) and any(char in focus_terms for char in term))


def _score_sentence(terms: frozenset[str], weights: dict[str, float]) -> float:
    return sum(weights[term] for term in terms) / (len(terms) + _MIN_TERMS)


def _position_factor(index: int, sentences: Sequence[str]) -> float:
    """More for early sentences, less for unfinished ones."""
    factor = _FIRST_FACTOR if index == 0 else _EARLY_FACTOR if index < _EARLY_SHARE * len(sentences) else 1.0
    return factor if sentences[index].endswith(_SENTENCE_STOPS) else factor * _UNFINISHED_FACTOR


def _join_sentences(sentences: Sequence[str]) -> str:
    """Chinese is written without spaces between sentences."""
    text = ""
    for sentence in sentences:
        space = "" if not text or (begins_with_cjk(sentence) and text.endswith(_CHINESE_STOPS)) else " "
        text += space + sentence
    return text
