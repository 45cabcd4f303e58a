"""Requests of the older protocol of MCP, and an MCP server that counts."""

import itertools
import json
from typing import Any

import httpx

from tests.server.serving import Project

OLDER_HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2025-11-25",
    "connection": "close",  # so that the balancer chooses a server for each request
}
_IDS = itertools.count(1)
"""Of requests: a session must not have two with the same id at the same time."""
OPENING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def send(client: httpx.Client, method: str, params: dict[str, Any], session: str | None = None) -> httpx.Response:
    headers = OLDER_HEADERS | ({} if session is None else {"mcp-session-id": session})
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if not method.startswith("notifications/"):
        message["id"] = next(_IDS)
    return client.post("/mcp", json=message, headers=headers)


def open_session(client: httpx.Client) -> str:
    response = send(client, "initialize", OPENING)
    assert response.status_code == 200, response.text
    session = response.headers["mcp-session-id"]
    assert send(client, "notifications/initialized", {}, session).status_code == 202
    return str(session)


def read_result(response: httpx.Response) -> dict[str, Any]:
    """Of an answer that is a JSON document, or a stream of events."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"] == "application/json":
        return dict(response.json()["result"])
    (data,) = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return dict(json.loads(data)["result"])


COUNTER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("counter", log_level="ERROR")
count = 0

@server.tool()
def increment() -> str:
    \"\"\"Count one more.\"\"\"
    global count
    count += 1
    return f"count {count}"

server.run("stdio")
"""
WRITER = """
import asyncio
from pathlib import Path
from mcp.server.mcpserver import MCPServer

server = MCPServer("writer", log_level="ERROR")

@server.tool()
def write(path: str, text: str) -> str:
    \"\"\"Write a line.\"\"\"
    with open(path, "a") as file:
        file.write(text + "\\n")
    return "written"

@server.tool()
async def wait_for(path: str) -> str:
    \"\"\"Wait for a file.\"\"\"
    Path(path + ".started").touch()
    try:
        while not Path(path).exists():
            await asyncio.sleep(0.01)  # looks again
    except asyncio.CancelledError:
        Path(path + ".cancelled").touch()
        raise
    return "found"

server.run("stdio")
"""


def add_stateful_servers(project: Project, python: list[str], **programs: str) -> None:
    """Let the project have stateful MCP servers, each in one process for all servers of the project."""
    entries = {}
    for name, program in programs.items():
        script = project.folder / f"{name}.py"
        script.write_text(program)
        entries[name] = {"command": python[0], "args": [*python[1:], str(script)], "stateful": True, "trusted": True}
    (project.folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
