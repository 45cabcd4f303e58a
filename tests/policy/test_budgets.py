"""What costs money is priced, recorded, and held to budgets that all processes of a store share."""

import asyncio
import time
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from ferrule import Agent, Principal, ToolEngine, ToolEngineConfig, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import AgentState, RunLimits
from ferrule.config import FerruleConfig
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.core.permission import LOCAL_USER
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.errors import BudgetSpent, ModelRefused, SetupError
from ferrule.policy.approvals import DEFAULT_EXPIRY, Approval
from ferrule.policy.budgets import Budget, CostControl, Payer
from ferrule.policy.policy import Policy, Rule
from ferrule.store.spending import summarize_costs
from ferrule.testing import ScriptedModel
from tests.support.processes import TalkingProcess

USAGE = Usage(requests=1, input_tokens=1_000, output_tokens=100)
PRICES = PriceList(models={"scripted": ModelPrice(input=2_000.0)}, tools={"lookup__*": 9.0})
"""A reply with `USAGE` costs 2."""


@tool(isolation="inline", price=1.0, read_only=True)
def search(query: str = "") -> str:
    """Search the web."""
    return f"found {query}"


def make_engine(store: str | None = None, *budgets: Budget, prices: PriceList | None = None) -> ToolEngine:
    engine = ToolEngine(ToolEngineConfig(builtin_tools=False), store=store, budgets=budgets, prices=prices)
    engine.register(search)
    return engine


def reply(text: str = "", *calls: ToolCall) -> ModelReply:
    return ModelReply(text=text, tool_calls=calls, usage=USAGE, finish_reason="tool_calls" if calls else "stop")


async def test_a_call_has_its_price_in_result_and_record(store_url):
    async with make_engine(store_url) as engine:
        result = await engine.execute("search", {"query": "a"})
        failed = await engine.execute("search", {"query": {"not": "a text"}})
        records = await engine.query_call_records(tool_name="search")
    assert result.metadata["cost"] == 1.0 and "cost" not in failed.metadata
    assert [(record.status, record.cost) for record in records] == [("failed", None), ("success", 1.0)]
    assert records[1].to_dict()["cost"] == 1.0


async def test_a_price_list_comes_before_the_price_of_the_tool():
    engine = make_engine(prices=PriceList(tools={"sea*": 0.25}))
    async with engine:
        assert (await engine.execute("search")).metadata["cost"] == 0.25


async def test_a_cached_result_costs_nothing():
    @tool(isolation="inline", price=1.0, cacheable=True)
    def rate() -> int:
        """The rate."""
        return 7

    engine = make_engine()
    engine.register(rate)
    async with engine:
        results = [await engine.execute("rate") for _ in range(2)]
    assert [result.metadata.get("cost") for result in results] == [1.0, None]


async def test_a_budget_stops_calls_and_says_why(store_url):
    async with make_engine(store_url, Budget(name="searches", amount=3.0, period="day")) as engine:
        results = [await engine.execute("search") for _ in range(5)]
        [state] = await engine.costs.list_spending()
    assert [result.is_success for result in results] == [True] * 3 + [False] * 2
    assert results[3].error_type == "rejected" and results[3].metadata["reason"] == "budget"
    assert "The budget 'searches' of 3" in str(results[3].error) and "Wait for the next day" in str(results[3].error)
    assert (state.budget, state.spent) == ("searches", 3.0) and date.fromisoformat(state.period)


WORKER = """
import asyncio, sys
from ferrule.policy.budgets import Budget
from tests.policy.test_budgets import make_engine

async def main():
    async with make_engine(sys.argv[1], Budget(name="all", amount=20.0, period="total")) as engine:
        results = await asyncio.gather(*(engine.execute("search") for _ in range(15)))
        print(sum(result.is_success for result in results))

asyncio.run(main())
"""


@pytest.mark.integration
def test_processes_share_a_budget(tmp_path):
    command = ("-c", WORKER, f"sqlite:///{tmp_path}/calls.db")
    with TalkingProcess(*command) as first, TalkingProcess(*command) as second:
        made = [int(first.read()), int(second.read())]
    assert sum(made) == 20 and max(made) <= 15


async def test_each_tenant_has_its_own_amount(store_url):
    def context(tenant: str) -> ToolExecutionContext:
        return ToolExecutionContext(principal=Principal(kind="token", name="ci", tenant=tenant))

    budget = Budget(name="tenants", amount=1.0, per="tenant", principals=("token:*",))
    async with make_engine(store_url, budget) as engine:
        results = [await engine.execute("search", context=context(name)) for name in ("a", "a", "b")]
        free = [await engine.execute("search") for _ in range(3)]  # the budget is not for the local user
    assert [result.is_success for result in results] == [True, False, True]
    assert "of the tenant 'a'" in str(results[1].error)
    assert all(result.is_success for result in free)


async def test_an_approval_lets_a_call_exceed_budgets_that_ask_and_no_others():
    outcomes = {}
    for then in ("ask", "stop"):
        engine = ToolEngine(
            ToolEngineConfig(builtin_tools=False),
            budgets=[Budget(name="all", amount=0.5, then=then)],
            policy=Policy(rules=[Rule(verdict="ask", tool="search")]),
        )
        engine.register(search)
        async with engine:
            asked = await engine.execute("search")
            await engine.approvals.record_decision(asked.metadata["approval_id"], True)
            context = ToolExecutionContext(approval_id=asked.metadata["approval_id"])
            outcomes[then] = (await engine.execute("search", context=context)).error_type
    assert outcomes == {"ask": None, "stop": "rejected"}


async def test_what_was_taken_for_a_call_that_did_not_run_is_given_back():
    @tool(price=1.0)
    def unsendable() -> None:
        """Nothing runs it."""

    engine = make_engine(None, Budget(name="all", amount=1.0))
    [added] = engine.register(unsendable)
    engine.registry.remove(added.id)
    engine.registry.add(replace(added, handler="nothing"))
    async with engine:
        assert (await engine.execute("unsendable")).error_type == "executor_not_found"
        assert (await engine.execute("search")).is_success


async def test_a_budget_that_asks_needs_an_approval_of_the_call(store_url):
    async with make_engine(store_url, Budget(name="careful", amount=1.0, then="ask")) as engine:
        context = ToolExecutionContext(principal=Principal(kind="agent", name="a"), conversation_id="run1")
        assert (await engine.execute("search", context=context)).is_success
        asked = await engine.execute("search", context=context)
        assert asked.error_type == "approval_required"
        [request] = await engine.approvals.list_requests()
        assert "The budget 'careful' of 1" in request.reason
        await engine.approvals.record_decision(request.approval_id, True)
        assert (await engine.execute("search", context=context)).is_success
        [state] = await engine.costs.list_spending()
        assert state.spent == 2.0


def make_agent(engine: ToolEngine, turns: list[Any]) -> Agent:
    return Agent(UnifiedToolLibrary(engine=engine), ScriptedModel(turns))


async def test_a_run_knows_what_it_cost(store_url):
    turns = [reply("", ToolCall(name="search", arguments={"query": "a"})), reply("done")]
    async with make_engine(store_url, prices=PRICES) as engine:
        answer = await make_agent(engine, turns).run("search it", run_id="run1")
        assert answer.cost == pytest.approx(2 * 2.0 + 1.0)
        assert answer.steps[0].cost == 1.0
        summaries = {
            by: await engine.store.query(summarize_costs, by)
            for by in ("tool", "model", "run", "principal", "tenant", "day", "conversation")
        }
    assert summaries["tool"]["search"].tool_cost == 1.0
    assert summaries["model"]["scripted"].to_dict() == {
        "calls": 0,
        "tool_cost": 0.0,
        "requests": 2,
        "input_tokens": 2000,
        "output_tokens": 200,
        "model_cost": pytest.approx(4.0),
        "unpriced_requests": 0,
        "cost": pytest.approx(4.0),
    }
    for by, key in (("run", "run1"), ("principal", "agent:agent"), ("tenant", "")):
        assert list(summaries[by]) == [key] and summaries[by][key].cost == pytest.approx(5.0)
    [day] = summaries["day"]
    assert date.fromisoformat(day)
    assert summaries["conversation"] == {}


async def test_a_run_whose_budget_is_spent_continues_when_there_is_more(tmp_path):
    store_url = f"sqlite:///{tmp_path}/calls.db"
    turns = [reply("", ToolCall(name="search")), reply("done")]
    budget = Budget(name="models", amount=3.1, period="total")
    async with make_engine(store_url, budget, prices=PRICES) as engine:
        answer = await make_agent(engine, turns).run("search it", run_id="run1")
        assert answer.state is AgentState.INTERRUPTED
        assert "The budget 'models' of 3.1 does not pay for more." in answer.reason
    more = Budget(name="models", amount=100.0, period="total")
    async with make_engine(store_url, more, prices=PRICES) as engine:
        answer = await make_agent(engine, turns[1:]).resume("run1")
        assert (answer.state, answer.text) == (AgentState.FINISHED, "done")
        assert answer.cost == pytest.approx(5.0)
        [state] = await engine.costs.list_spending()
        assert state.spent == pytest.approx(5.0)


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_run_waits_for_a_person_when_its_budget_asks(store_url, is_allowed):
    turns = [reply("", ToolCall(name="search")), reply("done")]
    async with make_engine(store_url, Budget(name="models", amount=7.0, then="ask"), prices=PRICES) as engine:
        first = await make_agent(engine, [reply("a"), reply("b")]).run("first")
        assert first.is_finished
        agent = make_agent(engine, turns)
        await agent.run("second", run_id="run2")
        waiting = await make_agent(engine, turns).run("third", run_id="run3")
        assert waiting.state is AgentState.WAITING
        [request] = waiting.approvals
        assert request.tool_id == "budget" and "The budget 'models' of 7" in request.reason
        still = await make_agent(engine, turns).resume("run3")
        assert still.state is AgentState.WAITING
        await engine.approvals.record_decision(request.approval_id, is_allowed)
        answer = await make_agent(engine, turns).resume("run3")
        if not is_allowed:
            assert answer.state is AgentState.STOPPED and "A person refused more." in answer.reason
            return
        assert answer.is_finished and answer.text == "done"
        [state] = await engine.costs.list_spending()
        assert state.extension == 7.0
        assert (await engine.approvals.get(request.approval_id)).state == "used"
        # A run that waited once and was loaded again does not wait any more.
        assert (await make_agent(engine, []).resume("run3")).is_finished


async def test_an_approval_that_expires_while_it_is_applied_extends_no_budget(store_url):
    budget = Budget(name="models", amount=7.0, then="ask")
    async with make_engine(store_url, budget, prices=PRICES) as engine:
        late = CostControl(
            engine.store, engine.approvals, budgets=[budget], clock=lambda: time.time() + 2 * DEFAULT_EXPIRY
        )
        payer = Payer(principal=LOCAL_USER, run_id="run")
        charge = budget.find_charge(payer.principal, payer.run_id, time.time())
        assert charge is not None
        request = await late.request_extension(payer, BudgetSpent("spent", charge=charge, must_ask=True))
        assert await late.apply_decision(payer, request, Approval(allowed=True)) is None
        assert (await engine.approvals.get(request.approval_id)).state == "approved"
        assert await engine.costs.list_spending() == []


async def test_budgets_and_records_end_with_what_replies_really_used(store_url):
    """Longer and shorter than estimated, from a prompt cache, failed, and cancelled while the model worked."""
    prices = PriceList(models={"scripted": ModelPrice(input=1_000.0, cached=100.0, output=10_000.0)})
    usages = [
        Usage(requests=1, input_tokens=50_000, output_tokens=9_000),
        Usage(requests=1, input_tokens=1, output_tokens=1),
        Usage(requests=1, input_tokens=2_000, output_tokens=10, cached_tokens=1_500),
    ]
    real = [50.0 + 90.0, 0.001 + 0.01, 0.5 + 0.15 + 0.1]
    async with make_engine(store_url, Budget(name="models", amount=1_000.0), prices=prices) as engine:
        for usage, cost in zip(usages, real, strict=True):
            answer = await make_agent(engine, [ModelReply(text="done", usage=usage)]).run("do it")
            assert answer.model_cost == pytest.approx(cost)
        failed = await make_agent(engine, [ModelRefused("no")]).run("do it")
        assert failed.state is AgentState.STOPPED and not failed.cost
        [state] = await engine.costs.list_spending()
        assert state.spent == pytest.approx(sum(real))
        [summary] = (await engine.store.query(summarize_costs, "model")).values()
        assert summary.model_cost == pytest.approx(sum(real)) and summary.requests == 3


async def test_a_reply_that_is_cancelled_costs_what_was_taken_for_it(store_url):
    class EndlessModel:
        name = "scripted"

        def __init__(self) -> None:
            self.has_started = asyncio.Event()

        async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
            self.has_started.set()
            await asyncio.Event().wait()
            raise AssertionError

    class LateModel:
        name = "scripted"

        async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
            raise TimeoutError

    async with make_engine(store_url, Budget(name="models", amount=1_000.0), prices=PRICES) as engine:
        model = EndlessModel()
        run = asyncio.create_task(Agent(UnifiedToolLibrary(engine=engine), model).run("do it", run_id="run1"))
        await model.has_started.wait()
        [before] = await engine.costs.list_spending()
        run.cancel()
        await asyncio.wait({run})
        [after] = await engine.costs.list_spending()
        summaries = await engine.store.query(summarize_costs, "run")
        late = await Agent(UnifiedToolLibrary(engine=engine), LateModel()).run("do it")
    assert before.spent == after.spent == pytest.approx(summaries["run1"].model_cost) and before.spent > 0
    assert late.state is AgentState.STOPPED and "did not reply" in late.reason and late.model_cost


async def test_a_limit_on_the_cost_of_a_run_counts_its_tools():
    turns = [reply("", ToolCall(name="search", arguments={"query": str(n)})) for n in range(9)]
    async with make_engine(prices=PRICES) as engine:
        price = ModelPrice(input=2_000.0).cost_of
        limits = RunLimits(cost=5.5, price=price)
        agent = Agent(UnifiedToolLibrary(engine=engine), ScriptedModel(turns), limits=limits)
        answer = await agent.run("search")
    assert answer.state is AgentState.STOPPED and "it cost 6 (limit 5.5)" in answer.reason


def test_prices_and_budgets_are_read_from_the_project(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "t.yaml").write_text(
        "name: paid\ndescription: x\nentry: {type: builtin, handler: echo}\nprice: 0.5\n"
    )
    (tmp_path / "ferrule.toml").write_text(
        '[[budgets]]\nname = "month"\namount = 5\nper = "tenant"\nprincipals = ["token"]\nthen = "ask"\n'
        '[prices.models."gpt*"]\ninput = 1.0\noutput = 2.0\n[agent]\ninput_price = 3.0\n'
    )
    config = FerruleConfig.read(tmp_path / "ferrule.toml", environ={})
    [budget] = config.budgets
    assert (budget.amount, budget.per, budget.principals, budget.then) == (5.0, "tenant", ("token",), "ask")
    assert config.price_list.find_model_price("gpt-5") == ModelPrice(input=1.0, output=2.0)
    assert config.price_list.find_model_price("other") == ModelPrice(input=3.0)
    assert config.engine().costs.budgets.keys() == {"month"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[budgets]]\nname = "a"\namount = -1', "amount of the budget 'a' must be 0 or more"),
        ('[[budgets]]\nname = "a"\namount = 1\nperiod = "week"', "period"),
        ('[[budgets]]\nname = "a"\namount = 1\nlimit = 2', "there is no 'limit' in [budgets]"),
        ('[budgets]\nname = "a"', "write [[budgets]] above each"),
        ('[[budgets]]\nname = "a"\namount = 1\n[[budgets]]\nname = "a"\namount = 1', "have the name 'a'"),
    ],
)
def test_a_wrong_budget_is_explained(tmp_path, text, message):
    (tmp_path / "ferrule.toml").write_text(text)
    with pytest.raises(SetupError) as error:
        FerruleConfig.read(tmp_path / "ferrule.toml", environ={})
    assert message in str(error.value)


async def test_an_action_has_its_own_price():
    class Maps:
        @tool(price=0.5)
        def route(self) -> str:
            """A route."""
            return "r"

        @tool
        def tile(self) -> str:
            """A tile."""
            return "t"

    async with ToolEngine(ToolEngineConfig(builtin_tools=False)) as engine:
        engine.register(tool(name="maps", price=0.1)(Maps))
        costs = [(await engine.execute("maps", action=name)).metadata.get("cost") for name in ("route", "tile")]
    assert costs == [0.5, 0.1]
