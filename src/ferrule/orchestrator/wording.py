"""A text reduced to its words, so that what people say can be recognised however they punctuate it."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

LONGEST: Final = 120
"""Longer texts are never small talk; nobody looks at them twice."""

_APOSTROPHES = str.maketrans("", "", "'’`´")
_BORDER = re.compile(r"(?<=[a-z0-9])(?=[\u4e00-\u9fff])|(?<=[\u4e00-\u9fff])(?=[a-z0-9])")


def words_in(text: str) -> str:
    """Small letters and single spaces; no punctuation, no emoji. Signs of arithmetic stay: they are no decoration."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    spaced = "".join(" " if _is_decoration(char) else char for char in folded)
    return " ".join(_BORDER.sub(" ", spaced).split())


def _is_decoration(char: str) -> bool:
    category = unicodedata.category(char)
    return (category[0] in "PZC" and char not in "%*/\\#&@-") or category in ("So", "Sk", "Mn") or char == "~"


def any_of(*patterns: str) -> str:
    """One pattern that fits what any of them fits."""
    return f"(?:{'|'.join(patterns)})"
