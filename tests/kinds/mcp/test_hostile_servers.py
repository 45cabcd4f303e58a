"""Servers that mean harm, or know no measure."""

import asyncio
import contextlib
import json
import logging
import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine, ToolEngineConfig, ToolExecutionResult
from ferrule.core.elicitation import MAX_WAITING
from ferrule.errors import TransportFault
from ferrule.kinds.mcp import executor as mcp_executor
from ferrule.kinds.mcp import listing, relay, transports
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.stdio import ServerLog
from tests.kinds.mcp.mcp_servers import engine_for, executor_for, program, rough, tool
from tests.support.http_servers import Answer, Request, serve_http
from tests.support.waiting import time_out_after_start, until

pytestmark = pytest.mark.integration

START = """
import json, sys, time
def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()
def take():
    return json.loads(sys.stdin.readline())
def answer(message, **result):
    send(id=message["id"], result=result)
def refuse(message, code, text):
    send(id=message["id"], error={"code": code, "message": text})
def greet():
    message = take()
    if message["method"] == "server/discover":
        refuse(message, -32601, "no")
        message = take()
    about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
    answer(message, **about, serverInfo={"name": "hostile", "version": "1"})
    take()
def listed(*tools):
    answer(take(), tools=[{"inputSchema": {"type": "object"}, **tool} for tool in tools])
"""


def server(folder: Path, story: str) -> McpServerConfig:
    """A server that does what its story says, line by line."""
    script = folder / "server.py"
    script.write_text(START + textwrap.dedent(story))
    return program(script)


async def names_listed_by(config: McpServerConfig) -> list[str]:
    async with executor_for() as executor:
        return [capability.name for capability in (await executor.connect(tool(config))).capabilities]


@pytest.mark.parametrize("code", [-32000, -32001])
async def test_an_error_of_the_server_is_not_taken_for_the_end_of_the_connection(code, tmp_path):
    story = f"""
    greet()
    listed({{"name": "act"}}, {{"name": "read", "annotations": {{"readOnlyHint": True}}}})
    calls = 0
    while True:
        message = take()
        if message["method"] == "tools/call":
            calls += 1
            refuse(message, {code}, f"quota exceeded {{calls}}")
        else:
            listed({{"name": "act"}})
    """
    async with engine_for(server(tmp_path, story)) as engine:
        act = await engine.execute("server", {}, action="act")
        read = await engine.execute("server", {}, action="read")
    assert "quota exceeded 1" in (act.error or "") and "ended" not in (act.error or "")
    assert act.metadata.get("outcome") is None
    assert "quota exceeded 2" in (read.error or "")


async def test_an_action_with_a_schema_that_is_none_spoils_no_other(tmp_path):
    story = """
    greet()
    listed({"name": "good"}, {"name": "odd", "inputSchema": {"type": "object", "properties": {"a": {"type": "strng"}}}},
           {"name": "remote", "inputSchema": {"type": "object", "$ref": "http://127.0.0.1:9/schema"}},
           {"name": "recursive", "inputSchema": {"type": "object", "$ref": "#"}},
           {"name": ""}, {"name": "a" * 5000}, {"name": "sp ace\\n\\u202e"})
    message = take()
    answer(message, content=[{"type": "text", "text": "fine"}])
    """
    async with engine_for(server(tmp_path, story)) as engine:
        good = await engine.execute("server", {}, action="good")
        others = [await engine.execute("server", {"a": 1}, action=name) for name in ("odd", "remote")]
        await engine.execute("server", {"a": 1}, action="recursive")
    assert good.text == "fine" and not any(result.is_success for result in others)


async def test_half_a_character_spoils_neither_a_listing_nor_an_answer(tmp_path):
    story = """
        greet()
        listed({"name": "cut", "description": "half \\ud83d"}, {"name": "other"})
        message = take()
        answer(message, content=[{"type": "text", "text": "half \\ud83d, \\\\ud83d, whole \\ud83d\\ude00"}])
        take()
    """
    async with engine_for(server(tmp_path, story)) as engine:
        result = await engine.execute("server", {}, action="cut")
        assert [c.name for c in engine.registry.find_tool("server").spec.capabilities] == ["cut", "other"]
        assert engine.registry.find_tool("server").spec.capabilities[0].description == "half \ufffd"
    assert result.text == "half \ufffd, \\ud83d, whole \U0001f600"


async def test_a_list_without_end_is_cut_off(tmp_path):
    story = """
    greet()
    number = 0
    while True:
        message, number = take(), number + 1
        tools = [{"name": f"tool_{number}_{n}", "inputSchema": {"type": "object"}} for n in range(100)]
        answer(message, tools=tools, nextCursor=str(number))
    """
    config = replace(server(tmp_path, story), max_actions=550)
    assert len(await names_listed_by(config)) == 550


@pytest.mark.parametrize("count", [0, 100])
async def test_a_list_without_end_of_nothing_that_can_be_used_is_cut_off(count, tmp_path):
    story = f"""
    greet()
    number = 0
    while True:
        message, number = take(), number + 1
        odd = [{{"name": f"odd_{{number}}_{{n}}", "inputSchema": {{"type": "array"}}}} for n in range({count})]
        good = [{{"name": "good", "inputSchema": {{"type": "object"}}}}] if number == 2 else []
        answer(message, tools=[*odd, *good], nextCursor=str(number))
    """
    assert await names_listed_by(server(tmp_path, story)) == ["good"]


async def test_a_message_that_is_larger_than_the_entry_allows_ends_the_connection(tmp_path):
    story = """
    greet()
    listed({"name": "act"})
    answer(take(), content=[{"type": "text", "text": "x" * 100_000}])
    """
    async with engine_for(replace(server(tmp_path, story), max_message_size=50_000)) as engine:
        result = await engine.execute("server", {}, action="act")
    assert not result.is_success and "a message of more than 50,000 bytes" in str(result.error)


async def test_a_list_that_goes_round_in_circles_ends(tmp_path):
    story = """
    greet()
    for number in range(20):
        answer(take(), tools=[{"name": "same", "inputSchema": {"type": "object"}}], nextCursor="ab"[number % 2])
    """
    assert await names_listed_by(server(tmp_path, story)) == ["same"]


async def test_a_server_that_stops_listing_is_not_waited_for_without_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(relay, "RELIST_TIMEOUT", 0.5)
    monkeypatch.setattr(relay, "MAX_RELIST_PAUSE", 0.5)
    story = """
    greet()
    listed({"name": "act"})
    send(method="notifications/tools/list_changed")
    take()  # the question for the list, never answered
    send(method="notifications/tools/list_changed")
    while (message := take())["method"] != "tools/list":
        pass
    answer(message, tools=[{"name": "new", "inputSchema": {"type": "object"}}])
    take()
    """
    seen: list[listing.ServerListing] = []
    async with executor_for(on_listing=lambda tool_id, listing: seen.append(listing)) as executor:
        await executor.connect(tool(server(tmp_path, story)))
        await until(lambda: "could not be listed again" in caplog.text)
        monkeypatch.setattr(relay, "RELIST_TIMEOUT", 60.0)  # in the pause before the next question
        await until(lambda: len(seen) == 2)
    assert [c.name for c in seen[1].capabilities] == ["new"]


async def test_a_server_that_asks_and_never_listens_does_not_fill_the_memory(tmp_path):
    story = """
    greet()
    listed({"name": "act"})
    take()
    big = "x" * 1000
    for number in range(20_000):
        send(id=f"{big}{number}", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
    time.sleep(600)
    """
    before = len(asyncio.all_tasks())
    async with engine_for(server(tmp_path, story)) as engine:
        result = await engine.execute("server", {}, action="act", timeout=2)
        assert len(asyncio.all_tasks()) - before < 2_000
    assert result.error_type == "timeout"


async def test_a_user_is_asked_one_thing_at_a_time_and_not_without_end(tmp_path):
    refusals, accepted = tmp_path / "refusals", MAX_WAITING + 1  # one is asked, the others wait
    story = f"""
    from pathlib import Path
    greet()
    listed({{"name": "act"}})
    call = take()
    schema = {{"type": "object", "properties": {{}}}}
    for number in range(100):
        send(id=number, method="elicitation/create", params={{"message": str(number), "requestedSchema": schema}})
    actions = [take()["result"]["action"] for _ in range(100 - {accepted})]
    Path({str(refusals)!r}).touch()
    actions += [take()["result"]["action"] for _ in range({accepted})]
    answer(call, content=[{{"type": "text", "text": json.dumps(actions)}}])
    take()
    """
    at_once: list[int] = []
    asked = 0

    async def ask(question: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        at_once.append(asked)
        await until(refusals.exists)
        asked -= 1
        return {}

    async with engine_for(server(tmp_path, story), on_elicit=ask) as engine:
        result = await engine.execute("server", {}, action="act", timeout=120)
    assert set(at_once) == {1}
    assert json.loads(result.text) == ["cancel"] * (100 - accepted) + ["accept"] * accepted


def test_a_server_cannot_write_lines_of_its_own_into_the_log(caplog):
    caplog.set_level(logging.DEBUG, "ferrule.mcp.server")
    log = ServerLog("server")
    log.message("info", "hello\n2026-01-01 CRITICAL forged\x1b[2J\r\u2028end")
    log.feed(b"red \x1b[31m text\rover\n")
    log.end()
    for record in caplog.records:
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", record.getMessage())
    assert "hello\\n2026-01-01 CRITICAL forged" in caplog.text


async def test_a_server_that_hangs_is_ended_though_others_wait_for_it_too(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_executor, "PING_TIMEOUT", 0.2)
    log = tmp_path / "log"
    async with engine_for(rough("--log", log, trusted=True)) as engine:

        async def call_both(timeout: float) -> tuple[ToolExecutionResult, ToolExecutionResult]:
            hung = asyncio.create_task(engine.execute("server", {}, action="hang", timeout=timeout))
            await until(lambda: hung.done() or (log.exists() and '"hang"' in log.read_text()))
            return await asyncio.gather(hung, engine.execute("server", {"x": 1}, action="echo", timeout=600))

        hung, behind = await time_out_after_start(call_both, lambda: '"hang"' in log.read_text())
        assert hung.error_type == "timeout"
        assert behind.text == '{"x": 1}'  # a reading: it is repeated by the new server


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_older_protocol_is_spoken(version):
    async with executor_for() as executor:
        assert (await executor.connect(tool(rough("--version", version)))).protocol_version == version


async def test_a_protocol_nobody_knows_is_refused_with_its_name():
    async with executor_for() as executor:
        with pytest.raises(TransportFault, match="1999-01-01"):
            await executor.connect(tool(rough("--version", "1999-01-01")))


async def test_an_old_server_is_not_asked_for_the_new_protocol_again(tmp_path):
    log = tmp_path / "log"
    async with executor_for() as executor:
        server = tool(rough("--log", log))
        await executor.connect(server)
        session = executor._client(server)._connection
        assert session is not None
        await session.aclose()
        await executor.connect(server)
    assert log.read_text().count("server/discover") == 1 and log.read_text().count('"initialize"') == 2


async def test_answers_that_break_the_protocol_fail_their_call_and_nothing_else(tmp_path):
    story = """
    greet()
    listed({"name": "act", "outputSchema": {"type": "object", "required": ["a"]}}, {"name": "deep"})
    image = {"type": "image", "data": "!", "mimeType": "image/png"}
    for content in ("text", [{"type": "hologram"}], [], [image]):
        answer(take(), content=content, **({"structuredContent": {"a": 1}} if content == [image] else {}))
    answer(take(), content=[], structuredContent={})
    answer(take(), content=[{"type": "text", "text": "well"}], structuredContent={"a": 1})
    take()
    """
    async with engine_for(server(tmp_path, story)) as engine:
        bad = [await engine.execute("server", {}, action="act") for _ in range(5)]
        good = await engine.execute("server", {}, action="act")
    assert [result.error_type for result in bad] == ["execution_error"] * 5
    assert good.output == {"a": 1}


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_over_http_has_its_measure_too(packed):
    taken = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        encoding = b"Content-Encoding: gzip\r\n" if packed else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + encoding + b"\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b" " * 1024 * 1024)
                await writer.drain()
                taken += 1
        writer.close()

    async with await asyncio.start_server(pour, "127.0.0.1", 0) as listener, executor_for() as executor:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(TransportFault, match="although it was asked not to" if packed else "cannot be used"):
            await executor.connect(tool(McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", kind="http")))
    assert taken < 250


ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "shaky", "version": "1"},
    },
    "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("break", "wait")]},
    "tools/call": {"content": [{"type": "text", "text": "well"}]},
    "ping": {},
}


def answer_over_http(request: Request) -> Answer:
    message = request.json if request.body else {}
    headers = {"Content-Type": "application/json", "Mcp-Session-Id": "1"}
    if "id" not in message:
        return Answer(202, headers)
    if message["method"] not in ANSWERS:
        return Answer(404, headers)
    reply = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS[message["method"]]}
    return Answer(200, headers, json.dumps(reply).encode())


async def test_one_call_whose_connection_breaks_does_not_take_the_others_with_it():
    has_arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def handle(request: Request) -> Answer:
        name = request.json.get("params", {}).get("name") if request.body else None
        if name == "wait":
            has_arrived.set()
            await may_answer.wait()
        if name == "break":
            raise ConnectionError("the server closes this connection")
        return answer_over_http(request)

    async with serve_http(handle) as http, engine_for(McpServerConfig(url=f"{http.url}/mcp", kind="http")) as engine:
        waiting = asyncio.create_task(engine.execute("server", {}, action="wait"))
        await has_arrived.wait()
        broken = await engine.execute("server", {}, action="break")
        may_answer.set()
        waited = await waiting
    assert broken.metadata["outcome"] == "unknown" and "RemoteProtocolError" in (broken.error or "")
    assert waited.text == "well", waited.error


async def test_a_server_that_hangs_up_at_once_is_not_called_back_without_pause(monkeypatch):
    monkeypatch.setattr(transports, "MIN_LISTEN_INTERVAL", 3600.0)

    def handle(request: Request) -> Answer:
        if request.method == "GET":  # the client listens, and may come back immediately
            return Answer(200, {"Content-Type": "text/event-stream"}, b"retry: 0\n\n: bye\n\n")
        return answer_over_http(request)

    async with serve_http(handle) as http, executor_for() as executor:
        server = tool(McpServerConfig(url=f"{http.url}/mcp", kind="http"))
        await executor.connect(server)
        await until(lambda: "GET" in [request.method for request in http.requests])
        for _ in range(20):  # meanwhile it would have come back
            await executor.ping(server)
        assert [request.method for request in http.requests].count("GET") == 1


async def test_an_engine_with_a_hostile_neighbour_still_lists_the_others(tmp_path):
    hostile = server(tmp_path, 'greet()\nlisted({"name": "b__c"}, {"name": "x" * 100_000})\ntake()')
    script = tmp_path / "good.py"
    script.write_text(START + 'greet()\nlisted({"name": "c"})\ntake()')
    entries = {
        "a": {"command": hostile.command, "args": list(hostile.args)},
        "a__b": {"command": sys.executable, "args": [str(script)]},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    config = ToolEngineConfig(tools_directory=str(tmp_path / "none"), mcp_file=str(tmp_path / "mcp.json"))
    async with ToolEngine(config) as engine:
        await engine._servers.wait_until_listed()
        assert [c.name for c in engine.registry.candidates("a__b")[0].spec.capabilities] == ["c"]


async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


async def test_a_result_that_is_slow_to_check_holds_up_nobody_else(tmp_path):
    story = r"""
    greet()
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(\w{1,100}){1,100}b"}}}
    listed({"name": "act", "outputSchema": schema})
    while True:
        answer(take(), content=[], structuredContent={"a": "x" * 200_000})
    """
    async with engine_for(server(tmp_path, story)) as engine:
        engine.register(greet)
        assert (await engine.execute("server", {}, action="act", timeout=3)).error_type == "timeout"
        slow = asyncio.create_task(engine.execute("server", {}, action="act", timeout=120))
        for _ in range(100):
            assert (await engine.execute("greet", {"name": "Ada"})).is_success
            await asyncio.sleep(0.01)  # the check begins meanwhile, in a process
        assert not slow.done()
        slow.cancel()
