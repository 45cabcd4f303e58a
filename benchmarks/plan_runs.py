"""The benchmarks of plans and questions: one step, parallel steps, and answers of the fast path or the cache."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.interface import AgentLoop, Operation, ParallelSteps, Sample, SamplesByVariant, Workload
from benchmarks.timing import cost_of_run, sample_of, warm_up
from benchmarks.tools import ARGUMENTS, CONCURRENCY, make_functions

PLAN_STEPS = 10
# One subject per step of the longest plan: verification compares results that have the same subject.
_SUBJECTS = (
    *("invoice", "order", "customer", "ticket", "calendar", "message", "repository", "deployment", "metric", "page"),
    *("contact", "parcel", "bridge", "garden", "river", "engine", "violin", "harbour", "pepper", "lantern"),
)


def plan_text(steps: int, tool: str, *, chain: bool) -> str:
    """A plan as a model writes it. In a chain every step needs the result of the previous one."""
    return json.dumps({"steps": [_step(number, tool, chain=chain) for number in range(1, steps + 1)]})


def _step(number: int, tool: str, *, chain: bool) -> dict[str, object]:
    parameters: dict[str, object] = {**ARGUMENTS}
    if chain and number > 1:
        parameters["a"] = f"${{{number - 1}}}"
    return {
        "id": number,
        "description": f"Count the {_SUBJECTS[number - 1]}",
        "tool_type": tool,
        "parameters": parameters,
        "dependencies": [number - 1] if chain and number > 1 else [],
    }


async def measure_plan(
    make: Callable[[AsyncExitStack], Awaitable[dict[str, AgentLoop]]], workload: Workload
) -> SamplesByVariant:
    """The cost of one step: a run of ten steps divided by ten, and what each further step adds.

    A framework without plans makes a run with as many turns, each with one call of the same tool.
    """
    async with AsyncExitStack() as stack:
        loops = await make(stack)
        samples: SamplesByVariant = {variant: [] for variant in loops}
        for loop in loops.values():
            await cost_of_run(loop, PLAN_STEPS, workload.seconds / 4)
        for _ in range(workload.samples):  # variants alternate: only figures that are close in time can be compared
            for variant, loop in loops.items():
                samples[variant].append(await _sample_plan(loop, workload.seconds))
    return samples


async def _sample_plan(loop: AgentLoop, seconds: float) -> Sample:
    run = await cost_of_run(loop, PLAN_STEPS, seconds)
    longer = await cost_of_run(loop, 2 * PLAN_STEPS, seconds)
    sample: Sample = {figure: run[figure] / PLAN_STEPS for figure in run}
    return sample | {f"{figure}_more": max(1e-9, longer[figure] - run[figure]) / PLAN_STEPS for figure in run}


async def measure_parallel(
    make: Callable[[AsyncExitStack], Awaitable[dict[str, ParallelSteps]]], workload: Workload
) -> SamplesByVariant:
    """The time from the plan to the answer with ten independent steps of 200 ms."""
    async with AsyncExitStack() as stack:
        variants = await make(stack)
        samples: SamplesByVariant = {variant: [] for variant in variants}
        for run_steps in variants.values():
            await run_steps(1)  # the first run includes lazy imports
        for _ in range(workload.samples):
            for variant, run_steps in variants.items():
                samples[variant].append(await _sample_parallel(run_steps))
    return samples


async def _sample_parallel(run_steps: ParallelSteps) -> Sample:
    CONCURRENCY.reset()
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    planning = await run_steps(PLAN_STEPS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if CONCURRENCY.total != PLAN_STEPS:
        raise AssertionError(f"expected {PLAN_STEPS} steps, got {CONCURRENCY.total}")
    return {"wall": wall - planning, "cpu": cpu, "peak_concurrency": CONCURRENCY.peak}


async def measure_fast_path(
    make: Callable[..., Awaitable[dict[str, Operation]]], workload: Workload
) -> SamplesByVariant:
    """Questions that need neither model nor tool, with few tools and with many."""
    samples: SamplesByVariant = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
        few, many = await make(stack, []), await make(stack, make_functions(workload.extra_tools, folder))
        for variant, operation in few.items():
            times = await warm_up(operation, workload.seconds)
            await warm_up(many[variant], workload.seconds)
            samples[variant] = [
                await _sample_fast_path(operation, many[variant], times) for _ in range(workload.samples)
            ]
    return samples


async def _sample_fast_path(operation: Operation, with_extra_tools: Operation, times: int) -> Sample:
    many = await sample_of(with_extra_tools, times)
    return await sample_of(operation, times) | {f"{figure}_many": seconds for figure, seconds in many.items()}
