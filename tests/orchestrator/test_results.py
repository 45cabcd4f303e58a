"""What comes of a question, and going on with one that waits."""

import json
from typing import Any

import pytest

from ferrule import Policy, Rule, SetupError, UnifiedToolLibrary, tool
from ferrule.agent import AgentState, Approval, ApprovalRequest, Question, RunLimits
from ferrule.agent.answer import CallEnded, PlanCreated, StepEnded, TextPiece
from ferrule.orchestrator import Orchestrator
from ferrule.testing import ScriptedModel
from tests.orchestrator.opening import open_orchestrator
from tests.workflow.plans import plan


@tool(read_only=True, tags=["math"])
async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


ADD = {"id": 1, "description": "add", "tool_type": "add", "parameters": {"a": 1, "b": 2}}
DELETE = {"id": 1, "description": "delete it", "tool_type": "delete", "parameters": {"path": "a.txt"}}
BRIEF = {"total_calls": 1, "success_rate": 100.0, "tool_usage": {"add": 1}, "has_errors": False}


class Somebody:
    """Says yes, or no, or nothing."""

    def __init__(self, word: Approval | None) -> None:
        self.word = word
        self.asked: list[str] = []

    async def answer(self, question: Question) -> str | None:
        return None

    async def approve(self, request: ApprovalRequest) -> Approval | None:
        self.asked.append(request.call_id)
        return self.word


async def test_a_plan_tells_all_about_itself(workflow):
    seen: list[Any] = []
    async with UnifiedToolLibrary() as library:
        library.register(add)
        async with Orchestrator(library, ScriptedModel([plan(ADD)]), workflow=workflow) as orchestrator:
            done = await orchestrator.process_task("What is 1 + 2?", strategy="plan", on_event=seen.append)
        assert (done.answer, done.state, done.strategy) == ("3", AgentState.FINISHED, "plan")
        assert done["plan"].steps[0].tool_type == "add" and done.steps[0].output == 3
        assert done["verification"].verified and done["verification"].confidence == 1.0
        assert done.tool_usage_summary == BRIEF and done.usage.requests == 1 and done.cost == 0.0
        assert set(done.timings) == {"cache", "strategy", "planning", "execution", "synthesis", "total"}
        assert {type(event) for event in seen[1:]} == {PlanCreated, StepEnded}
        records = await library.engine.query_call_records(conversation_id=done.run_id)
        assert [record.record_id for record in records] == [done.steps[0].attempts[0].call_id]


async def test_a_loop_tells_the_same_in_the_same_form():
    script = [{"name": "add", "arguments": {"a": 1, "b": 2}}, "It is 3."]
    limits, seen = RunLimits(price=lambda usage: 0.5 * usage.requests), list[Any]()
    async with open_orchestrator([add], ScriptedModel(script), limits=limits) as orchestrator:
        done = await orchestrator.process_task("Add 1 to 2", on_event=seen.append)
    assert (done.answer, done.state, done.strategy) == ("It is 3.", AgentState.FINISHED, "loop")
    assert (done.steps[0].tool_type, done.steps[0].result, done.steps[0].success) == ("add", "3", True)
    assert done["verification"].verified and done.tool_usage_summary == BRIEF and done.cost == 1.0
    assert set(done.timings) == {"cache", "strategy", "loop", "total"} and done.plan is None
    assert {CallEnded, TextPiece} <= {type(event) for event in seen}


async def test_a_failed_call_of_a_loop_is_a_failed_step():
    script = [{"name": "add", "arguments": {"a": 1}}, "I could not."]
    async with open_orchestrator([add], ScriptedModel(script), strategy="loop") as orchestrator:
        done = await orchestrator.process_task("Add 1")
    assert not done.steps[0].success and "b: is required" in str(done.steps[0].error)
    assert not done["verification"].verified
    assert done.tool_usage_summary["has_errors"]


async def test_a_result_is_read_by_name_and_written_as_json():
    async with open_orchestrator([], ScriptedModel(["Yes."])) as orchestrator:
        done = await orchestrator.process_task("Is it?", strategy="direct")
        assert done["answer"] == str(done) == "Yes." and json.loads(json.dumps(done.to_dict()))["state"] == "finished"
        with pytest.raises(KeyError, match="no 'anwser'. Did you mean 'answer'"):
            done["anwser"]


async def test_the_simple_workflow_stands_in_where_langgraph_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with UnifiedToolLibrary() as library:
        library.register(add)
        async with Orchestrator(library, ScriptedModel([plan(ADD)]), strategy="plan") as orchestrator:
            done = await orchestrator.process_task("What is 1 + 2?")
        begin = (await library.engine.store.read_entries(f"run:{done.run_id}"))["00000001"]
        assert done.answer == "3" and begin["workflow"] == "simple"


async def test_a_plan_that_waits_is_gone_on_with_by_its_own_workflow(workflow, tmp_path):
    url = f"sqlite:///{tmp_path}/calls.db"
    async with UnifiedToolLibrary(store=url) as library:
        library.register(delete)
        async with Orchestrator(library, ScriptedModel([plan(DELETE)]), workflow=workflow) as orchestrator:
            waits = await orchestrator.process_task("Delete a.txt", strategy="plan", conversation_id="c")
        assert waits.state is AgentState.WAITING and waits.approvals[0].arguments == {"path": "a.txt"}
    async with UnifiedToolLibrary(store=url) as library:
        library.register(delete)
        async with Orchestrator(library, ScriptedModel([]), workflow="simple") as orchestrator:
            done = await orchestrator.resume(waits.run_id, approvals=True)
            told = await orchestrator.process_task("what did you say?", conversation_id="c")
        assert (
            done.answer == "deleted a.txt" and done.strategy == "plan" and done.tool_usage_summary["total_calls"] == 1
        )
        assert done.conversation_id == "c" and told.answer == "My last answer was: deleted a.txt"


async def test_a_loop_that_asks_is_gone_on_with_by_the_agent():
    script = [{"name": "ask_user", "arguments": {"question": "Which one?"}}, "The red one."]
    async with UnifiedToolLibrary() as library:
        async with Orchestrator(library, ScriptedModel(script), strategy="loop") as orchestrator:
            waits = await orchestrator.process_task("Choose!")
            done = await orchestrator.resume(waits.run_id, "red")
            turns = await orchestrator.memory.create_snapshot().turns()
        assert waits.state is AgentState.WAITING and waits.questions[0].text == "Which one?"
        assert done.answer == "The red one." and done.strategy == "loop"
        assert [(turn.state, turn.answer) for turn in turns] == [("finished", "The red one.")]


async def test_a_person_who_is_there_is_asked_at_once(workflow):
    script = [plan(DELETE), plan(DELETE), plan(DELETE)]
    words = [Approval(allowed=True), Approval(allowed=False, reason="no"), None]
    states = []
    for word in words:
        async with UnifiedToolLibrary() as library:
            library.register(delete)
            person = Somebody(word)
            async with Orchestrator(
                library, ScriptedModel([script.pop(), "no"]), workflow=workflow, person=person
            ) as orchestrator:
                done = await orchestrator.process_task("Delete a.txt", strategy="plan")
            states.append((done.state.value, done.steps[0].success if done.steps else None))
            assert person.asked == ["1"]
    assert states == [("finished", True), ("stopped", False), ("waiting", None)]


async def test_a_person_is_asked_again_about_a_step_that_is_done_with_another_tool(workflow):
    @tool(idempotent=True, tags=["clean", "disk"])
    async def sweep(path: str) -> str:
        """Clean the disk."""
        return ""

    @tool(idempotent=True, tags=["clean", "disk"])
    async def scrub(path: str) -> str:
        """Clean the disk."""
        return "clean"

    steps = {"id": 1, "description": "clean the disk", "tool_type": "sweep", "parameters": {"path": "a"}}
    policy, person = (
        Policy(rules=[Rule(verdict="ask", tool="sweep"), Rule(verdict="ask", tool="scrub")]),
        Somebody(Approval(allowed=True)),
    )
    model = ScriptedModel([plan(steps)])
    async with open_orchestrator(
        [sweep, scrub], model, workflow=workflow, person=person, policy=policy
    ) as orchestrator:
        done = await orchestrator.process_task("Clean the disk", strategy="plan")
    assert done.answer == "clean" and person.asked == ["1", "1"]


async def test_what_cannot_be_gone_on_with_is_said():
    async with open_orchestrator([delete], ScriptedModel([plan(DELETE)]), workflow="simple") as orchestrator:
        waits = await orchestrator.process_task("Delete a.txt", strategy="plan")
        with pytest.raises(SetupError, match="has no open question"):
            await orchestrator.resume(waits.run_id, "yes")
        with pytest.raises(SetupError, match="no run 'nowhere'"):
            await orchestrator.resume("nowhere")


async def test_a_run_that_goes_on_sees_the_conversation_as_it_was_when_it_began():
    script = [
        {"name": "ask_user", "arguments": {"question": "Really?"}},
        "two",
        {"name": "get_conversation_history", "arguments": {"query": "questions"}},
        "ok",
    ]
    async with open_orchestrator([], ScriptedModel(["zero", *script])) as orchestrator:
        await orchestrator.process_task("Zero?", strategy="direct")
        waits = await orchestrator.process_task("One?", strategy="loop")
        await orchestrator.process_task("Two?", strategy="direct")
        done = await orchestrator.resume(waits.run_id, "yes")
        assert done.steps[-1].result == '["Zero?"]'


ASK = {"id": 1, "description": "ask", "tool_type": "ask_user", "parameters": {"question": "Tea or coffee?"}}


class Tea:
    """Wants tea."""

    async def answer(self, question: Question) -> str | None:
        return "tea" if "Tea" in question.text else None

    async def approve(self, request: ApprovalRequest) -> Approval | None:
        return None


async def test_a_question_of_a_plan_is_answered_at_once_where_somebody_is_there(workflow):
    async with (
        UnifiedToolLibrary() as library,
        Orchestrator(
            library, ScriptedModel([plan(ASK)]), workflow=workflow, strategy="plan", person=Tea()
        ) as orchestrator,
    ):
        result = await orchestrator.process_task("What shall we drink?")
    assert (result.state, result.answer) == (AgentState.FINISHED, "tea")


async def test_a_question_of_a_plan_waits_and_is_answered_later(workflow):
    async with UnifiedToolLibrary() as library:
        model = ScriptedModel([plan(ASK)])
        async with Orchestrator(library, model, workflow=workflow, strategy="plan") as orchestrator:
            paused = await orchestrator.process_task("What shall we drink?")
            assert paused.state is AgentState.WAITING and paused.questions[0].text == "Tea or coffee?"
            done = await orchestrator.resume(paused.run_id, "coffee")
            assert done.answer == "coffee"
            with pytest.raises(SetupError, match="has no open question"):
                await orchestrator.resume(paused.run_id, "more")
