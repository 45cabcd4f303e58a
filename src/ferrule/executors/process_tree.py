"""Processes that left the group of the one that started them, found by their ancestors.

A signal to a group does not reach a child that was given a session of its own, as browsers and many helpers are.
Linux tells who started whom; elsewhere nothing is found.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple


class _Process(NamedTuple):
    parent: int
    group: int
    started: float


def now() -> float:
    """The time on the clock by which Linux says when a process started."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def groups_that_left(ancestor: int, *, since: float) -> set[int]:
    """The other groups of all that a process and its descendants have started since a moment."""
    processes = _processes()
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        parent = waiting.pop()
        for number, process in processes.items():
            if process.parent == parent:
                waiting.append(number)
                if process.group != ancestor and process.started >= since:
                    found.add(process.group)
    return found


def _processes() -> dict[int, _Process]:
    if not os.path.isdir("/proc/self"):
        return {}
    tick = 1 / os.sysconf("SC_CLK_TCK")
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it has just gone
                continue
            # The start is cut down to a tick of the clock: count the process as started at the tick's end.
            processes[int(name)] = _Process(int(fields[1]), int(fields[2]), (int(fields[19]) + 1) * tick)
    return processes
