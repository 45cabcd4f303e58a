"""The benchmark `gateway`: a call of a stdio MCP server through `ferrule serve`, beside the call of the server itself.

    python -m benchmarks.server_gateway ROUNDS [WORKLOAD as JSON]

A figure is the processor time of all processes that take part: the client, the server, and for the way through Ferrule
also its process. The direct client is the SDK's; the one of Ferrule sends bytes over HTTP, because the SDK's client for
HTTP takes longer than everything else.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.interface import Sample, SamplesByVariant, Workload
from benchmarks.mcp_call import SERVER
from benchmarks.server_calls import ARGUMENTS, Connection, make_newer_call
from benchmarks.server_process import find_free_port, make_project, processor_seconds, run_server, serve_command
from benchmarks.timing import measure_alternately, print_rounds

CALLS_PER_SECOND = 500
"""Of one sample, times the seconds of the workload: it takes about as long."""


async def measure_rounds(rounds: int, workload: Workload) -> list[SamplesByVariant]:
    from mcp import Client, StdioServerParameters

    calls = max(1, int(CALLS_PER_SECOND * workload.seconds))
    with tempfile.TemporaryDirectory() as name:
        folder, port = make_project(Path(name)), find_free_port()
        entry = {"command": sys.executable, "args": SERVER}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"adder": entry}}))
        with run_server([*serve_command(), "--port", str(port)], port, folder) as server:
            request = make_newer_call(server, "adder__add").requests[0]
            connection = Connection(port)
            await connection.open()

            async def call_through() -> None:
                _, body = await connection.send(request)
                assert b'"isError":false' in body, body

            async with Client(StdioServerParameters(command=sys.executable, args=SERVER)) as client:

                async def call_directly() -> None:
                    result = await client.call_tool("add", ARGUMENTS)
                    assert not result.is_error, result

                ways = {"mcp SDK: the stdio server directly": call_directly, "ferrule: through /mcp": call_through}
                for call in ways.values():
                    await cost_of(call, 2 * calls)
                measures = {label: partial(cost_of, call, calls) for label, call in ways.items()}
                samples = await measure_alternately(measures, rounds, 3 * workload.samples)
            connection.close()
    return samples


async def cost_of(call: Callable[[], Awaitable[None]], calls: int) -> Sample:
    """Processor time of all processes for each call, in seconds."""
    before, started_at = processor_seconds(os.getpid(), with_children=True), time.perf_counter()
    for _ in range(calls):
        await call()
    wall, cpu = time.perf_counter() - started_at, processor_seconds(os.getpid(), with_children=True) - before
    return {"cpu": cpu / calls, "wall": wall / calls}


if __name__ == "__main__":
    print_rounds(measure_rounds)
