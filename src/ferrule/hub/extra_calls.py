"""A budget for calls nobody would need if the first racer were quick.

Every race earns a share of an extra call, up to a small stock. A tool that becomes slow thus makes the load grow by
that share, and not by the number of its candidates.
"""

from __future__ import annotations


class ExtraCalls:
    """A token bucket that fills by races, not by time."""

    __slots__ = ("_most", "_share", "_stock")

    def __init__(self, *, share: float, burst: int) -> None:
        self._share, self._most = share, float(burst)
        self._stock = float(burst)

    def earn(self) -> None:
        self._stock = min(self._stock + self._share, self._most)

    def take(self) -> bool:
        """Whether one more extra call may be made; it counts as made."""
        if self._stock < 1 - 1e-9:  # five times 0.2 is one
            return False
        self._stock -= 1
        return True
