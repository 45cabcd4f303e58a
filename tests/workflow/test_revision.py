"""Plans that meet people, bad results and limits: the same on both workflows."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule import tool
from ferrule.agent import AgentState, RunLimits
from ferrule.agent.answer import PlanCreated, StepEnded
from ferrule.core.messages import Usage
from ferrule.core.model import ModelReply
from ferrule.errors import ModelRefused
from ferrule.testing import ScriptedModel
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.workflow.plans import add, broken, delete, plan, shout, step

# People


async def test_a_step_asks_the_user_and_goes_on_with_the_answer(workflow):
    steps = [
        step(1, "ask_user", question="Which colour?", options=["red", "blue"]),
        step(2, "shout", [1], text="in ${1}"),
        step(3, "add", a=1, b=1),
    ]
    model = ScriptedModel([plan(*steps), "A loud colour."])
    async with workflow([add, shout], model) as flow:
        paused = await flow.run("Paint it")
        assert paused.state is AgentState.WAITING and [r.step_id for r in paused.results] == [3]
        [asked] = paused.questions
        assert (asked.call_id, asked.text, asked.options) == ("1", "Which colour?", ("red", "blue"))
        again = await flow.resume(paused.run_id)
        assert again.questions == paused.questions
        done = await flow.resume(paused.run_id, "blue")
    assert {r.step_id: r.result for r in done.results} == {1: "blue", 2: "IN BLUE", 3: "2"}
    assert done.state is AgentState.FINISHED and done.answer == "A loud colour."
    assert "ask_user" in str(model.requests[0].messages[0]["content"])


async def test_a_question_may_hold_what_was_found_out_before(workflow):
    steps = [step(1, "add", a=1, b=2), step(2, "ask_user", [1], question="Is ${1} enough?")]
    async with workflow([add], ScriptedModel([plan(*steps)])) as flow:
        paused = await flow.run("Ask")
    assert [q.text for q in paused.questions] == ["Is 3 enough?"]


async def test_what_follows_others_goes_on_while_a_step_waits(workflow):
    steps = [step(1, "ask_user", question="Who?"), step(2, "add", a=1, b=1), step(3, "add", [2], a="${2}", b=1)]
    async with workflow([add], ScriptedModel([plan(*steps)])) as flow:
        paused = await flow.run("Go")
    assert [r.output for r in paused.results] == [2, 3] and len(paused.questions) == 1


async def test_an_answer_is_not_lost_while_another_step_still_finds_out_what_to_ask(workflow):
    class SlowModel(ScriptedModel):
        async def generate(self, request: Any, on_text: Any = None) -> ModelReply:
            await asyncio.sleep(0.02)  # so that the steps without a model go on meanwhile
            return await super().generate(request, on_text)

    fill = {"name": "delete", "arguments": {"path": "a"}}
    script = [plan(step(1, "ask_user", question="Who?"), step(2, "delete")), *[fill] * 3]
    async with workflow([delete], SlowModel(script)) as flow:
        paused = await flow.run("Go")
        assert len(paused.questions) == len(paused.approvals) == 1
        answered = await flow.resume(paused.run_id, "me")
    assert [r.output for r in answered.results] == ["me"] and not answered.questions


# Bad results


async def test_after_a_failure_the_rest_is_planned_anew(workflow):
    first = [step(1, "add", a=1, b=2), step(2, "broken", item="x"), step(3, "shout", [2], text="${2}")]
    other = [step(4, "shout", [1], text="got ${1}")]
    seen: list[Any] = []
    model = ScriptedModel([plan(*first), ModelRefused("no"), plan(*other), "Three."])
    async with workflow([add, broken, shout], model) as flow:
        done = await flow.run("Go", on_event=seen.append)
    assert {r.step_id: r.success for r in done.results} == {1: True, 2: False, 4: True}
    assert done.results[-1].output == "GOT 3" and done.answer == "Three."
    told = str(model.requests[2].messages[-1]["content"])
    assert "[2] step 2: failed" in told and "it is broken" in told and "[3] step 3" in told and "from 3 on" in told
    plans = [event.plan for event in seen if isinstance(event, PlanCreated)]
    assert [[s.id for s in one.steps] for one in plans] == [[1, 2, 3], [1, 2, 4]]
    assert done.plan.revised_for == (2,)


async def test_a_new_plan_gets_ids_of_its_own_and_cannot_build_on_what_failed(workflow):
    other = [step(1, "add", [], a=5, b=5), step(9, "shout", [2], text="on")]
    first = plan(step(1, "add", a=1, b=2), step(2, "broken", [1], item="x"))
    model = ScriptedModel([first, ModelRefused("no"), plan(*other), "ok"])
    async with workflow([add, broken, shout], model) as flow:
        done = await flow.run("Go")
    assert {r.step_id: r.output for r in done.results if r.success} == {1: 3, 3: 10, 9: "ON"}
    assert any("depends on step 2, which does not exist" in problem for problem in done.plan.problems)


async def test_plans_are_not_changed_for_ever(workflow):
    def another_try(request: Any) -> str:
        asked = "cannot be relied on" in str(request.messages[-1]["content"])
        return plan(step(len(tried) + 2, "broken", item=f"try {len(tried)}")) if asked else ""

    tried: list[str] = []

    @tool(read_only=True)
    async def broken(item: str) -> str:
        """Never works."""
        tried.append(item)
        raise RuntimeError("still broken")

    turns = [plan(step(1, "broken", item="first")), *[another_try] * 20]
    async with workflow([broken], ScriptedModel(turns)) as flow:
        done = await flow.run("Go")
    assert tried == ["first", "try 1", "try 2"]
    assert done.state is AgentState.STOPPED and len(done.results) == 3


@in_virtual_time
async def test_what_may_have_happened_and_what_is_not_allowed_is_not_planned_round(workflow):
    @tool(timeout=0.05)
    async def pay(amount: int) -> str:
        """Pay."""
        await asyncio.Event().wait()
        return "paid"

    model = ScriptedModel([plan(step(1, "pay", amount=5), step(2, "delete", path="a"))])
    async with workflow([pay, delete], model) as flow:
        paused = await flow.run("Pay")
        done = await flow.resume(paused.run_id, approvals=False)
    assert [r.error_type for r in done.results] == ["unknown_outcome", "permission_denied"]
    assert len(model.requests) == 1


async def test_a_run_that_waits_knows_its_new_plan(workflow):
    first = [step(1, "broken", item="x"), step(2, "shout", [1], text="never")]
    other = [step(3, "ask_user", question="What then?"), step(4, "shout", [3], text="${3}")]
    script = [plan(*first), ModelRefused("no"), plan(*other), "Done."]
    async with workflow([broken, shout], ScriptedModel(script)) as flow:
        paused = await flow.run("Go")
        done = await flow.resume(paused.run_id, "tea")
    assert {r.step_id: r.result for r in done.results if r.success} == {3: "tea", 4: "TEA"}


async def test_a_new_plan_that_counts_from_one_means_its_own_steps(workflow):
    first = plan(step(1, "add", a=1, b=2), step(2, "broken", [1], item="x"))
    other = plan(step(1, "add", a=10, b=10), step(2, "shout", [1], text="got ${1} and {{1}}"))
    async with workflow([add, broken, shout], ScriptedModel([first, ModelRefused("no"), other, "ok"])) as flow:
        done = await flow.run("Go")
    assert [(r.step_id, r.output) for r in done.results][2:] == [(3, 20), (4, "GOT 20 AND 20")]


@in_virtual_time
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_new_plan_does_not_do_again_what_happened_or_may_have(workflow, is_known):
    paid: list[int] = []
    has_result = asyncio.Event()

    @tool(timeout=60 if is_known else 0.05)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        if not is_known:
            await asyncio.Event().wait()
        return f"paid {amount}"

    @tool(read_only=True)
    async def late() -> str:
        """Fails when the payment has its result."""
        await has_result.wait()
        raise RuntimeError("too late")

    first = plan(step(1, "pay", amount=5), step(2, "late"))
    other = plan(step(1, "pay", amount=5), step(2, "add", [1], a=1, b=1))
    model = ScriptedModel([first, ModelRefused("no"), other, "ok"], loop=True)
    async with workflow([add, late, pay], model) as flow:
        done = await flow.run("Go", on_event=lambda event: has_result.set() if isinstance(event, StepEnded) else None)
    assert paid == [5] and "Step 1 would repeat what step 1 does; it was left out." in done.errors
    told = [str(request.messages[-1]["content"]) for request in model.requests]
    assert any("[2] cannot be relied on" in one for one in told)
    assert any("may have happened or is not allowed: [1]" in one for one in told) != is_known


async def test_a_doubtful_result_is_better_than_that_of_a_tool_that_fails(workflow):
    asked: list[str] = []

    @tool(read_only=True, tags=["weather"])
    async def almanac(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        if len(asked) > 1:
            raise RuntimeError("out of print")
        return "Error: 21 degrees"

    @tool(read_only=True, tags=["weather"])
    async def station(city: str) -> str:
        """The weather of a city."""
        raise RuntimeError("down")

    script = [plan(step(1, "almanac", city="Oslo")), ModelRefused("no"), '{"steps": []}']
    async with workflow([almanac, station], ScriptedModel(script)) as flow:
        done = await flow.run("Weather in Oslo?")
    assert done.answer == "Error: 21 degrees" and done.plan.steps[0].tool_type == "almanac"
    assert [a.tool for a in done.results[0].attempts][:2] == ["almanac", "station"]


async def test_numbers_of_any_size_are_kept(workflow):
    @tool(read_only=True)
    async def power() -> int:
        """Two to the hundredth."""
        return 2**100

    async with workflow([power], ScriptedModel([plan(step(1, "power"))])) as flow:
        done = await flow.run("Go")
    assert done.answer == str(2**100) and done.results[0].output == 2**100


# Limits


async def test_a_plan_makes_no_more_calls_than_it_may(workflow):
    steps = [step(1, "add", a=1, b=1), step(2, "add", [1], a=2, b=2), step(3, "add", [2], a=3, b=3)]
    model = ScriptedModel([plan(*steps)])
    async with workflow([add], model, limits=RunLimits(calls=2)) as flow:
        done = await flow.run("Go")
    assert [(r.success, r.skipped) for r in done.results] == [(True, False), (True, False), (False, True)]
    assert done.state is AgentState.STOPPED and done.answer == "4" and len(model.requests) == 1
    assert "The run was stopped: it made 2 calls (limit 2)." in done.errors


@in_virtual_time
@pytest.mark.parametrize("read_only", [True, False])
async def test_when_the_time_is_up_what_runs_is_ended(workflow, read_only, monkeypatch):
    monkeypatch.setattr("ferrule.agent.budget.time", SimpleNamespace(monotonic=loop_time))
    ended: list[str] = []

    @tool(read_only=read_only)
    async def sleep() -> str:
        """Sleep."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("sleep")
        return "slept"

    long = plan(step(1, "add", a=1, b=1), step(2, "sleep"), step(3, "add", [2], a=1, b=1))
    async with workflow([add, sleep], ScriptedModel([long]), limits=RunLimits(seconds=2)) as flow:
        done = await flow.run("Go")
    results = {r.step_id: r for r in done.results}
    assert ended == ["sleep"] and results[3].skipped and done.answer == "2"
    assert results[2].error_type == ("stopped" if read_only else "unknown_outcome")
    assert done.state is AgentState.STOPPED and "(limit 2 s)" in done.errors[-1]


async def test_a_plan_uses_no_more_tokens_than_it_may(workflow):
    dear = ModelReply(text=plan(step(1, "add", a=1, b=1)), usage=Usage(requests=1, input_tokens=900, output_tokens=200))
    async with workflow([add], ScriptedModel([dear]), limits=RunLimits(tokens=1000)) as flow:
        done = await flow.run("Go")
    assert done.state is AgentState.STOPPED and done.results[0].skipped
    assert "1100 tokens" in (done.results[0].error or "")


async def test_steps_that_run_at_once_make_no_more_calls_than_they_may(workflow):
    made: list[float] = []

    @tool(read_only=True)
    async def double(n: int) -> int:
        """Double it."""
        made.append(n)
        return 2 * n

    model = ScriptedModel([plan(*(step(n, "double", n=n) for n in range(1, 6)))])
    async with workflow([double], model, limits=RunLimits(calls=2)) as flow:
        done = await flow.run("Go")
    assert made == [1, 2] and done.state is AgentState.STOPPED and sum(r.skipped for r in done.results) == 3


async def test_a_plan_that_needs_just_what_it_may_is_finished(workflow):
    model = ScriptedModel([plan(step(1, "add", a=1, b=1), step(2, "add", a=2, b=2)), "Both."])
    async with workflow([add], model, limits=RunLimits(calls=2)) as flow:
        done = await flow.run("Go")
    assert done.state is AgentState.FINISHED and done.answer == "Both." and done.errors == ()


async def test_a_call_that_waits_for_leave_has_not_been_made(workflow):
    model = ScriptedModel([plan(step(1, "delete", path="a"), step(2, "add", [], a=1, b=1)), "Both."])
    async with workflow([add, delete], model, limits=RunLimits(calls=2)) as flow:
        paused = await flow.run("Go")
        done = await flow.resume(paused.run_id, approvals=True)
    assert [r.success for r in done.results] == [True, True] and done.answer == "Both."


@in_virtual_time
async def test_when_the_time_is_up_nobody_is_asked_any_more(workflow, monkeypatch):
    monkeypatch.setattr("ferrule.agent.budget.time", SimpleNamespace(monotonic=loop_time))

    @tool(read_only=True)
    async def sleep() -> str:
        """Sleep."""
        await asyncio.Event().wait()
        return "slept"

    model = ScriptedModel([plan(step(1, "sleep"), step(2, "ask_user", question="Who?"))])
    async with workflow([sleep], model, limits=RunLimits(seconds=0.2)) as flow:
        done = await flow.run("Go")
    assert done.state is AgentState.STOPPED and done.questions == ()


async def test_what_was_used_before_a_pause_counts_after_it(workflow):
    dear = Usage(requests=1, input_tokens=900, output_tokens=50)
    first = ModelReply(text=plan(step(1, "ask_user", question="Who?"), step(2, "none", [1])), usage=dear)
    model = ScriptedModel([first, ModelReply(text="A thought.", usage=dear)])
    async with workflow([], model, limits=RunLimits(tokens=1000)) as flow:
        paused = await flow.run("Go")
        done = await flow.resume(paused.run_id, "me")
    assert [r.result for r in done.results] == ["me", "A thought."]
    assert done.answer == "A thought." and len(model.requests) == 2  # nobody writes an answer out of both
