"""What one turn of an agent costs: a run of some tool turns less a run of none, by the number of turns.

The runs are made in turns, long ones and short ones, so that all see the same machine.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort, Sample, Ways
from benchmarks.minds import DONE
from benchmarks.samples import STEPS, make_functions
from benchmarks.ways import Loop

LENGTHS = (5, 20, 100)
MANY = 20
"""Turns of a run with many further tools."""


async def measure_loop(make: Callable[..., Awaitable[dict[str, Loop]]], effort: Effort, *, sync: bool) -> Ways:
    measured: Ways = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
        further = make_functions(effort.further, folder, sync=sync)
        few, many = await make(stack, []), await make(stack, further)
        for label, loop in few.items():
            for each in (loop, many[label]):  # what is made once per agent is no turn
                await cost_of_run(each, 2, effort.seconds / 4)
            measured[label] = [await _sample(loop, many[label], effort) for _ in range(effort.samples)]
    return measured


async def _sample(loop: Loop, many: Loop, effort: Effort) -> Sample:
    nothing = await cost_of_run(loop, 0, effort.seconds)
    runs = {turns: await cost_of_run(loop, turns, effort.seconds) for turns in LENGTHS}
    nothing_many = await cost_of_run(many, 0, effort.seconds)
    with_many = await cost_of_run(many, MANY, effort.seconds)
    sample: Sample = {}
    for figure in ("cpu", "wall"):
        for turns, run in runs.items():
            sample[f"{figure}_{turns}"] = _per_turn(run[figure], nothing[figure], turns)
        sample[f"{figure}_many"] = _per_turn(with_many[figure], nothing_many[figure], MANY)
    sample["growth"] = sample["cpu_100"] / sample["cpu_5"]
    sample["growth_many"] = sample["cpu_many"] / sample["cpu_20"]
    sample["cpu"] = sample["cpu_20"]
    return sample


def _per_turn(run: float, nothing: float, turns: int) -> float:
    return max(1e-9, run - nothing) / turns


async def cost_of_run(loop: Loop, turns: int, seconds: float) -> dict[str, float]:
    """Of one run, from as many as fit into the time."""
    await _run(loop, turns)
    gc.collect()
    runs, wall, cpu = 0, time.perf_counter(), time.process_time()
    while runs < 1 or time.perf_counter() - wall < seconds:
        await _run(loop, turns)
        runs += 1
    took = time.perf_counter() - wall
    if loop.settle is not None:
        await loop.settle()
    return {"wall": took / runs, "cpu": (time.process_time() - cpu) / runs}


async def _run(loop: Loop, turns: int) -> None:
    STEPS.total = 0
    answer: Any = await loop.run(turns)
    if DONE not in str(answer) or STEPS.total != turns:
        raise AssertionError(f"{STEPS.total} of {turns} calls were made, and it gave {answer!r}")
