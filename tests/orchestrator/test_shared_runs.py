"""Callers who ask the same question at the same time share one run."""

import asyncio
from typing import Any

import pytest

from ferrule import SetupError, UnifiedToolLibrary, tool
from ferrule.orchestrator import Orchestrator
from ferrule.orchestrator.orchestrator import StrategyChosen
from ferrule.testing import ScriptedModel
from tests.orchestrator.opening import open_orchestrator
from tests.support.waiting import until


class Gate:
    """A tool that waits, and what became of its calls."""

    def __init__(self, **options):
        self.open, self.begun, self.ended = asyncio.Event(), asyncio.Event(), list[str]()

        @tool(name="wait", description="Wait for the gate.", read_only=True, **options)
        async def wait() -> str:
            self.begun.set()
            try:
                await self.open.wait()
                self.ended.append("done")
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            return "open"

        self.tool = wait


async def until_waiting(orchestrator, callers):
    """Wait until so many callers have joined the run."""

    def waiting():
        return sum(run._waiting for run in orchestrator._shared_runs._runs.values())

    await until(lambda: waiting() >= callers)


def asking(orchestrator, *conversations, **options):
    return [
        asyncio.create_task(orchestrator.process_task("Wait!", conversation_id=c, **options)) for c in conversations
    ]


async def test_concurrent_callers_with_the_same_question_share_one_run():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, "It is open."])
    async with open_orchestrator([gate.tool], model, strategy="loop") as orchestrator:
        tasks = asking(orchestrator, "c")
        await gate.begun.wait()
        tasks += asking(orchestrator, "c", "c")
        await until_waiting(orchestrator, 3)
        gate.open.set()
        done = await asyncio.gather(*tasks)
        assert [result.answer for result in done] == ["It is open."] * 3 and gate.ended == ["done"]
        assert len({result.run_id for result in done}) == 1 and len({result.trace_id for result in done}) == 3
        assert [result.shared for result in done] == [False, True, True]
        assert len(await orchestrator.memory.create_snapshot("c").turns()) == 3


async def test_a_caller_who_leaves_does_not_cancel_the_run_of_the_others():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, "It is open."])
    async with open_orchestrator([gate.tool], model, strategy="loop") as orchestrator:
        first, second = asking(orchestrator, "c", "c")
        await gate.begun.wait()
        await until_waiting(orchestrator, 2)
        first.cancel()
        await asyncio.wait({first})
        gate.open.set()
        assert first.cancelled() and (await second).answer == "It is open." and gate.ended == ["done"]
        states = [turn.state for turn in await orchestrator.memory.create_snapshot("c").turns()]
        assert states == ["cancelled", "finished"]


async def test_the_run_is_cancelled_when_the_last_caller_leaves():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, {"name": "wait"}, "It is open."])
    async with open_orchestrator([gate.tool], model, strategy="loop") as orchestrator:
        tasks = asking(orchestrator, "c", "c")
        await gate.begun.wait()
        await until_waiting(orchestrator, 2)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert gate.ended == ["cancelled"]
        gate.open.set()
        assert (await orchestrator.process_task("Wait!", conversation_id="c")).answer == "It is open."


async def test_other_conversations_share_what_is_the_same_for_all():
    gate, model = Gate(cacheable=True), ScriptedModel([{"name": "wait"}, "It is open."])
    async with open_orchestrator([gate.tool], model, strategy="loop") as orchestrator:
        tasks = asking(orchestrator, "anna")
        await gate.begun.wait()
        tasks += asking(orchestrator, "bob")
        await until_waiting(orchestrator, 2)
        gate.open.set()
        anna, bob = await asyncio.gather(*tasks)
        assert anna.run_id == bob.run_id and bob.shared and bob.conversation_id == "bob"


async def test_other_conversations_do_not_get_what_belongs_to_one():
    history = {"name": "get_conversation_history"}
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, history, "Anna's.", history, "Bob's."])
    async with open_orchestrator([gate.tool], model, strategy="loop") as orchestrator:
        seen: list[Any] = []
        tasks = asking(orchestrator, "anna")
        await gate.begun.wait()
        tasks += asking(orchestrator, "bob", on_event=seen.append)
        await until_waiting(orchestrator, 2)
        gate.open.set()
        anna, bob = await asyncio.gather(*tasks)
        assert anna.answer == "Anna's." and bob.answer == "Bob's." and not bob.shared
        assert sum(isinstance(event, StrategyChosen) for event in seen) == 1


async def test_a_late_listener_gets_the_earlier_events():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, "It is open."])
    async with open_orchestrator([gate.tool], model, strategy="loop") as orchestrator:
        early, late = list[Any](), list[Any]()
        first = asking(orchestrator, "c", on_event=early.append)
        await gate.begun.wait()
        second = asking(orchestrator, "c", on_event=late.append)
        await until_waiting(orchestrator, 2)
        gate.open.set()
        await asyncio.gather(*first, *second)
        assert early == late and len(early) > 3


async def test_a_failing_listener_does_not_end_the_run():
    def fail(event):
        raise RuntimeError("no")

    async with open_orchestrator([], ScriptedModel(["a"])) as orchestrator:
        assert (await orchestrator.process_task("Who?", strategy="direct", on_event=fail)).answer == "a"


async def test_closing_cancels_the_questions_in_progress():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}])
    async with UnifiedToolLibrary() as library:
        library.register(gate.tool)
        orchestrator = Orchestrator(library, model, strategy="loop")
        (task,) = asking(orchestrator, "c")
        await gate.begun.wait()
        await orchestrator.aclose()
        assert gate.ended == ["cancelled"]
        with pytest.raises(SetupError, match="was closed"):
            await task
