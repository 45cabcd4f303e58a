"""The benchmark `mcp`: a call of an MCP server over stdio by Ferrule, by the SDK's client and as a bare JSON-RPC line.

    python -m benchmarks.mcp_call ROUNDS [WORKLOAD as JSON]

All are measured alternately in one process, each with a server of its own. Client and server process work one after the
other, so `wall` is the figure to look at.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks.interface import Operation, SamplesByVariant, Workload
from benchmarks.processes import ROOT
from benchmarks.timing import measure_alternately, print_rounds, sample_of, warm_up
from benchmarks.tools import ARGUMENTS, EXPECTED_SUM

SERVER = [str(Path(__file__).with_name("mcp_server.py"))]
INITIALIZE_PARAMETERS = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


async def measure_rounds(rounds: int, workload: Workload) -> list[SamplesByVariant]:
    async with AsyncExitStack() as stack:
        operations = {
            "ferrule: UnifiedToolLibrary.execute_tool, SQLite store": await _ferrule(stack),
            "mcp SDK: Client.call_tool": await _sdk(stack),
            "baseline: a JSON-RPC line, asyncio, the same server": await _json_rpc(stack, SERVER, initialize=True),
            "baseline: a JSON-RPC line, asyncio, a server without the SDK": await _json_rpc(
                stack, [*SERVER, "raw"], initialize=False
            ),
        }
        measures = {}
        for label, operation in operations.items():
            result = await operation.run()
            if EXPECTED_SUM not in str(result):
                raise AssertionError(f"{label!r} returned {result!r}")
            measures[label] = partial(sample_of, operation, await warm_up(operation, workload.seconds))
        return await measure_alternately(measures, rounds, workload.samples)


async def _ferrule(stack: AsyncExitStack) -> Operation:
    from ferrule import ToolEngineConfig, UnifiedToolLibrary

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"adder": {"command": sys.executable, "args": SERVER}}}))
    config = ToolEngineConfig(tools_directory=str(folder / "tools"), mcp_file=str(file), auto_reload=False)
    library = UnifiedToolLibrary(config, store=f"sqlite:///{folder / 'calls.db'}")
    await stack.enter_async_context(library)

    async def call() -> object:
        return (await library.execute_tool("adder", "add", ARGUMENTS)).output

    return Operation(run=call, flush=library.engine.store.flush)


async def _sdk(stack: AsyncExitStack) -> Operation:
    from mcp import Client, StdioServerParameters

    client = await stack.enter_async_context(Client(StdioServerParameters(command=sys.executable, args=SERVER)))
    await client.list_tools()

    async def call() -> object:
        return await client.call_tool("add", dict(ARGUMENTS))

    return Operation(run=call)


async def _json_rpc(stack: AsyncExitStack, arguments: list[str], *, initialize: bool) -> Operation:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    stack.push_async_callback(process.wait)
    stack.callback(stdin.close)

    def write(**message: object) -> None:
        stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    if initialize:
        write(id=0, method="initialize", params=INITIALIZE_PARAMETERS)
        await stdout.readline()
        write(method="notifications/initialized")

    async def call() -> object:
        write(id=1, method="tools/call", params={"name": "add", "arguments": ARGUMENTS})
        return json.loads(await stdout.readline())

    return Operation(run=call)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print_rounds(measure_rounds)
