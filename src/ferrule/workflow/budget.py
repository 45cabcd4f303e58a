"""What a plan may still use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ferrule.agent.limits import RunLimits
from ferrule.messages import Usage

_NOTHING: Final = Usage()


class Budget:
    """The limits of a run, and how near it has come to them. Turns are for loops: a plan has its steps."""

    def __init__(
        self, limits: RunLimits | None, usage: Callable[[], Usage], *, calls: int = 0, seconds: float = 0.0
    ) -> None:
        """`calls` and `seconds` are what was used before, if the run goes on after a break."""
        self._limits, self._usage, self.calls = limits or RunLimits(), usage, calls
        self._began = time.monotonic() - seconds

    @property
    def reached(self) -> str | None:
        """Which limit the run has come to, in words; None when it may go on."""
        return self._reached(self.calls)

    @property
    def may_think(self) -> bool:
        """Whether the model may be asked once more: that makes no call."""
        return self._reached(0) is None

    @property
    def seconds_left(self) -> float | None:
        return None if self._limits.seconds is None else max(0.0, self._limits.seconds - self._seconds)

    def _reached(self, calls: int) -> str | None:
        counts = self._limits.tokens is not None or self._limits.cost is not None
        usage = self._usage() if counts else _NOTHING
        return self._limits.reached(turns=0, calls=calls, seconds=self._seconds, usage=usage)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began
