"""Cutting text that is too long for its reader, at the end of a sentence where there is one."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(r"[。！？；…]+[”’」』）]*|[.!?]+[\"')\]]*(?=\s|\Z)|\n")


def cut_text(text: str, max_bytes: int) -> str:
    """At most so many bytes of UTF-8, ending with a sentence if one ends in the last half, else with a word."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return text
    shown = encoded[:max_bytes].decode("utf-8", "ignore")
    ends = [match.end() for match in _SENTENCE_END.finditer(shown, len(shown) // 2)]
    if ends:
        return shown[: ends[-1]].rstrip()
    space = shown.rfind(" ", len(shown) // 2)
    return shown[:space] if space > 0 else shown
