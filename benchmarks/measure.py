"""Measures one contestant at one benchmark; runs in the contestant's own process and environment.

    python -m benchmarks.measure MODULE BENCHMARK [EFFORT as JSON]

The last line of its output is JSON: for each way a list of samples, seconds per operation. `wall` is what a caller
waits, `cpu` what all threads of the process spend, work left to the background included, `own` what the caller's thread
spends of that.
"""

import asyncio
import gc
import importlib
import json
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.contestants import CALL, DOOR, LIMIT, LOOP, PLAN, REGISTRY, REPLAY, STUBBORN, SYNC, TOGETHER
from benchmarks.door import measure_door
from benchmarks.effort import Effort, Sample, Ways
from benchmarks.loop import measure_loop
from benchmarks.plan import measure_plan
from benchmarks.samples import ANSWER, SLEEPERS, make_functions
from benchmarks.stubborn import measure_stubborn
from benchmarks.timing import sample_of, warm_up
from benchmarks.together import measure_together
from benchmarks.ways import Registry, Way


def measure(module: str, benchmark: str, effort: Effort) -> Ways:
    contestant = importlib.import_module(f"benchmarks.contestants.{module}")
    if benchmark == REGISTRY:
        return {"": [_measure_registry(contestant.registry(), effort.functions)]}
    if benchmark == LOOP:
        return asyncio.run(measure_loop(contestant.loop, effort, sync=contestant.registry().sync))
    if benchmark == STUBBORN:
        return asyncio.run(measure_stubborn(contestant.stubborn, effort, sync=contestant.registry().sync))
    if benchmark == PLAN:
        return asyncio.run(measure_plan(contestant.plan, effort))
    if benchmark == TOGETHER:
        return asyncio.run(measure_together(contestant.together, effort))
    if benchmark == DOOR:
        return asyncio.run(measure_door(contestant.door, effort))
    if benchmark == REPLAY:
        replayed: Ways = asyncio.run(contestant.replay(effort))
        return replayed
    return asyncio.run(_measure_ways(getattr(contestant, benchmark), benchmark, effort))


async def _measure_ways(make: Callable[..., Awaitable[dict[str, Way]]], benchmark: str, effort: Effort) -> Ways:
    measured: Ways = {}
    async with AsyncExitStack() as stack:
        ways = await (make(stack, effort.calls) if benchmark == LIMIT else make(stack))
        for label, way in ways.items():
            answer = await way.do()
            if benchmark in (CALL, SYNC) and ANSWER not in str(answer):
                raise AssertionError(f"{label!r} gave {answer!r}")
            if benchmark == LIMIT:
                measured[label] = [await _sample_batch(way, effort.calls) for _ in range(effort.samples)]
            else:
                times = await warm_up(way, effort.seconds)
                measured[label] = [await sample_of(way, times) for _ in range(effort.samples)]
    return measured


async def _sample_batch(way: Way, calls: int) -> Sample:
    SLEEPERS.total = SLEEPERS.most = 0
    sample = await sample_of(way, 1)
    if SLEEPERS.total != calls:
        raise AssertionError(f"{SLEEPERS.total} of {calls} calls were made")
    return {**sample, "most_at_once": SLEEPERS.most}


def _measure_registry(registry: Registry, number: int) -> Sample:
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as directory:
        registry.register(
            make_functions(3, Path(directory), sync=registry.sync)
        )  # what is imported late is not registration
        functions = make_functions(number, Path(directory), sync=registry.sync)
        gc.collect()
        memory, wall, cpu = _megabytes(), time.perf_counter(), time.process_time()
        made = registry.register(functions)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        gc.collect()
        memory = _megabytes() - memory
        name = functions[number // 2].__name__
        first = asyncio.run(_first_call(registry, made, name))
    return {"wall": wall, "cpu": cpu, "megabytes": memory, "first_call": first}


async def _first_call(registry: Registry, made: Any, name: str) -> float:
    since = time.perf_counter()
    answer = await registry.first_call(made, name, {"query": "needle"})
    took = time.perf_counter() - since
    if "needle" not in str(answer):
        raise AssertionError(f"{name!r} gave {answer!r}")
    return took


def _megabytes() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:  # macOS, which only tells the most there ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asked = Effort(**json.loads(sys.argv[3])) if len(sys.argv) > 3 else Effort()
    print("\n" + json.dumps(measure(sys.argv[1], sys.argv[2], asked)))
