"""Good calls, made with a memory of failures and without: whatever differs was blocked wrongly.

The two engines take turns, some hundred calls each, so that both see the same machine.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.effort import Effort, Sample, Ways
from benchmarks.good_calls import Call, good_calls, undeclared_polls, world
from ferrule import ToolEngine, ToolEngineConfig, ToolExecutionContext, ToolExecutionResult
from ferrule.engine.breaker import BreakerConfig
from ferrule.errors import KNOWN_FAILURE
from ferrule.memory import RunMemory

WITH, WITHOUT = "with RunMemory", "without"
UNDECLARED = "with RunMemory, polls of a tool that does not say it polls"
CHUNK = 250


@dataclass(slots=True)
class _Replay:
    """One engine, and what its calls came to."""

    engine: ToolEngine
    context: ToolExecutionContext
    results: list[ToolExecutionResult] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=lambda: {"cpu": 0.0, "own": 0.0, "wall": 0.0})


async def replay(effort: Effort) -> Ways:
    calls = good_calls(effort.replayed, Random(1))
    measured: Ways = {WITH: [], WITHOUT: [], UNDECLARED: []}
    for _ in range(effort.samples):
        found, without = await _sample(calls)
        found["added"] = found["own"] - without["own"]
        measured[WITH].append(found)
        measured[WITHOUT].append(without)
        measured[UNDECLARED].append((await _sample(undeclared_polls(effort.replayed // 10)))[0])
    return measured


async def _sample(calls: Sequence[Call]) -> tuple[Sample, Sample]:
    async with AsyncExitStack() as stack:
        remembering = await _start(stack, RunMemory())
        forgetful = await _start(stack, None)
        for start in range(0, len(calls), CHUNK):
            for replayed in (remembering, forgetful) if start // CHUNK % 2 else (forgetful, remembering):
                await _make(replayed, calls[start : start + CHUNK])
    return _found(remembering, forgetful), _found(forgetful, forgetful)


async def _start(stack: AsyncExitStack, memory: RunMemory | None) -> _Replay:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    config = ToolEngineConfig(auto_reload=False, breaker=BreakerConfig(threshold=0))  # only the memory is to differ
    engine = ToolEngine(config, store=f"sqlite:///{folder / 'calls.db'}")
    await stack.enter_async_context(engine)
    engine.register(*world())
    return _Replay(engine, ToolExecutionContext(memory=memory, max_retries=0))


async def _make(replayed: _Replay, calls: Sequence[Call]) -> None:
    gc.collect()
    wall, own, cpu = time.perf_counter(), time.thread_time(), time.process_time()
    for name, arguments in calls:
        replayed.results.append(await replayed.engine.execute(name, arguments, replayed.context))
    spent = replayed.spent
    spent["wall"] += time.perf_counter() - wall
    spent["own"] += time.thread_time() - own
    await replayed.engine.store.flush()
    spent["cpu"] += time.process_time() - cpu


def _found(replayed: _Replay, truth: _Replay) -> Sample:
    results, expected = replayed.results, truth.results
    sample: Sample = {figure: seconds / len(results) for figure, seconds in replayed.spent.items()}
    return {
        **sample,
        "good": sum(result.is_success for result in expected),
        "false_blocks": sum(_is_false(*pair) for pair in zip(results, expected, strict=True)),
        "spared": sum(result.error_type == KNOWN_FAILURE for result in results),
        "recalled": sum(bool(result.metadata.get("recalled")) for result in results),
    }


def _is_false(found: ToolExecutionResult, expected: ToolExecutionResult) -> bool:
    return expected.is_success and _told(found) != _told(expected)


def _told(result: ToolExecutionResult) -> Any:
    return result.is_success, result.output
