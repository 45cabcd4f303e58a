"""Cutting texts where a sentence ends, and estimating their length for a model."""

from __future__ import annotations

from ferrule.core.patterns import lazy_pattern

_SENTENCE_END = lazy_pattern(r"[.!?](?=\s|\Z)|[。！？]|\n\s*\n")
_WIDE_CHARACTER = lazy_pattern(
    r"[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_MAX_SENTENCE = 200
_LETTERS_PER_TOKEN = 4


def first_sentence(text: str) -> str:
    """Return the first sentence on one line; a very long one is cut."""
    end = _SENTENCE_END.search(text.strip())
    sentence = single_line(text.strip()[: end.end()] if end else text)
    return sentence if len(sentence) <= _MAX_SENTENCE else sentence[: _MAX_SENTENCE - 1] + "…"


def shorten(text: str, max_length: int) -> str:
    """At most `max_length` characters: the first whole sentences, or a part of the first if even that is too long."""
    if len(text) <= max_length:
        return text
    ends = [match.end() for match in _SENTENCE_END.finditer(text, 0, max_length - 1)]
    # Whole sentences that use less than half of the length say less than a cut one.
    return text[: ends[-1]].rstrip() if ends and ends[-1] >= max_length // 2 else text[: max_length - 1] + "…"


def cut(text: str, max_length: int) -> str:
    """Return the first characters; `…` stands for the rest."""
    return text if len(text) <= max_length else f"{text[:max_length]}…"


def end_sentence(text: str) -> str:
    """Return the text with punctuation at its end, so that another sentence can follow."""
    if not text or text.endswith(tuple(".!?…。！？")):
        return text
    return f"{text}。" if _WIDE_CHARACTER.match(text[-1]) else f"{text}."


def single_line(text: str) -> str:
    return " ".join(text.split())


def estimate_tokens(text: str) -> int:
    """Return one token for each Chinese, Japanese or Korean character, and one for every four others."""
    wide = 0 if text.isascii() else len(_WIDE_CHARACTER.findall(text))
    return wide + -(-(len(text) - wide) // _LETTERS_PER_TOKEN)
