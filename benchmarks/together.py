"""Ten steps of 200 ms that do not need each other: how long until the answer is there, planning aside."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks.effort import Effort, Sample, Ways
from benchmarks.plan import STEPS
from benchmarks.samples import SLEEPERS
from benchmarks.ways import Together


async def measure_together(make: Callable[[AsyncExitStack], Awaitable[dict[str, Together]]], effort: Effort) -> Ways:
    async with AsyncExitStack() as stack:
        ways = await make(stack)
        measured: Ways = {label: [] for label in ways}
        for together in ways.values():
            await together(1)  # what is imported late is no step
        for _ in range(effort.samples):
            for label, together in ways.items():
                measured[label].append(await _sample(together))
    return measured


async def _sample(together: Together) -> Sample:
    SLEEPERS.total = SLEEPERS.most = 0
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    planning = await together(STEPS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if SLEEPERS.total != STEPS:
        raise AssertionError(f"{SLEEPERS.total} of {STEPS} steps were made")
    return {"wall": wall - planning, "cpu": cpu, "most_at_once": SLEEPERS.most}
