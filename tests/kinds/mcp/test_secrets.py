"""What a server was told in confidence stays out of results, errors, logs and files."""

import json
import logging
import os
import stat
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from ferrule.errors import CallError
from ferrule.kinds.mcp.config import McpServerConfig, read_server_config
from ferrule.kinds.mcp.listing import ServerListing
from ferrule.kinds.mcp.mcp_json import import_servers
from ferrule.kinds.mcp.servers import McpFileSource
from tests.kinds.mcp.mcp_servers import engine_for, executor_for, rough, tool
from tests.support.http_servers import serve_http
from tests.support.ports import reserved_port
from tests.support.processes import run_python

TOKEN = "tk-1234567890abcdef"


async def said_about(config: McpServerConfig) -> str:
    """Everything the failure to connect says."""
    async with executor_for() as executor:
        with pytest.raises(CallError) as failure:
            await executor.connect(tool(config))
        with pytest.raises(CallError) as again:
            await executor.connect(tool(config))
    return f"{failure.value} {again.value} {again.value.details}"


@pytest.mark.integration
async def test_results_do_not_repeat_the_secrets_a_server_was_given(monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
    monkeypatch.setenv("DATA_FOLDER", "/somewhere/to/work")
    given = {"TOKEN": "${SERVICE_TOKEN}", "API_KEY": "literal-api-key", "FOLDER": "${DATA_FOLDER}"}
    async with engine_for(rough(env=given)) as engine:
        result = await engine.execute("server", {"names": [*given]}, action="environment")
    hidden = "[redacted]"
    assert json.loads(result.text) == {"TOKEN": hidden, "API_KEY": hidden, "FOLDER": "/somewhere/to/work"}


@pytest.mark.integration
async def test_neither_errors_nor_logs_repeat_what_a_dying_server_printed(caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "ferrule")
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
    said = await said_about(rough("--crash", f"401 for {TOKEN}", env={"TOKEN": "${SERVICE_TOKEN}"}))
    assert TOKEN not in said and "401 for [redacted]" in said
    assert TOKEN not in caplog.text and "401 for [redacted]" in caplog.text


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["http", "sse", "ws"])
async def test_a_header_that_cannot_be_sent_is_not_shown(kind, monkeypatch):
    async with serve_http(lambda request: None) as server:
        url = f"{'ws' if kind == 'ws' else 'http'}://127.0.0.1:{server.port}/mcp"
        for value in (f"Bearer {TOKEN}\n", f"Bearer {TOKEN}\N{SNOWMAN}"):
            monkeypatch.setenv("SERVICE_TOKEN", value)
            said = await said_about(McpServerConfig(url=url, kind=kind, headers={"Authorization": "${SERVICE_TOKEN}"}))
            assert TOKEN not in said and "cannot be used" in said


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["http", "sse", "ws"])
async def test_an_address_with_a_secret_in_it_is_not_shown(kind, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
    scheme, secret = "ws" if kind == "ws" else "http", "${SERVICE_TOKEN}"
    with reserved_port() as port:
        host = f"127.0.0.1:{port}"
        for address in (f"user:{secret}@{host}/mcp", f"{host}/mcp?key={secret}", f"{host}/{secret}/mcp"):
            assert TOKEN not in await said_about(McpServerConfig(url=f"{scheme}://{address}", kind=kind))


@pytest.mark.integration
async def test_a_web_socket_that_redirects_elsewhere_is_not_followed():
    seen: list[str | None] = []

    async def note(connection: ServerConnection, request: Request) -> Response:
        seen.append(request.headers.get("X-Api-Key"))
        return Response(403, "no", Headers())

    async with serve(lambda c: c.wait_closed(), "127.0.0.1", 0, process_request=note) as elsewhere:
        port = elsewhere.sockets[0].getsockname()[1]

        def redirect(connection: ServerConnection, request: Request) -> Response:
            return Response(302, "there", Headers({"Location": f"ws://127.0.0.1:{port}/"}))

        async with serve(lambda c: c.wait_closed(), "127.0.0.1", 0, process_request=redirect) as first:
            url = f"ws://127.0.0.1:{first.sockets[0].getsockname()[1]}/mcp"
            said = await said_about(McpServerConfig(url=url, headers={"X-Api-Key": TOKEN}))
    assert seen == [] and "redirect" in said


def test_what_servers_listed_is_kept_for_their_owner_only(tmp_path):
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    cache = tmp_path / "home" / "cache"
    source = McpFileSource(tmp_path / "mcp.json", cache)
    source.store_listing(source.load().tools[0], ServerListing(instructions="Sums."))
    [kept] = cache.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700 and stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_file_that_gets_servers_with_secrets_is_said_to_hold_them(tmp_path):
    source, target = tmp_path / "theirs.json", tmp_path / "mcp.json"
    entry = {"command": "x", "env": {"API_KEY": TOKEN, "MODE": "plain"}, "args": ["--token", "${input:token}"]}
    source.write_text(json.dumps({"mcpServers": {"a": entry, "b": {"command": "x"}}}))
    with_secret, without = import_servers(source, target, project=tmp_path, replace=False)
    assert "API_KEY" in with_secret.note and "set the environment variable TOKEN" in with_secret.note
    assert without.note == "" and TOKEN not in with_secret.note


@pytest.mark.integration
def test_nothing_in_an_entry_is_read_by_a_shell(tmp_path):
    entry = {"command": "echo", "args": ["$(touch hurt)", "; touch hurt", "`touch hurt`", "| touch hurt"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"$(touch hurt)": entry}}))
    script = (
        "import asyncio\nfrom ferrule import ToolEngine, ToolEngineConfig\n"
        "async def main():\n"
        "    async with ToolEngine(ToolEngineConfig(mcp_file='mcp.json')) as engine:\n"
        "        await engine._servers.wait_until_listed()\n"
        "asyncio.run(main())"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_python("-c", script, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "hurt").exists()


def test_a_name_with_a_way_out_of_the_cache_stays_in_it(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"../../escape": {"command": "x"}, "\\u0000/etc": {"command": "y"}}}))
    source = McpFileSource(path, tmp_path / "deep" / "cache")
    for each in source.load().tools:
        source.store_listing(each, ServerListing(instructions="Sums."))
    assert {file.parent for file in tmp_path.rglob("*-*.json")} == {tmp_path / "deep" / "cache"}


def test_one_entry_with_half_a_character_does_not_spoil_the_file(tmp_path):
    path = Path(tmp_path / "mcp.json")
    path.write_text('{"mcpServers": {"bad": {"command": "x", "args": ["\\ud800"]}, "good": {"command": "y"}}}')
    report = McpFileSource(path, tmp_path / "cache").load()
    assert "good" in [each.id for each in report.tools]


def test_an_entry_that_cannot_be_used_is_described_without_its_values():
    with pytest.raises(Exception, match='"args" must be a list') as failure:
        read_server_config({"command": "x", "args": f"--token {TOKEN}"})
    assert TOKEN not in str(failure.value)
