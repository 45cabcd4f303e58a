"""A model that asks for the same failing call again and again: how often is it made, and how does that end?"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from benchmarks.effort import Effort, Sample, Ways
from benchmarks.minds import Stubborn
from benchmarks.samples import FAILURES
from benchmarks.ways import Insist

SHOWN = 80


async def measure_stubborn(make: Callable[[Stubborn], dict[str, Insist]], effort: Effort, *, sync: bool) -> Ways:
    mind = Stubborn("read_count_sync" if sync else "read_count", effort.patience)
    return {label: [await _sample(mind, insist)] for label, insist in make(mind).items()}


async def _sample(mind: Stubborn, insist: Insist) -> Sample:
    mind.begin()
    FAILURES.total = 0
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            answer = str(await insist())
    except BaseException as error:  # whatever ends a run is an ending; what ends us kills this process
        ending = f"aborted: {_name(error)}"
    else:
        ending = f"answer: {' '.join(answer.split()) or 'nothing'}"
    if mind.had_enough:
        ending = f"no end in {mind.asked:,} model calls"
    return {
        "executions": FAILURES.total,
        "model_calls": mind.asked,
        "ending": ending if len(ending) <= SHOWN else ending[: SHOWN - 1] + "…",
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
    }


def _name(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    cause = f" for {type(error.__cause__).__name__}" if error.__cause__ is not None else ""
    return type(error).__name__ + cause
