"""A client sees its own calls, and those of others of tools that it may call: in records, statistics and runs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from ferrule import NeedsApproval, Policy, Rule, Tool, ToolExecutionContext, tool
from ferrule.kinds.function.tools import tool_of
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


LISTS = ("/v1/calls", "/v1/stats", "/v1/failures", "/v1/runs", "/v1/approvals?state=used")
HIDDEN = ("wipe", "format")
GRANTS: dict[str, dict[str, Any]] = {
    "by its effect": {"max_effect": "read_only"},
    "by its name": {"tools": ["look", "Disk__read"]},
}


@asynccontextmanager
async def worked(**options: Any) -> AsyncIterator[tuple[Site, httpx.AsyncClient]]:
    """A site on which another client has used all tools, also by a model and with an approval."""
    turns = [[{"name": "wipe", "arguments": {"path": "missing"}}], "Sorry."]
    policy = Policy(rules=[Rule(verdict="allow", tool="*")])
    async with (
        serve(look, wipe, Disk, policy=policy, model=ScriptedModel(turns), **options) as site,
        site.client("worker") as worker,
    ):
        for name, arguments in (
            ("look", {"path": "a"}),
            ("wipe", {"path": "b"}),
            ("Disk__read", {}),
            ("Disk__format", {}),
        ):
            assert (await worker.post(f"/v1/tools/{name}/call", json={"arguments": arguments})).status_code == 200
        assert (await worker.post("/v1/ask", json={"question": "Wipe the file", "strategy": "loop"})).status_code == 200
        yield site, worker


@pytest.mark.parametrize("grants", GRANTS.values(), ids=GRANTS)
async def test_calls_of_hidden_tools_are_not_shown(grants: dict[str, Any]):
    async with worked() as (site, worker), site.client("reader", roles=["viewer"], **grants) as reader:
        lists = {path: (await reader.get(path)).text for path in LISTS}
        assert not [path for path, text in lists.items() if any(name in text for name in HIDDEN)], lists
        calls = json.loads(lists["/v1/calls"])["calls"]
        assert sorted(call["action"] for call in calls) == ["look", "read"]
        statistics = json.loads(lists["/v1/stats"])
        assert statistics["total"] == 2 and {n: t["calls"] for n, t in statistics["tools"].items()} == {
            "look": 1,
            "Disk": 1,
        }
        for call in (await worker.get("/v1/calls")).json()["calls"]:
            is_shown = call["action"] in ("look", "read")
            assert (await reader.get(f"/v1/calls/{call['record_id']}")).status_code == (200 if is_shown else 404)
        [run] = (await worker.get("/v1/runs")).json()["runs"]
        assert (await reader.get(f"/v1/runs/{run['run_id']}")).status_code == 404


@pytest.mark.parametrize("grants", [{"roles": ["viewer"]}, {"roles": ["approver"], "max_effect": "read_only"}])
async def test_whoever_may_call_everything_or_approves_sees_all(grants: dict[str, Any]):
    async with worked() as (site, worker), site.client("other", **grants) as other:
        for path in LISTS:
            assert (await other.get(path)).json() == (await worker.get(path)).json()
        assert (await other.get("/v1/stats")).json()["tools"].keys() == {"look", "wipe", "Disk"}


async def test_a_page_of_calls_is_full_although_newer_ones_are_hidden():
    async with worked() as (site, worker), site.client("reader", max_effect="read_only") as reader:
        for _ in range(5):
            await worker.post("/v1/tools/wipe/call", json={"arguments": {"path": "c"}})
        [newest] = (await reader.get("/v1/calls", params={"limit": 1})).json()["calls"]
        [older] = (await reader.get("/v1/calls", params={"limit": 1, "after": newest["record_id"]})).json()["calls"]
        assert (newest["action"], older["action"]) == ("read", "look")


async def test_a_client_sees_its_own_calls_of_tools_that_it_may_not_call():
    async with worked() as (site, _), site.client("reader", max_effect="read_only") as reader:
        refused = await reader.post("/v1/tools/wipe/call", json={"arguments": {"path": "mine"}})
        assert refused.status_code == 404
        shown = (await reader.get("/v1/calls", params={"tool": "wipe"})).json()["calls"]
        assert [(call["principal"], call["error_type"]) for call in shown] == [("token:reader", "tool_not_found")]
        assert (await reader.get("/v1/stats")).json()["tools"]["wipe"]["calls"] == 1


async def test_calls_of_others_do_not_name_hidden_tools():
    @tool(read_only=True)
    async def find(path: str) -> str:
        """Find a file, or wipe a file."""
        raise FileNotFoundError(path)

    @tool(read_only=True)
    async def tidy(context: ToolExecutionContext) -> str:
        """Tidy up."""
        result = await context.call_tool("wipe", {"path": "x"})
        raise NeedsApproval(str(result.error), approval_id=result.metadata["approval_id"])

    failing = [{"name": "find", "arguments": {"path": "missing"}}]
    model = ScriptedModel([failing, failing, [{"name": "tidy", "arguments": {}}], "Sorry."])
    async with (
        serve(find, tidy, wipe, model=model) as site,
        site.client("worker") as worker,
        site.client("helper", tools=["look", "wipe"]) as helper,
        site.client("reader", roles=["viewer"], max_effect="read_only") as reader,
    ):
        await worker.post("/v1/ask", json={"question": "Find and wipe the file", "strategy": "loop"})
        await helper.post("/v1/tools/find/call", json={"arguments": {"path": "x"}})
        every = (await worker.get("/v1/calls")).json()["calls"]
        assert {call["error_type"] for call in every} >= {"known_failure", "approval_required", "tool_not_found"}
        lists = {path: (await reader.get(path)).text for path in ("/v1/calls", "/v1/stats", "/v1/approvals")}
        assert not [path for path, text in lists.items() if "wipe" in text or "rule" in text], lists
        [shown] = json.loads(lists["/v1/calls"])["calls"]
        assert (shown["tool_name"], shown["error_type"]) == ("find", "execution_error")
        assert "wipe" not in (await reader.get(f"/v1/calls/{shown['record_id']}")).text


async def test_of_two_tools_with_one_name_only_calls_of_the_permitted_one_are_shown():
    def of_source(source: str, *, destructive: bool) -> Tool:
        @tool(name="pay", destructive=destructive)
        async def pay(amount: float) -> str:
            """Pay."""
            return source

        return replace(tool_of(pay), source=source)

    async with serve(of_source("tools", destructive=True), of_source("mcps", destructive=False)) as site:
        for max_effect in ("destructive", "changing"):
            async with site.client(f"worker-{max_effect}", max_effect=max_effect) as worker:
                assert (await worker.post("/v1/tools/pay/call", json={"arguments": {"amount": 5}})).status_code == 200
        async with site.client("reader", max_effect="changing") as reader:
            assert [call["source"] for call in (await reader.get("/v1/calls")).json()["calls"]] == ["mcps"]


async def test_calls_are_not_shown_when_a_rule_about_arguments_might_forbid_them():
    rules = [
        Rule(verdict="deny", tool="look", arguments={"path": "/secret/*"}, principal="token:reader"),
        Rule(verdict="allow", tool="*"),
    ]
    async with (
        serve(look, policy=Policy(rules=rules)) as site,
        site.client("worker") as worker,
        site.client("reader", roles=["caller"]) as reader,
    ):
        call = {"arguments": {"path": "/secret/key"}}
        assert (await worker.post("/v1/tools/look/call", json=call)).status_code == 200
        assert (await reader.post("/v1/tools/look/call", json=call)).status_code == 403
        shown = (await reader.get("/v1/calls")).json()["calls"]
        assert [each["principal"] for each in shown] == ["token:reader"]


FIRST, SECOND = "1" * 32, "2" * 32


async def test_conversations_of_others_are_neither_shown_nor_continued():
    model = ScriptedModel(["The code is 4711.", "Mine.", "Again."])
    question = {"question": "What is the code of room nine?", "strategy": "direct", "conversation_id": FIRST}
    async with (
        serve(look, wipe, model=model) as site,
        site.client("worker") as worker,
        site.client("weak", max_effect="read_only") as weak,
    ):
        assert (await worker.post("/v1/ask", json=question)).status_code == 200
        assert (await weak.post("/v1/ask", json={**question, "question": "What was it?"})).status_code == 404
        assert (await weak.get("/v1/conversations")).json() == {"conversations": []}
        assert (await weak.get(f"/v1/conversations/{FIRST}")).status_code == 404
        respond = {"model": "ferrule", "input": "What was it?", "previous_response_id": f"resp_{FIRST}_00000000"}
        assert (await weak.post("/v1/responses", json=respond)).status_code == 404
        assert (await weak.post("/v1/ask", json={**question, "conversation_id": SECOND})).status_code == 200
        assert [each["conversation_id"] for each in (await weak.get("/v1/conversations")).json()["conversations"]] == [
            SECOND
        ]
        assert len((await worker.get("/v1/conversations")).json()["conversations"]) == 2
