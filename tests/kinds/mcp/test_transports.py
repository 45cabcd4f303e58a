"""A server on the SDK behind each kind of connection."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from ferrule import ToolExecutionResult
from ferrule.core.call import Progress
from ferrule.core.content import Audio, Image, Resource, Text
from ferrule.core.elicitation import Elicitation
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.listing import ServerListing
from tests.kinds.mcp.mcp_servers import (
    SDK_SERVER,
    engine_for,
    executor_for,
    program,
    serving,
    tool,
)
from tests.support.ports import reserved_port
from tests.support.processes import forwarded_python
from tests.support.waiting import time_out_after_start, until

pytestmark = pytest.mark.integration

LISTENING = ["http", "sse", "ws"]
ALL = ["stdio", "stdio-2025", *LISTENING]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    """The address of a server behind each transport, and a command that starts others."""
    with serving("http") as http, serving("sse") as sse, serving("ws") as ws, forwarded_python() as python:
        yield {"http": http, "sse": sse, "ws": ws, "python": python}


def config_of(kind: str, servers: dict[str, Any], **more: Any) -> McpServerConfig:
    if kind in LISTENING:
        return McpServerConfig(url=servers[kind], **more)
    return program(SDK_SERVER, *(["--legacy"] if kind == "stdio-2025" else []), python=servers["python"], **more)


@pytest.mark.parametrize("kind", ALL)
async def test_every_transport_carries_results_progress_failures_and_cancellation(kind, servers, tmp_path):
    note = tmp_path / "note"
    seen: list[Progress] = []
    async with engine_for(config_of(kind, servers)) as engine:
        sums = await asyncio.gather(*(engine.execute("server", {"a": n, "b": 1}, action="add") for n in range(20)))
        counted = await engine.execute("server", {"to": 2}, action="count", on_progress=seen.append)
        failed = await engine.execute("server", {"message": "too bad"}, action="fail")
        slow = asyncio.create_task(engine.execute("server", {"note": str(note)}, action="slow", timeout=600))
        await until(lambda: note.exists() and note.read_text() == "started")
        # Arguments that cannot be sent fail their call and no other.
        for value in ("half a \ud83d", [float("nan")]):
            bad = await engine.execute("server", {"value": value}, action="anything")
            assert bad.error_type == "validation_error" and "cannot be sent" in (bad.error or ""), bad
        assert not slow.done()
        slow.cancel()
        await asyncio.wait({slow})
        again = await engine.execute("server", {"a": 1, "b": 1}, action="add")
        await until(lambda: note.read_text() == "cancelled")
    assert [result.output for result in sums] == [{"result": n + 1} for n in range(20)]
    assert counted.text == "done" and [(p.fraction, p.message) for p in seen] == [(0.5, "at 1"), (1.0, "at 2")]
    assert (failed.error_type, failed.error) == ("execution_error", "Error executing tool fail: too bad")
    assert slow.cancelled() and again.output == {"result": 2}


@pytest.mark.parametrize("kind", ALL)
async def test_endless_progress_ends_at_the_longest_time_and_so_does_the_work(kind, servers, tmp_path):
    note = tmp_path / "note"
    seen: list[Progress] = []

    async def report(seconds: float) -> ToolExecutionResult:
        limits: dict[str, Any] = {"timeout": seconds, "action_max_timeouts": {"report_forever": 3 * seconds}}
        async with engine_for(config_of(kind, servers, **limits)) as engine:
            arguments = {"note": str(note)}
            result = await engine.execute("server", arguments, action="report_forever", on_progress=seen.append)
            if seen:
                await until(note.exists)
        assert f"within {seconds:g} s (timeout)" in str(result.error), result
        assert f"within {3 * seconds:g} s (max_timeout)" in str(result.error), result
        return result

    assert (await time_out_after_start(report, lambda: seen)).error_type == "timeout"


@pytest.mark.parametrize("kind", LISTENING)
async def test_large_texts_images_sounds_and_resources_come_along(kind, servers):
    size = 400_000 if kind == "sse" else 3_000_000  # the SDK reads an event of at most 1 MiB there
    async with engine_for(config_of(kind, servers)) as engine:
        result = await engine.execute("server", {}, action="pictures")
        large = await engine.execute("server", {"size": size}, action="big", timeout=120)
    assert [type(part) for part in result.content] == [Text, Image, Audio, Resource, Resource]
    assert result.content[1] == Image(data=b"png", mime_type="image/png")
    assert result.content[4] == Resource(uri="memo://1", text="remember", mime_type="text/plain")
    assert large.is_success and large.metadata["size"] > size


@pytest.mark.parametrize("kind", ["stdio-2025", "ws"])
async def test_a_user_is_asked_what_the_server_wants_to_know(kind, servers):
    questions: list[Elicitation] = []

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        questions.append(question)
        return {"name": "Ada"} if len(questions) == 1 else None

    async with engine_for(config_of(kind, servers), on_elicit=ask) as engine:
        answered = await engine.execute("server", {}, action="greet")
        declined = await engine.execute("server", {}, action="greet")
    assert answered.text == "Hello Ada" and declined.text == "decline"
    assert questions[0].message == "Who are you?" and questions[0].tool_id == "server"
    assert questions[0].schema is not None and list(questions[0].schema["properties"]) == ["name", "greeting"]


async def test_a_server_that_asks_when_nobody_can_be_asked_fails_the_call(servers):
    async with engine_for(config_of("http", servers)) as engine:
        result = await engine.execute("server", {}, action="greet")
    assert not result.is_success and "elicitation" in (result.error or "").lower()


@pytest.mark.parametrize("kind", ["stdio-2025", "http"])
async def test_new_actions_are_announced_when_the_server_tells(kind, servers):
    listings: list[ServerListing] = []
    async with engine_for(
        config_of(kind, servers), on_listing=lambda tool_id, listing: listings.append(listing)
    ) as engine:
        await engine.execute("server", {}, action="grow")
        await until(lambda: len(listings) == 2)
    names = [{capability.name for capability in listing.capabilities} for listing in listings]
    assert names[1] - names[0] == {"grown"}


async def test_what_a_server_says_about_itself_and_its_actions(servers):
    async with executor_for() as executor:
        listing = await executor.connect(tool(config_of("ws", servers)))
        actions = {capability.name: capability for capability in listing.capabilities}
    assert (listing.server_name, listing.server_version) == ("test-server", "7.1")
    assert (listing.protocol_version, listing.instructions) == ("2026-07-28", "Use me in tests.")
    assert actions["add"].annotations == {"readOnlyHint": True}
    assert actions["environment"].annotations["destructiveHint"] is True
    assert actions["add"].schema["required"] == ["a", "b"]
    assert actions["add"].output is not None and actions["add"].output["properties"]["result"]["type"] == "integer"


async def test_sse_is_found_when_an_address_does_not_say_what_it_is(servers):
    config = McpServerConfig(url=servers["sse"].replace("/sse", "/ss%65"))
    assert config.transport_kinds == ("http", "sse")
    async with executor_for() as executor:
        assert (await executor.connect(tool(config))).server_name == "test-server"


async def test_a_call_that_its_server_never_saw_is_not_in_doubt():
    async with AsyncExitStack() as stack:
        port = stack.enter_context(reserved_port())
        with serving("http", "--legacy", port=port) as address:
            engine = await stack.enter_async_context(engine_for(McpServerConfig(url=address, kind="http")))
            large = await engine.execute("server", {"size": 3_000_000}, action="big", timeout=120)
        with serving("http", "--legacy", port=port):  # another one, that does not know our session
            forgotten = await engine.execute("server", {"to": 1}, action="count")
        gone = await engine.execute("server", {"to": 1}, action="count")
    assert large.is_success and forgotten.is_success
    assert "the call was not sent" in (gone.error or "") and "outcome" not in gone.metadata


async def test_progress_that_comes_together_with_an_answer_is_reported_before_the_call_ends(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(
        """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    key, params = message.get("id"), message.get("params") or {}
    if message["method"] == "initialize":
        about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}}
        answers = [{"id": key, "result": {**about, "serverInfo": {"name": "one", "version": "1"}}}]
    elif message["method"] == "tools/list":
        answers = [{"id": key, "result": {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}}]
    elif message["method"] == "tools/call":
        token = params["_meta"]["progressToken"]
        answers = [{"method": "notifications/message", "params": {"level": "info", "data": "working"}}]
        progress = {"progressToken": token, "progress": 1, "total": 4}
        answers += [{"method": "notifications/progress", "params": {**progress, "progress": n}} for n in (1, 2)]
        answers += [{"method": "notifications/progress", "params": {**progress, "progress": "much"}}]
        answers += [{"id": str(key), "result": {"content": [{"type": "text", "text": "done"}]}}]
        answers += [{"id": key, "result": {"content": [{"type": "text", "text": "again"}]}}]
    else:
        answers = [] if key is None else [{"id": key, "error": {"code": -32601, "message": "no"}}]
    sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **answer}) + "\\n" for answer in answers))
    sys.stdout.flush()
"""
    )
    seen: list[Progress] = []
    async with engine_for(program(script)) as engine:
        results = [await engine.execute("server", {}, action="go", on_progress=seen.append) for _ in range(2)]
    assert [result.text for result in results] == ["done", "done"]
    assert [report.fraction for report in seen] == [0.25, 0.5, 0.25, 0.5]
