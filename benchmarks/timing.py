"""How long an operation takes, done again and again."""

from __future__ import annotations

import gc
import time

from benchmarks.effort import Sample
from benchmarks.ways import Way


async def warm_up(way: Way, seconds: float) -> int:
    """Returns how many operations such a time is enough for."""
    done, until = 0, time.perf_counter() + seconds / 2
    while time.perf_counter() < until:
        await way.do()
        done += 1
    return max(1, done * 2)


async def sample_of(way: Way, times: int) -> Sample:
    gc.collect()
    wall, own, cpu = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(times):
        await way.do()
    wall, own = time.perf_counter() - wall, time.thread_time() - own
    if way.settle is not None:
        await way.settle()
    cpu = time.process_time() - cpu
    return {"wall": wall / times, "own": own / times, "cpu": cpu / times}
