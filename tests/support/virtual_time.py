"""An event loop whose time jumps: hours of waiting pass immediately, always in the same order.

When nothing is left that could ever happen, the loop raises instead of sleeping: a deadlock is a failed test.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

A_YEAR = 365 * 24 * 3600.0


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None or self.now > A_YEAR:
                raise AssertionError("deadlock: every task waits for another one")
            self.now += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def loop_time() -> float:
    """A clock for whatever runs in such a loop."""
    return asyncio.get_running_loop().time()


def run_in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
