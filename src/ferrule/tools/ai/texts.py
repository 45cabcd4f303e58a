"""Texts as they come, made fit to be read: by a model, or sentence by sentence."""

from __future__ import annotations

import re
from typing import Final

from ferrule.describe.sentences import on_one_line
from ferrule.errors import Retry

LONGEST_SENTENCE: Final = 400
"""Characters; what goes on for longer is cut where it can be."""
_LOOKED_AT: Final = 20_000
_READABLE: Final = 0.85
"""The share of a text that must be letters, digits, signs and spaces."""

# A run of stops is looked at once, from its first: from each of them it would take forever.
_END: Final = re.compile(
    r"""(?<![。！？…；])[。！？…；]++[”’」』）]*+
    | (?<![.!?])[.!?]++["')\]”’]*+(?=\s|\Z|[\u4e00-\u9fff])
    | \n[^\S\n]*+\n\s*+
    | \n(?=[^\S\n]*+(?:[-*•#>|]|\d{1,3}[.)]\s))""",
    re.VERBOSE,
)
_ABBREVIATION: Final = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|vs|etc|e\.g|i\.e|cf|fig|inc|ltd|co|jr|sr|approx|dept|vol|pp|jan|feb|mar|apr|jun|"
    r"jul|aug|sept|sep|oct|nov|dec)|\b[A-Za-z](?:\.[A-Za-z])*)\Z",
    re.IGNORECASE,
)
_BREAKS: Final = (("\n",), ("，", "、", "；", ", ", "; ", ": "), (" ",))
"""Where a sentence that is too long is cut, the best place first."""


def sayable(text: str) -> str:
    """The text without halves of characters, which no model can be sent."""
    return text.encode("utf-8", "replace").decode()


def readable(text: str, most: int) -> str:
    """A text that can be summarised; Retry for one that cannot."""
    text = sayable(text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip()
    if not text:
        raise Retry("The text is empty: give the text to summarize.")
    if len(text) > most:
        raise Retry(f"The text has {len(text):,} characters; {most:,} is the most. Summarize parts of it, one by one.")
    sample = text[:_LOOKED_AT]
    legible = sum(char.isprintable() or char.isspace() for char in sample) - sample.count("\ufffd")
    if legible < _READABLE * len(sample) or not any(char.isalnum() for char in text):
        raise Retry("This is no text that can be read: it looks like the bytes of something else.")
    return text


def sentences_of(text: str) -> list[str]:
    """The sentences of a text in any of the languages that end them with a stop; each on one line."""
    found, start = [], 0
    for end in _END.finditer(text):
        if end[0] == "." and _goes_on(text, start, end):
            continue
        found += _not_too_long(text[start : end.end()])
        start = end.end()
    found += _not_too_long(text[start:])
    return [sentence for each in found if (sentence := on_one_line(each))]


def _goes_on(text: str, start: int, stop: re.Match[str]) -> bool:
    """Whether a full stop belongs to a word: `Dr.`, `U.S.`, or whatever a small letter follows."""
    after = text[stop.end() : stop.end() + 2].lstrip(" ")[:1]
    return after.islower() or _ABBREVIATION.search(text, max(start, stop.start() - 12), stop.start()) is not None


def parts_of(text: str, most: int) -> list[str]:
    """The text in parts of at most so many characters, each ending with a paragraph or a sentence if it can."""
    parts = []
    while len(text) > most:
        at = _last_end(text, most)
        parts.append(text[:at])
        text = text[at:]
    return [*parts, text]


def _last_end(text: str, most: int) -> int:
    paragraph = text.rfind("\n\n", most // 2, most)
    if paragraph > 0:
        return paragraph + 2
    ends = [end.end() for end in _END.finditer(text, most // 2, most)]
    if ends:
        return ends[-1]
    space = text.rfind(" ", most // 2, most)
    return space + 1 if space > 0 else most


def _not_too_long(sentence: str) -> list[str]:
    pieces = []
    while len(sentence) > LONGEST_SENTENCE:
        at = _place_to_cut(sentence)
        pieces.append(sentence[:at])
        sentence = sentence[at:]
    return [*pieces, sentence]


def _place_to_cut(sentence: str) -> int:
    for signs in _BREAKS:
        places = [sentence.rfind(sign, LONGEST_SENTENCE // 3, LONGEST_SENTENCE) + len(sign) for sign in signs]
        if (last := max(places)) > LONGEST_SENTENCE // 3:
            return last
    return LONGEST_SENTENCE
