"""Less of a text, cut where a sentence ends."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(r"[.!?](?=\s|\Z)|[。！？]|\n\s*\n")
_LONGEST_SENTENCE = 200


def first_sentence(text: str) -> str:
    """The first sentence on one line; what goes on for too long is cut."""
    end = _SENTENCE_END.search(text.strip())
    sentence = on_one_line(text.strip()[: end.end()] if end else text)
    return sentence if len(sentence) <= _LONGEST_SENTENCE else sentence[: _LONGEST_SENTENCE - 1] + "…"


def within(text: str, most: int) -> str:
    """A text of at most so many characters: its first whole sentences, or a cut one if even the first is too long."""
    if len(text) <= most:
        return text
    ends = [match.end() for match in _SENTENCE_END.finditer(text, 0, most - 1)]
    # A short beginning says less than a sentence that was cut.
    return text[: ends[-1]].rstrip() if ends and ends[-1] >= most // 2 else text[: most - 1] + "…"


def on_one_line(text: str) -> str:
    return " ".join(text.split())
