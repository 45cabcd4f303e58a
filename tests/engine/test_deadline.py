"""The deadlines of calls, in virtual time."""

import asyncio
import math
from dataclasses import replace

import pytest

from ferrule import Agent, RunLimits, ToolEngine, ToolEngineConfig, UnifiedToolLibrary
from ferrule.core.call import Invocation, Progress, ToolExecutionResult
from ferrule.core.content import Output
from ferrule.core.spec import Limits, Tool, ToolCapability, ToolSpec
from ferrule.engine.deadline import Deadline, Deadlines
from ferrule.testing import ScriptedModel
from tests.support.virtual_time import in_virtual_time, virtual_time

anyio_backend = virtual_time


async def sleeper(keeper: Deadlines, seconds: float, work: float) -> str:
    deadline = Deadline(keeper, seconds)
    try:
        await asyncio.sleep(work)  # virtual
    except asyncio.CancelledError:
        deadline.end()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return "expired" if deadline.is_expired else "cancelled"
    deadline.end()
    return "done"


async def test_only_those_whose_time_is_up_are_ended():
    keeper = Deadlines(asyncio.get_running_loop())
    runs = [
        sleeper(keeper, 2, 50),
        sleeper(keeper, 50, 5),
        sleeper(keeper, math.inf, 5),
        sleeper(keeper, 4, 50),
    ]
    assert await asyncio.gather(*runs) == ["expired", "done", "done", "expired"]
    assert not keeper.active
    keeper.close()


async def test_a_later_call_with_a_shorter_time_ends_first():
    keeper = Deadlines(asyncio.get_running_loop())
    order: list[float] = []

    async def run(seconds: float) -> None:
        await sleeper(keeper, seconds, 50)
        order.append(seconds)

    await asyncio.gather(run(9), run(6), run(3))
    assert order == [3, 6, 9]
    keeper.close()


async def test_a_paused_clock_does_not_run():
    keeper = Deadlines(asyncio.get_running_loop())
    deadline = Deadline(keeper, 5)
    deadline.pause()
    await asyncio.sleep(10)  # virtual
    assert not deadline.is_expired
    deadline.resume()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(50)  # virtual
    deadline.end()
    assert deadline.is_expired
    keeper.close()


async def test_one_who_ignores_the_first_cancellation_gets_more():
    keeper = Deadlines(asyncio.get_running_loop())
    deadline, swallowed = Deadline(keeper, 1), 0
    while swallowed < 2:
        try:
            await asyncio.sleep(50)  # virtual
        except asyncio.CancelledError:
            swallowed += 1
    deadline.end()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    keeper.close()


class Reporter:
    """An executor that reports every ten seconds, forever or a number of times, and notes that it was cancelled."""

    def __init__(self, reports: float, silence: float = 0.0) -> None:
        self.reports, self.silence, self.was_cancelled = reports, silence, False

    async def execute(self, invocation: Invocation) -> Output:
        try:
            while self.reports > 0:
                await asyncio.sleep(10)  # virtual
                self.reports -= 1
                invocation.report(Progress(message="going on"))
            await asyncio.sleep(self.silence)  # virtual
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return Output(data={"result": "done"})


async def call_reporter(executor: Reporter, timeout: float | None = None) -> tuple[ToolExecutionResult, float]:
    spec = ToolSpec(tool_id="work", description="Work.", limits=Limits(timeout=30, max_timeout=600))
    spec = replace(spec, capabilities=[ToolCapability(name="work", description="Work.")])
    async with ToolEngine(ToolEngineConfig(builtin_tools=False, tools_directory="no-such-folder")) as engine:
        engine.register_executor("reporter", executor)
        engine.registry.add(Tool(spec=spec, handler="reporter", target=None, source="tools", origin="here"))
        started = asyncio.get_running_loop().time()  # virtual
        result = await engine.execute("work", {}, timeout=timeout)
        return result, asyncio.get_running_loop().time() - started  # virtual


@in_virtual_time
async def test_reports_of_progress_restart_the_timeout():
    executor = Reporter(50)
    result, seconds = await call_reporter(executor)
    assert result.is_success and seconds == 500


@in_virtual_time
async def test_the_time_limit_of_a_run_does_not_keep_progress_from_restarting_the_timeout():
    spec = ToolSpec(tool_id="work", description="Work.", limits=Limits(timeout=30, max_timeout=600))
    spec = replace(spec, capabilities=[ToolCapability(name="work", description="Work.")])
    config = ToolEngineConfig(builtin_tools=False, tools_directory="no-such-folder")
    async with UnifiedToolLibrary(engine=ToolEngine(config)) as library:
        library.engine.register_executor("reporter", Reporter(50))
        library.engine.registry.add(Tool(spec=spec, handler="reporter", target=None, source="tools", origin="here"))
        model = ScriptedModel([{"name": "work", "arguments": {}}, "done"])
        answer = await Agent(library, model, limits=RunLimits(seconds=3_600)).run("Work")
    assert [step.success for step in answer.steps] == [True], answer.steps


@in_virtual_time
async def test_endless_progress_ends_at_the_longest_time_and_the_work_has_ended():
    executor = Reporter(math.inf)
    result, seconds = await call_reporter(executor)
    assert result.error_type == "timeout" and seconds == 600 and executor.was_cancelled
    assert "30 s (timeout)" in str(result.error) and "600 s (max_timeout)" in str(result.error)
    assert result.metadata["timeout"] == 30 and result.metadata["max_timeout"] == 600


@in_virtual_time
async def test_silence_after_a_report_and_the_callers_own_time_end_a_call():
    result, seconds = await call_reporter(Reporter(5, silence=1_000))
    assert result.error_type == "timeout" and seconds == 80
    result, seconds = await call_reporter(Reporter(math.inf), timeout=25)
    assert result.error_type == "timeout" and seconds == 25 and "max_timeout" not in str(result.error)
