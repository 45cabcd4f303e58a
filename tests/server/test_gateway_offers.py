"""What MCP servers offer besides tools, and what they ask, reaches the right client through Ferrule."""

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)
from pydantic import FileUrl

from ferrule import Policy, Rule, ToolEngine, ToolEngineConfig, UnifiedToolLibrary
from ferrule.server.mcp import McpServer, ask_client
from tests.server.test_gateway import as_json
from tests.support.processes import forwarded_python
from tests.support.waiting import until

pytestmark = pytest.mark.integration

SERVER = Path(__file__).with_name("conformance_server.py")
NOTES = """
import sys
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, ResourceLink, TextContent

server = MCPServer("notes", instructions="Notes.", log_level="ERROR")
texts = {"a": "first"}

@server.resource("note://a")
def note() -> str:
    return texts["a"]

@server.resource("test://static-text")
def same_address() -> str:
    return "of notes"

@server.resource("hidden://{name}")
def hidden(name: str) -> str:
    return "hidden " + name

@server.tool()
def link() -> CallToolResult:
    return CallToolResult(content=[ResourceLink(uri="hidden://x", name="x")], _meta={"vendor/key": {"n": None}})

@server.tool()
async def write(text: str, ctx: Context) -> str:
    texts["a"] = text
    await ctx.notify_resource_updated("note://a")
    return "written"

@server.tool()
async def meta(ctx: Context) -> str:
    return str((ctx.request_context.meta or {}).get("vendor/trace"))

@server.prompt()
def summary(topic: str) -> str:
    return "Summarize " + topic

server.run("stdio")
"""


@pytest.fixture(params=[pytest.param("legacy", marks=pytest.mark.long), "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@asynccontextmanager
async def gateway(
    folder: Path, *, notes: bool = False, is_discovered: bool = True, **options: Any
) -> AsyncIterator[Any]:
    """The server of the SDK in front of one or two servers, which have been listed if `is_discovered`."""
    config = ToolEngineConfig(tools_directory="none", builtin_tools=False, mcp_file=str(folder / "mcp.json"))
    library = UnifiedToolLibrary(engine=ToolEngine(config, on_elicit=ask_client))
    server = McpServer(library, **options)
    with forwarded_python() as python:
        entries = {"every": {"command": python[0], "args": [*python[1:], str(SERVER)]}}
        if notes:
            (folder / "notes.py").write_text(NOTES)
            entries["notes"] = {"command": python[0], "args": [*python[1:], str(folder / "notes.py")]}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
        async with library:
            if is_discovered:
                await library.engine.wait_for_discovery()
            yield server.server()
            await server.aclose()


async def test_resources_prompts_and_completions_are_those_of_the_server(mode: str, tmp_path: Path):
    async def collect(client: Client, prefix: str) -> dict[str, Any]:
        prompts = (await client.list_prompts()).prompts
        template = ResourceTemplateReference(uri="test://template/{id}/data")
        prompt = PromptReference(name=f"{prefix}test_prompt_with_arguments")
        name = f"{prefix}test_prompt_with_image"
        return {
            "resources": as_json(await client.list_resources()),
            "templates": as_json(await client.list_resource_templates()),
            "text": as_json(await client.read_resource("test://static-text")),
            "binary": as_json(await client.read_resource("test://static-binary")),
            "filled": as_json(await client.read_resource("test://template/7/data")),
            "prompts": {each.name.removeprefix(prefix): {**as_json(each), "name": ""} for each in prompts},
            "prompt": as_json(await client.get_prompt(name)),
            "completion": as_json(await client.complete(template, {"name": "id", "value": "1"})),
            "prompt completion": as_json(await client.complete(prompt, {"name": "arg1", "value": "x"})),
        }

    with forwarded_python() as python:
        direct = stdio_client(StdioServerParameters(command=python[0], args=[*python[1:], str(SERVER)]))
        async with Client(direct, mode=mode) as client:
            expected = await collect(client, "")
            with pytest.raises(MCPError) as missing:
                await client.read_resource("test://nothing")
    async with gateway(tmp_path) as server, Client(server, mode=mode) as client:
        assert await collect(client, "every__") == expected
        if mode == "legacy":  # the other client asks for no instructions
            assert client.instructions == "For the conformance suite."
        with pytest.raises(MCPError) as missing_here:
            await client.read_resource("test://nothing")
    assert missing_here.value.error == missing.value.error


@pytest.mark.parametrize("request_kind", ["prompt", "completion", "resource", "list"])
async def test_the_first_request_waits_for_a_server_that_is_being_started(request_kind: str, tmp_path: Path):
    prompt = PromptReference(name="every__test_prompt_with_arguments")
    async with gateway(tmp_path, is_discovered=False) as server, Client(server, mode="legacy") as client:
        if request_kind == "prompt":
            assert (await client.get_prompt("every__test_prompt_with_image")).messages
        elif request_kind == "completion":
            completed = await client.complete(prompt, {"name": "arg1", "value": "x"})
            assert completed.completion.values == ["x1", "x2"]
        elif request_kind == "resource":
            assert (await client.read_resource("test://static-text")).contents
        else:
            assert (await client.list_resource_templates()).resource_templates


async def test_several_servers_are_told_apart(mode: str, tmp_path: Path):
    deny = Policy(rules=[Rule(verdict="deny", tool="notes__prompts")])
    async with gateway(tmp_path, notes=True, policy=deny) as server, Client(server, mode=mode) as client:
        addresses = [str(each.uri) for each in (await client.list_resources()).resources]
        assert {"note://a", "test://static-text", "notes+test://static-text"} <= set(addresses)
        read: Any = await client.read_resource("notes+test://static-text")
        assert (read.contents[0].text, str(read.contents[0].uri)) == ("of notes", "notes+test://static-text")
        result = await client.call_tool("notes__link", {})
        assert as_json(result)["_meta"]["vendor/key"] == {"n": None}
        linked: Any = await client.read_resource(result.content[0].uri)  # type: ignore[union-attr]
        assert linked.contents[0].text == "hidden x"
        assert not any(each.name.startswith("notes") for each in (await client.list_prompts()).prompts)
        with pytest.raises(MCPError, match="no prompt 'notes__summary'"):
            await client.get_prompt("notes__summary", {"topic": "x"})
        passed: Any = await client.call_tool("notes__meta", {}, meta={"vendor/trace": "t1"})  # type: ignore[arg-type]
        assert passed.content[0].text == "t1"


async def test_changes_of_a_resource_reach_who_subscribed(tmp_path: Path):
    heard: list[str] = []

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            heard.append(str(message.params.uri))

    async with (
        gateway(tmp_path, notes=True) as server,
        Client(server, mode="2026-07-28") as newer,
        Client(server, mode="legacy", message_handler=hear) as older,
        Client(server, mode="legacy", message_handler=hear) as other,
    ):
        async with newer.listen(resource_subscriptions=["note://a"]) as changes:
            await newer.call_tool("notes__write", {"text": "second"})
            assert (await anext(aiter(changes))).uri == "note://a"  # type: ignore[union-attr]
        await other.list_tools()
        assert not heard  # nobody of the older protocol has subscribed
        read: Any = await older.read_resource("note://a")
        assert read.contents[0].text in ("first", "second")


@pytest.mark.parametrize("asker", ["elicitation", "sampling"])
async def test_what_a_server_asks_reaches_the_client_that_called(mode: str, tmp_path: Path, asker: str):
    def answers(name: str) -> dict[str, Any]:
        async def elicit(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action="accept", content={"name": name, "response": name})

        async def sample(context: Any, params: Any) -> CreateMessageResult:
            return CreateMessageResult(role="assistant", content=TextContent(text=name), model="test")

        async def roots(context: Any) -> ListRootsResult:
            return ListRootsResult(roots=[Root(uri=FileUrl("file:///x"))])

        return {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}

    tool = {
        ("elicitation", "legacy"): ("every__test_elicitation", {"message": "Who?"}),
        ("sampling", "legacy"): ("every__test_sampling", {"prompt": "Who?"}),
        ("elicitation", "2026-07-28"): ("every__test_input_required_result_elicitation", {}),
        ("sampling", "2026-07-28"): ("every__test_input_required_result_sampling", {}),
    }[asker, mode]
    async with (
        gateway(tmp_path) as server,
        Client(server, mode=mode, **answers("Ada")) as ada,
        Client(server, mode=mode, **answers("Bob")) as bob,
        Client(server, mode=mode) as nobody,
    ):
        for client, name in ((ada, "Ada"), (bob, "Bob")):
            assert name in str((await client.call_tool(*tool)).content)
        refused = await _call_or_error(nobody, *tool)
        assert "Ada" not in refused and "Bob" not in refused
        if mode == "2026-07-28":
            both = await asyncio.gather(ada.call_tool(*tool), bob.call_tool(*tool))
            assert ["Ada" in str(both[0].content), "Bob" in str(both[1].content)] == [True, True]


async def _call_or_error(client: Client, name: str, arguments: dict[str, Any]) -> str:
    try:
        return str(await client.call_tool(name, arguments))
    except (MCPError, ExceptionGroup) as error:
        return str(error)


async def test_log_messages_reach_the_client_that_wants_them(mode: str, tmp_path: Path):
    logs: dict[str, list[Any]] = {"wanted": [], "other": []}

    def collect(name: str) -> Any:
        async def log(params: Any) -> None:
            logs[name].append(params.data)

        return log

    options: dict[str, Any] = {"log_level": "info"} if mode != "legacy" else {}
    async with (
        gateway(tmp_path) as server,
        Client(server, mode=mode, logging_callback=collect("wanted"), **options) as client,
        Client(server, mode=mode, logging_callback=collect("other")) as other,
    ):
        if mode == "legacy":
            with warnings.catch_warnings(action="ignore"):  # the newer protocol has no such request
                await client.set_logging_level("info")
                await other.set_logging_level("error")
        await client.call_tool("every__test_tool_with_logging", {})
        await until(lambda: len(logs["wanted"]) == 3)
        await other.call_tool("every__test_tool_with_logging", {})
    assert logs == {
        "wanted": ["Tool execution started", "Tool processing data", "Tool execution completed"],
        "other": [],
    }


async def test_a_rule_that_asks_is_answered_by_the_user_of_the_client(mode: str, tmp_path: Path):
    questions: list[str] = []
    answers: list[Any] = [{"allow": True}, {"allow": False}]

    async def decide(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content=answers.pop(0))

    ask = Policy(rules=[Rule(verdict="ask", tool="every__test_simple_text")])
    async with gateway(tmp_path, policy=ask) as server:
        async with Client(server, mode=mode, elicitation_callback=decide) as client:
            allowed: Any = await client.call_tool("every__test_simple_text", {})
            refused: Any = await client.call_tool("every__test_simple_text", {})
        async with Client(server, mode=mode) as silent:
            waiting: Any = await silent.call_tool("every__test_simple_text", {})
    assert allowed.content[0].text == "This is a simple text response for testing."
    assert refused.is_error and "refused" in refused.content[0].text
    assert waiting.is_error and "approv" in waiting.content[0].text
    assert len(questions) == 2 and "every__test_simple_text" in questions[0]


async def test_tools_can_be_searched_and_called_instead_of_listed(mode: str, tmp_path: Path):
    async with gateway(tmp_path, search=True, plain_names=True) as server, Client(server, mode=mode) as client:
        assert [each.name for each in (await client.list_tools()).tools] == ["search_tools", "call_tool"]
        found: Any = await client.call_tool("search_tools", {"query": "image content"})
        assert "test_image_content" in [each["name"] for each in found.structured_content["tools"]]
        called: Any = await client.call_tool("call_tool", {"name": "test_image_content"})
        assert called.content[0].type == "image"
        wrong: Any = await client.call_tool("call_tool", {})
        assert wrong.is_error and '"name"' in wrong.content[0].text


async def test_reading_and_prompts_are_calls_with_rules_and_records(mode: str, tmp_path: Path):
    rules = [
        Rule(verdict="deny", tool="every__resources", arguments={"uri": "test://static-binary"}, reason="Not this."),
        Rule(verdict="ask", tool="every__prompts", reason="A person decides."),
    ]

    async def allow(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"allow": True})

    async with gateway(tmp_path, policy=Policy(rules=rules)) as server:
        async with Client(server, mode=mode, elicitation_callback=allow) as client:
            await client.read_resource("test://static-text")
            with pytest.raises(MCPError, match=r"Not this\."):
                await client.read_resource("test://static-binary")
            with pytest.raises(MCPError):
                await client.read_resource("test://nothing")
            await client.get_prompt("every__test_simple_prompt")  # which the user allows
        async with Client(server, mode=mode) as client:
            with pytest.raises(MCPError, match="approv"):
                await client.get_prompt("every__test_simple_prompt")
        records = await server.resources_and_prompts._library.engine.store.query_call_records(tool_name="every")
    outcomes = [(each.action, each.status, each.error_type) for each in reversed(records)]
    assert outcomes == [
        ("resources", "success", None),
        ("resources", "failed", "permission_denied"),
        ("resources", "failed", "execution_error"),
        ("prompts", "cancelled", "approval_required"),
        ("prompts", "success", None),
        ("prompts", "cancelled", "approval_required"),
    ]
    assert records[-1].params == {"uri": "test://static-text"} and records[-1].principal == "client:mcp"


FOLDERS = """
import asyncio, json, sys

allowed = ["/configured"]

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

def schema(name):
    return {"name": name, "description": name, "inputSchema": {"type": "object", "properties": {}}}

tools = ["show"]
for line in sys.stdin:
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if method == "initialize":
        abilities = message["params"]["capabilities"]
        tools += sorted(abilities)
        info = {"name": "folders", "version": "1"}
        offers = {"tools": {"listChanged": True}}
        send({"id": key, "result": {"protocolVersion": "2025-06-18", "capabilities": offers, "serverInfo": info}})
    elif method in ("notifications/initialized", "notifications/roots/list_changed"):
        send({"id": "roots", "method": "roots/list"})
    elif key == "roots" and "result" in message:
        allowed = [root["uri"] for root in message["result"]["roots"]]
    elif method == "tools/list":
        send({"id": key, "result": {"tools": [schema(name) for name in tools]}})
    elif method == "tools/call":
        if message["params"]["name"] == "show":
            tools.append("another")
            send({"method": "notifications/tools/list_changed"})
        send({"id": key, "result": {"content": [{"type": "text", "text": json.dumps(allowed)}]}})
    elif key is not None and method:
        send({"id": key, "error": {"code": -32601, "message": "no such method"}})
"""


def write_folder_server(folder: Path, python: list[str]) -> ToolEngineConfig:
    """Write a server of the older protocol that asks for folders outside of calls, and its mcp.json."""
    (folder / "folders.py").write_text(FOLDERS)
    entry = {"command": python[0], "args": [*python[1:], str(folder / "folders.py")], "trusted": True}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"folders": entry}}))
    return ToolEngineConfig(tools_directory="none", builtin_tools=False, mcp_file=str(folder / "mcp.json"))


@asynccontextmanager
async def folder_gateway(folder: Path) -> AsyncIterator[Any]:
    """A gateway before that server."""
    with forwarded_python() as python:
        config = write_folder_server(folder, python)
        library = UnifiedToolLibrary(engine=ToolEngine(config, on_elicit=ask_client))
        server = McpServer(library, plain_names=True)
        async with library:
            await library.engine.wait_for_discovery()
            yield server.server()
            await server.aclose()


async def show(client: Client) -> Any:
    content: Any = (await client.call_tool("show", {})).content[0]
    return json.loads(content.text)


async def test_a_server_that_asks_for_folders_outside_a_call_gets_those_of_the_local_client(tmp_path: Path):
    folders = ["file:///one"]

    async def list_roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl(each)) for each in folders])

    async with folder_gateway(tmp_path) as server:
        async with Client(server, mode="legacy") as client:
            assert await show(client) == ["/configured"], "this client names no folders"
        async with Client(server, mode="legacy", list_roots_callback=list_roots) as client:
            while await show(client) != ["file:///one"]:
                continue
            folders[:] = ["file:///two"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the newest protocol has no such notification
                await client.session.send_roots_list_changed()
            while await show(client) != ["file:///two"]:
                continue


async def test_new_tools_of_a_server_reach_clients_of_both_protocols(tmp_path: Path):
    heard = list[str]()

    async def hear(message: Any) -> None:
        heard.append(getattr(message, "method", ""))

    async with (
        folder_gateway(tmp_path) as server,
        Client(server, mode="2026-07-28") as newer,
        Client(server, mode="legacy", message_handler=hear) as older,
        newer.listen(tools_list_changed=True) as changes,
    ):
        await show(older)
        change = await anext(aiter(changes))
        assert "ToolsListChanged" in type(change).__name__, change
        await until(lambda: "notifications/tools/list_changed" in heard)
        for client in (newer, older):
            assert "another" in {tool.name for tool in (await client.list_tools()).tools}


async def test_a_server_is_listed_with_what_the_gateway_can_pass_on_whoever_listed_it_before(tmp_path: Path):
    config = write_folder_server(tmp_path, [sys.executable])
    async with UnifiedToolLibrary(config) as library:
        await library.engine.wait_for_discovery()
        tool = library.engine.registry.get("folders")
        assert tool is not None and [each.name for each in tool.spec.capabilities] == ["show"]
    library = UnifiedToolLibrary(engine=ToolEngine(config, on_elicit=ask_client))
    server = McpServer(library, plain_names=True)
    async with library, Client(server.server(), mode="legacy") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"show", "elicitation", "roots", "sampling"}
        await server.aclose()
