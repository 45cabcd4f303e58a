"""A model's text on its way to whoever watches: what is a call, or may become one, is not shown."""

from __future__ import annotations

from ferrule.agent.events import OnEvent, TextPiece
from ferrule.parsing import KnownTools, ToolCallReader


class Speaking:
    """Hands the prose of one reply on, piece by piece."""

    def __init__(self, emit: OnEvent, known: KnownTools) -> None:
        self._emit, self._reader = emit, ToolCallReader(known)
        self._shown = 0

    def __call__(self, piece: str) -> None:
        self._show(self._reader.feed(piece))

    def finish(self) -> None:
        """Show what was held back and turned out to be prose."""
        self._show(self._reader.close().text[self._shown :])

    def _show(self, text: str) -> None:
        if text:
            self._shown += len(text)
            self._emit(TextPiece(text))
