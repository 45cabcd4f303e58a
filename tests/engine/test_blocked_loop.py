"""Tools that block the event loop, in real time: nothing else runs meanwhile, so each sleep has its full length."""

import asyncio
import time
from typing import Any

import pytest

from ferrule import ToolEngine, ToolEngineEventType, ToolExecutionContext, report_progress, tool
from ferrule.engine.deadline import MAX_STEP

SECONDS = MAX_STEP + 0.05


@tool
async def block(seconds: float = SECONDS) -> str:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251  what users do
    return "done"


@tool
async def block_and_fail() -> None:
    """Block the event loop, then fail."""
    time.sleep(SECONDS)  # noqa: ASYNC251  (what the test is about: it blocks the loop)
    raise ValueError("broken")


@tool(isolation="inline")
def block_inline() -> str:
    """Block the event loop in a sync function."""
    time.sleep(SECONDS)  # what the test is about: it blocks the loop
    return "done"


@tool
async def wait_for_others() -> str:
    """Wait while other tools run."""
    for _ in range(5):
        await asyncio.sleep(0)
    return "done"


@tool
async def call_block(context: ToolExecutionContext) -> str:
    """Call the tool that blocks."""
    result = await context.call_tool("block")
    return str(result.metadata["blocked_loop_seconds"])


@pytest.mark.parametrize("function", [block, block_inline])
async def test_a_call_that_blocks_beyond_its_timeout_says_that_it_could_not_be_stopped(function: Any, caplog):
    async with ToolEngine() as engine:
        engine.register(function)
        result = await engine.execute(function.__name__, timeout=0.1)
    assert not result.is_success and result.error_type == "timeout" and result.error is not None
    assert result.error.startswith(
        f"Tool {function.__name__!r} did not finish within 0.1 s. It could not be stopped, because its code blocked "
        "the event loop for "
    )
    assert "what it did has taken effect" in result.error
    assert result.metadata["blocked_loop_seconds"] >= SECONDS
    [warning] = [record.getMessage() for record in caplog.records if "blocked the event loop" in record.getMessage()]
    assert warning.startswith(f"tool=<{function.__name__}>, call=<{result.call_id}>, seconds=<")


async def test_a_failure_after_the_timeout_stays_what_the_tool_says():
    async with ToolEngine() as engine:
        engine.register(block_and_fail)
        result = await engine.execute("block_and_fail", timeout=0.1)  # nothing can stop it
    assert (result.error_type, result.error) == ("execution_error", "ValueError: broken")
    assert result.metadata["blocked_loop_seconds"] >= SECONDS


async def test_a_tool_is_not_blamed_for_who_listens_to_its_progress():
    @tool
    async def report() -> str:
        """Report progress."""
        report_progress(0.5)
        return "done"

    def listen(_: Any) -> None:
        time.sleep(SECONDS)  # a slow subscriber

    async with ToolEngine() as engine:
        engine.register(report)
        engine.subscribe(listen, {ToolEngineEventType.EXECUTION_PROGRESS})
        result = await engine.execute("report", timeout=1)  # less than the subscriber takes; the tool itself takes none
    assert result.is_success and "blocked_loop_seconds" not in result.metadata, result.error


async def test_a_call_that_blocks_within_its_timeout_succeeds_and_says_for_how_long():
    async with ToolEngine() as engine:
        engine.register(block)
        result = await engine.execute("block", timeout=60)
    assert result.output == {"result": "done"}
    assert result.metadata["blocked_loop_seconds"] >= SECONDS


async def test_only_the_tool_that_blocked_is_blamed_of_several_that_run():
    async with ToolEngine() as engine:
        engine.register(block, wait_for_others)
        names = ["wait_for_others", "block", "wait_for_others"]
        waited, blocked, also_waited = await asyncio.gather(*map(engine.execute, names))
    assert "blocked_loop_seconds" in blocked.metadata
    assert "blocked_loop_seconds" not in waited.metadata | also_waited.metadata


async def test_a_tool_is_not_blamed_for_the_tool_that_it_calls():
    async with ToolEngine() as engine:
        engine.register(block, call_block)
        result = await engine.execute("call_block", timeout=60)
    assert float(result.output["result"]) >= SECONDS
    assert "blocked_loop_seconds" not in result.metadata


async def test_a_quick_call_has_no_such_metadata():
    async with ToolEngine() as engine:
        engine.register(block)
        assert (await engine.execute("block", {"seconds": 0})).metadata == {}
