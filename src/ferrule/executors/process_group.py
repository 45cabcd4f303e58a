"""Ending a process together with everything it started.

A process started with `start_new_session=True` leads a session and a group of its own, and what it starts belongs to
both. Some children make groups of their own (GNU `timeout`, the jobs of a shell) but stay in the session: on Linux
those groups are found and ended too. Only a process that deliberately leaves the session (`setsid`) is not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

logger = logging.getLogger("ferrule.executors")

GRACE = 0.5
KILL_PATIENCE = 5.0
"""Seconds a killed process may take to go: the kernel may have to finish a write to a disk first."""
DRAIN_PATIENCE = 0.2
"""Seconds to read on when all processes have ended: what they wrote is in the pipes already."""

T = TypeVar("T")


async def end_process_group(leader: int, grace: float = GRACE) -> None:
    """End every process of a session: by SIGTERM, and those still there after `grace` seconds by SIGKILL.

    When this returns, nothing of it runs any more. The number of a session is that of its first process, the leader.
    Whoever started that one must still wait for it, as for any child.
    """
    if await _are_ended(leader, signal.SIGTERM, within=grace):
        return
    if not await _are_ended(leader, signal.SIGKILL, within=KILL_PATIENCE):
        logger.warning("session=<%d> | still there %s s after SIGKILL", leader, KILL_PATIENCE)


async def close_pipes(transport: asyncio.SubprocessTransport, closed: asyncio.Event, *, reads_stdin: bool) -> None:
    """Take what a process that has ended wrote, and close its pipes; `closed` says when both of them are."""
    await wait_at_most(closed, DRAIN_PATIENCE)
    stdin = transport.get_pipe_transport(0)
    if isinstance(stdin, asyncio.WriteTransport) and reads_stdin:
        stdin.abort()  # closing alone would wait until somebody has read it
    transport.close()
    await wait_at_most(closed, KILL_PATIENCE)


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def running_groups(leader: int) -> set[int]:
    """The groups of a session in which something runs that can be ended; elsewhere than on Linux only the first."""
    if not os.path.isdir("/proc/self"):
        return {leader} if signal_group(leader, 0) else set()
    groups = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):  # it has just gone
                if os.getsid(int(name)) == leader and not _has_ended(name):
                    groups.add(os.getpgid(int(name)))
    return {group for group in groups if signal_group(group, 0)}


def signal_group(group: int, kind: int) -> bool:
    """Whether there was anybody to get the signal."""
    try:
        os.killpg(group, kind)
    except (ProcessLookupError, PermissionError):  # macOS says "not permitted" when all are zombies
        return False
    return True


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


async def _are_ended(leader: int, kind: signal.Signals, *, within: float) -> bool:
    deadline = time.monotonic() + within
    delay = 0.001
    told: set[int] = set()
    while groups := running_groups(leader):
        # Groups may be made while we look; but who was asked once to end must not be asked again and again.
        for group in groups if kind == signal.SIGKILL else groups - told:
            signal_group(group, kind)
        told |= groups
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(min(delay, max(deadline - time.monotonic(), 0)))
        delay = min(2 * delay, 0.02)
    return True


def _has_ended(name: str) -> bool:
    # A zombie. In a container there may be nobody to wait for orphans.
    with open(f"/proc/{name}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
