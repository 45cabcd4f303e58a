"""Measures one contestant by one benchmark, in a process and an environment of the contestant's own.

    python -m benchmarks.measure MODULE BENCHMARK [WORKLOAD as JSON]

The last line of the output is JSON: the samples of each variant, in seconds per operation. `wall` is the time that
the caller waits, `cpu` the CPU time of all threads of the process including background work, `own` the part of it that
the caller's thread uses.
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

from benchmarks.agent_runs import measure_failing_call, measure_loop, measure_prompt
from benchmarks.contestants import (
    CALL,
    FAILING_CALL,
    FAST_PATH,
    LIMIT,
    LOOP,
    MEMORY,
    PARALLEL,
    PLAN,
    PROMPT,
    REGISTRY,
    SYNC,
)
from benchmarks.interface import Operation, Registry, Sample, SamplesByVariant, Workload
from benchmarks.plan_runs import measure_fast_path, measure_parallel, measure_plan
from benchmarks.timing import sample_of, warm_up
from benchmarks.tools import CONCURRENCY, EXPECTED_SUM, make_functions


def measure(module: str, benchmark: str, workload: Workload) -> SamplesByVariant:
    contestant = importlib.import_module(f"benchmarks.contestants.{module}")
    if benchmark == REGISTRY:
        return {"": [_sample_registry(contestant.registry(), workload.functions)]}
    return asyncio.run(_measure(contestant, benchmark, workload))


async def _measure(contestant: Any, benchmark: str, workload: Workload) -> SamplesByVariant:
    make = getattr(contestant, benchmark)
    if benchmark == LOOP:
        return await measure_loop(make, workload, sync=contestant.registry().sync)
    if benchmark == PROMPT:
        return await measure_prompt(contestant)
    if benchmark == FAILING_CALL:
        return await measure_failing_call(make, workload, sync=contestant.registry().sync)
    if benchmark == PLAN:
        return await measure_plan(make, workload)
    if benchmark == PARALLEL:
        return await measure_parallel(make, workload)
    if benchmark == FAST_PATH:
        return await measure_fast_path(make, workload)
    if benchmark == MEMORY:
        samples: SamplesByVariant = await make(workload)
        return samples
    return await _measure_operations(make, benchmark, workload)


async def _measure_operations(
    make: Callable[..., Awaitable[dict[str, Operation]]], benchmark: str, workload: Workload
) -> SamplesByVariant:
    samples: SamplesByVariant = {}
    async with AsyncExitStack() as stack:
        operations = await (make(stack, workload.calls) if benchmark == LIMIT else make(stack))
        for variant, operation in operations.items():
            result = await operation.run()
            if benchmark in (CALL, SYNC) and EXPECTED_SUM not in str(result):
                raise AssertionError(f"{variant!r} returned {result!r}")
            if benchmark == LIMIT:
                samples[variant] = [await _sample_batch(operation, workload.calls) for _ in range(workload.samples)]
            else:
                times = await warm_up(operation, workload.seconds)
                samples[variant] = [await sample_of(operation, times) for _ in range(workload.samples)]
    return samples


async def _sample_batch(operation: Operation, calls: int) -> Sample:
    CONCURRENCY.reset()
    sample = await sample_of(operation, 1)
    if CONCURRENCY.total != calls:
        raise AssertionError(f"expected {calls} calls, got {CONCURRENCY.total}")
    return {**sample, "peak_concurrency": CONCURRENCY.peak}


def _sample_registry(registry: Registry, number: int) -> Sample:
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as directory:
        # The first registration includes lazy imports, so a few functions are registered before.
        registry.register(make_functions(3, Path(directory), sync=registry.sync))
        functions = make_functions(number, Path(directory), sync=registry.sync)
        gc.collect()
        memory, wall, cpu = _megabytes(), time.perf_counter(), time.process_time()
        tools = registry.register(functions)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        gc.collect()
        memory = _megabytes() - memory
        name = functions[number // 2].__name__
        first_call = asyncio.run(_time_first_call(registry, tools, name))
    return {"wall": wall, "cpu": cpu, "megabytes": memory, "first_call": first_call}


async def _time_first_call(registry: Registry, tools: Any, name: str) -> float:
    start = time.perf_counter()
    result = await registry.first_call(tools, name, {"query": "needle"})
    seconds = time.perf_counter() - start
    if "needle" not in str(result):
        raise AssertionError(f"{name!r} returned {result!r}")
    return seconds


def _megabytes() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:  # macOS, which reports only the peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    workload = Workload(**json.loads(sys.argv[3])) if len(sys.argv) > 3 else Workload()
    print("\n" + json.dumps(measure(sys.argv[1], sys.argv[2], workload)))
