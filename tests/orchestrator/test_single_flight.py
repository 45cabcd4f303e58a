"""Those who ask the same at once share one run."""

import asyncio
from typing import Any

import pytest

from ferrule import SetupError, UnifiedToolLibrary, tool
from ferrule.orchestrator import Orchestrator
from ferrule.orchestrator.strategy import StrategyChosen
from ferrule.testing import ScriptedModel


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


def asking(orchestrator, *conversations, **options):
    return [
        asyncio.create_task(orchestrator.process_task("Wait!", conversation_id=c, **options)) for c in conversations
    ]


async def test_the_same_question_at_once_is_one_run():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, "It is open."])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="loop") as orchestrator:
        library.register(gate.tool)
        tasks = asking(orchestrator, "c", "c", "c")
        await gate.begun.wait()
        gate.open.set()
        done = await asyncio.gather(*tasks)
        assert [one.answer for one in done] == ["It is open."] * 3 and gate.ended == ["done"]
        assert len({one.run_id for one in done}) == 1 and len({one.trace_id for one in done}) == 3
        assert [one.shared for one in done] == [False, True, True]
        assert len(await orchestrator.memory.create_snapshot("c").turns()) == 3


async def test_one_who_leaves_does_not_take_the_run_from_the_others():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, "It is open."])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="loop") as orchestrator:
        library.register(gate.tool)
        first, second = asking(orchestrator, "c", "c")
        await gate.begun.wait()
        first.cancel()
        await asyncio.wait({first})
        gate.open.set()
        assert first.cancelled() and (await second).answer == "It is open." and gate.ended == ["done"]
        states = [turn.state for turn in await orchestrator.memory.create_snapshot("c").turns()]
        assert states == ["cancelled", "finished"]


async def test_when_the_last_one_leaves_the_run_has_ended():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, {"name": "wait"}, "It is open."])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="loop") as orchestrator:
        library.register(gate.tool)
        tasks = asking(orchestrator, "c", "c")
        await gate.begun.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert gate.ended == ["cancelled"]
        gate.open.set()
        assert (await orchestrator.process_task("Wait!", conversation_id="c")).answer == "It is open."


async def test_other_conversations_share_what_is_the_same_for_all():
    gate, model = Gate(cacheable=True), ScriptedModel([{"name": "wait"}, "It is open."])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="loop") as orchestrator:
        library.register(gate.tool)
        tasks = asking(orchestrator, "anna", "bob")
        await gate.begun.wait()
        gate.open.set()
        anna, bob = await asyncio.gather(*tasks)
        assert anna.run_id == bob.run_id and bob.shared and bob.conversation_id == "bob"


async def test_other_conversations_do_not_get_what_belongs_to_one():
    history = {"name": "get_conversation_history"}
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, history, "Anna's.", history, "Bob's."])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="loop") as orchestrator:
        library.register(gate.tool)
        seen: list[Any] = []
        tasks = [*asking(orchestrator, "anna"), *asking(orchestrator, "bob", on_event=seen.append)]
        await gate.begun.wait()
        gate.open.set()
        anna, bob = await asyncio.gather(*tasks)
        assert anna.answer == "Anna's." and bob.answer == "Bob's." and not bob.shared
        assert sum(isinstance(event, StrategyChosen) for event in seen) == 1


async def test_who_joins_late_is_told_what_has_happened():
    gate, model = Gate(), ScriptedModel([{"name": "wait"}, "It is open."])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="loop") as orchestrator:
        library.register(gate.tool)
        early, late = list[Any](), list[Any]()
        first = asking(orchestrator, "c", on_event=early.append)
        await gate.begun.wait()
        second = asking(orchestrator, "c", on_event=late.append)
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(*first, *second)
        assert early == late and len(early) > 3


async def test_a_watcher_that_fails_disturbs_nobody():
    def fail(event):
        raise RuntimeError("no")

    async with UnifiedToolLibrary() as library, Orchestrator(library, ScriptedModel(["a"])) as orchestrator:
        assert (await orchestrator.process_task("Who?", strategy="direct", on_event=fail)).answer == "a"


async def test_closing_ends_what_is_being_answered():
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
