"""Our tools through the SDK's own client, by both eras of the protocol."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

from ferrule import ToolEngine, UnifiedToolLibrary, tool
from ferrule.content import Image
from ferrule.server.mcp import McpFace
from ferrule.server.mcp_asking import ask_the_client
from ferrule.tools.conversation import conversation_tools


Answer = Callable[[Any], ElicitResult]


@pytest.fixture(params=["legacy", "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
    async with ToolEngine(on_elicit=ask_the_client) as engine, UnifiedToolLibrary(engine=engine) as library:
        library.register(*things, *conversation_tools(engine.store, engine.on_elicit))
        server = McpFace(library, tools=tools).server()
        async with Client(server, mode=mode, elicitation_callback=say if answer else None) as client:
            client.asked = asked  # type: ignore[attr-defined]
            yield client


async def test_tools_are_listed_with_schemas_and_hints(mode):
    async with connected(mode, add, delete) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
    assert {"add", "delete", "echo", "calculator"} <= set(listed)
    assert listed["add"].input_schema["properties"]["a"]["type"] == "integer"
    assert listed["add"].annotations.read_only_hint and listed["delete"].annotations.destructive_hint


async def test_a_call_gives_text_and_structure(mode):
    async with connected(mode, add) as client:
        done = await client.call_tool("add", {"a": 1, "b": 2})
    assert (done.is_error, done.content[0].text, done.structured_content) == (False, "3", {"result": 3})


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


async def test_only_what_is_offered_can_be_called(mode):
    async with connected(mode, add, delete, tools=["add"]) as client:
        assert [one.name for one in (await client.list_tools()).tools] == ["add"]
        refused = await client.call_tool("delete", {"path": "a"})
    assert refused.is_error and "not offered here" in refused.content[0].text


async def test_what_is_not_set_up_is_not_offered(mode):
    from ferrule.sources import tool_of

    unready = replace(tool_of(add), needs="a key: set KEY")
    async with connected(mode, unready) as client:
        assert "add" not in [one.name for one in (await client.list_tools()).tools]
        told = await client.call_tool("add", {"a": 1, "b": 2})
    assert told.is_error and "set KEY" in told.content[0].text


async def test_the_user_of_the_client_is_asked(mode):
    def blue(params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "blue"})

    async with connected(mode, answer=blue) as client:
        done = await client.call_tool("ask_user", {"question": "Which colour?", "options": ["red", "blue"]})
        assert client.asked[0].message == "Which colour?"
        assert client.asked[0].requested_schema["properties"]["answer"]["enum"] == ["red", "blue"]
    assert done.structured_content == {"answer": "blue"}


async def test_a_user_who_declines_or_is_not_there_is_told_to_the_model(mode):
    async with connected(mode, answer=lambda _: ElicitResult(action="decline")) as client:
        declined = await client.call_tool("ask_user", {"question": "Why?"})
    async with connected(mode, answer=lambda _: ElicitResult(action="cancel")) as client:
        cancelled = await client.call_tool("ask_user", {"question": "Why?"})
    async with connected(mode) as client:
        nobody = await client.call_tool("ask_user", {"question": "Why?"})
    assert declined.is_error and "does not want to answer" in declined.content[0].text
    assert cancelled.is_error and "did not answer" in cancelled.content[0].text
    assert nobody.is_error and "cannot ask its user" in nobody.content[0].text


async def test_a_call_that_is_given_up_is_ended(mode):
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def sleep() -> str:
        """Sleep."""
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return "slept"

    async with connected(mode, sleep) as client:
        calling = asyncio.create_task(client.call_tool("sleep", {}))
        await begun.wait()
        calling.cancel()
        await asyncio.wait_for(ended.wait(), 5)
        await asyncio.wait({calling})


def server(project: Path, *more: str) -> StdioServerParameters:
    """The command as clients start it."""
    config = ["--config", str(project / "ferrule.toml")]
    return StdioServerParameters(command=sys.executable, args=["-m", "ferrule", *config, "mcp", "serve", *more])


async def test_a_project_is_served_by_the_command(mode, tmp_path):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n[tools]\nworkspace = "."\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/noisy.py").write_text(
        'from ferrule import tool\n\n\n@tool\nasync def noisy() -> str:\n    """Prints."""\n'
        '    print("not part of the protocol")\n    return "done"\n'
    )
    async with Client(server(tmp_path), mode=mode) as client:
        names = [one.name for one in (await client.list_tools()).tools]
        done = await client.call_tool("noisy", {})
        written = await client.call_tool("file_processor__write", {"path": "a.txt", "content": "hi"})
    assert {"noisy", "calculator", "file_processor__read"} <= set(names)
    assert (
        done.structured_content == {"result": "done"}
        and not written.is_error
        and (tmp_path / "a.txt").read_text() == "hi"
    )


async def test_a_client_is_told_of_new_tools(tmp_path):
    (tmp_path / "ferrule.toml").write_text("[engine]\nwatch_for_changes = true\n")
    (tmp_path / "tools").mkdir()
    told = asyncio.Event()

    async def seen(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            told.set()

    async with Client(server(tmp_path), mode="legacy", message_handler=seen) as client:
        assert "late" not in [one.name for one in (await client.list_tools()).tools]
        (tmp_path / "tools/late.yaml").write_text(
            "name: late\ndescription: Comes late\nentry: {type: builtin, handler: echo}\n"
        )
        await asyncio.wait_for(told.wait(), 20)
        assert "late" in [one.name for one in (await client.list_tools()).tools]
