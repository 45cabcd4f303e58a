"""An event loop whose time jumps: hours of waiting pass immediately, always in the same order.

When nothing is left that could ever happen, the loop raises instead of sleeping: a deadlock is a failed test. While a
function runs in a thread of the loop (`asyncio.to_thread`), time stands still.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

A_YEAR = 365 * 24 * 3600.0


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.running_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.running_threads:
            return super().select(0 if timeout == 0 else None)
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

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        future = super().run_in_executor(executor, func, *args)
        self._jumping.running_threads += 1
        future.add_done_callback(self._count_ended_thread)
        return future

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        self._jumping.running_threads += 1
        try:
            await super().shutdown_default_executor(*arguments)
        finally:
            self._jumping.running_threads -= 1

    def _count_ended_thread(self, _: "asyncio.Future[Any]") -> None:
        self._jumping.running_threads -= 1


_BACKEND = ("asyncio", {"loop_factory": VirtualTimeLoop})
in_virtual_time = pytest.mark.parametrize("anyio_backend", [pytest.param(_BACKEND, id="virtual-time")])
"""A mark for an async test, which then runs in such a loop."""

in_real_time = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""A mark for the exception in a file whose other tests run in such a loop."""


@pytest.fixture
def virtual_time() -> tuple[str, dict[str, Any]]:
    """The same for all async tests of a file that has the line `anyio_backend = virtual_time`."""
    return _BACKEND


def loop_time() -> float:
    """A clock for whatever runs in such a loop."""
    return asyncio.get_running_loop().time()


def run_in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
