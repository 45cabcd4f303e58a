"""A circuit breaker per tool: when the way to a tool is broken, stop walking into it for a while.

Only transport faults count. A tool that answers, even with an error, is reachable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ferrule.errors import Rejected, SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    threshold: int = 5
    """Transport faults in a row that open the circuit; 0 = never."""
    recovery: float = 30.0
    """Seconds it stays open before one call may try again."""

    def __post_init__(self) -> None:
        if self.threshold < 0 or not self.recovery > 0:
            raise SetupError(f"threshold must be 0 or more and recovery more than 0 seconds, not {self!r}")


class CircuitBreaker:
    """One tool's circuit."""

    __slots__ = ("_clock", "_config", "_faults", "_opened", "_trying")

    def __init__(self, config: BreakerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._faults = 0
        self._opened: float | None = None
        self._trying = False

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        if self._opened is None:
            return "closed"
        return "open" if self._clock() - self._opened < self._config.recovery else "half_open"

    def check(self, tool_name: str) -> None:
        """Refuse a call that could not be let through now."""
        if self._opened is None:
            return
        wait = self._config.recovery - (self._clock() - self._opened)
        if wait > 0 or self._trying:
            wait = max(wait, 1.0)
            raise Rejected(
                f"Tool {tool_name!r} could not be reached {self._faults} times in a row and is given a rest. "
                f"Try again in {wait:.0f} s, or use another tool.",
                reason="circuit_open",
                retry_after=wait,
            )

    def enter(self, tool_name: str) -> None:
        """Let a call through, or refuse it. Who enters must tell how it went."""
        self.check(tool_name)
        self._trying = self._opened is not None

    def succeeded(self) -> None:
        """The tool was reached."""
        if self._faults:
            self._faults = 0
            self._opened = None
        self._trying = False

    def faulted(self) -> None:
        """The tool was not reached."""
        self._faults += 1
        self._trying = False
        if self._config.threshold and self._faults >= self._config.threshold:
            self._opened = self._clock()

    def abandoned(self) -> None:
        """The call ended without telling whether the tool can be reached."""
        self._trying = False
