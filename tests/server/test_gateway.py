"""What a client gets through Ferrule equals what it gets from the server itself, by both eras of the protocol."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult

from ferrule import Policy, Rule, ToolEngine, ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.server.mcp import McpServer, ask_client
from tests.kinds.mcp.mcp_servers import SDK_SERVER
from tests.support.processes import forwarded_python

pytestmark = pytest.mark.integration


async def say_name(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada", "greeting": "Hi"})


@asynccontextmanager
async def direct_client(mode: str) -> AsyncIterator[Client]:
    with forwarded_python() as python:
        parameters = StdioServerParameters(command=python[0], args=[*python[1:], str(SDK_SERVER), "stdio"])
        async with Client(stdio_client(parameters), mode=mode, elicitation_callback=say_name) as client:
            yield client


@asynccontextmanager
async def gateway_client(
    mode: str, folder: Path, *, program: Path = SDK_SERVER, **options: Any
) -> AsyncIterator[Client]:
    config = ToolEngineConfig(tools_directory="none", mcp_file=str(folder / "mcp.json"))
    with forwarded_python() as python:
        entry = {"command": python[0], "args": [*python[1:], str(program), "stdio"]}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"server": entry}}))
        async with (
            ToolEngine(config, on_elicit=ask_client) as engine,
            UnifiedToolLibrary(engine=engine) as library,
        ):
            await engine.wait_for_discovery()
            server = McpServer(library, **options).server()
            async with Client(server, mode=mode, elicitation_callback=say_name) as client:
                yield client


def as_json(model: Any) -> Any:
    """As JSON values, without what only says which server answered."""
    values = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    values.get("_meta", {}).pop("io.modelcontextprotocol/serverInfo", None)
    return {key: value for key, value in values.items() if value != {} or key != "_meta"}


async def list_by_name(client: Client) -> dict[str, Any]:
    listed = [as_json(each) for each in (await client.list_tools()).tools]
    return {each.pop("name"): each for each in listed}


async def test_actions_are_listed_as_the_server_lists_them(mode: str, tmp_path: Path):
    async with direct_client(mode) as client:
        expected = await list_by_name(client)
    async with gateway_client(mode, tmp_path) as client:
        offered = await list_by_name(client)
    assert {name: offered[f"server__{name}"] for name in expected} == expected


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 1, "b": 2}),
    ("add", {"a": "1", "b": 2}),  # which the server converts
    ("add", {"a": "x"}),  # which it refuses in its own words
    ("fail", {"message": "no luck"}),
    ("pictures", {}),
    ("anything", {"value": {"deep": [1, None, "é"]}}),
    ("greet", {}),
]


async def test_results_are_passed_on_unchanged(mode: str, tmp_path: Path):
    async with direct_client(mode) as client:
        expected = [as_json(await client.call_tool(action, arguments)) for action, arguments in CALLS]
    async with gateway_client(mode, tmp_path) as client:
        passed_on = [as_json(await client.call_tool(f"server__{action}", arguments)) for action, arguments in CALLS]
    assert passed_on == expected


LIST_SERVER = """
import asyncio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

async def list_tools(context, params):
    numbers = {"type": "array", "items": {"type": "integer"}}
    return ListToolsResult(tools=[
        Tool(name="numbers", input_schema={"type": "object"}, output_schema=numbers),
        Tool(name="other", input_schema={"type": "object"}),
    ])

async def call_tool(context, params):
    return CallToolResult(content=[TextContent(type="text", text="1, 2")], structured_content=[1, 2])

async def main():
    server = Server("lists", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())

asyncio.run(main())
"""


async def test_a_list_as_structured_content_is_passed_on_and_spoils_nothing_for_older_clients(
    mode: str, tmp_path: Path
):
    program = tmp_path / "lists.py"
    program.write_text(LIST_SERVER)
    async with gateway_client(mode, tmp_path, program=program) as client:
        offered = await list_by_name(client)
        assert {"server__numbers", "server__other"} <= offered.keys()
        if mode == "legacy":
            assert "outputSchema" not in offered["server__numbers"]
        else:
            assert offered["server__numbers"]["outputSchema"] == {"type": "array", "items": {"type": "integer"}}
            result = await client.call_tool("server__numbers", {})
            assert result.structured_content == [1, 2] and not result.is_error


@pytest.mark.parametrize("value", [1000, "1000", 1000.0])
async def test_rules_about_arguments_hold_for_what_the_server_reads(mode: str, tmp_path: Path, value: Any):
    policy = Policy(rules=[Rule(verdict="deny", tool="server__add", arguments={"a": 1000}, reason="Not 1000.")])
    async with gateway_client(mode, tmp_path, policy=policy) as client:
        refused = await client.call_tool("server__add", {"a": value, "b": 1})
        assert refused.is_error and "Not 1000." in str(refused.content)
        assert not (await client.call_tool("server__add", {"a": "5", "b": 1})).is_error
        assert (await client.call_tool("server__add", {"a": {}, "b": 1})).is_error


async def test_progress_is_passed_on(mode: str, tmp_path: Path):
    async def collect(client: Client, name: str) -> list[Any]:
        reports: list[Any] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            reports.append((progress, total, message))

        await client.call_tool(name, {"to": 5}, progress_callback=report)
        return reports

    async with direct_client(mode) as client:
        expected = await collect(client, "count")
    async with gateway_client(mode, tmp_path) as client:
        assert await collect(client, "server__count") == expected
    assert expected[-1] == (5, 5, "at 5")


async def test_progress_of_our_own_tools_is_reported(mode: str):
    @tool
    async def steps() -> str:
        """Two steps."""
        from ferrule.core.call import report_progress

        report_progress(0.5, "half")
        report_progress(1.0, "all")
        return "done"

    reports: list[Any] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async with UnifiedToolLibrary() as library:
        library.register(steps)
        async with Client(McpServer(library).server(), mode=mode) as client:
            await client.call_tool("steps", {}, progress_callback=report)
    assert reports == [(0.5, 1.0, "half"), (1.0, 1.0, "all")]


async def test_tools_for_our_own_agents_are_not_offered(mode: str):
    async with UnifiedToolLibrary() as library:
        async with Client(McpServer(library).server(), mode=mode) as client:
            names = {each.name for each in (await client.list_tools()).tools}
            refused = await client.call_tool("echo", {"message": "x"})
            by_model_name = await client.call_tool("echo__echo", {"message": "x"})
        async with Client(McpServer(library, tools=["echo"]).server(), mode=mode) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["echo"]
    assert not names & {"echo", "finish_task", "ask_user", "get_conversation_history"} and "calculator" in names
    assert refused.is_error and by_model_name.is_error
