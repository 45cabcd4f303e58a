"""Runs that were cut short or wait: what is known when they go on, what is told, and what is on the disk."""

import asyncio
import json
from typing import Annotated, Any

import pytest

from ferrule import Secret, UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.agent.answer import PlanCreated, StepEnded
from ferrule.agent.run import Run
from ferrule.core.messages import text_of_message
from ferrule.core.model import ModelReply, ModelRequest
from ferrule.errors import ModelRefused
from ferrule.testing import ScriptedModel
from tests.workflow.plans import add, broken, plan, shout, step


async def cut_short(running: Any, moment: asyncio.Event) -> None:
    task = asyncio.create_task(running)
    await moment.wait()
    task.cancel()
    await asyncio.wait({task})


async def test_a_step_that_is_done_once_more_is_so_after_a_crash_too(workflow, tmp_path):
    begun = asyncio.Event()

    @tool(read_only=True, tags=["weather"])
    async def almanac(city: str) -> str:
        """The weather of a city."""
        return ""

    @tool(read_only=True, tags=["weather"])
    async def station(city: str) -> str:
        """The weather of a city."""
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "sunny"

    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        library.register(almanac, station)
        async with workflow(library, ScriptedModel([plan(step(1, "almanac", city="Oslo"))])) as flow:
            await cut_short(flow.run("Weather in Oslo?", run_id="r"), begun)
        async with workflow(library, ScriptedModel(['{"steps": []}'])) as flow:
            done = await flow.resume("r")
        assert done.answer == "sunny" and done.plan.steps[0].tool_type == "station"


async def test_cut_short_while_it_plans_anew_it_still_asks_what_it_has_asked(workflow, tmp_path):
    revising = asyncio.Event()

    class Model(ScriptedModel):
        async def generate(self, request: ModelRequest | str, on_text: Any = None) -> ModelReply:
            request = ModelRequest.of(request)
            if "cannot be relied on" in text_of_message(request.messages[-1]) and not revising.is_set():
                revising.set()
                await asyncio.Event().wait()
            return await super().generate(request, on_text)

    first = plan(step(1, "ask_user", question="Who?"), step(2, "broken", item="x"), step(3, "shout", [2], text="${2}"))
    other = plan(step(4, "shout", [1], text="${1}"))
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        library.register(broken, shout)
        model = Model([first, ModelRefused("no"), other, "Done."])
        async with workflow(library, model) as flow:
            await cut_short(flow.run("Go", run_id="r"), revising)
            paused = await flow.resume("r")
            assert [q.text for q in paused.questions] == ["Who?"]
            done = await flow.resume("r", "me")
        assert {r.step_id: r.output for r in done.results if r.success} == {1: "me", 4: "ME"}


async def test_what_is_written_down_twice_is_given_once(workflow, tmp_path):
    def face(event: Any) -> None:
        if isinstance(event, StepEnded):
            raise RuntimeError("the face fell off")

    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        library.register(add)
        async with workflow(library, ScriptedModel([plan(step(1, "add", a=1, b=1)), "x"])) as flow:
            with pytest.raises(RuntimeError, match="fell off"):
                await flow.run("Go", run_id="r", on_event=face)
            await flow.resume("r")
            again = await flow.resume("r")
        assert [r.output for r in again.results] == [2]
        assert len((await Run.load("r", library.engine.store)).messages) == 4
        assert len((await Run.load("r", library.engine.store)).steps) == 1


async def test_a_run_that_has_its_answer_is_not_begun_anew(workflow, tmp_path, monkeypatch):
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        library.register(add)
        model = ScriptedModel([plan(step(1, "add", a=1, b=1), step(2, "add", a=2, b=2)), "Both.", "Both."])
        async with workflow(library, model) as flow:
            with monkeypatch.context() as patched:
                patched.setattr("ferrule.workflow.plan_runner.PlanRunner.finish", lambda _: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    await flow.run("Go", run_id="r")
            done = await flow.resume("r")
        assert done.answer == "Both." and done.plan.revised_for == () and [r.output for r in done.results] == [2, 4]


async def test_whoever_goes_on_with_a_run_is_told_its_plan_and_what_is_known(workflow):
    seen: list[Any] = []
    script = [plan(step(1, "add", a=1, b=1), step(2, "ask_user", question="Who?")), "Done."]
    async with workflow([add], ScriptedModel(script)) as flow:
        paused = await flow.run("Go")
        await flow.resume(paused.run_id, "me", on_event=seen.append)
    made, ended = seen
    assert isinstance(made, PlanCreated) and isinstance(ended, StepEnded)
    assert [s.id for s in made.plan.steps] == [1, 2] and [r.output for r in made.results] == [2]
    assert ended.result.output == "me"


async def test_a_run_that_went_on_and_was_cut_short_does_not_wait_any_more(workflow, tmp_path):
    begun = asyncio.Event()

    @tool(read_only=True)
    async def sleep() -> str:
        """Sleep."""
        begun.set()
        await asyncio.Event().wait()
        return "slept"

    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        library.register(sleep)
        script = [plan(step(1, "ask_user", question="Who?"), step(2, "sleep", [1]))]
        async with workflow(library, ScriptedModel(script)) as flow:
            await flow.run("Go", run_id="r")
            await cut_short(flow.resume("r", "me"), begun)
        assert (await Run.load("r", library.engine.store)).state is AgentState.INTERRUPTED


async def test_no_secret_of_a_plan_is_on_the_disk_and_a_run_that_waits_still_has_it(workflow, tmp_path):
    @tool(destructive=True)
    async def enter(pin: Annotated[str, Secret()], password: str) -> dict[str, str]:
        """Open the door."""
        return {"session": "SESSION-7531", "echo": f"{pin} {password}"}

    @tool(read_only=True)
    async def look(session: str) -> str:
        """Look around."""
        return "a garden" if session == "SESSION-7531" else "a wall"

    steps = [
        step(1, "enter", pin="PIN-8642", password="PASSWORD-9753"),
        step(2, "ask_user", [1], question="Left?"),
        step(3, "look", [1, 2], session="${1.session}"),
    ]
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        library.register(enter, look)
        async with workflow(library, ScriptedModel([plan(*steps), "Nice."])) as flow:
            paused = await flow.run("Look behind the door", run_id="r")
            paused = await flow.resume("r", approvals=True)
            assert [q.text for q in paused.questions] == ["Left?"]
            done = await flow.resume("r", "yes")
        await library.engine.store.flush()
        assert done.results[2].output == "a garden"
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert [secret for secret in (b"SESSION-7531", b"PIN-8642", b"PASSWORD-9753") if secret in written] == []


async def test_the_trajectory_has_the_calls_as_they_were_made(workflow):
    steps = [step(1, "add", a=1, b=2), step(2, "shout", [1], text="got ${1}"), step(3, "add", a=5)]
    script = [plan(*steps), {"name": "add", "arguments": {"a": 5, "b": 6}}, "Done."]
    async with UnifiedToolLibrary() as library:
        library.register(add, shout)
        async with workflow(library, ScriptedModel(script)) as flow:
            done = await flow.run("Go")
        messages = (await Run.load(done.run_id, library.engine.store)).messages
        calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
        made = {call["name"]: json.loads(call["arguments"]) for call in calls}
        assert made["shout"] == {"text": "got 3"}
        assert [json.loads(c["arguments"]) for c in calls if c["name"] == "add"] == [{"a": 1, "b": 2}, {"a": 5, "b": 6}]
