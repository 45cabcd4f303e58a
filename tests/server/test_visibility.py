"""A client sees what it did itself: in records, statistics, runs, conversations, approvals and events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from ferrule import Policy, Rule, tool
from ferrule.core.prices import PriceList
from ferrule.testing import ScriptedModel
from tests.server.application import Site, serve

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")


@tool(read_only=True)
async def look(path: str) -> str:
    """Look at a file."""
    return path


@tool(destructive=True)
async def wipe(path: str) -> str:
    """Wipe a file."""
    if path == "missing":
        raise FileNotFoundError(path)
    return f"wiped {path}"


@tool
class Disk:
    """A disk."""

    @tool(read_only=True)
    async def read(self) -> str:
        """Read it."""
        return "data"

    @tool(destructive=True)
    async def format(self) -> str:
        """Shred all of it."""
        return "formatted"


LISTS = ("/v1/calls", "/v1/stats", "/v1/runs", "/v1/conversations", "/v1/approvals?state=used", "/v1/costs?by=run")
EMPTY: dict[str, Any] = {"calls": [], "tools": {}, "runs": [], "conversations": [], "approvals": [], "costs": []}
CONVERSATION = "1" * 32


@asynccontextmanager
async def worked(**grants: Any) -> AsyncIterator[tuple[Site, httpx.AsyncClient]]:
    """A site on which another client has used all tools, also by a model and with an approval."""
    turns = [[{"name": "wipe", "arguments": {"path": "missing"}}], "Sorry, the code is 4711.", "Mine."]
    policy = Policy(rules=[Rule(verdict="ask", tool="look"), Rule(verdict="allow", tool="*")])
    prices = PriceList(tools={"*": 1.0})
    async with (
        serve(look, wipe, Disk, policy=policy, model=ScriptedModel(turns), prices=prices) as site,
        site.client("worker", **grants) as worker,
    ):
        for name, arguments in (("wipe", {"path": "b"}), ("Disk__read", {}), ("Disk__format", {})):
            assert (await worker.post(f"/v1/tools/{name}/call", json={"arguments": arguments})).status_code == 200
        look_at: dict[str, Any] = {"arguments": {"path": "a"}}
        asked = (await worker.post("/v1/tools/look/call", json=look_at)).json()
        look_at["approval_id"] = asked["metadata"]["approval_id"]
        await site.library.engine.approvals.record_decision(look_at["approval_id"], True)
        assert (await worker.post("/v1/tools/look/call", json=look_at)).status_code == 200
        question = {"question": "Wipe the file", "strategy": "loop", "conversation_id": CONVERSATION}
        assert (await worker.post("/v1/ask", json=question)).status_code == 200
        yield site, worker


def contents(response: httpx.Response) -> Any:
    """What a list has, by its name."""
    described = response.json()
    return {name: described[name] for name in EMPTY if name in described}


@pytest.mark.parametrize("roles", [["viewer"], ["caller"], ["viewer", "caller"]])
async def test_nothing_that_others_did_is_shown(roles: list[str]):
    async with worked() as (site, worker), site.client("reader", roles=roles) as reader:
        for path in LISTS:
            assert list(contents(await reader.get(path)).values()) in ([[]], [{}]), path
            assert list(contents(await worker.get(path)).values()) not in ([[]], [{}]), path
        [run] = (await worker.get("/v1/runs")).json()["runs"]
        hidden = [f"/v1/runs/{run['run_id']}", f"/v1/conversations/{CONVERSATION}"]
        hidden += [f"/v1/calls/{each['record_id']}" for each in (await worker.get("/v1/calls")).json()["calls"]]
        requests = (await worker.get("/v1/approvals?state=used")).json()["approvals"]
        hidden += [f"/v1/approvals/{each['approval_id']}" for each in requests]
        hidden += [f"/v1/calls?after={hidden[2].rpartition('/')[2]}"]
        assert [(await worker.get(path)).status_code for path in hidden] == [200] * len(hidden)
        assert [(await reader.get(path)).status_code for path in hidden] == [404] * len(hidden)
        found = await reader.get("/v1/calls", params={"conversation_id": run["run_id"], "principal": "agent:worker"})
        assert found.json()["calls"] == []


@pytest.mark.parametrize("grants", [{"roles": ["approver"], "max_effect": "read_only"}, {"roles": ["admin"]}])
async def test_whoever_approves_or_administers_sees_all_of_the_tenant(grants: dict[str, Any]):
    async with (
        worked(tenant="acme") as (site, worker),
        site.client("other", tenant="acme", **grants) as other,
        site.client("stranger", tenant="globex", **grants) as stranger,
    ):
        for path in LISTS:
            assert contents(await other.get(path)) == contents(await worker.get(path))
            assert list(contents(await stranger.get(path)).values()) in ([[]], [{}]), path


async def test_a_page_of_calls_is_full_although_newer_ones_are_hidden():
    async with worked() as (site, worker), site.client("reader") as reader:
        for name in ("Disk__read", "Disk__format"):
            await reader.post(f"/v1/tools/{name}/call", json={})
        for _ in range(5):
            await worker.post("/v1/tools/wipe/call", json={"arguments": {"path": "c"}})
        [newest] = (await reader.get("/v1/calls", params={"limit": 1})).json()["calls"]
        [older] = (await reader.get("/v1/calls", params={"limit": 1, "after": newest["record_id"]})).json()["calls"]
        assert (newest["action"], older["action"]) == ("format", "read")


async def test_a_client_sees_its_own_calls_of_tools_that_it_may_not_call():
    async with worked() as (site, _), site.client("reader", max_effect="read_only") as reader:
        refused = await reader.post("/v1/tools/wipe/call", json={"arguments": {"path": "mine"}})
        assert refused.status_code == 404
        shown = (await reader.get("/v1/calls", params={"tool": "wipe"})).json()["calls"]
        assert [(call["principal"], call["error_type"]) for call in shown] == [("token:reader", "tool_not_found")]
        assert (await reader.get("/v1/stats")).json()["tools"]["wipe"]["calls"] == 1


async def test_what_was_learned_from_failures_is_shown_for_tools_that_a_client_may_call_with_any_arguments():
    rule = Rule(verdict="deny", tool="wipe", arguments={"path": "/secret/*"}, principal="token:careful")
    policy = Policy(rules=[rule, Rule(verdict="allow", tool="*")])
    model = ScriptedModel([[{"name": "wipe", "arguments": {"path": "missing"}}], "Sorry."])
    async with (
        serve(look, wipe, policy=policy, model=model) as site,
        site.client("worker") as worker,
        site.client("weak", max_effect="read_only") as weak,
        site.client("careful") as careful,
    ):
        await worker.post("/v1/ask", json={"question": "Wipe the file", "strategy": "loop"})
        shown = [len((await each.get("/v1/failures")).json()["failures"]) for each in (worker, weak, careful)]
        assert shown == [1, 0, 0]


async def test_conversations_of_others_are_neither_shown_nor_continued():
    question = {"question": "What was it?", "strategy": "direct", "conversation_id": CONVERSATION}
    async with worked() as (site, worker), site.client("other") as other:
        assert (await other.post("/v1/ask", json=question)).status_code == 404
        respond = {"model": "ferrule", "input": "What was it?", "previous_response_id": f"resp_{CONVERSATION}_00000000"}
        assert (await other.post("/v1/responses", json=respond)).status_code == 404
        assert (await other.post("/v1/ask", json={**question, "conversation_id": "2" * 32})).status_code == 200
        for client, own in ((other, "2" * 32), (worker, CONVERSATION)):
            [shown] = (await client.get("/v1/conversations")).json()["conversations"]
            assert shown["conversation_id"] == own
