"""What one step of a plan costs: a whole run of ten steps, by the step, and what one more step adds to it.

For a peer that makes no plans: a run with so many turns, each with one call of the same tool.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks.effort import Effort, Sample, Ways
from benchmarks.loop import cost_of_run
from benchmarks.samples import ARGUMENTS
from benchmarks.ways import Loop

STEPS = 10
_SUBJECTS = (
    "invoice",
    "order",
    "customer",
    "ticket",
    "calendar",
    "message",
    "repository",
    "deployment",
    "metric",
    "page",
    "contact",
    "parcel",
    "bridge",
    "garden",
    "river",
    "engine",
    "violin",
    "harbour",
    "pepper",
    "lantern",
)
"""Of as many steps as the longest plan: results of one subject would be held against each other."""


def plan_text(steps: int, tool: str, *, chain: bool) -> str:
    """A plan as a model writes it. In a chain every step needs the result of the one before."""
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


async def measure_plan(make: Callable[[AsyncExitStack], Awaitable[dict[str, Loop]]], effort: Effort) -> Ways:
    async with AsyncExitStack() as stack:
        loops = await make(stack)
        measured: Ways = {label: [] for label in loops}
        for loop in loops.values():
            await cost_of_run(loop, STEPS, effort.seconds / 4)
        for _ in range(effort.samples):  # in turns: what is close in time can be compared
            for label, loop in loops.items():
                measured[label].append(await _sample(loop, effort.seconds))
    return measured


async def _sample(loop: Loop, seconds: float) -> Sample:
    run, longer = await cost_of_run(loop, STEPS, seconds), await cost_of_run(loop, 2 * STEPS, seconds)
    sample: Sample = {figure: run[figure] / STEPS for figure in run}
    return sample | {f"{figure}_more": max(1e-9, longer[figure] - run[figure]) / STEPS for figure in run}
