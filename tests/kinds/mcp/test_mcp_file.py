"""The servers of an mcp.json as tools."""

import json
import sys
from pathlib import Path

import pytest

from ferrule.core.spec import Effects, ToolCapability
from ferrule.kinds.mcp.listing import ServerListing
from ferrule.kinds.mcp.servers import McpFileSource
from tests.kinds.mcp.mcp_servers import RAW_SERVER, engine_for, executor_for, rough

ROUGH = {"command": sys.executable, "args": [str(RAW_SERVER)]}


def write(path: Path, servers: object) -> Path:
    path.write_text(json.dumps({"mcpServers": servers}, indent=2))
    return path


def test_a_file_is_loaded_without_starting_anything(tmp_path):
    path = write(
        tmp_path / "mcp.json", {"a": {"command": "no-such-program"}, "b": {"url": "http://b", "disabled": True}}
    )
    report = McpFileSource(path, tmp_path / "cache").load()
    assert [(t.id, t.handler, t.source, t.spec.enabled) for t in report.tools] == [
        ("a", "mcp", "mcps", True),
        ("b", "mcp", "mcps", False),
    ]
    assert report.tools[0].spec.capabilities == [] and "not listed its actions yet" in report.tools[0].spec.description
    assert report.tools[1].origin == f"{path}:6"


def test_one_bad_entry_does_not_spoil_the_file(tmp_path):
    path = write(tmp_path / "mcp.json", {"bad": {"comand": "x"}, "good": {"command": "x", "unknown": 1}})
    report = McpFileSource(path, tmp_path / "cache").load()
    assert [tool.id for tool in report.tools] == ["good"]
    assert str(report.errors[0]).startswith(f"{path}:3: MCP server 'bad': a server needs either")


def test_the_file_of_vs_code_with_comments_is_understood(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(
        '{\n  // mine\n  "servers": {\n    "a": {"url": "http://x//y", /* why */ "type": "http",},\n  },\n}'
    )
    report = McpFileSource(path, tmp_path / "cache").load()
    assert (report.tools[0].spec.endpoint, report.tools[0].origin) == ("http://x//y", f"{path}:4")  # type: ignore[attr-defined]


def test_a_file_that_broke_keeps_its_last_servers(tmp_path):
    source = McpFileSource(write(tmp_path / "mcp.json", {"a": {"command": "x"}}), tmp_path / "cache")
    before = source.load()
    source.path.write_text('{\n  "mcpServers": {\n    "a": oops\n')
    broken = source.load()
    assert broken.tools == before.tools and broken.errors[0].line == 3
    source.path.write_text('{"mcpServers": []}')
    assert "lists no MCP servers" in str(source.load().errors[0])
    source.path.unlink()
    assert source.load().tools == ()


def test_a_name_that_stands_twice_is_reported(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}')
    report = McpFileSource(path, tmp_path / "cache").load()
    assert "'a': is in the file twice" in str(report.errors[0]) and report.tools[0].target.command == "y"


def test_what_a_server_listed_is_there_after_a_restart_until_its_entry_changes(tmp_path):
    path = write(tmp_path / "mcp.json", {"a": {"command": "x", "trusted": True}})
    add = ToolCapability(
        name="add",
        description="Add.",
        parameters={"type": "object", "properties": {"a": {"type": "integer"}}},
        output={"type": "object"},
        annotations={"readOnlyHint": True},
    )
    source = McpFileSource(path, tmp_path / "cache")
    known = source.store_listing(source.load().tools[0], ServerListing(capabilities=(add,), instructions="Sums."))
    again = McpFileSource(path, tmp_path / "cache").load().tools[0]
    assert (
        again.spec == known.spec
        and again.spec.capabilities[0].effects == Effects(read_only=True, open_world=True)
        and again.spec.description == "Sums."
    )
    assert again.spec.fingerprint == known.spec.fingerprint
    write(path, {"a": {"command": "x"}})
    [action] = McpFileSource(path, tmp_path / "cache").load().tools[0].spec.capabilities
    assert action.effects == Effects(destructive=True, open_world=True)
    write(path, {"a": {"command": "x", "args": ["other"]}})
    assert McpFileSource(path, tmp_path / "cache").load().tools[0].spec.capabilities == []


def test_a_spoilt_cache_counts_as_none(tmp_path):
    path = write(tmp_path / "mcp.json", {"a": {"command": "x"}})
    source = McpFileSource(path, tmp_path / "cache")
    source.store_listing(source.load().tools[0], ServerListing(instructions="Sums."))
    next((tmp_path / "cache").iterdir()).write_text('{"format": 1, "capabilities": [{}]}')
    assert source.load().tools[0].spec.metadata["listed"] is False


@pytest.mark.integration
async def test_dead_and_slow_servers_do_not_stop_the_others(tmp_path):
    slow = {"command": sys.executable, "args": [str(RAW_SERVER), "--silent"]}
    servers = {"dead": {"command": "no-such-program"}, "slow": slow, "good": ROUGH, "off": {**ROUGH, "disabled": True}}
    source = McpFileSource(write(tmp_path / "mcp.json", servers), tmp_path / "cache")
    async with executor_for() as executor:
        for seconds in (0.5, 5, 60):  # until there was time for the good one
            report = await source.discover(executor, source.load().tools, timeout=seconds)
            if executor.is_connected("good"):
                break
        assert not executor.is_connected("off")
    assert [(tool.id, bool(tool.spec.capabilities)) for tool in report.tools] == [
        ("dead", False),
        ("slow", False),
        ("good", True),
        ("off", False),
    ]
    said = " ".join(str(error) for error in report.errors)
    assert "'no-such-program' was not found" in said and f"'slow' has not started within {seconds:g} s" in said
    assert [tool.id for tool in source.load().tools if tool.spec.capabilities] == ["good"]


@pytest.mark.integration
async def test_the_timeout_of_an_entry_limits_its_calls():
    async with engine_for(rough(timeout=0.2)) as engine:
        result = await engine.execute("server", {}, action="never")
    assert result.error_type == "timeout"


@pytest.mark.integration
async def test_secrets_come_from_the_environment_and_stay_out_of_the_spec(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    monkeypatch.setenv("OTHER", "not for servers")
    async with engine_for(rough(env={"TOKEN": "${MY_TOKEN}", "MODE": "${MODE_OF_TEST:-plain}"})) as engine:
        result = await engine.execute("server", {"names": ["TOKEN", "MODE", "OTHER"]}, action="environment")
        spec = engine.registry.candidates("server")[0].spec
    assert json.loads(result.text) == {"TOKEN": "s3cret", "MODE": "plain", "OTHER": None}
    assert "s3cret" not in repr(spec) and spec.server_config["env"] == ["MODE", "TOKEN"]  # type: ignore[attr-defined]
