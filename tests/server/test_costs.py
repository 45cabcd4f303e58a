"""Clients see what they spend: in calls, runs, conversations, lists of costs and metrics; others' tenants do not."""

import pytest

from ferrule import tool
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import ModelReply
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.policy.budgets import Budget
from ferrule.testing import ScriptedModel
from tests.server.application import serve

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

PRICES = PriceList(models={"scripted": ModelPrice(input=2_000.0)})
USAGE = Usage(requests=1, input_tokens=1_000, output_tokens=50)


@tool(isolation="inline", price=1.0, read_only=True)
def search(query: str = "") -> str:
    """Search the web."""
    return f"found {query}"


def make_model() -> ScriptedModel:
    call = ModelReply(tool_calls=(ToolCall(name="search"),), usage=USAGE, finish_reason="tool_calls")
    return ScriptedModel([call, ModelReply(text="It is 7.", usage=USAGE)] * 5)


async def test_a_call_a_run_and_a_conversation_have_their_costs():
    async with serve(search, model=make_model(), prices=PRICES, cache_ttl=None) as site, site.client("ci") as http:
        called = (await http.post("/v1/tools/search/call", json={"arguments": {}})).json()
        record = (await http.get(f"/v1/calls/{called['call_id']}")).json()
        answer = (await http.post("/v1/ask", json={"question": "search for seven", "conversation_id": "c1"})).json()
        runs = (await http.get("/v1/runs")).json()["runs"]
        run = (await http.get(f"/v1/runs/{answer['run_id']}")).json()
        conversation = (await http.get("/v1/conversations/c1")).json()
        costs = {by: (await http.get("/v1/costs", params={"by": by})).json() for by in ("tool", "model", "principal")}
    assert called["metadata"]["cost"] == record["cost"] == 1.0
    assert runs[0]["cost"] == run["cost"] == run["costs"]["cost"] == conversation["costs"]["cost"] == 5.0
    assert [turn["cost"] for turn in run["history"] if turn["kind"] == "turn"] == [2.0, 2.0]
    assert costs["tool"]["costs"][0]["key"] == "search" and costs["tool"]["total"]["cost"] == 2.0
    assert costs["model"]["costs"] == [
        {
            "key": "scripted",
            "calls": 0,
            "tool_cost": 0.0,
            "requests": 2,
            "input_tokens": 2000,
            "output_tokens": 100,
            "model_cost": 4.0,
            "unpriced_requests": 0,
            "cost": 4.0,
        }
    ]
    assert costs["principal"]["total"]["cost"] == 6.0 and costs["principal"]["currency"] == "USD"


async def test_a_tenant_sees_its_own_costs_only():
    async with (
        serve(search) as site,
        site.client("a", tenant="a") as a,
        site.client("b", tenant="b") as b,
        site.client("root", roles=["admin"]) as root,
    ):
        for client, number in ((a, 1), (b, 2)):
            for _ in range(number):
                await client.post("/v1/tools/search/call", json={"arguments": {}})
        seen = [(await client.get("/v1/costs", params={"by": "tenant"})).json() for client in (a, b, root)]
    assert [[(each["key"], each["cost"]) for each in page["costs"]] for page in seen] == [
        [("a", 1.0)],
        [("b", 2.0)],
        [("b", 2.0), ("a", 1.0)],
    ]


async def test_a_client_that_may_not_use_all_tools_sees_what_it_spent_itself():
    async with serve(search) as site, site.client("all") as everything, site.client("one", tools=["search"]) as one:
        for client in (everything, everything, one):
            await client.post("/v1/tools/search/call", json={"arguments": {}})
        costs = (await one.get("/v1/costs", params={"by": "principal"})).json()["costs"]
    assert [(each["key"], each["cost"]) for each in costs] == [("token:one", 1.0)]


async def test_budgets_are_shown_to_administrators():
    budget = Budget(name="searches", amount=2.0, per="tenant")
    async with (
        serve(search, budgets=[budget]) as site,
        site.client("a", tenant="a") as a,
        site.client("root", roles=["admin"]) as root,
    ):
        results = [(await a.post("/v1/tools/search/call", json={"arguments": {}})).json() for _ in range(3)]
        refused = await a.get("/v1/budgets")
        [shown] = (await root.get("/v1/budgets")).json()["budgets"]
    assert [result["is_success"] for result in results] == [True, True, False]
    assert results[2]["error_type"] == "rejected" and "budget" in results[2]["error"]
    assert refused.status_code == 403
    assert shown["name"] == "searches" and shown["amount"] == 2.0
    assert [(each["scope"], each["spent"]) for each in shown["spending"]] == [("a", 2.0)]


async def test_costs_are_metrics():
    async with (
        serve(search, model=make_model(), prices=PRICES, cache_ttl=None) as site,
        site.client("ci", tenant="acme") as http,
        site.client("root", roles=["admin"]) as root,
    ):
        await http.post("/v1/ask", json={"question": "search for seven"})
        text = (await root.get("/metrics")).text
    assert 'ferrule_cost_total{kind="tool",name="search",tenant="acme"} 1.0' in text
    assert 'ferrule_cost_total{kind="model",name="scripted",tenant="acme"} 4.0' in text
    assert 'ferrule_model_tokens_total{direction="input",model="scripted"} 2000.0' in text
    assert 'ferrule_model_requests_total{model="scripted",status="success"} 2.0' in text
