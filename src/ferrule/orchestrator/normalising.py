"""One form for questions that differ in nothing that matters: width, case, spaces, the mark at the end.

What stands in quotation marks stays as it is, and so do signs that would change their meaning: 3² is not 32, and the
5! at an end is not 5.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_QUOTED = re.compile(r"(\"[^\"\n]*\"|“[^”\n]*”|‘[^’\n]*’|「[^」\n]*」|『[^』\n]*』|`[^`\n]*`|(?<!\w)'[^'\n]*'(?!\w))")
_END = re.compile(r"(?:[\s.?。…~;,；，、]|(?<![\d)\]!])!+)+\Z")
_MEANT: Final = ("<super>", "<sub>", "<fraction>", "<circle>")


def normalised(question: str) -> str:
    """The question in its one form."""
    pieces = _QUOTED.split(question)
    # Every other piece is quoted.
    folded = [piece if at % 2 else _folded(piece) for at, piece in enumerate(pieces)]
    return _END.sub("", "".join(folded).strip())


def _folded(text: str) -> str:
    if not text.isascii():
        text = "".join(char if _keeps_its_form(char) else unicodedata.normalize("NFKC", char) for char in text)
        text = unicodedata.normalize("NFC", text)
    return re.sub(r"\s+", " ", text.casefold())


def _keeps_its_form(char: str) -> bool:
    return unicodedata.decomposition(char).startswith(_MEANT)
