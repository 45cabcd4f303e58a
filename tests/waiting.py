"""Waiting in tests: for a condition, never for a time that should be long enough.

The deadline only ends a test that would otherwise hang. It is far longer than anything takes, even on a busy machine.
"""

import asyncio
import time
from collections.abc import Callable

DEADLINE = 30.0
INTERVAL = 0.005


async def until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Let the event loop go on until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not true within {seconds:.0f} s"
        await asyncio.sleep(INTERVAL)


def until_sync(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """The same without an event loop: for threads and other processes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not true within {seconds:.0f} s"
        time.sleep(INTERVAL)
