"""The cost of an answer is that of its model and of its tools, whatever the strategy; budgets ask in all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ferrule import Approval, ToolEngine, ToolEngineConfig, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import AgentState, RunLimits
from ferrule.core.prices import PriceList
from ferrule.orchestrator import Orchestrator
from ferrule.policy.approvals import ApprovalRequest
from ferrule.policy.budgets import Budget
from ferrule.store.spending import summarize_costs
from tests.workflow.plans import plan, step
from tests.workflow.test_budgets import PRICES, PaidModel


@tool(isolation="inline", price=0.25, read_only=True)
def search(query: str = "") -> str:
    """Search the web."""
    return f"found {query}"


CALL = {"name": "search", "arguments": {"query": "a"}}
SCRIPTS: dict[str, tuple[list[Any], float, float]] = {
    "plan": ([plan(step(1, "search", query="a"), step(2, "search", query="b")), "Both."], 2.0, 0.5),
    "loop": ([CALL, "Found."], 2.0, 0.25),
    "direct": (["I know."], 1.0, 0.0),
    "model": (['{"strategy": "direct"}', "I know."], 2.0, 0.0),
}
"""By strategy: what the model replies, what that costs, and what the tools cost."""


class Payer:
    """A person who allows or refuses everything."""

    def __init__(self, *, allowed: bool) -> None:
        self.requests: list[ApprovalRequest] = []
        self._allowed = allowed

    def approve(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        return Approval(allowed=self._allowed)


@asynccontextmanager
async def open_orchestrator(
    model: Any, *budgets: Budget, store: str | None = None, prices: PriceList = PRICES, **options: Any
) -> AsyncIterator[Orchestrator]:
    engine = ToolEngine(ToolEngineConfig(builtin_tools=False), store=store, budgets=budgets, prices=prices)
    library = UnifiedToolLibrary(engine=engine)
    library.register(search)
    async with library, Orchestrator(library, model, **options) as orchestrator:
        yield orchestrator


@pytest.mark.parametrize("strategy", SCRIPTS)
async def test_the_cost_of_an_answer_is_what_the_records_say(strategy):
    replies, model_cost, tool_cost = SCRIPTS[strategy]
    budget = Budget(name="all", amount=100.0, period="total")
    async with open_orchestrator(PaidModel(replies), budget, strategy=strategy) as orchestrator:
        result = await orchestrator.process_task("Find a and b")
        [state] = await orchestrator.library.engine.costs.list_spending()
        records = await orchestrator.library.engine.store.query(summarize_costs, "run")
    assert result.is_finished
    assert (result.model_cost, result.tool_cost or 0.0) == pytest.approx((model_cost, tool_cost))
    assert result.cost == result.to_dict()["cost"] == pytest.approx(model_cost + tool_cost)
    assert state.spent == pytest.approx(result.cost)
    assert records[result.run_id].cost == pytest.approx(result.cost)


async def test_calls_that_tools_make_count_too():
    @tool(isolation="inline", read_only=True)
    async def search_twice(context: ToolExecutionContext) -> str:
        """Search two times."""
        for query in "ab":
            await context.call_tool("search", {"query": query})
        return "done"

    engine = ToolEngine(ToolEngineConfig(builtin_tools=False), prices=PRICES)
    library = UnifiedToolLibrary(engine=engine)
    library.register(search, search_twice)
    async with library, Orchestrator(library, PaidModel([{"name": "search_twice", "arguments": {}}, "ok"])) as asked:
        result = await asked.process_task("Search")
    assert result.tool_cost == 0.5 and result.cost == 2.5


async def test_an_answer_from_the_cache_costs_nothing():
    @tool(isolation="inline", price=0.25, read_only=True, cacheable=True)
    def rate() -> int:
        """The rate."""
        return 7

    engine = ToolEngine(ToolEngineConfig(builtin_tools=False), prices=PRICES)
    library = UnifiedToolLibrary(engine=engine)
    library.register(rate)
    async with library, Orchestrator(library, PaidModel([{"name": "rate", "arguments": {}}, "It is 7."])) as asked:
        first, second = [await asked.process_task("What does the rate say?") for _ in range(2)]
    assert first.cost == 2.25 and second.cached and second.cost == 0.0


async def test_the_price_of_the_caller_counts_where_the_project_has_none():
    limits = RunLimits(price=lambda usage: 3.0 * usage.requests)
    prices = PriceList(models={})
    async with open_orchestrator(PaidModel([CALL, "Found."]), prices=prices, limits=limits) as orchestrator:
        result = await orchestrator.process_task("Find a")
    assert (result.model_cost, result.tool_cost, result.cost) == (6.0, 0.25, 6.25)


@pytest.mark.parametrize("strategy", ["plan", "loop", "direct"])
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_person_is_asked_whether_a_budget_may_be_exceeded(strategy, is_allowed):
    budget, person = Budget(name="all", amount=0.03, period="total", then="ask"), Payer(allowed=is_allowed)
    options: dict[str, Any] = {"strategy": strategy, "person": person}
    async with open_orchestrator(PaidModel(SCRIPTS[strategy][0]), budget, **options) as orchestrator:
        result = await orchestrator.process_task("Find a and b")
        spent = sum(state.spent for state in await orchestrator.library.engine.costs.list_spending())
    assert person.requests and person.requests[0].tool_id == "budget"
    if is_allowed:
        assert result.is_finished and spent == pytest.approx(result.cost)
    else:
        assert len(person.requests) == 1 and spent == 0.0
        assert result.state is AgentState.STOPPED and "A person refused more." in str(result.errors)


@pytest.mark.parametrize("strategy", ["plan", "loop", "direct"])
async def test_a_question_waits_for_a_budget_and_is_continued(tmp_path, strategy):
    store, (replies, *_) = f"sqlite:///{tmp_path}/calls.db", SCRIPTS[strategy]
    budget = Budget(name="all", amount=5.0, period="total", then="ask")
    tight = Budget(name="all", amount=0.001, period="total", then="ask")
    options: dict[str, Any] = {"store": store, "strategy": strategy, "tools": ["search"]}
    async with open_orchestrator(PaidModel([]), tight, **options) as orchestrator:
        waiting = await orchestrator.process_task("Find a and b")
        assert waiting.state is AgentState.WAITING
        [request] = waiting.approvals
        await orchestrator.library.engine.approvals.record_decision(request.approval_id, True)
    async with open_orchestrator(PaidModel(replies), budget, **options) as orchestrator:
        result = await orchestrator.resume(waiting.run_id)
        assert result.is_finished and result.cost == pytest.approx(sum(SCRIPTS[strategy][1:]))
        assert (await orchestrator.library.engine.approvals.get(request.approval_id)).state == "used"
