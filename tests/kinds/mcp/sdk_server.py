"""A real MCP server on the SDK: python sdk_server.py [stdio|http|sse|ws] [--port N] [--legacy]"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
from itertools import count as count_from
from pathlib import Path
from typing import Annotated, Any

from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

server = MCPServer("test-server", version="7.1", instructions="Use me in tests.", log_level="ERROR")
READ_ONLY = ToolAnnotations(read_only_hint=True)


class Name(BaseModel):
    name: str
    greeting: str = "Hello"


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
def environment(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "not set")


@server.tool()
def fail(message: str) -> str:
    raise ToolError(message)


@server.tool()
def pictures() -> CallToolResult:
    return CallToolResult(
        content=[
            TextContent(text="a dot"),
            ImageContent(data=base64.b64encode(b"png").decode(), mime_type="image/png"),
            AudioContent(data=base64.b64encode(b"wav").decode(), mime_type="audio/wav"),
            ResourceLink(uri="file:///notes.txt", name="notes", mime_type="text/plain"),
            EmbeddedResource(resource=TextResourceContents(uri="memo://1", text="remember", mime_type="text/plain")),
        ]
    )


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Count with progress."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return "done"


@server.tool()
def big(size: int) -> str:
    return "x" * size


@server.tool()
async def anything(value: Any) -> str:
    return repr(value)


@server.tool()
async def slow(note: str) -> str:
    """Wait, and note whether that was cancelled."""
    Path(note).write_text("started")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(note).write_text("cancelled")
        raise
    return "slept"


@server.tool()
async def report_forever(note: str, ctx: Context) -> str:
    """Report progress without an end, and note the cancellation."""
    try:
        for number in count_from(1):
            await ctx.report_progress(number)
            await asyncio.sleep(0.05)  # goes on for ever
    except asyncio.CancelledError:
        Path(note).write_text("cancelled")
        raise
    return "never"


@server.tool()
async def grow(ctx: Context) -> str:
    """Get one more action."""

    def grown() -> str:
        return "I am new"

    server.add_tool(grown)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


def ask_name() -> Elicit[Name]:
    return Elicit("Who are you?", Name)


@server.tool()
async def greet(who: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> str:
    """Ask for a name."""
    return f"{who.data.greeting} {who.data.name}" if who.action == "accept" else who.action


async def websocket(port: int) -> None:
    from anyio import create_memory_object_stream
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter
    from websockets.asyncio.server import ServerConnection, serve

    lowlevel = server._lowlevel_server

    async def session(connection: ServerConnection) -> None:
        to_server, read = create_memory_object_stream[Any](100)
        write, from_server = create_memory_object_stream[Any](100)

        async def receive() -> None:
            async with to_server:
                async for frame in connection:
                    await to_server.send(SessionMessage(jsonrpc_message_adapter.validate_json(frame)))

        async def send() -> None:
            async for message in from_server:
                await connection.send(message.message.model_dump_json(by_alias=True, exclude_unset=True))

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            group.create_task(send())
            await lowlevel.run(read, write, lowlevel.create_initialization_options())
            await write.aclose()

    async with serve(session, "127.0.0.1", port, subprotocols=["mcp"]):  # type: ignore[list-item]
        await asyncio.Event().wait()


if __name__ == "__main__":
    reader = argparse.ArgumentParser()
    reader.add_argument("kind", nargs="?", default="stdio")
    reader.add_argument("--port", type=int, default=0)
    reader.add_argument("--legacy", action="store_true", help="know nothing of the protocol of 2026")
    given = reader.parse_args()
    if given.legacy:
        del server._lowlevel_server._request_handlers["server/discover"]
    if given.kind == "ws":
        asyncio.run(websocket(given.port))
    elif given.kind == "stdio":
        server.run("stdio")
    elif given.kind == "sse":
        server.run("sse", port=given.port)
    else:
        server.run("streamable-http", port=given.port)
