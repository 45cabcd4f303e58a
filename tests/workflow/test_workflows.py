"""Plan, execute, verify, synthesize: the same on both workflows."""

import asyncio
import json
from typing import Any

import pytest

from ferrule import NeedsApproval, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.agent.answer import PlanCreated, StepEnded
from ferrule.errors import ModelRefused
from ferrule.testing import ScriptedModel
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until
from tests.workflow.plans import add, broken, plan, step

NOTHING_ELSE = '{"steps": []}'


@tool(read_only=True)
async def shop(item: str) -> dict[str, Any]:
    """Look an item up in the shop."""
    return {"item": item, "prices": [{"amount": 3, "currency": "EUR"}]}


async def test_a_plan_is_made_done_and_answered(workflow):
    script = [
        plan(step(1, "add", a=1, b=2), step(2, needs=[1])),
        "It is three.",
        "The answer is 3 [1].",
    ]
    seen: list[Any] = []
    model = ScriptedModel(script)
    async with workflow([add], model) as flow:
        done = await flow.run("What is 1 + 2?", on_event=seen.append)
    assert done.answer == "The answer is 3 [1]." and done.state is AgentState.FINISHED
    assert [r.result for r in done.results] == ["3", "It is three."] and done.usage.requests == 3
    assert [r.attempts[0].level for r in done.results] == ["name", "reasoning"]
    assert all(r.verification.verified for r in done.results)
    assert [type(event) for event in seen] == [PlanCreated, StepEnded, StepEnded]
    assert set(done.timings) == {"planning", "execution", "synthesis"}
    prompt = str(model.requests[0].messages[0]["content"])
    assert "add" in prompt and "none for a step that only needs reasoning" in prompt
    assert "3" in str(model.requests[1].messages) and model.requests[0].answer_schema is not None


async def test_parameters_refer_to_earlier_results_and_keep_their_types(workflow):
    steps = [
        step(1, "shop", item="tea"),
        step(2, "add", a="${1.prices[0].amount}", b="${1.prices[0].amount}"),
        step(3, "shop", item="${1.item} for ${2}"),
    ]
    async with workflow([add, shop], ScriptedModel([plan(*steps), "done"])) as flow:
        done = await flow.run("Buy tea")
    assert done.results[1].output == 6 and done.results[2].output["item"] == "tea for 6"


async def test_a_reference_to_nothing_is_an_error_of_that_step_alone(workflow):
    steps = [step(1, "shop", item="tea"), step(2, "add", a="${1.price}", b=1), step(3, "add", a=1, b=1)]
    async with workflow([add, shop], ScriptedModel([plan(*steps), "I do not know.", NOTHING_ELSE, "done"])) as flow:
        done = await flow.run("Buy tea")
    assert [r.success for r in done.results] == [True, False, True]
    assert "the result has no price" in done.results[1].error and "Did you mean 'prices'?" in done.results[1].error


async def test_independent_steps_run_at_once_and_dependent_ones_as_soon_as_they_can(workflow):
    order: list[str] = []

    @tool(read_only=True)
    async def wait(name: str, event: str) -> str:
        """Wait."""
        order.append(f"+{name}")
        await until(lambda: event in order)
        order.append(f"-{name}")
        return name

    steps = [
        step(1, "wait", name="slow", event="-next"),
        step(2, "wait", name="quick", event="+slow"),
        step(3, "wait", [2], name="next", event="-quick"),
    ]
    async with workflow([wait], ScriptedModel([plan(*steps), "done"])) as flow:
        await flow.run("Go")
    assert order == ["+slow", "+quick", "-quick", "+next", "-next", "-slow"]


async def test_what_needs_a_failed_step_is_skipped_and_the_rest_still_done(workflow):
    steps = [
        step(1, "broken", item="x"),
        step(2, "add", [1], a=1, b=1),
        step(3, needs=[2]),
        step(4, "add", a=2, b=2),
    ]
    no_thinking = ModelRefused("I will not")
    async with workflow([add, broken], ScriptedModel([plan(*steps), no_thinking, NOTHING_ELSE, "Only four."])) as flow:
        done = await flow.run("Go")
    results = {r.step_id: r for r in done.results}
    assert (results[2].skipped, results[3].skipped) == (True, True) and results[4].output == 4
    assert results[2].error == "It needs the result of step 1, which failed."
    assert results[3].error == "It needs the result of step 2, which was skipped."
    assert [a.level for a in results[1].attempts] == ["name", "reasoning"] and done.answer == "Only four."


async def test_a_tool_that_fails_is_replaced_by_one_that_can_do_the_same(workflow):
    @tool(read_only=True, tags=["search"])
    async def wiki(query: str) -> str:
        """Search."""
        raise RuntimeError("down")

    @tool(read_only=True, tags=["search"])
    async def news(query: str) -> str:
        """Search."""
        return f"news of {query}"

    script = [plan(step(1, "wiki", query="tea"))]
    async with workflow([wiki, news], ScriptedModel(script)) as flow:
        done = await flow.run("Tea?")
    assert [(a.level, a.success) for a in done.results[0].attempts] == [("name", False), ("capability", True)]
    assert "news of tea" in done.answer


async def test_a_replacement_that_asks_for_approval_lets_the_plan_wait(workflow):
    searched: list[str] = []

    @tool(read_only=True, tags=["search"])
    async def wiki(query: str) -> str:
        """Search."""
        raise RuntimeError("down")

    @tool(read_only=True, tags=["search"])
    async def news(query: str, context: ToolExecutionContext) -> str:
        """Search."""
        if not context.is_approved:
            raise NeedsApproval("the archive costs money")
        searched.append(query)
        return f"news of {query}"

    planned = plan(step(1, "wiki", query="tea"))
    async with workflow([wiki, news], ScriptedModel([planned, planned, NOTHING_ELSE, "Nothing."])) as flow:
        waiting = await flow.run("Tea?")
        assert waiting.state is AgentState.WAITING and [r.tool_id for r in waiting.approvals] == ["news"]
        done = await flow.resume(waiting.run_id, approvals=True)
        assert "news of tea" in done.answer and searched == ["tea"]
        refused = await flow.resume((await flow.run("Tea?")).run_id, approvals=False)
    assert refused.results[0].error_type == "permission_denied" and searched == ["tea"]


@in_virtual_time
async def test_what_may_have_happened_is_not_tried_another_way(workflow):
    @tool(timeout=0.05, tags=["pay"])
    async def pay(amount: int) -> str:
        """Pay."""
        await asyncio.Event().wait()
        return "paid"

    model = ScriptedModel([plan(step(1, "pay", amount=5))])
    async with workflow([pay], model) as flow:
        done = await flow.run("Pay")
    assert done.results[0].error_type == "unknown_outcome" and len(done.results[0].attempts) == 1
    assert done.state is AgentState.STOPPED and "did not finish" in done.answer


async def test_what_the_plan_does_not_say_is_filled_in_by_the_model(workflow):
    call = {"name": "add", "arguments": {"a": 20, "b": 22}}
    model = ScriptedModel([plan(step(1, "add", a=20)), call])
    async with workflow([add], model) as flow:
        done = await flow.run("20 + 22?")
    assert done.answer == "42" and model.requests[1].answer_schema is not None


async def test_a_model_that_writes_no_plan_is_asked_once_more_and_then_there_is_one_step(workflow):
    async with UnifiedToolLibrary() as library:
        model = ScriptedModel(["Sure!", plan(step(1)), "thought"])
        async with workflow(library, model) as flow:
            done = await flow.run("Go")
        assert done.answer == "thought" and "That is not a plan: no JSON" in str(
            model.requests[1].messages[-1]["content"]
        )
        model = ScriptedModel(["Sure!", "Really!", "one thought"])
        async with workflow(library, model) as flow:
            done = await flow.run("Go")
        assert done.answer == "one thought" and done.errors == (
            "There was no plan: no JSON object with steps was found.",
        )


async def test_a_plan_that_is_not_as_it_should_be_is_asked_for_again_and_then_mended(workflow):
    wrong = json.dumps(
        {"steps": [{"id": [1], "description": "add", "tool_type": "add", "parameters": {"a": 1, "b": 2}}]}
    )
    async with UnifiedToolLibrary() as library:
        library.register(add)
        model = ScriptedModel([wrong, plan(step(1, "add", a=2, b=2))])
        async with workflow(library, model) as flow:
            done = await flow.run("Go")
        assert done.results[0].output == 4 and done.errors == ()
        assert "steps[0].id" in str(model.requests[1].messages[-1]["content"])
        async with workflow(library, ScriptedModel([wrong, wrong])) as flow:
            done = await flow.run("Go")
        assert done.results[0].output == 3 and "steps[0].id" in done.errors[0]


async def test_a_result_that_cannot_be_believed_is_asked_of_another_tool(workflow):
    @tool(read_only=True, tags=["weather"])
    async def almanac(city: str) -> str:
        """The weather of a city."""
        return ""

    @tool(read_only=True, tags=["weather"])
    async def station(city: str) -> str:
        """The weather of a city."""
        return "sunny, 21 degrees"

    script = [plan(step(1, "almanac", city="Oslo"))]
    async with workflow([almanac, station], ScriptedModel(script)) as flow:
        done = await flow.run("Weather in Oslo?")
    assert done.answer == "sunny, 21 degrees" and done.plan.steps[0].tool_type == "station"


async def test_a_doubt_that_cannot_be_cleared_up_is_noted(workflow):
    @tool(read_only=True)
    async def odd() -> str:
        """Something odd."""
        return "Error: nothing works, 2026-02-31"

    async with workflow([odd], ScriptedModel([plan(step(1, "odd")), NOTHING_ELSE])) as flow:
        done = await flow.run("Go")
    assert not done.results[0].verification.verified and len(done.errors) == 2
    assert done.state is AgentState.FINISHED


async def test_when_all_fails_the_answer_says_what_was_tried(workflow):
    script = [plan(step(1, "broken", item="x")), ModelRefused("no"), NOTHING_ELSE]
    async with workflow([broken], ScriptedModel(script)) as flow:
        done = await flow.run("Go")
    assert done.state is AgentState.STOPPED
    assert done.answer.startswith("I could not find an answer. What I tried:\n1. step 1: ")
    assert "it is broken" in done.answer


async def test_a_step_that_needs_leave_waits_and_the_others_go_on(workflow):
    deleted: list[str] = []

    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        deleted.append(path)
        return f"deleted {path}"

    steps = [step(1, "delete", path="a"), step(2, "add", a=1, b=1), step(3, needs=[1])]
    async with workflow([delete, add], ScriptedModel([plan(*steps), "tidy", "all done"])) as flow:
        paused = await flow.run("Tidy up")
        assert paused.state is AgentState.WAITING and deleted == []
        assert [(r.tool_id, r.arguments) for r in paused.approvals] == [("delete", {"path": "a"})]
        assert [r.step_id for r in paused.results] == [2]
        again = await flow.resume(paused.run_id)
        assert again.state is AgentState.WAITING
        done = await flow.resume(paused.run_id, approvals=True)
        assert done.answer == "all done" and deleted == ["a"]


async def test_cancelling_ends_everything(workflow):
    begun: list[str] = []
    ended: list[str] = []

    @tool(read_only=True)
    async def wait(name: str) -> str:
        """Wait."""
        begun.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
        return name

    steps = [step(n, "wait", name=str(n)) for n in range(1, 4)]
    async with workflow([wait], ScriptedModel([plan(*steps)])) as flow:
        task = asyncio.create_task(flow.run("Go"))
        await until(lambda: len(begun) == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(ended) == ["1", "2", "3"]


async def test_chinese_questions_get_chinese_prompts(workflow):
    model = ScriptedModel([plan(step(1, "broken", item="x")), ModelRefused("no"), NOTHING_ELSE])
    async with workflow([broken], model) as flow:
        done = await flow.run("北京的天气怎么样？")
    assert "步骤可用的工具" in str(model.requests[0].messages[0]["content"])
    assert "重新规划" in str(model.requests[2].messages[-1]["content"])
    assert done.answer.startswith("无法生成答案")


async def test_a_plan_is_held_to_the_tools_it_may_use(workflow):
    steps = [step(1, "shop", item="tea"), step(2, "add", a=1, b=1)]
    model = ScriptedModel([plan(*steps), ModelRefused("no"), NOTHING_ELSE, "done"])
    async with workflow([add, shop], model, tools=["add"]) as flow:
        done = await flow.run("Go")
    assert "shop" not in str(model.requests[0].messages[0]["content"])
    assert done.plan.steps[0].tool_type == "none" and done.results[1].output == 2


async def test_a_call_that_failed_before_a_crash_is_not_made_again_if_it_may_change_something(workflow):
    tried: list[int] = []

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        tried.append(n)
        raise RuntimeError("no money")

    async with UnifiedToolLibrary() as library:
        library.register(pay)
        script = [plan(step(1, "pay", n=1)), RuntimeError("a crash")]
        async with workflow(library, ScriptedModel(script)) as flow:
            with pytest.raises(RuntimeError, match="a crash"):
                await flow.run("Go", run_id="it")
        async with workflow(library, ScriptedModel([NOTHING_ELSE])) as flow:
            resumed = await flow.resume("it")
        assert tried == [1] and "no money" in (resumed.results[0].error or "")


async def test_a_step_whose_references_insert_too_much_fails_and_the_others_go_on(workflow):
    @tool(read_only=True)
    async def repeat(text: str) -> str:
        """Return the text."""
        return text

    steps = [
        step(1, "repeat", text="x" * 50_000),
        step(2, "repeat", text="${1}" * 1_000),
        step(3, "repeat", text="${2}" * 2),
        step(4, "repeat", text="${1}"),
    ]
    async with workflow([repeat], ScriptedModel([plan(*steps), NOTHING_ELSE, "done", "done"])) as flow:
        done = await flow.run("Repeat it")
    assert [result.success for result in done.results] == [True, False, False, True]
    assert "more than 1000000 characters" in (done.results[1].error or "") and done.results[2].skipped
