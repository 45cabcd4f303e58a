"""MCP servers through the engine and the library: from a line in mcp.json to a call."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule import MCPServerSpec, ToolEngine, ToolEngineConfig, UnifiedToolLibrary
from tests.mcp_servers.making import ROUGH_SERVER, SDK_SERVER
from tests.mcp_servers.test_faults import is_running, numbers_in

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


async def test_what_a_server_listed_outlives_a_reload_even_where_nothing_can_be_kept(tmp_path: Path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "no-folder"))
    rough = {"command": sys.executable, "args": [str(ROUGH_SERVER)]}
    async with engine_in(tmp_path, rough=rough) as engine:
        assert (await engine.execute("rough__echo", {"x": 1})).is_success
        write(tmp_path, rough=rough, other={"command": "no-such-program"})
        await engine.reload()
        assert (await engine.execute("rough", {"x": 2}, action="echo")).is_success


async def test_a_server_whose_entry_was_disabled_or_changed_is_ended(tmp_path: Path):
    note = tmp_path / "children"
    rough = {"command": sys.executable, "args": [str(ROUGH_SERVER), "--child", str(note)]}
    async with engine_in(tmp_path, rough=rough, other=rough) as engine:
        await engine._files.servers.discovered()
        await until(lambda: len(numbers_in(note)) == 4)
        write(tmp_path, rough={**rough, "disabled": True}, other={"command": "no-such-program"})
        await engine.reload()
        await until(lambda: not any(map(is_running, numbers_in(note))))
        assert not engine._mcp.is_connected("rough")


async def test_a_server_that_is_added_while_another_one_starts_is_callable_at_once(tmp_path: Path):
    slow = {"command": sys.executable, "args": [str(ROUGH_SERVER), "--silent"]}
    async with engine_in(tmp_path, slow=slow) as engine:
        write(tmp_path, slow=slow, maths=SERVER)
        await until(lambda: "maths" in engine.registry)
        await until(lambda: engine._mcp.is_connected("maths"))
        assert engine.registry.find_tool("maths").spec.metadata["listed"]
        assert (await engine.execute("maths", {"a": 2, "b": 2}, action="add")).output == {"result": 4}


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
