"""Calls over HTTP that are answered without the SDK: the SDK's own client and plain requests, in both eras."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

import uvicorn
from mcp import Client
from mcp.types import ElicitResult

from ferrule import Policy, ToolEngine, UnifiedToolLibrary, tool
from ferrule.agent.control_tools import conversation_tools
from ferrule.core.call import report_progress
from ferrule.policy.policy import Rule
from ferrule.server.app import create_app
from ferrule.server.listening import LimitedHttpProtocol
from ferrule.server.mcp import ask_client, direct_calls
from ferrule.server.tokens import Tokens
from tests.server.serving import MCP_HEADERS, MCP_META, mcp_call
from tests.support.waiting import until

pytestmark = pytest.mark.integration

OLDER = "2025-11-25"
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    report_progress(0.5, "half")
    return a + b


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


class SlowTool:
    """A tool that waits, and says whether it was ended."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def make(self) -> Any:
        @tool
        async def sleep() -> str:
            """Sleep."""
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
            return "slept"

        return sleep


@asynccontextmanager
async def serving(*things: Any, policy: Policy | None = None) -> AsyncIterator[tuple[str, UnifiedToolLibrary]]:
    """The address of a server in this process, and its library."""
    engine = ToolEngine(on_elicit=ask_client)
    library = UnifiedToolLibrary(engine=engine)
    app = create_app(
        library, is_open=True, policy=policy, virtual_servers={"asking": ["ask_user"], "deleting": ["delete"]}
    )
    config = uvicorn.Config(app, port=0, http=LimitedHttpProtocol, log_level="error", access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        library.register(*things, *conversation_tools(engine.store, engine.on_elicit))
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}", library
    finally:
        server.should_exit = True
        await task


def make_call(name: str, arguments: Any, number: int = 2) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


async def open_session(http: httpx.AsyncClient, path: str = "/mcp") -> dict[str, str]:
    """The headers of the requests of a new session of the older protocol."""
    info = {"name": "test", "version": "1"}
    params = {"protocolVersion": OLDER, "capabilities": {"elicitation": {}}, "clientInfo": info}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    opened = await http.post(path, json=body, headers=HEADERS)
    headers = {**HEADERS, "mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": OLDER}
    body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await http.post(path, json=body, headers=headers)).status_code == 202
    while True:  # the SDK takes the notification after it has answered it; until then it answers calls, with streams
        response = await http.post(path, json=make_call("no_such_tool", {}), headers=headers)
        if response.headers["content-type"] == "application/json":
            return headers


async def test_a_plain_call_is_answered_with_one_document_in_both_eras():
    async with serving(add) as (url, library), httpx.AsyncClient(base_url=url, timeout=60) as http:
        answers = [await http.post("/mcp", **mcp_call("add", {"a": 1, "b": 2}))]
        session = await open_session(http)
        answers.append(await http.post("/mcp", json=make_call("add", {"a": 1, "b": 2}), headers=session))
        ping = await http.post("/mcp", json={"jsonrpc": "2.0", "id": "p", "method": "ping"}, headers=session)
        assert ping.headers["content-type"] == "application/json"
        assert ping.json() == {"jsonrpc": "2.0", "id": "p", "result": {}}
        for answer in answers:
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.json()["result"]["structuredContent"] == {"result": 3}
        assert [answer.json()["id"] for answer in answers] == [1, 2]
        assert "resultType" not in answers[1].json()["result"]
        records = await library.engine.query_call_records(tool_name="add")
        assert [record.status for record in records] == ["success", "success"]


@pytest.mark.parametrize("era", ["older", "newer"])
async def test_tools_are_listed_as_the_sdk_lists_them(era: str):
    async with serving(add, delete) as (url, library), httpx.AsyncClient(base_url=url, timeout=60) as http:
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}
        if era == "older":
            headers = await open_session(http)
        else:
            headers, body["params"] = {**MCP_HEADERS, "mcp-method": "tools/list"}, {"_meta": MCP_META}
        direct = await http.post("/mcp", json=body, headers=headers)
        assert direct.headers["content-type"] == "application/json"
        names = [each["name"] for each in direct.json()["result"]["tools"]]
        assert {"add", "delete"} <= set(names) and "ask_user" not in names
        twice = [*headers.items(), ("mcp-note", "1"), ("mcp-note", "2")]  # which only the SDK answers
        by_sdk = await http.post("/mcp", json={**body, "id": 5}, headers=twice)
        text = next((line for line in by_sdk.text.splitlines() if line.startswith("data: {")), f"data: {by_sdk.text}")
        assert json.loads(text.removeprefix("data: "))["result"] == direct.json()["result"]
        library.engine.registry.disable("delete")
        again = await http.post("/mcp", json={**body, "id": 6}, headers=headers)
        assert {each["name"] for each in again.json()["result"]["tools"]} == set(names) - {"delete"}
        if era == "older":
            page = {**body, "id": 7, "params": {"cursor": "x"}}
            assert "event-stream" in (await http.post("/mcp", json=page, headers=headers)).headers["content-type"]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_client_of_the_sdk_gets_results_errors_and_progress(mode: str):
    reported: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, message))

    async with serving(add) as (url, _), Client(f"{url}/mcp", mode=mode) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        wrong = await client.call_tool("add", {"a": "x", "b": 2})
        assert wrong.is_error and "Invalid arguments" in str(wrong.content[0])
        assert (await client.call_tool("no_such_tool", {})).is_error
        with_progress = await client.call_tool("add", {"a": 2, "b": 2}, progress_callback=note)
        assert with_progress.structured_content == {"result": 4} and reported == [(0.5, "half")]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_tool_asks_the_user_of_the_client(mode: str):
    async def say(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"answer": "blue"})

    asked: list[str] = []
    async with serving() as (url, _), Client(f"{url}/mcp/asking", mode=mode, elicitation_callback=say) as client:
        done = await client.call_tool("ask_user", {"question": "Which colour?"})
        assert asked == ["Which colour?"] and done.structured_content == {"answer": "blue"}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_the_user_of_the_client_approves_exactly_the_call_that_is_shown(mode: str, is_allowed: bool):
    async def say(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"allow": is_allowed})

    asked: list[str] = []
    policy = Policy(rules=[Rule(verdict="ask", tool="delete")])
    async with (
        serving(delete, policy=policy) as (url, library),
        Client(f"{url}/mcp/deleting", mode=mode, elicitation_callback=say) as client,
    ):
        done = await client.call_tool("delete", {"path": "a.tmp"})
        assert done.is_error is not is_allowed and '"path":"a.tmp"' in asked[0].replace(" ", "")
        await client.call_tool("delete", {"path": "b.tmp"})
        assert len(asked) == 2  # an approval is for one call
        approvals = await library.engine.approvals.list_requests()
        assert {each.state for each in approvals} == {"used" if is_allowed else "refused"}


ACCEPTED = {"result": {"action": "accept", "content": {"answer": "Because."}}}
REPLIES: dict[str, dict[str, Any]] = {
    "accepted": ACCEPTED,
    "late": ACCEPTED,
    "error": {"error": {"code": -1, "message": "no"}},
    "not valid": {"result": {"action": "dance"}},
}


@pytest.mark.parametrize("kind", REPLIES)
async def test_questions_and_replies_of_a_session_are_plain_messages(kind: str, monkeypatch: pytest.MonkeyPatch):
    async with serving() as (url, _), httpx.AsyncClient(base_url=url, timeout=60) as http:
        path, headers = "/mcp/asking", await open_session(http, "/mcp/asking")
        body = make_call("ask_user", {"question": "Why?"}, 7)
        async with http.stream("POST", path, json=body, headers=headers) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            lines = stream.aiter_lines()
            question = await _next_message(lines)
            assert question["method"] == "elicitation/create" and question["params"]["message"] == "Why?"
            unknown = {"jsonrpc": "2.0", "id": "not-asked", "result": {}}
            assert (await http.post(path, json=unknown, headers=headers)).status_code == 202  # as the SDK says
            if kind == "late":  # the user has thought for a minute
                monkeypatch.setattr(direct_calls, "RENEWAL_INTERVAL", 0.0)
            reply = {"jsonrpc": "2.0", "id": question["id"], **REPLIES[kind]}
            accepted = await http.post(path, json=reply, headers=headers)
            assert accepted.status_code == 202 and not accepted.content
            answer = await _next_message(lines)
        if REPLIES[kind] is ACCEPTED:
            assert answer["id"] == 7 and answer["result"]["structuredContent"] == {"answer": "Because."}
        else:
            assert answer["result"]["isError"]


@pytest.mark.parametrize("how", ["notification", "late notification", "end of the session"])
async def test_a_call_of_a_session_is_ended(how: str, monkeypatch: pytest.MonkeyPatch):
    slow = SlowTool()
    async with serving(slow.make()) as (url, _), httpx.AsyncClient(base_url=url, timeout=60) as http:
        headers = await open_session(http)
        calling = asyncio.create_task(http.post("/mcp", json=make_call("sleep", {}, 5), headers=headers))
        await asyncio.wait_for(slow.begun.wait(), 60)
        if how == "end of the session":
            assert (await http.delete("/mcp", headers=headers)).status_code == 200
        else:
            if how == "late notification":  # which the SDK answers
                monkeypatch.setattr(direct_calls, "RENEWAL_INTERVAL", 0.0)
            body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
            assert (await http.post("/mcp", json=body, headers=headers)).status_code == 202
        await asyncio.wait_for(slow.ended.wait(), 60)
        assert (await calling).json()["error"]["code"] == -32800


@pytest.mark.parametrize("era", ["older", "newer"])
async def test_a_client_that_goes_away_ends_its_call(era: str):
    slow = SlowTool()
    async with serving(slow.make()) as (url, _):
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            request = mcp_call("sleep", {})
            if era == "older":
                request = {"json": make_call("sleep", {}), "headers": await open_session(http)}
            calling = asyncio.create_task(http.post("/mcp", **request))
            await asyncio.wait_for(slow.begun.wait(), 60)
            calling.cancel()
            await asyncio.wait({calling})
        await asyncio.wait_for(slow.ended.wait(), 60)


async def test_a_session_is_used_by_its_token_alone_and_until_it_ends():
    async with serving(add) as (url, library), httpx.AsyncClient(base_url=url, timeout=60) as http:
        tokens = Tokens(library.engine.store)
        (_, mine), (_, other) = [await tokens.create(name, roles=["caller"]) for name in ("mine", "other")]
        http.headers["authorization"] = f"Bearer {mine}"
        headers, body = await open_session(http), make_call("add", {"a": 1, "b": 2})
        assert (await http.post("/mcp", json=body, headers=headers)).status_code == 200
        theirs = {**headers, "authorization": f"Bearer {other}"}
        assert (await http.post("/mcp", json=body, headers=theirs)).status_code == 404
        assert (await http.delete("/mcp", headers=theirs)).status_code == 404
        assert (await http.post("/mcp", json=body, headers=headers)).status_code == 200
        assert (await http.delete("/mcp", headers=headers)).status_code == 200
        assert (await http.post("/mcp", json=body, headers=headers)).status_code == 404


async def test_the_sdk_hears_of_a_session_that_is_in_use(monkeypatch: pytest.MonkeyPatch):
    async with serving(add) as (url, _), httpx.AsyncClient(base_url=url, timeout=60) as http:
        headers, body = await open_session(http), make_call("add", {"a": 1, "b": 2})
        monkeypatch.setattr(direct_calls, "RENEWAL_INTERVAL", 0.0)
        renewed = await http.post("/mcp", json=body, headers=headers)
        assert renewed.headers["content-type"].startswith("text/event-stream") and '"result":3' in renewed.text
        monkeypatch.setattr(direct_calls, "RENEWAL_INTERVAL", 60.0)
        direct = await http.post("/mcp", json=body, headers=headers)
        assert direct.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "change",
    [{"jsonrpc": "1.0"}, {"params": []}, {"params": {"name": 3}}, {"method": "tools/none"}],
)
async def test_an_unusual_request_of_a_session_is_answered_by_the_sdk(change: dict[str, Any]):
    async with serving(add) as (url, _), httpx.AsyncClient(base_url=url, timeout=60) as http:
        body = {**make_call("add", {"a": 1, "b": 2}), **change}
        response = await http.post("/mcp", json=body, headers=await open_session(http))
        assert '"error"' in response.text and '"result"' not in response.text


@pytest.mark.parametrize(
    "change",
    [
        {"clientCapabilities": {"elicitation": 5}},
        {"clientCapabilities": {"elicitation": {"form": 5}}},
        {"clientInfo": 3},
        {"clientInfo": {"name": "test"}},
    ],
)
async def test_a_client_that_describes_itself_wrongly_is_told_so_by_the_sdk(change: dict[str, Any]):
    async with serving(add) as (url, library), httpx.AsyncClient(base_url=url, timeout=60) as http:
        meta = {f"io.modelcontextprotocol/{key}": each for key, each in change.items()}
        response = await http.post("/mcp", **mcp_call("add", {"a": 1, "b": 2}, **meta))
        assert response.status_code == 400 and response.json()["error"]["code"] == -32602
        assert not await library.engine.query_call_records(tool_name="add")


async def test_a_client_whose_description_is_nested_too_deep_is_answered_by_the_sdk():
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    meta = {"io.modelcontextprotocol/clientCapabilities": deep}
    async with serving(add) as (url, _), httpx.AsyncClient(base_url=url, timeout=60) as http:
        call = mcp_call("add", {"a": 1, "b": 2}, **meta)
        response = await http.post("/mcp", **call)
        call["headers"]["mcp-name"] = "delete"
        refused = await http.post("/mcp", **call)
    assert response.status_code == 200 and '"result":3' in response.text
    assert refused.status_code == 400 and "error" in refused.json()


async def _next_message(lines: AsyncIterator[str]) -> dict[str, Any]:
    async for line in lines:
        if line.startswith("data: "):
            message: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return message
    raise AssertionError("the stream has ended")
