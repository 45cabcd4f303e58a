"""Limits that follow what a service can bear: up by one slot after as many good calls as there are slots, down by a
third when the service is overloaded ("additive increase, multiplicative decrease", as TCP does).
"""

from __future__ import annotations

from typing import Final

DECREASE: Final = 0.7
DECREASE_INTERVAL: Final = 1.0
"""Seconds between two decreases: calls that ran together report the same overload."""


class AdaptiveLimit:
    """The slots of one bucket, between a minimum and its configured limit."""

    __slots__ = ("_decreased_at", "_value", "max_latency", "maximum", "minimum")

    def __init__(self, maximum: int, minimum: int, max_latency: float) -> None:
        self.maximum, self.minimum, self.max_latency = maximum, min(minimum, maximum), max_latency
        self._value = float(maximum)
        self._decreased_at = float("-inf")

    @property
    def slots(self) -> int:
        return int(self._value)

    def report(self, now: float, *, seconds: float, is_overload: bool) -> None:
        """How a call has gone: how long it took, and whether the service said that it is overloaded."""
        if not is_overload and seconds <= self.max_latency:
            self._value = min(float(self.maximum), self._value + 1 / self._value)
        elif now - self._decreased_at >= DECREASE_INTERVAL:
            self._value = max(float(self.minimum), self._value * DECREASE)
            self._decreased_at = now
