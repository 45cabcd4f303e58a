"""Questions that need no work: small talk, and what was answered a moment ago. With few tools and with many."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.effort import Effort, Sample, Ways
from benchmarks.samples import make_functions
from benchmarks.timing import sample_of, warm_up
from benchmarks.ways import Way


async def measure_door(make: Callable[..., Awaitable[dict[str, Way]]], effort: Effort) -> Ways:
    measured: Ways = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
        few, many = await make(stack, []), await make(stack, make_functions(effort.further, folder))
        for label, way in few.items():
            times = await warm_up(way, effort.seconds)
            await warm_up(many[label], effort.seconds)
            measured[label] = [await _sample(way, many[label], times) for _ in range(effort.samples)]
    return measured


async def _sample(way: Way, many: Way, times: int) -> Sample:
    with_many = await sample_of(many, times)
    return await sample_of(way, times) | {f"{figure}_many": seconds for figure, seconds in with_many.items()}
