"""A call of a stdio MCP server through `ferrule serve`, beside the same call of the server itself.

    python -m benchmarks.server_gateway [--samples 30]

A figure is the processor time of all processes that take part: the client, the server, and for the way through Ferrule
also its process. The direct client is the SDK's; the one of Ferrule sends bytes over HTTP, because the SDK's client for
HTTP takes longer than everything else. The smallest of many samples counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.mcp_call import SERVER
from benchmarks.server_calls import ARGUMENTS, Connection, make_newer_call, report
from benchmarks.server_process import (
    MeasuredServer,
    find_free_port,
    make_project,
    processor_seconds,
    run_server,
    serve_command,
)

CALLS = 100
"""Of one sample."""


async def measure(server: MeasuredServer, samples: int) -> None:
    from mcp import Client, StdioServerParameters

    request = make_newer_call(server, "adder__add").requests[0]
    best = {"direct": float("inf"), "through Ferrule": float("inf")}
    connection = Connection(server.port)
    await connection.open()

    async def call_through() -> None:
        _, body = await connection.send(request)
        assert b'"isError":false' in body, body

    async with Client(StdioServerParameters(command=sys.executable, args=SERVER)) as client:

        async def call_directly() -> None:
            result = await client.call_tool("add", ARGUMENTS)
            assert not result.is_error, result

        for _ in range(samples):
            best["direct"] = min(best["direct"], await _cost_of(call_directly))
            best["through Ferrule"] = min(best["through Ferrule"], await _cost_of(call_through))
    connection.close()
    for name, seconds in best.items():
        print(f"{seconds * 1e6:7.0f} µs  {name}")
    ratio = best["through Ferrule"] / best["direct"]
    report("through the gateway to a stdio server, of the direct call", ratio, "≤ 1.15", lambda ratio: ratio <= 1.15)


async def _cost_of(call: Callable[[], Awaitable[None]]) -> float:
    """Processor seconds of all processes for each call."""
    before = processor_seconds(os.getpid(), with_children=True)
    for _ in range(CALLS):
        await call()
    return (processor_seconds(os.getpid(), with_children=True) - before) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=30, help="how often each way is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, port = make_project(Path(name)), find_free_port()
        entry = {"command": sys.executable, "args": SERVER}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"adder": entry}}))
        with run_server(serve_command(port), port, folder) as server:
            asyncio.run(measure(server, options.samples))


if __name__ == "__main__":
    main()
