"""Our tools through the SDK's own client, by both eras of the protocol."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import ElicitResult, Implementation, ListRootsResult

from ferrule import MCPServerSpec, SetupError, ToolEngine, ToolEngineConfig, UnifiedToolLibrary, serve_stdio, tool
from ferrule.agent.control_tools import conversation_tools
from ferrule.core.content import Image
from ferrule.kinds.function.tools import tool_of
from ferrule.server.mcp import McpServer, ask_client
from tests.kinds.mcp.mcp_servers import SDK_SERVER
from tests.support.processes import forwarded_python, run_python

Answer = Callable[[Any], ElicitResult]


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool
async def broken() -> str:
    """Never works."""
    raise RuntimeError("it is broken")


@asynccontextmanager
async def connected(mode: str, *things: Any, tools: Any = None, answer: Answer | None = None) -> AsyncIterator[Any]:
    """A client of a library with these tools, whose user gives this answer."""

    async def say(context: Any, params: Any) -> ElicitResult:
        asked.append(params)
        assert answer is not None
        return answer(params)

    asked: list[Any] = []
    async with ToolEngine(on_elicit=ask_client) as engine, UnifiedToolLibrary(engine=engine) as library:
        library.register(*things, *conversation_tools(engine.store, engine.on_elicit))
        server = McpServer(library, tools=tools)
        async with Client(server.server(), mode=mode, elicitation_callback=say if answer else None) as client:
            client.asked = asked  # type: ignore[attr-defined]
            yield client
        await server.aclose()  # with the calls that still wait for answers


async def test_tools_are_listed_with_schemas_and_hints_that_all_tools_of_a_name_promise(mode):
    @tool(name="add", destructive=True)
    async def subtract(a: int, b: int) -> int:
        """Also called add."""
        return a - b

    async with connected(mode, add, replace(tool_of(subtract), source="mcps"), delete, broken) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
    assert listed["add"].input_schema["properties"]["a"]["type"] == "integer" and "calculator" in listed
    hints = {
        name: (listed[name].annotations.read_only_hint, listed[name].annotations.destructive_hint)
        for name in ("add", "delete", "broken")
    }
    assert hints["add"] == (None, True) and hints["delete"][1] and hints["broken"] == (None, None)
    async with connected(mode, add) as client:
        [alone] = [one for one in (await client.list_tools()).tools if one.name == "add"]
    assert alone.annotations.read_only_hint


async def test_failures_are_for_the_model_to_read(mode):
    async with connected(mode, add, broken) as client:
        wrong = await client.call_tool("add", {"a": "x", "b": 2})
        failed = await client.call_tool("broken", {})
        unknown = await client.call_tool("ad", {})
    assert wrong.is_error and "a: must be a whole number" in wrong.content[0].text
    assert failed.is_error and "it is broken" in failed.content[0].text
    assert unknown.is_error and "Did you mean 'add'?" in unknown.content[0].text


async def test_pictures_arrive(mode):
    @tool(read_only=True)
    async def paint() -> Image:
        """Paint."""
        return Image(data=b"\x89PNG")

    async with connected(mode, paint) as client:
        done = await client.call_tool("paint", {})
    assert done.content[0].type == "image" and done.content[0].mime_type == "image/png"


async def test_a_tool_is_called_and_no_action_that_has_its_name(mode):
    class Stranger:
        """Two actions, one of which is called like a tool."""

        async def add(self, a: int, b: int) -> str:
            """Add, it says."""
            return "stolen"

        async def other(self) -> str:
            """Something else."""
            return "other"

    @tool(name="add", read_only=True)
    async def down(a: int, b: int) -> int:
        """Add two numbers."""
        raise RuntimeError("it is down")

    async with connected(mode, down, Stranger()) as client:
        done = await client.call_tool("add", {"a": 1, "b": 2})
    assert done.is_error and "it is down" in done.content[0].text


@pytest.mark.parametrize("memory", [False, True])
async def test_a_client_is_not_refused_what_failed_for_another_nor_without_a_memory_for_itself(mode, memory):
    @tool(read_only=True)
    async def look(path: str) -> str:
        """Look at a file."""
        if not there:
            raise RuntimeError("there is no such file")
        return "found"

    there: list[str] = []
    async with ToolEngine() as engine, UnifiedToolLibrary(engine=engine) as library:
        library.register(look)
        server = McpServer(library, memory=memory).server()
        async with Client(server, mode=mode) as first, Client(server, mode=mode) as second:
            assert (await first.call_tool("look", {"path": "a"})).is_error
            there.append("a")
            assert not (await second.call_tool("look", {"path": "a"})).is_error
            assert memory or not (await first.call_tool("look", {"path": "a"})).is_error


async def test_what_is_not_set_up_is_not_offered(mode):
    unready = replace(tool_of(add), needs="a key: set KEY")
    async with connected(mode, unready) as client:
        assert "add" not in [one.name for one in (await client.list_tools()).tools]
        told = await client.call_tool("add", {"a": 1, "b": 2})
    assert told.is_error and "set KEY" in told.content[0].text


def always(answer: ElicitResult) -> Answer:
    return lambda params: answer


ASKING = ["ask_user"]
"""A tool that is offered only where it is named."""


async def test_the_user_of_the_client_is_asked_and_the_model_is_told_of_no_answer(mode):
    question = {"question": "Which colour?", "options": ["red", "blue"]}
    answers = {
        "blue": ElicitResult(action="accept", content={"answer": "blue"}),
        "does not want to answer": ElicitResult(action="decline"),
        "did not answer": ElicitResult(action="cancel"),
    }
    for text, answer in answers.items():
        async with connected(mode, tools=ASKING, answer=always(answer)) as client:
            done = await client.call_tool("ask_user", question)
            assert client.asked[0].message == "Which colour?"
            assert client.asked[0].requested_schema["properties"]["answer"]["enum"] == ["red", "blue"]
        assert text in done.content[0].text and done.is_error is (text != "blue")
    async with connected(mode, tools=ASKING) as client:
        nobody = await client.call_tool("ask_user", question)
    assert nobody.is_error and "cannot ask its user" in nobody.content[0].text


async def test_a_question_without_a_fitting_answer_is_asked_again():
    async with connected("2026-07-28", tools=ASKING, answer=lambda _: ElicitResult(action="accept")) as client:
        asked = await client.session.call_tool("ask_user", {"question": "Why?"}, allow_input_required=True)
        answers = {"question": ListRootsResult(roots=[])}
        again = await client.session.call_tool(
            "ask_user",
            {"question": "Why?"},
            input_responses=answers,
            request_state=asked.request_state,
            allow_input_required=True,
        )
        assert again.input_requests == asked.input_requests and again.request_state != asked.request_state
        for question, state in (("Why?", asked.request_state), ("Who?", again.request_state)):
            with pytest.raises(MCPError, match="does not wait for an answer"):
                await client.session.call_tool("ask_user", {"question": question}, request_state=state)


SERVER = Path(__file__).parents[1] / "kinds" / "mcp" / "sdk_server.py"


@asynccontextmanager
async def before_an_older_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A library with the tools of a server that asks by the older protocol."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    config = ToolEngineConfig(mcp_file=str(folder / "mcp.json"))
    with forwarded_python() as python:
        entry = {"command": python[0], "args": [*python[1:], str(SERVER), "stdio", "--legacy"]}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"older": entry}}))
        async with ToolEngine(config, on_elicit=ask_client) as engine, UnifiedToolLibrary(engine=engine) as library:
            await engine.wait_for_discovery()
            yield McpServer(library).server()


@pytest.mark.integration
async def test_what_older_servers_ask_is_asked_of_the_client_that_called(mode, tmp_path, monkeypatch):
    def user(name: str) -> Any:
        async def say(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action="accept", content={"name": name})

        return say

    async with (
        before_an_older_server(tmp_path, monkeypatch) as server,
        Client(server, mode=mode, elicitation_callback=user("Ada")) as first,
        Client(server, mode=mode, elicitation_callback=user("Bob")) as second,
    ):
        greeted: list[Any] = [await client.call_tool("older__greet", {}) for client in (first, second, first)]
    assert [one.content[0].text for one in greeted] == ["Hello Ada", "Hello Bob", "Hello Ada"]


@pytest.mark.integration
async def test_a_question_ends_with_its_call(tmp_path, monkeypatch):
    asked = asyncio.Event()
    answers = [asyncio.Event(), asyncio.Event()]
    answers[1].set()

    async def say(context: Any, params: Any) -> ElicitResult:
        asked.set()
        await answers.pop(0).wait()
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with (
        before_an_older_server(tmp_path, monkeypatch) as server,
        Client(server, mode="legacy", elicitation_callback=say) as client,
    ):
        calling = asyncio.create_task(client.call_tool("older__greet", {}))
        await asked.wait()
        calling.cancel()
        await asyncio.wait({calling})
        done: Any = await asyncio.wait_for(client.call_tool("older__greet", {}), 60)
    assert done.content[0].text == "Hello Ada"


async def test_a_call_that_is_given_up_is_ended(mode):
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def sleep() -> str:
        """Sleep."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "slept"

    async with connected(mode, sleep) as client:
        calling = asyncio.create_task(client.call_tool("sleep", {}))
        await begun.wait()
        calling.cancel()
        await asyncio.wait_for(ended.wait(), 60)
        await asyncio.wait({calling})
    assert calling.cancelled()


@pytest.fixture(scope="module")
def python() -> Iterator[list[str]]:
    with forwarded_python() as command:
        yield command


def server(python: list[str], project: Path, *more: str) -> StdioServerParameters:
    """The command as clients start it."""
    config = ["--config", str(project / "ferrule.toml")]
    own = {"XDG_STATE_HOME": str(project / "state")}
    arguments = [*python[1:], "-m", "ferrule", *config, "mcp", "serve", *more]
    return StdioServerParameters(command=python[0], args=arguments, env=own)


@pytest.mark.integration
async def test_a_project_is_served_by_the_command(mode, tmp_path, python):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n[tools]\nworkspace = "."\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/noisy.py").write_text(
        'from ferrule import tool\n\n\n@tool\nasync def noisy() -> str:\n    """Prints."""\n'
        '    print("not part of the protocol")\n    return "done"\n'
    )
    async with Client(server(python, tmp_path, "--bundled"), mode=mode) as client:
        names = [one.name for one in (await client.list_tools()).tools]
        done = await client.call_tool("noisy", {})
        written = await client.call_tool("file_processor__write", {"path": "a.txt", "content": "hi"})
    assert {"noisy", "calculator", "file_processor__read"} <= set(names)
    assert (
        done.structured_content == {"result": "done"}
        and not written.is_error
        and (tmp_path / "a.txt").read_text() == "hi"
    )


@pytest.mark.integration
async def test_the_command_offers_what_the_project_names_under_plain_names_where_they_are_unique(tmp_path, python):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n[tools.python_executor]\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/own.py").write_text(
        'from ferrule import tool\n\n\n@tool\nasync def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n'
    )
    entry = {"command": python[0], "args": [*python[1:], str(SDK_SERVER)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"sdk": entry}}))
    async with Client(server(python, tmp_path)) as client:
        names = {one.name for one in (await client.list_tools()).tools}
        assert {"add", "sdk__add", "count", "python_executor"} <= names and "calculator" not in names, names
        for name in ("count", "sdk__count"):
            assert not (await client.call_tool(name, {"to": 1})).is_error
        assert (await client.call_tool("calculator", {"expression": "1 + 1"})).is_error, (
            "what is not listed is not called"
        )
    async with Client(server(python, tmp_path, "--server-names", "--tool", "calculator")) as client:
        assert [one.name for one in (await client.list_tools()).tools] == ["calculator"]


@pytest.mark.integration
@pytest.mark.parametrize("options", [[], ["--memory"]])
async def test_only_with_a_memory_the_command_refuses_what_failed(tmp_path, options, python):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/look.py").write_text(
        "from pathlib import Path\nfrom ferrule import tool\n\n\n@tool(read_only=True)\n"
        "async def look(path: str) -> str:\n"
        '    """Look at a file."""\n    if not Path(path).exists():\n        raise RuntimeError("no such file")\n'
        '    return "found"\n'
    )
    path = str(tmp_path / "later.txt")
    async with Client(server(python, tmp_path, *options)) as client:
        assert (await client.call_tool("look", {"path": path})).is_error
        Path(path).touch()
        again = await client.call_tool("look", {"path": path})
    assert again.is_error == bool(options)
    assert ("was not made again" if options else "found") in str(again.content)


@pytest.mark.integration
async def test_an_approval_is_for_the_same_call_also_after_the_client_has_started_again(mode, tmp_path, python):
    (tmp_path / "ferrule.toml").write_text(
        '[store]\nurl = "sqlite:///calls.db"\n[[policy.rules]]\nverdict = "ask"\ntool = "wipe"\n'
    )
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/wipe.py").write_text(
        "from ferrule import tool\n\n\n@tool(destructive=True)\nasync def wipe(path: str) -> str:\n"
        '    """Wipe a file."""\n    return "wiped " + path\n'
    )

    async def call(path: str, name: str = "editor", folder: Path = tmp_path) -> str:
        process = server(python, tmp_path).model_copy(update={"cwd": str(folder)})
        async with Client(process, mode=mode, client_info=Implementation(name=name, version="1")) as client:
            result: Any = await client.call_tool("wipe", {"path": path})
            return str(result.content[0].text)

    (tmp_path / "other").mkdir()
    asked = await call("a")
    assert "Then make the same call again." in asked, asked
    [approval_id] = re.findall(r"approvals approve (\w+)", asked)
    config = ["--config", str(tmp_path / "ferrule.toml")]
    options: Any = {"cwd": tmp_path, "env": {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}}
    decided = await asyncio.to_thread(
        run_python, "-m", "ferrule", *config, "approvals", "approve", approval_id, **options
    )
    assert "when client:mcp makes the same call again" in decided.stdout, decided
    assert "runs resume" not in decided.stdout and "in the run" not in decided.stdout
    assert "approve it first" in await call("b")  # other arguments
    assert "approve it first" in await call("a", name="chat")  # another client
    assert "approve it first" in await call("a", folder=tmp_path / "other")  # in another project
    assert await call("a") == "wiped a"
    assert "approve it first" in await call("a")  # it is used


@pytest.mark.integration
async def test_no_answer_ends_the_server(mode, tmp_path, python):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/odd.py").write_text(
        'from ferrule import Resource, tool\n\n\n@tool\nasync def odd(how: int) -> object:\n    """Odd \\ud800."""\n'
        "    if how == 3:\n        raise ValueError('\\ud800')\n"
        "    deep = 1\n    for _ in range(900):\n        deep = [deep]\n"
        "    return ['\\ud800', deep, Resource(uri='\\ud800', text='\\ud800')][how]\n"
    )
    async with Client(server(python, tmp_path), mode=mode) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        done: list[Any] = [await client.call_tool("odd", {"how": how}) for how in range(4)]
    assert listed["odd"].description == "Odd ?." and done[0].content[0].text == "?"
    assert "…" in done[1].content[0].text and done[2].content[0].resource.text == "?" and done[3].is_error


@pytest.mark.integration
async def test_a_client_is_told_of_new_tools(tmp_path, python):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n[engine]\nwatch_for_changes = true\n')
    (tmp_path / "tools").mkdir()
    told = asyncio.Event()

    async def seen(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            told.set()

    async with Client(server(python, tmp_path), mode="legacy", message_handler=seen) as client:
        assert "late" not in [one.name for one in (await client.list_tools()).tools]
        (tmp_path / "tools/late.yaml").write_text(
            "name: late\ndescription: Comes late\nentry: {type: builtin, handler: echo}\n"
        )
        await asyncio.wait_for(told.wait(), 60)
        assert "late" in [one.name for one in (await client.list_tools()).tools]


@pytest.mark.integration
async def test_a_line_without_end_takes_no_memory_without_end_and_the_next_message_is_answered(tmp_path):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n')
    command = server([sys.executable], tmp_path)
    process = await asyncio.create_subprocess_exec(
        command.command,
        *command.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=2**20,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        for _ in range(300):
            process.stdin.write(b"x" * 2**20)
            await process.stdin.drain()
        info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": info}
        process.stdin.write(b"\n" + json.dumps(message).encode() + b"\n")
        await process.stdin.drain()
        replies = [json.loads(await process.stdout.readline())]
        while replies[-1].get("id") != 7:
            replies.append(json.loads(await process.stdout.readline()))
        status = Path(f"/proc/{process.pid}/status")
        if status.exists():
            [peak] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
            assert int(peak.split()[1]) < 500_000, f"{peak}: 300 MB were sent without a line break"
    finally:
        process.kill()
        await process.wait()


# A program that serves its own functions

OWN_SERVER = """
from ferrule import serve_stdio

def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    print("to standard output")
    return a + b

async def greet(name: str) -> str:
    \"\"\"Greet somebody.\"\"\"
    return f"Hello {name}."

serve_stdio([add, greet])
"""


@pytest.mark.integration
async def test_a_program_serves_its_own_functions_in_one_line(tmp_path: Path):
    (tmp_path / "server.py").write_text(OWN_SERVER)
    config = {"command": sys.executable, "args": ["server.py"], "cwd": str(tmp_path)}
    server = MCPServerSpec(tool_id="own", server_config=config)
    async with UnifiedToolLibrary() as library:
        assert (await library.register_mcp_server(server)).success
        spec = await library.get_tool_by_id("own")
        assert spec is not None and sorted(action.name for action in spec.capabilities) == ["add", "greet"]
        assert (await library.execute_tool("own", "add", {"a": 1, "b": 2})).value == 3
        assert (await library.execute_tool("own", "greet", {"name": "Ann"})).text == "Hello Ann."


def test_a_single_function_instead_of_a_list_is_explained():
    with pytest.raises(SetupError, match=r"takes a list of tools: write serve_stdio\(\[print\]\)"):
        serve_stdio(print)  # type: ignore[arg-type]
