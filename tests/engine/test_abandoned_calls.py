"""Tools that ignore cancellations: their callers go on, and nothing of them runs later. In virtual time."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ferrule import ConcurrencyConfig, ToolEngine, ToolEngineConfig, ToolExecutionContext, tool
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until

anyio_backend = virtual_time
# Python reports a coroutine that ignores even its own end.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def config(**changes: Any) -> ToolEngineConfig:
    return ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory="no-such-folder", **changes)


class Stubborn:
    """An async tool that swallows every cancellation."""

    def __init__(self) -> None:
        self.cancellations = self.steps = 0
        self.started = asyncio.Event()
        self.is_over = False

    async def work(self) -> None:
        self.started.set()
        while not self.is_over:
            self.steps += 1
            try:
                await asyncio.sleep(0.01 if self.cancellations else 3600)  # virtual
            except asyncio.CancelledError:
                self.cancellations += 1

    async def assert_it_has_stopped(self) -> None:
        steps = self.steps
        await asyncio.sleep(10)  # virtual
        assert self.steps == steps


@asynccontextmanager
async def open_engine(stop_timeout: float, **options: Any) -> AsyncIterator[tuple[ToolEngine, Stubborn]]:
    stubborn = Stubborn()
    try:
        async with ToolEngine(config(stop_timeout=stop_timeout), **options) as engine:
            yield engine, stubborn
    finally:
        stubborn.is_over = True  # else the event loop could not be closed


def make_tool(kind: str, stubborn: Stubborn, **options: Any) -> Any:
    async def directly() -> None:
        """Swallow cancellations."""
        await stubborn.work()

    async def by_task() -> None:
        """Wait for a task that swallows cancellations."""
        await asyncio.create_task(stubborn.work())

    async def by_gather() -> None:
        """Wait for tasks that swallow cancellations."""
        await asyncio.gather(stubborn.work(), stubborn.work())

    async def everything() -> None:
        """Swallow all that can be raised."""
        stubborn.started.set()
        while not stubborn.is_over:
            stubborn.steps += 1
            try:
                await asyncio.sleep(0.01 if stubborn.cancellations else 3600)  # virtual
            except BaseException:
                stubborn.cancellations += 1

    functions = {"directly": directly, "by_task": by_task, "by_gather": by_gather, "everything": everything}
    return tool(name="stubborn", **options)(functions[kind])


KINDS = ["directly", "by_task", "by_gather", "everything"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_that_swallows_cancellations_times_out_with_an_unknown_outcome(kind):
    async with open_engine(1.2) as (engine, stubborn):
        engine.register(make_tool(kind, stubborn))
        result = await engine.execute("stubborn", timeout=0.05)
        [record] = await engine.query_call_records()
        assert (result.error_type, result.metadata["outcome"]) == ("timeout", "unknown")
        assert "did not stop" in result.text
        assert (record.status, record.metadata["outcome"]) == ("failed", "unknown")
        assert stubborn.cancellations >= 2
        if kind.startswith("by_"):  # a task of its own runs on, and is kept track of
            assert set(engine.abandoned_calls) == {"stubborn"}
        else:
            assert engine.abandoned_calls == []
            await stubborn.assert_it_has_stopped()


async def test_the_outcome_of_a_repeatable_tool_does_not_matter():
    async with open_engine(0.1) as (engine, stubborn):
        engine.register(make_tool("directly", stubborn, idempotent=True))
        result = await engine.execute("stubborn", timeout=0.05)
    assert result.error_type == "timeout" and "outcome" not in result.metadata


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_that_is_cancelled_ends_although_its_tool_does_not(kind):
    async with open_engine(0.3) as (engine, stubborn):
        engine.register(make_tool(kind, stubborn))
        caller = asyncio.create_task(engine.execute("stubborn", timeout=3600))
        await stubborn.started.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert caller.cancelled()
        [record] = await engine.query_call_records()
        assert record.status == "cancelled"


async def test_an_abandoned_call_gives_its_slot_back():
    async with open_engine(0.1, concurrency=ConcurrencyConfig(max_concurrent=1)) as (engine, stubborn):
        engine.register(make_tool("by_task", stubborn), quick)
        await engine.execute("stubborn", timeout=0.05)
        assert engine.abandoned_calls == ["stubborn"]
        assert (await engine.execute("quick")).is_success
        assert engine.concurrency.get_metrics().current_concurrent == 0


@tool
async def quick() -> str:
    """Answer."""
    return "done"


async def test_a_tool_with_too_many_abandoned_tasks_is_rejected(monkeypatch):
    monkeypatch.setattr("ferrule.engine.deadline.MAX_ABANDONED_TASKS", 2)
    async with open_engine(0.05) as (engine, stubborn):
        engine.register(make_tool("by_task", stubborn), quick)
        results = [await engine.execute("stubborn", timeout=0.01) for _ in range(3)]
        assert [r.error_type for r in results] == ["timeout", "timeout", "rejected"]
        assert results[2].metadata["reason"] == "abandoned_calls"
        assert (await engine.execute("quick")).is_success


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_closes_although_a_tool_does_not_stop(kind, monkeypatch):
    monkeypatch.setattr("ferrule.engine.pipeline.SHUTDOWN_TIMEOUT", 0.2)
    async with open_engine(0.2) as (engine, stubborn):
        engine.register(make_tool(kind, stubborn))
        caller = asyncio.create_task(engine.execute("stubborn", timeout=3600))
        await stubborn.started.wait()
        await engine.aclose(grace=0.01)
        result = await caller
    assert result.error_type == "cancelled"


async def test_a_task_that_ends_later_is_no_longer_counted():
    async with open_engine(0.05) as (engine, stubborn):
        engine.register(make_tool("by_task", stubborn))
        await engine.execute("stubborn", timeout=0.01)
        assert engine.abandoned_calls == ["stubborn"]
        stubborn.is_over = True
        await until(lambda: not engine.abandoned_calls)


async def test_nested_calls_of_a_stubborn_tool_end_too():
    @tool
    async def outer(context: ToolExecutionContext) -> str:
        """Call one that does not stop."""
        return (await context.call_tool("stubborn")).text

    async with open_engine(0.2) as (engine, stubborn):
        engine.register(outer, make_tool("directly", stubborn))
        result = await engine.execute("outer", timeout=0.05)
        assert result.error_type == "timeout"
        statuses = {r.tool_name: r.status for r in await engine.query_call_records()}
        assert statuses == {"outer": "failed", "stubborn": "cancelled"}
        assert engine.concurrency.get_metrics().current_concurrent == 0
        await stubborn.assert_it_has_stopped()


async def test_a_timeout_inside_a_tool_is_its_own(caplog):
    @tool
    async def patient() -> str:
        """Wait with a timeout, several times."""
        for _ in range(3):
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.create_task(asyncio.sleep(3600))
            except TimeoutError:
                await asyncio.sleep(0.1)  # virtual
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(3600), 0.01)
        return "done"

    async with open_engine(0.05) as (engine, _):
        engine.register(patient)
        with caplog.at_level(logging.WARNING):
            result = await engine.execute("patient")
    assert result.text == "done" and not [record for record in caplog.records if record.name.startswith("ferrule")]


async def test_a_tool_that_cleans_up_after_a_timeout_is_not_abandoned():
    cleaned = []

    @tool
    async def tidy() -> None:
        """Clean up."""
        try:
            await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(3600))
        finally:
            await asyncio.sleep(0.1)  # virtual, and shorter than the time between two cancellations
            cleaned.append(True)

    async with open_engine(5) as (engine, _):
        engine.register(tidy)
        result = await engine.execute("tidy", timeout=0.02)
    assert cleaned and result.error_type == "timeout" and "outcome" not in result.metadata
