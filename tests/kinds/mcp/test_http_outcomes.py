"""Calls over HTTP that are not answered properly: what is repeated, and what is left in doubt."""

import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ferrule.kinds.mcp.config import McpServerConfig
from tests.kinds.mcp.mcp_servers import engine_for
from tests.support.http_servers import AnyAnswer, Request, serve_http

pytestmark = pytest.mark.integration

JSON = {"Content-Type": "application/json"}
ACTIONS = [
    {"name": "pay", "inputSchema": {"type": "object"}},
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]
OK = {"content": [{"type": "text", "text": "done"}]}


def reply(request: Request, result: dict[str, Any], **headers: str) -> AnyAnswer:
    message = {"jsonrpc": "2.0", "id": json.loads(request.body)["id"], "result": result}
    return 200, {**JSON, **headers}, json.dumps(message).encode()


def fail(status: int, body: Any, **headers: str) -> Callable[[Request], AnyAnswer]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request: (status, {**JSON, **headers}, text)


class Payments:
    """A server of 2025 with sessions; its first call of an action is answered as the test says."""

    def __init__(self, first: Callable[[Request], AnyAnswer]) -> None:
        self._first: Callable[[Request], AnyAnswer] | None = first
        self.calls: list[str] = []
        self.sessions = 0

    def answer(self, request: Request) -> AnyAnswer:
        if request.method != "POST":
            return 405, {}, b""
        message = json.loads(request.body)
        method = message["method"]
        if method == "initialize":
            self.sessions += 1
            info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            server = {"name": "payments", "version": "1"}
            return reply(request, {**info, "serverInfo": server}, **{"Mcp-Session-Id": f"s{self.sessions}"})
        if method == "tools/list":
            return reply(request, {"tools": ACTIONS})
        if method == "tools/call":
            self.calls.append(message["params"]["name"])
            first, self._first = self._first, None
            return first(request) if first is not None else reply(request, OK)
        if "id" not in message:
            return 202, {}, b""
        return reply(request, {}) if method == "ping" else fail(400, b"no such method")(request)


@asynccontextmanager
async def payments(first: Callable[[Request], AnyAnswer]) -> Any:
    server = Payments(first)
    async with (
        serve_http(server.answer) as listener,
        engine_for(McpServerConfig(url=f"{listener.url}/mcp", kind="http", trusted=True)) as engine,
    ):
        yield engine, server


def rpc_error(code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}


@pytest.mark.parametrize("body", [rpc_error(-32001, "Session not found"), b"gone"])
async def test_a_call_is_repeated_when_the_server_says_that_it_does_not_know_the_session(body):
    async with payments(fail(404, body)) as (engine, server):
        result = await engine.execute("server", {}, action="pay")
    assert (result.text, server.calls, server.sessions) == ("done", ["pay", "pay"], 2)


@pytest.mark.parametrize(
    "body",
    [{"error": "your session with the bank has ended"}, rpc_error(-32602, "no such payment session"), b"session"],
)
async def test_a_text_about_a_session_repeats_nothing(body):
    async with payments(fail(400, body)) as (engine, server):
        result = await engine.execute("server", {}, action="pay")
        again = await engine.execute("server", {}, action="pay")
    assert not result.is_success and again.is_success
    assert server.calls == ["pay", "pay"], "one request for each call"
    assert server.sessions == 2, "the next call uses a new session, in case the server has forgotten the old one"


async def test_an_unknown_method_is_no_unknown_session():
    async with payments(fail(404, rpc_error(-32601, "Method not found"))) as (engine, server):
        result = await engine.execute("server", {}, action="pay")
    assert not result.is_success and server.calls == ["pay"] and "outcome" not in result.metadata


UNCLEAR: dict[str, Callable[[Request], AnyAnswer]] = {
    "400": fail(400, b""),
    "500": fail(500, b"oops"),
    "500 with an error": fail(500, rpc_error(-32603, "internal error")),
    "502": fail(502, b""),
    "503": fail(503, b"", **{"Retry-After": "0"}),
    "504": fail(504, b""),
    "520": fail(520, b""),
    "202": lambda request: (202, {}, b""),
    "no JSON": lambda request: (200, JSON, b"<html>"),
    "another type": lambda request: (200, {"Content-Type": "text/html"}, b"<html>"),
    "no result": lambda request: reply(request, {"content": 5}),
}


@pytest.mark.parametrize("name", UNCLEAR)
async def test_an_answer_that_does_not_say_what_happened_leaves_the_outcome_unknown(name):
    async with payments(UNCLEAR[name]) as (engine, server):
        result = await engine.execute("server", {}, action="pay", timeout=60)
    assert not result.is_success and result.metadata.get("outcome") == "unknown", result
    assert server.calls == ["pay"]


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_reading_is_repeated_after_the_error_of_a_gateway(status):
    async with payments(fail(status, b"")) as (engine, server):
        result = await engine.execute("server", {}, action="read")
    assert result.is_success and server.calls == ["read", "read"]


@pytest.mark.parametrize(
    ("status", "body"), [(401, b"no"), (403, b"no"), (429, b"slow down"), (400, rpc_error(-32602, "slow down"))]
)
async def test_a_call_that_was_refused_is_not_in_doubt(status, body):
    async with payments(fail(status, body)) as (engine, server):
        result = await engine.execute("server", {}, action="pay")
    assert not result.is_success and "outcome" not in result.metadata and server.calls == ["pay"]
    assert status in (401, 403) or "slow down" in result.text


@pytest.mark.parametrize("status", [400, 402, 409, 422])
@pytest.mark.parametrize("body", [b"paid, but the receipt\ncould not be written", {"paid": True}])
async def test_a_refusal_that_is_no_message_of_the_protocol_leaves_the_outcome_unknown(status, body):
    async with payments(fail(status, body)) as (engine, server):
        result = await engine.execute("server", {}, action="pay")
        again = await engine.execute("server", {}, action="read")
    assert result.metadata.get("outcome") == "unknown" and server.calls == ["pay", "read"]
    assert f"HTTP status {status}: " in result.text and "paid" in result.text and again.is_success


async def test_a_reading_that_is_refused_says_why_and_is_not_in_doubt():
    async with payments(fail(400, b"no such account")) as (engine, server):
        result = await engine.execute("server", {}, action="read")
    assert "no such account" in result.text and "outcome" not in result.metadata and server.calls == ["read"]


@pytest.mark.parametrize("is_event", [True, False])
async def test_an_answer_with_half_a_character_is_read(is_event):
    def answer(request: Request) -> AnyAnswer:
        result = {"content": [{"type": "text", "text": "half \ud83d, whole \ud83d\ude00"}]}
        message = {"jsonrpc": "2.0", "id": json.loads(request.body)["id"], "result": result}
        text = json.dumps(message)
        if is_event:
            return 200, {"Content-Type": "text/event-stream"}, f"event: message\ndata: {text}\n\n".encode()
        return 200, JSON, text.encode()

    async with payments(answer) as (engine, _):
        result = await engine.execute("server", {}, action="pay")
    assert result.text == "half \ufffd, whole \U0001f600"
