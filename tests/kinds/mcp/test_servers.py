"""MCP servers through the engine and the library: from a line in mcp.json to a call."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from ferrule import Agent, MCPServerSpec, ToolEngine, ToolEngineConfig, ToolType, UnifiedToolLibrary
from ferrule.agent import AgentState
from ferrule.errors import SpecError
from ferrule.server import McpServer
from ferrule.testing import ScriptedModel
from tests.kinds.mcp.mcp_servers import RAW_SERVER, SDK_SERVER, engine_for, rough
from tests.kinds.mcp.test_faults import numbers_in
from tests.support.ports import reserved_port
from tests.support.processes import forwarded_python
from tests.support.waiting import is_running, until

pytestmark = pytest.mark.integration

SERVER = {"command": sys.executable, "args": [str(RAW_SERVER)]}
SILENT = {"command": sys.executable, "args": [str(RAW_SERVER), "--silent"], "timeout": 600}


def engine_in(folder: Path, **servers: object) -> ToolEngine:
    write(folder, **servers)
    return ToolEngine(
        ToolEngineConfig(
            tools_directory=str(folder / "tools"),
            skills_directories=(str(folder / "skills"),),
            mcp_file=str(folder / "mcp.json"),
            watch_for_changes=True,
        )
    )


def write(folder: Path, **servers: object) -> None:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))


async def test_a_server_that_was_never_listed_is_discovered_before_a_call_is_refused(tmp_path: Path):
    with forwarded_python() as [python, *arguments]:
        entry = {"command": python, "args": [*arguments, str(SDK_SERVER)]}
        async with engine_in(tmp_path, maths=entry) as engine:
            result = await engine.execute("maths__add", {"a": 1, "b": "2"})
            assert result.output == {"result": 3}
            assert engine.registry.find_tool("maths").spec.metadata["listed"]
            [record] = await engine.query_call_records()
    assert (record.tool_name, record.action, record.source) == ("maths", "add", "mcps")


async def test_a_listed_server_is_not_started_until_it_is_called(tmp_path: Path):
    async with engine_in(tmp_path, raw=SERVER) as engine:
        await engine._servers.wait_until_listed("raw")
    async with engine_in(tmp_path, raw=SERVER) as engine:
        assert "echo" in [c.name for c in engine.registry.find_tool("raw").spec.capabilities]
        await engine.wait_for_pins()
        assert not engine._servers.is_discovering and not engine.mcp.is_connected("raw")
        assert (await engine.execute("raw", {"x": 1}, action="echo")).is_success
        assert engine.mcp.is_connected("raw")


async def test_a_dead_server_is_reported_and_stops_nobody(tmp_path: Path):
    async with engine_in(tmp_path, dead={"command": "no-such-program"}, raw=SERVER) as engine:
        assert (await engine.execute("raw__echo", {"x": 1})).is_success
        await until(lambda: bool(engine.load_errors))
        assert "no-such-program" in str(engine.load_errors[0])
        assert (await engine.execute("echo", {"message": "x"})).is_success


async def test_the_address_of_a_server_that_was_registered_is_said_once():
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with ToolEngine() as engine:
            engine.register(MCPServerSpec(tool_id="closed", description="Closed.", endpoint=url))
            result = await engine.execute("closed__find", {})
    assert result.error is not None and result.error.count(url) == 1


async def test_a_server_is_connected_where_the_package_has_no_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from_name = Distribution.from_name

    def find(name: str) -> Distribution:
        if name == "ferrule":
            raise PackageNotFoundError(name)
        return from_name(name)

    monkeypatch.setattr(Distribution, "from_name", find)
    async with engine_in(tmp_path, raw=SERVER) as engine:
        assert (await engine.execute("raw__echo", {"x": 1})).is_success


async def test_a_line_in_the_file_makes_a_server_callable_and_its_end_ends_it(tmp_path: Path):
    async with engine_in(tmp_path) as engine:
        write(tmp_path, raw=SERVER)
        await until(lambda: "raw" in engine.registry)
        assert (await engine.execute("raw__echo", {"x": 1})).is_success
        write(tmp_path)
        await until(lambda: "raw" not in engine.registry)
        await until(lambda: not engine.mcp.is_connected("raw"))


async def test_what_a_server_listed_outlives_a_reload_even_where_nothing_can_be_kept(tmp_path: Path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "no-folder"))
    rough = {"command": sys.executable, "args": [str(RAW_SERVER)]}
    async with engine_in(tmp_path, rough=rough) as engine:
        assert (await engine.execute("rough__echo", {"x": 1})).is_success
        write(tmp_path, rough=rough, other={"command": "no-such-program"})
        await engine.reload()
        assert (await engine.execute("rough", {"x": 2}, action="echo")).is_success


async def test_a_server_whose_entry_was_disabled_or_changed_is_ended(tmp_path: Path):
    note = tmp_path / "children"
    rough = {"command": sys.executable, "args": [str(RAW_SERVER), "--child", str(note)]}
    async with engine_in(tmp_path, rough=rough, other=rough) as engine:
        await engine._servers.wait_until_listed()
        await until(lambda: len(numbers_in(note)) == 4)
        write(tmp_path, rough={**rough, "disabled": True}, other={"command": "no-such-program"})
        await engine.reload()
        await until(lambda: not any(map(is_running, numbers_in(note))))
        assert not engine.mcp.is_connected("rough")


async def test_a_server_that_was_disabled_in_its_file_is_used_again_when_the_file_enables_it(tmp_path: Path):
    async with engine_in(tmp_path, raw=SERVER) as engine:
        assert (await engine.execute("raw__echo", {"x": 1})).is_success
        write(tmp_path, raw={**SERVER, "disabled": True})
        await engine.reload()
        refusal = await engine.execute("raw__echo", {"x": 1})
        assert refusal.error == "Tool 'raw' is disabled. Enable it, or use another one."
        write(tmp_path, raw=SERVER)
        await engine.reload()
        assert (await engine.execute("raw__echo", {"x": 1})).is_success
        engine.registry.disable("raw")
        await engine.reload()
        assert not (await engine.execute("raw__echo", {"x": 1})).is_success  # a person disabled it


async def test_each_name_of_a_gateway_calls_the_action_it_was_listed_for(tmp_path: Path):
    story = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        result = {**about, "serverInfo": {"name": "s", "version": "1"}}
    elif message["method"] == "tools/list":
        empty = {"inputSchema": {"type": "object"}}
        result = {"tools": [{"name": n, "description": f"{sys.argv[1]} {n}", **empty} for n in sys.argv[2:]]}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": f"{sys.argv[1]} {message['params']['name']}"}]}
    else:
        result = None
    answer = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""
    (tmp_path / "server.py").write_text(story)
    actions = {"a": ["b__c", "b"], "a__b": ["c", "d"]}
    entries = {
        name: {"command": sys.executable, "args": [str(tmp_path / "server.py"), name, *names]}
        for name, names in actions.items()
    }
    write(tmp_path, **entries)
    config = ToolEngineConfig(tools_directory=str(tmp_path / "none"), mcp_file=str(tmp_path / "mcp.json"))
    async with UnifiedToolLibrary(config=config) as library:
        await library.engine._servers.wait_until_listed()
        async with Client(McpServer(library).server()) as client:
            listed = [tool for tool in (await client.list_tools()).tools if (tool.description or "").startswith("a")]
            answers = [await client.call_tool(tool.name, {}) for tool in listed]
    assert len(listed) == 4
    assert [tool.description for tool in listed] == [str(getattr(answer.content[0], "text", "")) for answer in answers]


async def test_a_server_that_is_added_while_another_one_starts_is_callable_immediately(tmp_path: Path):
    async with engine_in(tmp_path, slow=SILENT) as engine:
        write(tmp_path, slow=SILENT, raw=SERVER)
        await until(lambda: "raw" in engine.registry)
        await until(lambda: engine.mcp.is_connected("raw"))
        assert engine.registry.find_tool("raw").spec.metadata["listed"]
        assert (await engine.execute("raw", {"x": 1}, action="echo")).is_success


async def test_a_call_waits_only_for_the_server_it_names(tmp_path: Path):
    async with engine_in(tmp_path, slow=SILENT, raw=SERVER) as engine:
        assert (await engine.execute("raw__echo", {"x": 1})).is_success
        assert engine._servers.is_discovering  # `slow` still is


async def test_a_registered_server_is_asked_for_its_health(tmp_path: Path):
    spec = MCPServerSpec(tool_id="raw", server_config=SERVER)
    dead = MCPServerSpec(tool_id="dead", server_config={"command": sys.executable, "args": ["-c", "exit(1)"]})
    async with UnifiedToolLibrary(engine=engine_in(tmp_path)) as library:
        assert (await library.register_mcp_server(spec)).success
        assert (await library.register_mcp_server(dead)).success
        healthy = await library.get_tool_health_status("raw")
        assert (healthy["status"], healthy["answers"]) == ("healthy", {"mcps": True})
        assert (await library.execute_tool("raw", "echo", {"x": 1})).is_success
        assert (await library.get_tool_health_status("raw"))["recent_calls"] == 1
        assert (await library.get_tool_health_status("dead"))["status"] == "unavailable"
        assert (await library.get_tool_health_status("nothing"))["status"] == "unknown"


async def test_a_server_whose_program_is_missing_cannot_be_registered(tmp_path: Path):
    spec = MCPServerSpec(tool_id="gone", server_config={"command": "no-such-program"})
    says = "MCP server 'gone': the program 'no-such-program' was not found: install it, or write its full path"
    async with UnifiedToolLibrary(engine=engine_in(tmp_path)) as library:
        result = await library.register_mcp_server(spec)
        assert (result.success, result.error) == (False, says)
        with pytest.raises(SpecError, match=says):
            library.register(spec)
        beside = MCPServerSpec(tool_id="beside", server_config={"command": "./server", "cwd": str(tmp_path)})
        assert not (await library.register_mcp_server(beside)).success
        (tmp_path / "server").write_text("#!/bin/sh\n")
        (tmp_path / "server").chmod(0o755)
        assert (await library.register_mcp_server(beside)).success


@pytest.mark.parametrize(("name", "action"), [("raw__echo", None), ("raw", "echo"), ("raw__nothing", None)])
async def test_a_call_of_a_library_does_not_wait_for_a_silent_server(tmp_path: Path, name: str, action: str | None):
    async with UnifiedToolLibrary(engine=engine_in(tmp_path, slow=SILENT, raw=SERVER)) as library:
        for _ in range(2):  # while `raw` is being listed, and when it has been
            result = await library.execute_tool(name, action, {"x": 1})
            assert (result.is_success, result.error_type) in ((True, None), (False, "tool_not_found"))
            assert result.is_success is (name != "raw__nothing")
            assert library.engine.is_discovering  # `slow` still is


async def test_a_name_is_waited_for_until_one_server_lists_it(tmp_path: Path):
    async with engine_in(tmp_path, slow=SILENT, raw=SERVER) as engine:
        await engine.wait_for_discovery("stray")  # an action of `raw`
        assert engine.is_discovering


async def test_a_client_does_not_wait_long_for_a_silent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ferrule.server.mcp.resources_and_prompts.DISCOVERY_WAIT", 0.01)
    library = UnifiedToolLibrary(engine=engine_in(tmp_path, slow=SILENT, raw=SERVER))
    async with library, Client(McpServer(library).server()) as client:
        result = await client.call_tool("raw__echo", {"x": 1})
        assert not result.is_error
        assert library.engine.is_discovering


async def test_an_agent_does_not_wait_for_a_silent_server(tmp_path: Path):
    model = ScriptedModel([{"name": "raw__echo", "arguments": {"x": 1}}, "done"])
    trusted = {**SERVER, "trusted": True}
    async with UnifiedToolLibrary(engine=engine_in(tmp_path, slow=SILENT, raw=trusted)) as library:
        assert (await Agent(library, model).run("Echo.")).state is AgentState.FINISHED
        [record] = await library.engine.query_call_records()
        assert (record.tool_name, record.is_success) == ("raw", True)
        assert library.engine.is_discovering


# Servers that a program registers without saying what they can do


def undeclared(**entry: Any) -> MCPServerSpec:
    return MCPServerSpec(tool_id="raw", description="A server.", server_config=entry or SERVER)


async def test_a_registered_server_without_declared_actions_lists_them_on_first_use():
    async with UnifiedToolLibrary() as library:
        assert (await library.register_mcp_server(undeclared())).success
        result = await library.execute_tool("raw", "echo", {"x": 1})
        assert result.is_success and result.text == '{"x": 1}'
        spec = await library.get_tool_by_id("raw")
        assert spec is not None and "echo" in [capability.name for capability in spec.capabilities]
        assert spec.description == "A server."


async def test_lists_and_descriptions_of_tools_wait_for_a_registered_server_to_list_its_actions():
    lookups: list[Callable[[UnifiedToolLibrary], Awaitable[object]]] = [
        lambda library: library.get_all_tools(),
        lambda library: library.get_tools_by_type(ToolType.MCP_SERVER),
        lambda library: library.get_tool_by_id("raw"),
        lambda library: library.get_tool_description_for_agent("raw"),
        lambda library: library.get_all_tools_description_for_agent(),
        lambda library: library.get_tool_usage_examples("raw"),
    ]
    for lookup in lookups:
        async with UnifiedToolLibrary() as library:
            await library.register_mcp_server(undeclared())
            assert "echo" in str(await lookup(library))


async def test_a_list_of_tools_does_not_wait_long_for_a_silent_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("ferrule.engine.engine.LISTING_TIMEOUT", 0.01)
    async with UnifiedToolLibrary(engine=engine_in(tmp_path, slow=SILENT)) as library:
        assert "calculator" in [spec.tool_id for spec in await library.get_all_tools()]
        assert await library.get_tool_by_id("calculator") is not None
        assert library.engine.is_discovering


async def test_a_server_that_was_registered_before_the_library_was_opened_is_listed_too():
    library = UnifiedToolLibrary()
    await library.register_mcp_server(undeclared())
    async with library:
        assert (await library.execute_tool("raw__echo", None, {"x": 1})).is_success


async def test_an_agent_is_offered_the_actions_of_a_registered_server_once_it_is_listed():
    model = ScriptedModel(["done"])
    async with UnifiedToolLibrary() as library:
        await library.register_mcp_server(undeclared())
        await library.engine.wait_for_discovery("raw")
        await Agent(library, model).run("Echo.")
    assert "raw__echo" in str(model.requests[0].tools)


async def test_a_server_that_could_not_be_listed_is_tried_again_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ferrule.kinds.mcp.executor.MIN_DELAY", 0.01)
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    async with UnifiedToolLibrary() as library:
        await library.register_mcp_server(undeclared(command=str(program)))
        failed = await library.execute_tool("raw", "echo", {})
        assert failed.error_type == "tool_not_found"
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{RAW_SERVER}'\n")
        while not (await library.execute_tool("raw", "echo", {})).is_success:
            await asyncio.sleep(0.01)  # after a failure, the client waits a little before it tries again


async def test_the_defaults_of_a_server_are_not_sent(tmp_path: Path):
    nested = {"type": "object", "properties": {"deep": {"type": "boolean", "default": True}}}
    properties = {
        "text": {"type": "string"},
        "limit": {"type": "integer", "default": 10},
        "unit": {"type": "string", "default": "km"},
        "options": nested,
    }
    schema = {"type": "object", "properties": properties, "required": ["text", "unit"]}
    actions = tmp_path / "actions.json"
    actions.write_text(json.dumps([{"name": "search", "inputSchema": schema}]))
    async with engine_for(rough("--actions", actions)) as engine:
        result = await engine.execute("server", {"text": "tea", "options": {}}, action="search")
    # A required parameter must be sent, so its default is better than an error.
    assert json.loads(result.text) == {"text": "tea", "options": {}, "unit": "km"}
