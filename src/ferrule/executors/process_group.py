"""Ending a process together with everything it started.

A process started with `start_new_session=True` leads a group of its own, and what it starts belongs to the group.
One signal reaches them all. Only a process that deliberately leaves the group (`setsid`) is not ended with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger("ferrule.executors")

GRACE = 0.5
KILL_PATIENCE = 5.0
"""Seconds a killed process may take to go: the kernel may have to finish a write to a disk first."""

T = TypeVar("T")


async def end_process_group(group: int, grace: float = GRACE) -> None:
    """End every process of a group: by SIGTERM, and those still there after `grace` seconds by SIGKILL.

    When this returns, nothing of the group runs any more. The number of a group is that of its first process.
    Whoever started that one must still wait for it, as for any child.
    """
    for kind, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_PATIENCE)):
        try:
            os.killpg(group, kind)
        except (ProcessLookupError, PermissionError):  # macOS says "not permitted" when all are zombies
            return
        if await _is_gone(group, within=patience):
            return
    logger.warning("process_group=<%d> | still there %s s after SIGKILL", group, KILL_PATIENCE)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await what must not be left half done. A cancellation meanwhile is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # seen, so that asyncio does not complain; the cancellation is what matters
        raise cancelled
    return task.result()


async def _is_gone(group: int, *, within: float) -> bool:
    deadline = time.monotonic() + within
    delay = 0.001
    while _is_running(group):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(min(delay, max(deadline - time.monotonic(), 0)))
        delay = min(2 * delay, 0.02)
    return True


def _is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    # Zombies count for killpg. They have ended, and in a container there may be nobody to wait for orphans.
    return not os.path.isdir("/proc/self") or any(found == group for found in _groups_of_running_processes())


def _groups_of_running_processes() -> list[int]:
    groups = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, _, process_group, *_ = file.read().rpartition(b")")[2].split()
            except OSError:  # it has just gone
                continue
            if state not in (b"Z", b"X"):
                groups.append(int(process_group))
    return groups
