"""English words without their endings, so that `files`, `searching` and `calculator` find `file`, `search` and
`calculate`.

Both the tools' words and those of a query pass here: an odd stem does no harm as long as it is the same on both sides.
"""

from __future__ import annotations

import re

_VOWEL = re.compile(r"[aeiouy]")
_SHORT = re.compile(r"[^aeiou][aeiou][^aeiouwxy]\Z")
"""What is left of `saving` or `named`: these words end in e."""


def stem(word: str) -> str:
    """The stem of a lower-case word of plain letters."""
    return _without_e(_without_verb_ending(_singular(word)))


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes", "zzes")):
        return word[:-2]
    return word[:-1]


def _without_verb_ending(word: str) -> str:
    if len(word) >= 8 and word.endswith("ation"):
        return word[:-3]
    if len(word) >= 8 and word.endswith("ator"):
        return word[:-2]
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest) and not word.endswith("eed"):
            return _mended(rest)
    return word


def _mended(rest: str) -> str:
    if len(rest) >= 4 and rest[-1] == rest[-2] and rest[-1] not in "lsz":
        return rest[:-1]
    return rest + "e" if len(rest) == 3 and _SHORT.match(rest) else rest


def _without_e(word: str) -> str:
    return word[:-1] if len(word) >= 5 and word.endswith("e") else word
