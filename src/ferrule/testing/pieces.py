"""A text in pieces, as models stream it."""

from __future__ import annotations

import re

from ferrule.models.model import TextSink

_PIECE = re.compile(r"\s*\S+\s*|\s+")


def stream_text(text: str, on_text: TextSink | None) -> None:
    """Hand a text on word by word."""
    if on_text is not None:
        for piece in _PIECE.findall(text):
            on_text(piece)
