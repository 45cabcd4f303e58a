"""The benchmark `server`: a call through `ferrule serve`, beside a bare Starlette route and the MCP SDK's server.

    python -m benchmarks.server_calls ROUNDS [WORKLOAD as JSON]

Each server is a process of its own. A sample is the processor time that a server needs for each of some requests, which
a client sends as bytes over four connections that stay open.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from benchmarks.interface import Sample, SamplesByVariant, Workload
from benchmarks.server_process import MeasuredServer, find_free_port, make_project, run_server, serve_command
from benchmarks.timing import measure_alternately, print_rounds

REQUESTS_PER_SECOND = 2_000
"""Of one sample, times the seconds of the workload: it takes about as long."""
CONNECTIONS = 4
ARGUMENTS = {"a": 1, "b": 2}
OLDER, NEWER = "2025-11-25", "2026-07-28"


# The servers to compare with


def make_bare_app() -> Any:
    """What a handler in plain Starlette does for the same request."""
    import orjson
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def add(request: Request) -> Response:
        arguments = orjson.loads(await request.body())["arguments"]
        return Response(orjson.dumps({"result": arguments["a"] + arguments["b"]}), media_type="application/json")

    return Starlette(routes=[Route("/v1/tools/{name}/call", add, methods=["POST"])])


def make_sdk_app() -> Any:
    """The same tool on the server of the MCP SDK."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("adder", log_level="ERROR")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return server.streamable_http_app()


# Requests


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A request that a server is sent again and again."""

    server: MeasuredServer
    requests: list[bytes]
    """Of each connection: in a session, no two requests in progress have the same id."""


def make_request(server: MeasuredServer, path: str, body: Any, headers: dict[str, str] | None = None) -> bytes:
    content = json.dumps(body, separators=(",", ":")).encode()
    fields = {
        "Host": f"127.0.0.1:{server.port}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(content)),
        **(headers or {}),
    }
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + content


def make_plain_call(server: MeasuredServer) -> Variant:
    request = make_request(server, "/v1/tools/add/call", {"arguments": ARGUMENTS})
    return Variant(server=server, requests=[request] * CONNECTIONS)


def make_newer_call(server: MeasuredServer, tool: str = "add") -> Variant:
    """`tools/call` of the newer protocol, which has no sessions."""
    prefix = "io.modelcontextprotocol/"
    info = {"name": "bench", "version": "1"}
    meta = {f"{prefix}protocolVersion": NEWER, f"{prefix}clientInfo": info, f"{prefix}clientCapabilities": {}}
    params = {"name": tool, "arguments": ARGUMENTS, "_meta": meta}
    headers = {"Mcp-Protocol-Version": NEWER, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    return make_mcp_calls(server, params, headers)


async def open_session(server: MeasuredServer) -> str:
    connection = Connection(server.port)
    await connection.open()
    info = {"name": "bench", "version": "1"}
    params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": info}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    head, _ = await connection.send(make_request(server, "/mcp", body))
    session = head.lower().split(b"mcp-session-id:")[1].split(b"\r\n")[0].strip().decode()
    body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await connection.send(make_request(server, "/mcp", body, _session_headers(session)))
    connection.close()
    return session


def _session_headers(session: str) -> dict[str, str]:
    return {"Mcp-Session-Id": session, "Mcp-Protocol-Version": OLDER}


async def make_older_call(server: MeasuredServer) -> Variant:
    """`tools/call` in a session of the older protocol."""
    params = {"name": "add", "arguments": ARGUMENTS}
    return make_mcp_calls(server, params, _session_headers(await open_session(server)))


def make_mcp_calls(server: MeasuredServer, params: Any, headers: dict[str, str]) -> Variant:
    bodies = [
        {"jsonrpc": "2.0", "id": number + 2, "method": "tools/call", "params": params} for number in range(CONNECTIONS)
    ]
    return Variant(server=server, requests=[make_request(server, "/mcp", body, headers) for body in bodies])


class Connection:
    """A connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def send(self, request: bytes) -> tuple[bytes, bytes]:
        """The head and the body of the response."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")), head
        if b"transfer-encoding: chunked" not in head.lower():
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            return head, await self._reader.readexactly(length)
        body = b""
        while size := int((await self._reader.readuntil(b"\r\n")).strip(), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return head, body

    def close(self) -> None:
        self._writer.close()


async def cost_of(variant: Variant, requests: int) -> Sample:
    """Processor time of the server for each of some requests, in seconds."""
    connections = [Connection(variant.server.port) for _ in range(CONNECTIONS)]
    for connection in connections:
        await connection.open()
    numbers = iter(range(requests))

    async def work(connection: Connection, request: bytes) -> None:
        for _ in numbers:
            _, body = await connection.send(request)
            assert b"3" in body, body

    before, started_at = variant.server.processor_seconds(), time.perf_counter()
    await asyncio.gather(*map(work, connections, variant.requests))
    wall, cpu = time.perf_counter() - started_at, variant.server.processor_seconds() - before
    for connection in connections:
        connection.close()
    return {"cpu": cpu / requests, "wall": wall / requests}


async def measure_rounds(rounds: int, workload: Workload) -> list[SamplesByVariant]:
    requests = max(CONNECTIONS, int(REQUESTS_PER_SECOND * workload.seconds))
    with ExitStack() as stack:
        folder = make_project(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        bare, sdk = (
            _start(stack, folder, [sys.executable, "-m", "benchmarks.server_calls", "--serve", name]) for name in APPS
        )
        ferrule = _start(stack, folder, serve_command())
        variants = {
            "baseline: a bare Starlette route": make_plain_call(bare),
            "ferrule: POST /v1/tools/{name}/call": make_plain_call(ferrule),
            f"mcp SDK: tools/call {NEWER}": make_newer_call(sdk),
            f"ferrule: tools/call {NEWER}": make_newer_call(ferrule),
            f"mcp SDK: tools/call {OLDER}": await make_older_call(sdk),
            f"ferrule: tools/call {OLDER}": await make_older_call(ferrule),
        }
        for variant in variants.values():
            await cost_of(variant, 2 * requests)
        measures = {label: partial(cost_of, variant, requests) for label, variant in variants.items()}
        return await measure_alternately(measures, rounds, 3 * workload.samples)


def _start(stack: ExitStack, folder: Path, command: list[str]) -> MeasuredServer:
    port = find_free_port()
    return stack.enter_context(run_server([*command, "--port", str(port)], port, folder))


APPS = {"bare": make_bare_app, "sdk": make_sdk_app}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _, _, app, _, port = sys.argv
        uvicorn.run(APPS[app](), port=int(port), log_level="warning", access_log=False)
    else:
        print_rounds(measure_rounds)
