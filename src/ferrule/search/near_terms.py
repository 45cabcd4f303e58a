"""Terms that somebody may have meant who wrote one that no tool has."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_SHORTEST_BEGINNING = 3
_SHORTEST_MISSPELT = 5
_MOST = 5


def near_terms(term: str, known: Sequence[str]) -> list[str]:
    """Those it is the beginning of, shortest first; if there are none, those spelt nearly like it."""
    if len(term) < _SHORTEST_BEGINNING or not term.isalpha():
        return []
    longer = [other for other in known if other.startswith(term)]
    if longer:
        return sorted(longer, key=lambda other: (len(other), other))[:_MOST]
    if len(term) < _SHORTEST_MISSPELT:
        return []
    alike = [other for other in known if abs(len(other) - len(term)) <= 2 and other.isalpha()]
    return get_close_matches(term, alike, n=_MOST, cutoff=0.8)
