"""The cost of an operation or of an agent's run, measured by repeating it."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from benchmarks.interface import AgentLoop, Operation, Sample, SamplesByVariant, Workload
from benchmarks.models import FINAL_ANSWER
from benchmarks.tools import STEP_CALLS


async def warm_up(operation: Operation, seconds: float) -> int:
    """Return how many times the operation can be run in `seconds`."""
    times, end = 0, time.perf_counter() + seconds / 2
    while time.perf_counter() < end:
        await operation.run()
        times += 1
    return max(1, times * 2)


async def sample_of(operation: Operation, times: int) -> Sample:
    gc.collect()
    wall, own, cpu = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(times):
        await operation.run()
    wall, own = time.perf_counter() - wall, time.thread_time() - own
    if operation.flush is not None:
        await operation.flush()
    cpu = time.process_time() - cpu
    return {"wall": wall / times, "own": own / times, "cpu": cpu / times}


async def measure_alternately(
    measures: Mapping[str, Callable[[], Awaitable[Sample]]], rounds: int, samples: int
) -> list[SamplesByVariant]:
    """The samples of each round by row. They alternate: only figures that are close in time can be compared."""
    results: list[SamplesByVariant] = []
    for number in range(rounds):
        first = number % len(measures)
        labels = [*measures][first:] + [*measures][:first]
        by_label: SamplesByVariant = {label: [] for label in measures}
        for _ in range(samples):
            for label in labels:
                by_label[label].append(await measures[label]())
        results.append(by_label)
    return results


def print_rounds(measure: Callable[[int, Workload], Awaitable[list[SamplesByVariant]]]) -> None:
    """The main function of a module in `MODULES`: arguments are the rounds and a workload, the last line is JSON."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    workload = Workload(**json.loads(sys.argv[2])) if len(sys.argv) > 2 else Workload()

    async def main() -> list[SamplesByVariant]:
        return await measure(rounds, workload)

    print("\n" + json.dumps(asyncio.run(main())))


async def cost_of_run(loop: AgentLoop, turns: int, seconds: float) -> dict[str, float]:
    """The cost of one run: the mean of as many runs as fit into `seconds`."""
    await _run(loop, turns)
    gc.collect()
    runs, wall, cpu = 0, time.perf_counter(), time.process_time()
    while runs < 1 or time.perf_counter() - wall < seconds:
        await _run(loop, turns)
        runs += 1
    wall = time.perf_counter() - wall
    if loop.flush is not None:
        await loop.flush()
    return {"wall": wall / runs, "cpu": (time.process_time() - cpu) / runs}


async def _run(loop: AgentLoop, turns: int) -> None:
    STEP_CALLS.total = 0
    answer: Any = await loop.run(turns)
    if FINAL_ANSWER not in str(answer) or STEP_CALLS.total != turns:
        raise AssertionError(f"expected {turns} tool calls, got {STEP_CALLS.total}; the answer was {answer!r}")
