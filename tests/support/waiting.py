"""Waiting in tests: for a condition, never for a time that should be long enough.

The deadline only ends a test that would otherwise hang. It is far longer than anything takes, even on a busy machine.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

DEADLINE = 60.0
INTERVAL = 0.005
Result = TypeVar("Result")


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


async def time_out_after_start(call: Callable[[float], Awaitable[Result]], has_started: Callable[[], object]) -> Result:
    """Make a call of endless work with longer and longer timeouts, until the work had started before its timeout."""
    for timeout in (0.5, 2.0, 10.0, 60.0):
        result = await call(timeout)
        if has_started():
            return result
    raise AssertionError("the work did not start within 60 s")


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie: in a container, orphans may never be reaped."""
    return _state_of(pid) not in ("", "Z", "X")


def is_waiting(pid: int) -> bool:
    """Return whether the first thread of a process sleeps in the system. Where this is unknown, the answer is yes."""
    return _state_of(pid) in ("S", "unknown")


def _state_of(pid: int) -> str:
    """Return the letter that Linux gives to the state of a process, and no text if there is no such process."""
    try:
        if Path("/proc/self").exists():
            return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):  # it may end while the file is being read
        return ""
    return "unknown"
