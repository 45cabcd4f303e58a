"""The cost of a call through the server, beside a bare Starlette route and the MCP SDK's server.

    python -m benchmarks.server_calls [--samples 40]

Each server is a process of its own. A sample is the processor time that a server needs for each of some requests; the
samples of all servers alternate, and the smallest of each counts, so that a busy machine changes the ratios little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from benchmarks.server_process import MeasuredServer, find_free_port, make_project, run_server, serve_command

REQUESTS = 200
"""Of one sample."""
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


async def cost_of(variant: Variant, requests: int) -> float:
    """Processor seconds of the server for each of some requests."""
    connections = [Connection(variant.server.port) for _ in range(CONNECTIONS)]
    for connection in connections:
        await connection.open()
    numbers = iter(range(requests))

    async def work(connection: Connection, request: bytes) -> None:
        for _ in numbers:
            _, body = await connection.send(request)
            assert b"3" in body, body

    before = variant.server.processor_seconds()
    await asyncio.gather(*map(work, connections, variant.requests))
    cost = (variant.server.processor_seconds() - before) / requests
    for connection in connections:
        connection.close()
    return cost


# The report


async def measure(bare: MeasuredServer, sdk: MeasuredServer, ferrule: MeasuredServer, samples: int) -> None:
    variants = {
        "a bare Starlette route": make_plain_call(bare),
        "POST /v1/tools/{name}/call": make_plain_call(ferrule),
        f"tools/call {NEWER}, the SDK's server": make_newer_call(sdk),
        f"tools/call {NEWER}": make_newer_call(ferrule),
        f"tools/call {OLDER}, the SDK's server": await make_older_call(sdk),
        f"tools/call {OLDER}": await make_older_call(ferrule),
    }
    costs = dict.fromkeys(variants, float("inf"))
    for variant in variants.values():
        await cost_of(variant, 2 * REQUESTS)
    for _ in range(samples):
        for name, variant in variants.items():
            costs[name] = min(costs[name], await cost_of(variant, REQUESTS))
    for name, cost in costs.items():
        print(f"{cost * 1e6:7.0f} µs  {name}")
    bare_cost, call, sdk_newer, newer, sdk_older, older = costs.values()
    report("a call, of the throughput of a bare route", bare_cost / call, "≥ 0.5", lambda ratio: ratio >= 0.5)
    for version, ratio in ((NEWER, sdk_newer / newer), (OLDER, sdk_older / older)):
        report(f"tools/call {version}, how many times lighter than the SDK's", ratio, "≥ 5", lambda ratio: ratio >= 5)


def report(text: str, value: float, goal: str, is_met: Callable[[float], bool]) -> None:
    print(f"{'met    ' if is_met(value) else 'NOT MET'} {text}: {value:.2f} (goal {goal})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40, help="how often each server is measured")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        name, port = options.serve
        app = {"bare": make_bare_app, "sdk": make_sdk_app}[name]()
        uvicorn.run(app, port=int(port), log_level="warning", access_log=False)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, ports = make_project(Path(name)), [find_free_port() for _ in range(3)]
        peer = [sys.executable, "-m", "benchmarks.server_calls", "--serve"]
        with (
            run_server([*peer, "bare", str(ports[0])], ports[0], folder) as bare,
            run_server([*peer, "sdk", str(ports[1])], ports[1], folder) as sdk,
            run_server(serve_command(ports[2]), ports[2], folder) as ferrule,
        ):
            asyncio.run(measure(bare, sdk, ferrule, options.samples))


if __name__ == "__main__":
    main()
