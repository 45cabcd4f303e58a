"""MCP servers through the engine and the library: from a line in mcp.json to a call."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule import MCPServerSpec, ToolEngine, ToolEngineConfig, UnifiedToolLibrary
from tests.mcp_servers.making import SDK_SERVER

SERVER = {"command": sys.executable, "args": [str(SDK_SERVER)]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_server_that_was_never_listed_is_asked_before_a_call_is_refused(tmp_path: Path):
    async with engine_in(tmp_path, maths=SERVER) as engine:
        result = await engine.execute("maths__add", {"a": 1, "b": "2"})
        assert result.output == {"result": 3}
        assert engine.registry.find_tool("maths").spec.metadata["listed"]
        [record] = await engine.query_call_records()
    assert (record.tool_name, record.action, record.source) == ("maths", "add", "mcps")


async def test_a_listed_server_is_not_started_until_it_is_called(tmp_path: Path):
    async with engine_in(tmp_path, maths=SERVER) as engine:
        await engine.execute("maths__add", {"a": 1, "b": 2})
    async with engine_in(tmp_path, maths=SERVER) as engine:
        assert "add" in [c.name for c in engine.registry.find_tool("maths").spec.capabilities]
        assert not engine._mcp.is_connected("maths")
        assert (await engine.execute("maths", {"a": 1, "b": 2}, action="add")).is_success


async def test_a_dead_server_is_reported_and_stops_nobody(tmp_path: Path):
    async with engine_in(tmp_path, dead={"command": "no-such-program"}, maths=SERVER) as engine:
        assert (await engine.execute("maths__add", {"a": 1, "b": 2})).is_success
        await until(lambda: bool(engine.load_errors))
        assert "no-such-program" in str(engine.load_errors[0])
        assert (await engine.execute("echo", {"message": "x"})).is_success


async def test_a_line_in_the_file_makes_a_server_callable_and_its_end_ends_it(tmp_path: Path):
    async with engine_in(tmp_path) as engine:
        write(tmp_path, maths=SERVER)
        await until(lambda: "maths" in engine.registry)
        assert (await engine.execute("maths__add", {"a": 2, "b": 2})).output == {"result": 4}
        write(tmp_path)
        await until(lambda: "maths" not in engine.registry)
        await until(lambda: not engine._mcp.is_connected("maths"))


async def test_a_registered_server_is_asked_for_its_health(tmp_path: Path):
    spec = MCPServerSpec(tool_id="maths", server_config=SERVER)
    dead = MCPServerSpec(tool_id="dead", server_config={"command": "no-such-program"})
    async with UnifiedToolLibrary(engine=engine_in(tmp_path)) as library:
        assert (await library.register_mcp_server(spec)).success
        assert (await library.register_mcp_server(dead)).success
        healthy = await library.get_tool_health_status("maths")
        assert (healthy["status"], healthy["answers"]) == ("healthy", {"mcps": True})
        assert (await library.execute_tool("maths", "add", {"a": 1, "b": 2})).output == {"result": 3}
        assert (await library.get_tool_health_status("maths"))["recent_calls"] == 1
        assert (await library.get_tool_health_status("dead"))["status"] == "unavailable"
        assert (await library.get_tool_health_status("nothing"))["status"] == "unknown"
