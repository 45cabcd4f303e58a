"""Calls per minute.

The rule is exact: no more than N calls start within any 60 seconds, wherever these begin. So the starts of the last
60 seconds are kept, and a call may start when there are fewer than N of them. A quiet bucket may use up its minute
at once; the next call then starts 60 seconds after the first of them did.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Final

MINUTE: Final = 60.0


class CallRate:
    """The starts of one bucket in the last 60 seconds."""

    __slots__ = ("limit", "starts")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.starts: deque[float] = deque()

    def ready(self, now: float) -> bool:
        self._forget(now)
        return len(self.starts) < self.limit

    def take(self, now: float) -> None:
        self.starts.append(now)

    def give_back(self, started: float) -> None:
        """The call that took its start at this time never began."""
        with suppress(ValueError):  # it may be older than a minute
            self.starts.remove(started)

    def wait(self, now: float, ahead: int = 0) -> float:
        """Seconds until a call may start when so many others start before it."""
        self._forget(now)
        behind = ahead - (self.limit - len(self.starts))
        if behind < 0:
            return 0.0
        rounds, index = divmod(behind, self.limit)
        # Those ahead who can start now are the end of the window that the later ones wait for.
        start = self.starts[index] if index < len(self.starts) else now
        return start + MINUTE * (rounds + 1) - now

    def _forget(self, now: float) -> None:
        starts = self.starts
        while starts and now - starts[0] >= MINUTE:
            starts.popleft()
