"""The loop and plans are the same kind of run: waiting, edited approvals, interruption, budgets and cancellation."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from ferrule import (
    Approval,
    NeedsApproval,
    Secret,
    SetupError,
    ToolEngine,
    ToolEngineConfig,
    ToolExecutionContext,
    UnifiedToolLibrary,
    tool,
)
from ferrule.agent import Agent, AgentAnswer, AgentState, RunLimits, StepResult
from ferrule.agent.run import Run
from ferrule.core.messages import Usage
from ferrule.core.model import ModelReply
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.policy.budgets import Budget
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow, SimpleWorkflow
from tests.agent.calls import call
from tests.hub.recording_tools import make_tool
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.workflow.plans import plan, step


class Runs:
    """Runs of the same calls, in the loop or as a plan. The last reply of the model is `Done.`."""

    def __init__(self, kind: str) -> None:
        self.is_plan = kind != "loop"
        self._make: Any = {"loop": Agent, "simple": SimpleWorkflow, "langgraph": GraphWorkflow}[kind]

    def script(self, *calls: dict[str, Any]) -> list[Any]:
        if not self.is_plan:
            return [list(calls), "Done."]
        steps = [step(number, each["name"], **each["arguments"]) for number, each in enumerate(calls, 1)]
        return [plan(*steps), *self.ending]

    @property
    def ending(self) -> list[str]:
        """What the model of a resumed run says; a plan may also be asked for a revision."""
        return ['{"steps": []}', "Done."] if self.is_plan else ["Done."]

    def open(self, library: UnifiedToolLibrary, model: list[Any] | ScriptedModel, **options: Any) -> Any:
        return self._make(library, ScriptedModel(model) if isinstance(model, list) else model, **options)


@pytest.fixture(params=["loop", "simple", "langgraph"])
def runs(request: pytest.FixtureRequest) -> Runs:
    if request.param == "langgraph":
        pytest.importorskip("langgraph", reason='needs LangGraph: pip install "ferrule[langgraph]"')
    return Runs(request.param)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'calls.db'}"


async def messages_of(library: UnifiedToolLibrary, run_id: str) -> list[Any]:
    return (await Run.load(run_id, library.engine.store)).messages


async def results_of(library: UnifiedToolLibrary, run_id: str) -> list[str]:
    return [message["content"] for message in await messages_of(library, run_id) if message["role"] == "tool"]


def make_delete(deleted: list[str]) -> Any:
    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        deleted.append(path)
        return f"deleted {path}"

    return delete


async def cancel_at(running: Any, moment: asyncio.Event) -> None:
    task = asyncio.create_task(running)
    await moment.wait()
    task.cancel()
    await asyncio.wait({task})


async def test_a_run_waits_for_approval_and_continues_in_another_process(runs, url):
    deleted: list[str] = []
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_delete(deleted))
        first = await runs.open(library, runs.script(call("delete", path="a"))).run("Delete a", run_id="r")
        assert first.state is AgentState.WAITING and deleted == []
        assert [(r.tool_id, r.arguments) for r in first.approvals] == [("delete", {"path": "a"})]
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_delete(deleted))
        again = runs.open(library, runs.ending)
        entries = await library.engine.store.read_entries("run:r")
        still = await again.resume("r")
        assert [r.approval_id for r in still.approvals] == [first.approvals[0].approval_id]
        assert await library.engine.store.read_entries("run:r") == entries  # what it waits for is stored already
        done = await again.resume("r", approvals=True)
        assert done.state is AgentState.FINISHED and deleted == ["a"]
        assert await results_of(library, "r") == ["deleted a"]


@pytest.mark.parametrize(
    ("decision", "paths", "text"),
    [
        (False, [], "The user refused this call."),
        (Approval(allowed=False, reason="Not that one."), [], "The user refused this call: Not that one."),
        (Approval(allowed=True, arguments={"path": "b"}), ["b"], "deleted b"),
    ],
)
async def test_a_call_is_refused_or_made_with_edited_arguments(runs, decision, paths, text):
    deleted: list[str] = []
    async with UnifiedToolLibrary() as library:
        library.register(make_delete(deleted))
        agent = runs.open(library, runs.script(call("delete", path="a")))
        first = await agent.run("Delete a", run_id="r")
        await agent.resume("r", approvals={first.approvals[0].call_id: decision})
        assert deleted == paths
        assert [result.splitlines()[0] for result in await results_of(library, "r")] == [text]
        run = await Run.load("r", library.engine.store)
        made = [each.arguments for each in run.steps]
        assert made == [{"path": paths[0] if paths else "a"}]


async def test_a_person_at_hand_is_asked_at_once(runs):
    deleted: list[str] = []

    class Ann:
        async def answer(self, question: Any) -> str:
            return f"my answer to {question.text}"

        async def approve(self, request: Any) -> Approval:
            return Approval(allowed=request.arguments["path"] == "a")

    async with UnifiedToolLibrary() as library:
        library.register(make_delete(deleted))
        calls = [call("delete", path="a"), call("delete", path="b"), call("ask_user", question="why?")]
        agent = runs.open(library, runs.script(*calls), person=Ann())
        done = await agent.run("Go", run_id="r")
        assert done.state is AgentState.FINISHED and deleted == ["a"]
        assert sorted(await results_of(library, "r")) == [
            "The user refused this call.",
            "deleted a",
            "my answer to why?",
        ]


async def test_a_person_who_cannot_be_asked_lets_the_run_wait(runs, caplog):
    class Ann:
        async def approve(self, request: Any) -> Approval:
            raise ConnectionError("the line is dead")

    async with UnifiedToolLibrary() as library:
        library.register(make_delete([]))
        paused = await runs.open(library, runs.script(call("delete", path="a")), person=Ann()).run("Go")
    assert paused.state is AgentState.WAITING and "the person could not be asked" in caplog.text


@pytest.mark.parametrize("replies", [True, False], ids=["replies", "leaves it for later"])
@in_virtual_time
async def test_the_time_that_a_person_takes_does_not_count(runs, monkeypatch, replies):
    for module in ("budget", "calls"):
        monkeypatch.setattr(f"ferrule.agent.{module}.time", SimpleNamespace(monotonic=loop_time))
    deleted: list[str] = []

    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        await asyncio.sleep(3)
        deleted.append(path)
        return f"deleted {path}"

    class Ann:
        async def approve(self, request: Any) -> Approval | None:
            await asyncio.sleep(100)
            return Approval(allowed=True) if replies else None

    async with UnifiedToolLibrary() as library:
        library.register(delete)
        agent = runs.open(library, runs.script(call("delete", path="a")), person=Ann(), limits=RunLimits(seconds=10))
        done = await agent.run("Delete a")
        if not replies:
            assert done.state is AgentState.WAITING
            done = await agent.resume(done.run_id, approvals=True)
        assert (await Run.load(done.run_id, library.engine.store)).seconds == pytest.approx(3)  # of the tool
    assert done.state is AgentState.FINISHED and deleted == ["a"]


async def test_a_person_who_does_not_reply_is_asked_once(runs):
    asked: list[str] = []

    class Ann:
        async def approve(self, request: Any) -> None:
            asked.append(request.arguments["path"])

    async with UnifiedToolLibrary() as library:
        library.register(make_delete([]))
        script = runs.script(call("delete", path="a"), call("delete", path="b"))
        paused = await runs.open(library, script, person=Ann()).run("Go")
    assert paused.state is AgentState.WAITING and sorted(asked) == ["a", "b"]
    assert sorted(request.arguments["path"] for request in paused.approvals) == ["a", "b"]


async def test_a_tool_asks_for_approval_itself(runs):
    paid: list[int] = []

    @tool
    async def pay(amount: int, context: ToolExecutionContext) -> str:
        """Pay."""
        if amount > 100 and not context.is_approved:
            raise NeedsApproval(f"{amount} is a lot")
        paid.append(amount)
        return "paid"

    async with UnifiedToolLibrary() as library:
        library.register(pay)
        agent = runs.open(library, runs.script(call("pay", amount=50), call("pay", amount=500)))
        first = await agent.run("Pay")
        assert paid == [50] and [r.reason for r in first.approvals] == ["500 is a lot"]
        await agent.resume(first.run_id, approvals=True)
    assert paid == [50, 500]


@pytest.mark.parametrize("is_another_process", [True, False])
async def test_a_call_that_waits_is_made_with_its_secret_or_not_at_all(runs, is_another_process):
    seen: list[str] = []

    @tool(destructive=True)
    async def unlock(door: str, combination: Annotated[str, Secret]) -> str:
        """Unlock a door."""
        seen.append(combination)
        return "open"

    async with UnifiedToolLibrary() as library:
        library.register(unlock)
        agent = runs.open(library, runs.script(call("unlock", door="d", combination="open sesame")))
        await agent.run("Unlock it", run_id="r")
        assert "open sesame" not in str(await library.engine.store.read_entries("run:r"))
        if is_another_process:
            agent = runs.open(library, runs.ending)
        await agent.resume("r", approvals=True)
        assert seen == ([] if is_another_process else ["open sesame"])
        [text] = await results_of(library, "r")
        assert text == "open" if seen else "secrets are not stored while a run waits" in text


async def test_a_cancelled_call_is_repeated_only_if_that_is_safe(runs, url):
    made: list[str] = []
    both = asyncio.Event()

    async def work(name: str) -> str:
        made.append(name)
        if made.count(name) == 1:
            if len(made) == 2:
                both.set()
            await asyncio.Event().wait()
        return name

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return await work("look")

    @tool
    async def write() -> str:
        """Write."""
        return await work("write")

    async with UnifiedToolLibrary(store=url) as library:
        library.register(look, write)
        await cancel_at(runs.open(library, runs.script(call("write"), call("look"))).run("Go", run_id="r"), both)
        assert (await Run.load("r", library.engine.store)).reason == "it was cancelled"
        await runs.open(library, runs.ending).resume("r")
        assert sorted(made) == ["look", "look", "write"]
        written, looked = sorted(await results_of(library, "r"))
        assert "its outcome is unknown" in written and looked == "look"


async def test_an_interrupted_call_is_not_repeated_however_many_calls_its_tool_has_made(runs, monkeypatch):
    monkeypatch.setattr("ferrule.agent.calls.MAX_RECORDS", 10)
    begun, made = asyncio.Event(), []

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    @tool
    async def tidy(context: ToolExecutionContext) -> str:
        """Tidy up."""
        made.append("tidy")
        for _ in range(20):
            await context.call_tool("look")
        begun.set()
        await asyncio.Event().wait()
        return "tidied"

    async with UnifiedToolLibrary() as library:
        library.register(look, tidy)
        await cancel_at(runs.open(library, runs.script(call("tidy"))).run("Go", run_id="r"), begun)
        await runs.open(library, runs.ending).resume("r")
        assert made == ["tidy"] and "interrupted" in str(await results_of(library, "r"))


async def test_a_call_that_was_approved_and_made_is_not_made_again_when_its_result_was_lost(runs):
    deleted: list[str] = []
    async with UnifiedToolLibrary() as library:
        library.register(make_delete(deleted))
        store = library.engine.store
        await runs.open(library, runs.script(call("delete", path="a"))).run("Go", run_id="r")
        before = await store.read_entries("run:r")
        await runs.open(library, runs.ending).resume("r", approvals=True)
        # As if the process had been killed right after the call.
        await store.delete_entries("run:r", [key for key in await store.read_entries("run:r") if key not in before])
        done = await runs.open(library, runs.ending).resume("r")
        assert deleted == ["a"] and done.state is AgentState.FINISHED
        assert await results_of(library, "r") == ["deleted a"]


async def test_a_call_that_failed_is_not_made_again_when_its_result_was_lost(runs):
    made: list[str] = []

    @tool(read_only=True)
    async def look(place: str) -> str:
        """Look."""
        made.append(place)
        raise FileNotFoundError(f"there is no {place}")

    async with UnifiedToolLibrary() as library:
        library.register(look)
        store = library.engine.store
        await runs.open(library, runs.script(call("look", place="a"))).run("Go", run_id="r")
        entries = await store.read_entries("run:r")
        first = next(key for key, entry in entries.items() if entry["kind"] == "step")
        # As if the process had been killed right after the call.
        await store.delete_entries("run:r", [key for key in entries if key >= first])
        done = await runs.open(library, runs.ending).resume("r")
        [result] = done.steps
        assert made == ["a"] and "there is no a" in (result.attempts[0].error or "")


async def test_only_one_process_works_on_a_run_and_its_id_is_used_once(runs):
    begun, end = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        begun.set()
        await end.wait()
        return "worked"

    async with UnifiedToolLibrary() as library:
        library.register(work)
        agent, other = runs.open(library, runs.script(call("work"))), runs.open(library, runs.ending)
        task = asyncio.create_task(agent.run("Go", run_id="r"))
        await begun.wait()
        with pytest.raises(SetupError, match="'r' is in progress, here or in another process"):
            await other.resume("r")
        end.set()
        done = await task
        with pytest.raises(SetupError, match="The run 'r' exists already"):
            await other.run("Go", run_id="r")
        with pytest.raises(SetupError, match="has no open question"):
            await other.resume("r", "hello")
        with pytest.raises(SetupError, match="There is no run 'nope'"):
            await other.resume("nope")
        again = await other.resume("r")
        assert (again.state, again.usage) == (AgentState.FINISHED, done.usage)


async def test_one_answer_is_for_the_first_question_and_a_map_for_each(runs):
    async with UnifiedToolLibrary() as library:
        script = runs.script(call("ask_user", question="Who?", options=["A", "B"]), call("ask_user", question="Why?"))
        agent = runs.open(library, script)
        paused = await agent.run("Go", run_id="r")
        assert [(q.text, q.options) for q in paused.questions] == [("Who?", ("A", "B")), ("Why?", ())]
        paused = await agent.resume("r", "me")
        assert [q.text for q in paused.questions] == ["Why?"]
        done = await agent.resume("r", {paused.questions[0].call_id: "because"})
        assert done.state is AgentState.FINISHED and await results_of(library, "r") == ["me", "because"]


async def test_a_run_is_exported_as_a_conversation(runs):
    @tool(read_only=True)
    async def add(a: float, b: float) -> float:
        """Add two numbers."""
        return a + b

    async with UnifiedToolLibrary() as library:
        library.register(add)
        done = await runs.open(library, runs.script(call("add", a=1, b=2))).run("What is 1 + 2?", run_id="r")
        messages = [message for message in await messages_of(library, "r") if message["role"] != "system"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    [made] = messages[1]["tool_calls"]
    assert made["function"]["name"] == "add" and json.loads(made["function"]["arguments"]) == {"a": 1, "b": 2}
    assert messages[2]["tool_call_id"] == made["id"] and messages[2]["content"] in ("3", "3.0")
    assert type(done) is AgentAnswer and [m for m in done.messages if m["role"] != "system"] == messages
    [result] = done.steps
    assert (result.tool_id, result.arguments, result.success) == ("add", {"a": 1, "b": 2}, True)
    assert result.text == messages[2]["content"] and StepResult.from_dict(result.to_dict()) == result


# Budgets

PRICES = PriceList(models={"scripted": ModelPrice(input=1_000.0)})
"""A reply of `PaidModel` costs 1."""

LONG_TASK = "Say how many words there are here. " * 100
"""Even a request with this task alone costs more than 0.2."""


class PaidModel(ScriptedModel):
    async def generate(self, request: Any, on_text: Any = None) -> ModelReply:
        reply = await super().generate(request, on_text)
        return ModelReply(text=reply.text, tool_calls=reply.tool_calls, usage=Usage(requests=1, input_tokens=1_000))


@pytest.fixture
def open_library(url: str) -> Callable[..., UnifiedToolLibrary]:
    def make(*tools: Any, amount: float) -> UnifiedToolLibrary:
        budget = Budget(name="models", amount=amount, period="total", then="ask")
        config = ToolEngineConfig(builtin_tools=False)
        library = UnifiedToolLibrary(engine=ToolEngine(config, store=url, budgets=[budget], prices=PRICES))
        library.register(*tools)
        return library

    return make


async def test_a_run_waits_for_more_money_and_continues_elsewhere(runs, open_library):
    async with open_library(amount=0.2) as library:
        agent = runs.open(library, PaidModel([]))
        waiting = await agent.run(LONG_TASK, run_id="r")
        assert [request.tool_id for request in waiting.approvals] == ["budget"]
        still = await agent.resume("r")
        assert [r.approval_id for r in still.approvals] == [r.approval_id for r in waiting.approvals]
    async with open_library(amount=0.2) as library:
        agent = runs.open(library, PaidModel([plan(step(1)), "Done."] if runs.is_plan else ["Done."]))
        while waiting.state is AgentState.WAITING:  # one approval adds the amount once more
            waiting = await agent.resume("r", approvals=True)
        assert waiting.state is AgentState.FINISHED
        [spending] = await library.engine.costs.list_spending()
        assert spending.spent == pytest.approx(waiting.model_cost) == pytest.approx(1 + runs.is_plan)


async def test_a_direct_answer_waits_for_more_money_like_any_run(open_library):
    async with open_library(amount=0.2) as library:
        agent = Agent(library, PaidModel(["Done."]))
        answer = await agent.answer_directly(LONG_TASK, "Answer the user.", run_id="r")
        assert [request.tool_id for request in answer.approvals] == ["budget"]
        while answer.state is AgentState.WAITING:
            answer = await agent.resume("r", approvals=True)
        assert (answer.state, answer.text, answer.model_cost) == (AgentState.FINISHED, "Done.", 1.0)


async def test_a_refusal_of_more_money_stops_the_run(runs, open_library):
    async with open_library(amount=0.2) as library:
        agent = runs.open(library, PaidModel([]))
        await agent.run(LONG_TASK, run_id="r")
        decision = {"budget:models": Approval(allowed=False, reason="Too expensive.")}
        stopped = await agent.resume("r", approvals=decision)
        assert stopped.state is AgentState.STOPPED
        assert (await Run.load("r", library.engine.store)).reason.endswith("A person refused more. Too expensive.")


async def test_what_an_interrupted_run_has_used_is_known_when_it_continues(runs, open_library):
    begun = asyncio.Event()

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "seen"

    async with open_library(look, amount=100) as library:
        store = library.engine.store
        await cancel_at(runs.open(library, PaidModel(runs.script(call("look")))).run("Go", run_id="r"), begun)
        entries = await store.read_entries("run:r")
        await store.delete_entries("run:r", [max(entries)])  # as if the process had been killed
        run = await Run.load("r", store)
        assert (run.state, run.usage.requests, run.costs.models) == (AgentState.RUNNING, 1, 1.0)
        done = await runs.open(library, PaidModel(["Done."])).resume("r")
        assert done.usage.requests == done.model_cost == (1 if runs.is_plan else 2)  # one step is the answer itself


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_decision_about_the_second_tool_of_a_name_counts_after_the_first_has_failed(runs, url, is_approved):
    used: list[str] = []

    async def look_up(city: str) -> str:
        raise ValueError("the first is broken")

    async def look_up_again(city: str, context: ToolExecutionContext) -> str:
        if not context.is_approved:
            raise NeedsApproval("It costs money.")
        used.append(city)
        return f"{city} found"

    async def open_and(act: Callable[[Any], Any], script: list[Any]) -> Any:
        async with UnifiedToolLibrary(store=url) as library:
            library.engine.registry.add(make_tool(look_up, name="look_up", read_only=True))
            library.engine.registry.add(make_tool(look_up_again, name="look_up", source="mcps", read_only=True))
            return await act(runs.open(library, script))

    waiting = await open_and(
        lambda agent: agent.run("Find Rome", run_id="r"), runs.script(call("look_up", city="Rome"))
    )
    assert waiting.state.value == "waiting" and not used
    done = await open_and(lambda agent: agent.resume("r", approvals=is_approved), runs.ending)
    assert used == (["Rome"] if is_approved else [])
    assert [step.success for step in done.steps] == [is_approved]
