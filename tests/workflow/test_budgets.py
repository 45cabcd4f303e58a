"""A plan whose budget asks stops for a person's approval, at every stage, and goes on where it stopped."""

from typing import Any

import pytest

from ferrule import Approval, ToolEngine, ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.core.messages import Usage
from ferrule.core.model import ModelReply
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.policy.budgets import Budget
from ferrule.testing import ScriptedModel
from tests.workflow.plans import add, broken, plan, shout, step

PRICES = PriceList(models={"scripted": ModelPrice(input=1_000.0)})
"""A reply with `USAGE` costs 1."""
USAGE = Usage(requests=1, input_tokens=1_000)
SUM = plan(step(1, "add", a=1, b=2), step(2, "shout", [1], text="${1}"))
INCOMPLETE = plan(step(1, "add", a=1, b=2), step(2, "shout", [1]))
THOUGHT = plan(step(1, "add", a=1, b=2), step(2))
FAILING = plan(step(1, "broken", item="a"), step(2, "shout", [1], text="${1}"))
REVISED = plan(step(3, "add", a=1, b=2))
FILLED = {"name": "shout", "arguments": {"text": "three"}}


class PaidModel(ScriptedModel):
    """A scripted model whose replies all use the same."""

    async def generate(self, request: Any, on_text: Any = None) -> ModelReply:
        reply = await super().generate(request, on_text)
        return ModelReply(text=reply.text, tool_calls=reply.tool_calls, usage=USAGE, finish_reason=reply.finish_reason)


def make_library(store_url: str | None, *budgets: Budget, prices: PriceList = PRICES) -> UnifiedToolLibrary:
    config = ToolEngineConfig(builtin_tools=False)
    engine = ToolEngine(config, store=store_url, budgets=budgets, prices=prices)
    library = UnifiedToolLibrary(engine=engine)
    library.register(add, broken, shout)
    return library


STAGES: dict[str, tuple[float, list[Any], list[Any]]] = {
    "filling in": (1.01, [INCOMPLETE], [FILLED, "THREE"]),
    "reasoning": (1.01, [THOUGHT], ["three", "It is three."]),
    "revising": (1.01, [FAILING], [REVISED, "It is 3."]),
    "answering": (1.01, [SUM], ["It is 3."]),
}
"""By stage: the budget, what the model replies before it is spent, and afterwards."""


@pytest.mark.parametrize("stage", STAGES)
async def test_a_plan_waits_for_more_money_and_continues_elsewhere(workflow, tmp_path, stage):
    amount, before, after = STAGES[stage]
    store_url = f"sqlite:///{tmp_path}/calls.db"
    budget = Budget(name="models", amount=amount, period="total", then="ask")
    async with make_library(store_url, budget) as library, workflow(library, PaidModel(before)) as flow:
        waiting = await flow.run("What is one and two?", run_id="run1")
        assert waiting.state is AgentState.WAITING
        [request] = waiting.approvals
        assert request.tool_id == "budget" and "The budget 'models'" in request.reason
        still = await flow.resume("run1")
        assert still.state is AgentState.WAITING and [r.approval_id for r in still.approvals] == [request.approval_id]
    async with make_library(store_url, budget) as library, workflow(library, PaidModel(after)) as flow:
        # One approval adds the amount once more; a plan with little money needs several.
        result, approvals = await flow.resume("run1", approvals=True), 1
        while result.state is AgentState.WAITING:
            assert approvals < 50
            result, approvals = await flow.resume("run1", approvals=True), approvals + 1
        assert result.state is AgentState.FINISHED and result.answer
        [state] = await library.engine.costs.list_spending()
        assert state.spent == pytest.approx(len(before) + len(after)) == pytest.approx(result.model_cost)
        records = await library.engine.query_call_records(conversation_id="run1", tool_name="broken")
        assert len(records) == (stage == "revising")


async def test_a_refusal_stops_the_plan(workflow):
    budget = Budget(name="models", amount=1.01, period="total", then="ask")
    async with make_library(None, budget) as library, workflow(library, PaidModel([THOUGHT])) as flow:
        await flow.run("What is one and two?", run_id="run1")
        decisions = {"budget:models": Approval(allowed=False, reason="Too expensive.")}
        result = await flow.resume("run1", approvals=decisions)
        assert result.state is AgentState.STOPPED
        assert "A person refused more. Too expensive." in str(result.errors)
        assert (await flow.resume("run1")).errors == result.errors


async def test_steps_that_need_no_model_go_on_while_others_wait(workflow):
    steps = plan(step(1), step(2, "add", a=1, b=2), step(3, "shout", [2], text="${2}"))
    budget = Budget(name="models", amount=1.01, period="total", then="ask")
    async with make_library(None, budget) as library, workflow(library, PaidModel([steps])) as flow:
        waiting = await flow.run("What is one and two?")
    assert waiting.state is AgentState.WAITING and len(waiting.approvals) == 1
    assert [result.step_id for result in waiting.results] == [2, 3]


async def test_a_call_that_failed_is_not_repeated_because_of_a_budget(workflow):
    """What the model would say in its place is optional: the plan waits only for its revision."""
    budget = Budget(name="models", amount=1.01, period="total", then="ask")
    async with make_library(None, budget) as library, workflow(library, PaidModel([FAILING, REVISED, "3"])) as flow:
        waiting = await flow.run("What is one and two?", run_id="run1")
        assert [(r.step_id, r.success) for r in waiting.results] == [(1, False)]
        for _ in range(2):
            result = await flow.resume("run1", approvals=True)
        assert result.state is AgentState.FINISHED
        assert len(await library.engine.query_call_records(tool_name="broken")) == 1


async def test_a_paid_tool_of_a_plan_waits_for_the_approval_of_its_call(workflow):
    calls: list[str] = []

    @tool(isolation="inline", price=1.0)
    def order(item: str) -> str:
        """Order something."""
        calls.append(item)
        return f"ordered {item}"

    budget = Budget(name="orders", amount=1.0, period="total", then="ask")
    orders = plan(step(1, "order", item="a"), step(2, "order", [1], item="b"))
    library = make_library(None, budget, prices=PriceList())
    library.register(order)
    async with library, workflow(library, ScriptedModel([orders, "Done."])) as flow:
        waiting = await flow.run("Order a and b", run_id="run1")
        assert [request.tool_id for request in waiting.approvals] == ["order"] and calls == ["a"]
        assert waiting.tool_cost == 1.0
        done = await flow.resume("run1", approvals=True)
        assert done.state is AgentState.FINISHED and calls == ["a", "b"] and done.tool_cost == 2.0


async def test_a_budget_that_stops_ends_the_plan(workflow):
    budget = Budget(name="models", amount=0.001, period="total")
    async with make_library(None, budget) as library, workflow(library, PaidModel([])) as flow:
        result = await flow.run("What is one and two?")
    assert result.state is AgentState.STOPPED and "The budget 'models' of 0.001" in str(result.errors)
