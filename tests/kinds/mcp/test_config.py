"""Entries of mcp.json and specs of servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.core.spec import MCPServerSpec, ToolCapability
from ferrule.errors import SetupError, SpecError
from ferrule.kinds.mcp.config import McpServerConfig, config_of_spec, read_server_config
from ferrule.kinds.mcp.listing import ServerListing, apply_listing, make_tool_of_server_spec


def test_an_entry_of_claude_desktop_is_read():
    config = read_server_config(
        {"command": "npx", "args": ["-y", "server", 8080], "env": {"TOKEN": "${TOKEN}", "DEBUG": True}, "timeout": 5000}
    )
    assert (config.command, config.args, config.timeout) == ("npx", ("-y", "server", "8080"), 5.0)
    assert config.env == {"TOKEN": "${TOKEN}", "DEBUG": "true"} and config.transport_kinds == ("stdio",)


@pytest.mark.parametrize(
    ("entry", "kinds"),
    [
        ({"url": "https://example.com/mcp"}, ("http", "sse")),
        ({"url": "https://example.com/sse"}, ("sse", "http")),
        ({"url": "https://example.com/mcp", "type": "streamable-http"}, ("http",)),
        ({"url": "https://example.com/mcp", "transport": "sse"}, ("sse",)),
        ({"httpUrl": "https://example.com/mcp"}, ("http",)),
        ({"serverUrl": "wss://example.com/mcp"}, ("ws",)),
    ],
)
def test_the_way_to_a_server_is_found_from_its_address(entry, kinds):
    assert read_server_config(entry).transport_kinds == kinds


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("npx", "must be described by an object"),
        ({}, 'either "command"'),
        ({"command": "x", "url": "http://y"}, 'either "command"'),
        ({"command": ["npx"]}, '"command" must be text'),
        ({"command": "x", "args": "-y"}, "must be a list of texts"),
        ({"command": "x", "env": ["A=1"]}, '"env" must be an object'),
        ({"command": "x", "type": "http"}, 'for servers with a "url"'),
        ({"url": "http://y", "type": "htpp"}, "Did you mean 'http'"),
        ({"url": "example.com"}, "is not an address"),
        ({"url": "http://y", "timeout": "5s"}, "number of milliseconds"),
        ({"url": "http://y", "timeout": float("inf")}, "number of milliseconds"),
        ({"url": "http://y", "maxTimeout": {"build": "1h"}}, "number of milliseconds"),
        ({"url": "http://y", "oauth": {"clientId": 5}}, '"oauth" must have texts'),
        ({"url": "http://y", "auth": {"grant": "client_credentials", "CLIENT_ID": "me"}}, "needs clientId"),
        ({"url": "http://y", "oauth": {"grant": "password"}}, '"oauth" must have'),
        ({"url": "http://y", "oauth": {"clientMetadataUrl": "http://me/id"}}, '"oauth" must have'),
        ({"url": "http://y", "oauth": {"callbackPort": 70_000}}, '"oauth" must have'),
        ({"url": "http://y", "passHeaders": ["Authorization"]}, "no server is passed this header"),
        ({"url": "http://y", "tags": {"find": "search"}}, '"tags" must be a list of texts'),
    ],
)
def test_a_wrong_entry_says_what_is_wrong(entry, said):
    with pytest.raises(SpecError, match=said):
        read_server_config(entry)


def test_a_login_is_read_as_claude_code_and_cursor_write_it():
    texts = {"CLIENT_ID": "me", "CLIENT_SECRET": "s", "scopes": ["read", "write"]}
    oauth = read_server_config({"url": "http://y", "auth": texts}).oauth
    assert oauth is not None and (oauth.client_id, oauth.client_secret, oauth.scope) == ("me", "s", "read write")
    oauth = read_server_config({"url": "http://y", "oauth": {"clientId": "me", "callbackPort": 8080}}).oauth
    assert oauth is not None and (oauth.client_id, oauth.callback_port, oauth.grant) == (
        "me",
        8080,
        "authorization_code",
    )
    assert read_server_config({"url": "http://y", "oauth": True}).oauth is None


def test_variables_stay_as_written_until_the_server_is_started():
    config = read_server_config(
        {"url": "https://${HOST:-example.com}/mcp", "headers": {"Authorization": "Bearer ${env:KEY}"}}
    )
    assert "${HOST:-example.com}" in (config.url or "")
    started = config.expand({"KEY": "k"})
    assert (started.url, started.headers) == ("https://example.com/mcp", {"Authorization": "Bearer k"})
    with pytest.raises(SetupError, match="'KEY' is not set"):
        config.expand({})


def test_a_server_starts_in_the_folder_of_its_file():
    assert McpServerConfig(command="x", folder=Path("/project")).directory == "/project"
    assert McpServerConfig(command="x", folder=Path("/project"), cwd="sub").directory == "/project/sub"
    assert McpServerConfig(command="x", folder=Path("/project"), cwd="/other").directory == "/other"
    assert McpServerConfig(command="x").directory is None


def test_what_is_shown_of_an_address_has_no_secrets():
    assert McpServerConfig(url="https://me:pass@example.com/mcp?key=1").location == "https://example.com/mcp"


def test_the_spec_of_the_manual_becomes_a_tool_that_keeps_what_it_declares():
    query = ToolCapability(
        name="query",
        description="执行数据库查询",
        parameters={"sql": {"type": "string", "required": True}},
        examples=[{"sql": "SELECT 1"}],
        category="database",
    )
    spec = MCPServerSpec(
        tool_id="database_server",
        name="数据库服务器",
        description="提供数据库查询和操作功能",
        capabilities=[query],
        endpoint="ws://localhost:8080/mcp",
        connection_params={"timeout": 30, "retry_count": 3},
    )
    tool = make_tool_of_server_spec(spec)
    assert (tool.handler, tool.source, tool.target.transport_kinds) == ("mcp", "mcps", ("ws",))
    assert (tool.target.start_timeout, tool.target.attempts) == (30, 4)
    listed = ToolCapability(name="query", description="Run SQL", parameters={"type": "object"})
    after = apply_listing(tool, ServerListing(capabilities=(listed,), instructions="other words"))
    assert after.spec.description == "提供数据库查询和操作功能"
    assert [(c.description, c.examples, c.category) for c in after.spec.capabilities] == [
        ("Run SQL", [{"sql": "SELECT 1"}], "database")
    ]


def test_a_spec_that_does_not_say_how_to_reach_its_server_is_refused():
    with pytest.raises(SpecError, match="MCP server 'db'"):
        config_of_spec(MCPServerSpec(tool_id="db"))


def test_a_spec_may_name_a_program():
    spec = MCPServerSpec(tool_id="db", server_config={"command": "uvx", "args": ["mcp-server-sqlite"]})
    assert config_of_spec(spec).args == ("mcp-server-sqlite",)
    assert json.dumps(config_of_spec(spec).public_summary()) == '{"command": "uvx"}'


@pytest.mark.parametrize(
    ("key", "expected"), [("maxActions", "a whole number of actions"), ("maxMessageSize", "a whole number of bytes")]
)
def test_limits_of_a_server_are_settings_of_its_entry(key, expected):
    config = read_server_config({"command": "x", "maxActions": 20_000, "maxMessageSize": 1_000_000})
    assert (config.max_actions, config.max_message_size) == (20_000, 1_000_000)
    for value in (0, -1, 1.5, "many", True):
        with pytest.raises(SpecError, match=f'"{key}" must be {expected}, not {value!r}'):
            read_server_config({"command": "x", key: value})


def test_the_longest_time_of_a_call_is_set_for_a_server_and_for_single_actions():
    def longest(entry: dict[str, Any], action: str = "look") -> float | None:
        return read_server_config({"command": "x", **entry}).limits_of(action).max_timeout

    assert longest({}) == 600 and longest({"timeout": 900_000}) == 900
    assert longest({"maxTimeout": 60_000}) == 60
    one = {"maxTimeout": {"build": 3_600_000, "*": 60_000}}
    assert longest(one, "build") == 3_600 and longest(one) == 60
    assert longest({"maxTimeout": {"build": 3_600_000}}) == 600
