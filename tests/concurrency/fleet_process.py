"""A process of a fleet: it makes calls in a bucket with a shared limit, and writes down when each begins and ends."""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ferrule.concurrency import ConcurrencyConfig, ToolConcurrencyController
from ferrule.concurrency.fleet import renew_in
from ferrule.store import ToolKnowledgeStore

LEASE_SECONDS = 2.0
"""If the caller names no other number."""


async def main(url: str, log: str, limit: int, callers: int, calls: int, lease_seconds: float) -> None:
    """Each of the callers makes so many calls, one after the other."""
    config = ConcurrencyConfig(
        bucket_limits={"pay": limit}, shared=True, lease_seconds=lease_seconds, default_timeout=300, max_concurrent=50
    )
    controller = ToolConcurrencyController(config)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(change: int) -> None:
        at = time.monotonic()  # which is the same clock in all processes, and only tells their order
        os.write(file, f"{at} {os.getpid()} {change}\n".encode())

    async def call_repeatedly() -> None:
        for _ in range(calls):
            async with controller.slot("pay"):
                note(1)
                await asyncio.sleep(0.002)  # the work of a call
                note(-1)

    async with ToolKnowledgeStore(url, journal_directory=Path(log).with_suffix(f".{os.getpid()}")) as store:
        controller.join_fleet(renew_in(store))
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(call_repeatedly())
        await controller.leave_fleet()


def read_log(log: Path) -> list[tuple[float, int, int]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [(float(at), int(pid), int(change)) for at, pid, change in (line.split() for line in lines)]


def count_most_running(
    log: Path, killed: set[int], lease_seconds: float | None = None, stopped: Mapping[int, int] | None = None
) -> int:
    """How many calls ran together; the calls of a killed process ended with it, at the latest with its last line.

    With a lease, a process that wrote nothing for half of it was stopped: others may have the slots of its calls. The
    same holds for a process that is known to have been `stopped` after so many lines.
    """
    lines = sorted(read_log(log))
    next_line: dict[int, float] = {}
    pauses = [0.0] * len(lines)
    for index, (at, pid, _) in reversed(list(enumerate(lines))):
        pauses[index] = next_line.get(pid, at) - at
        next_line[pid] = at
    last_line = {pid: at for at, pid, _ in lines if pid in killed}
    running, late_ends, seen = Counter[int](), Counter[int](), Counter[int]()
    most = 0
    for (at, pid, change), pause in zip(lines, pauses, strict=True):
        if change < 0 and late_ends[pid]:
            late_ends[pid] -= 1
        else:
            running[pid] += change
        most = max(most, running.total())
        seen[pid] += 1
        if last_line.get(pid) == at:
            del running[pid]
        elif (lease_seconds and pause > lease_seconds / 2) or (stopped and seen[pid] == stopped.get(pid)):
            late_ends[pid] += running.pop(pid, 0)
    return most


if __name__ == "__main__":
    lease = float(sys.argv[6]) if len(sys.argv) > 6 else LEASE_SECONDS
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), lease))
