"""The benchmarks of agents: the cost of one turn, the prompt, and a model that repeats a failing call."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.interface import AgentLoop, AgentRun, Sample, SamplesByVariant, Workload
from benchmarks.models import FailingCallScript
from benchmarks.timing import cost_of_run
from benchmarks.tools import FAILING_CALLS, make_functions

TURNS = (5, 20, 100)
TURNS_WITH_EXTRA_TOOLS = 20
MAX_ENDING_LENGTH = 80
PROMPT_TOOLS = (10, 100, 1_000)
CHARACTERS_PER_TOKEN = 4


async def measure_loop(
    make: Callable[..., Awaitable[dict[str, AgentLoop]]], workload: Workload, *, sync: bool
) -> SamplesByVariant:
    """The cost of one turn: a run of some turns minus a run of none, divided by the number of turns."""
    samples: SamplesByVariant = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
        few, many = await make(stack, []), await make(stack, make_functions(workload.extra_tools, folder, sync=sync))
        for variant, loop in few.items():
            for warm in (loop, many[variant]):  # an agent's first run includes work that is done once per agent
                await cost_of_run(warm, 2, workload.seconds / 4)
            samples[variant] = [await _sample_loop(loop, many[variant], workload) for _ in range(workload.samples)]
    return samples


async def _sample_loop(loop: AgentLoop, with_extra_tools: AgentLoop, workload: Workload) -> Sample:
    empty = await cost_of_run(loop, 0, workload.seconds)
    runs = {turns: await cost_of_run(loop, turns, workload.seconds) for turns in TURNS}
    empty_many = await cost_of_run(with_extra_tools, 0, workload.seconds)
    run_many = await cost_of_run(with_extra_tools, TURNS_WITH_EXTRA_TOOLS, workload.seconds)
    sample: Sample = {}
    for figure in ("cpu", "wall"):
        for turns, run in runs.items():
            sample[f"{figure}_{turns}"] = _per_turn(run[figure], empty[figure], turns)
        sample[f"{figure}_many"] = _per_turn(run_many[figure], empty_many[figure], TURNS_WITH_EXTRA_TOOLS)
    sample["growth"] = sample["cpu_100"] / sample["cpu_5"]
    sample["growth_many"] = sample["cpu_many"] / sample["cpu_20"]
    sample["cpu"] = sample["cpu_20"]
    return sample


def _per_turn(run: float, empty: float, turns: int) -> float:
    # On a noisy machine the difference can be negative.
    return max(1e-9, run - empty) / turns


async def measure_failing_call(
    make: Callable[[FailingCallScript], dict[str, AgentRun]], workload: Workload, *, sync: bool
) -> SamplesByVariant:
    """How often a failing call that the model repeats is executed, and how the run ends."""
    script = FailingCallScript("read_count_sync" if sync else "read_count", workload.max_model_calls)
    return {variant: [await _sample_failing_call(script, run)] for variant, run in make(script).items()}


async def _sample_failing_call(script: FailingCallScript, run: AgentRun) -> Sample:
    script.start()
    FAILING_CALLS.total = 0
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            answer = str(await run())
    except BaseException as error:  # every error is a result here: it is how the run ended
        ending = f"aborted: {_error_name(error)}"
    else:
        ending = f"answer: {' '.join(answer.split()) or 'empty'}"
    if script.was_stopped:
        ending = f"no end after {script.model_calls:,} model calls"
    return {
        "executions": FAILING_CALLS.total,
        "model_calls": script.model_calls,
        "ending": ending if len(ending) <= MAX_ENDING_LENGTH else ending[: MAX_ENDING_LENGTH - 1] + "…",
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
    }


def _error_name(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    cause = f" caused by {type(error.__cause__).__name__}" if error.__cause__ is not None else ""
    return type(error).__name__ + cause


async def measure_prompt(contestant: Any) -> SamplesByVariant:
    """Tokens of what a model is sent for its tools, at four characters each: what counts is the comparison."""
    sample: Sample = {}
    variant = ""
    for number in PROMPT_TOOLS:
        with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as folder:
            functions = make_functions(number, Path(folder), sync=contestant.registry().sync)
            variant, text = await contestant.prompt(functions)
        sample[f"tokens_{number}"] = round(len(text) / CHARACTERS_PER_TOKEN)
    return {variant: [sample]}
