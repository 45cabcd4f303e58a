"""What is left of a text when the calls are taken out, put together piece by piece."""

from __future__ import annotations


class Prose:
    """Joins pieces of prose. What it has given out never changes, so it serves for a text that is still coming, too."""

    __slots__ = ("_after_gap", "_anything", "_spaces")

    def __init__(self) -> None:
        self._spaces = ""
        self._anything = False
        self._after_gap = True

    def add(self, piece: str) -> str:
        """What can be shown now that this piece came. Spaces wait until something follows them."""
        if self._after_gap:
            piece = piece.lstrip()
        kept = piece.rstrip()
        if not kept:
            self._spaces += piece
            return ""
        between = ("\n" if self._anything else "") if self._after_gap else self._spaces
        self._spaces, self._anything, self._after_gap = piece[len(kept) :], True, False
        return between + kept

    def gap(self) -> None:
        """Something was taken out here: the spaces around it go too."""
        self._spaces, self._after_gap = "", True
