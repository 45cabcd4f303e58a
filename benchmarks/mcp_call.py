"""One call of an MCP server that is a program: through Ferrule, through the SDK's own client, and as a bare line.

    python -m benchmarks.mcp_call ROUNDS [EFFORT as JSON]

All are measured in one process, each with a server of its own, in turns: the ratios are what matters. Two processes
work one after the other, so `wall` is the figure. The last line of the output is JSON: rounds of ways of samples.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.effort import Effort, Ways
from benchmarks.processes import ROOT, Failure, run
from benchmarks.rounds import Results, Row
from benchmarks.samples import ANSWER, ARGUMENTS
from benchmarks.timing import sample_of, warm_up
from benchmarks.ways import Way

SERVER = [str(Path(__file__).with_name("mcp_server.py"))]
GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


def run_mcp(*, rounds: int, effort: Effort, results: Results) -> None:
    """In a process of its own; fills in the results."""
    try:
        printed = run([sys.executable, "-m", "benchmarks.mcp_call", str(rounds), effort.to_json()])
    except Failure as failure:
        results.failures["ferrule"] = str(failure)
        return
    for measured in json.loads(printed.splitlines()[-1]):
        results.rounds.append({_row(label): samples for label, samples in measured.items()})


def _row(label: str) -> Row:
    name, _, way = label.partition(": ")
    return name, way


async def measure_rounds(rounds: int, effort: Effort) -> list[Ways]:
    measured: list[Ways] = []
    async with AsyncExitStack() as stack:
        ways = {
            "ferrule: UnifiedToolLibrary.execute_tool, SQLite store": await _ferrule(stack),
            "mcp SDK: Client.call_tool": await _sdk(stack),
            "floor: a JSON-RPC line, asyncio, the same server": await _line(stack, SERVER, greet=True),
            "floor: a JSON-RPC line, asyncio, a server without the SDK": await _line(
                stack, [*SERVER, "raw"], greet=False
            ),
        }
        times = {}
        for row, way in ways.items():
            answer = await way.do()
            if ANSWER not in str(answer):
                raise AssertionError(f"{row!r} gave {answer!r}")
            times[row] = await warm_up(way, effort.seconds)
        for number in range(rounds):
            turn = number % len(ways)
            rows = [*ways][turn:] + [*ways][:turn]
            samples: Ways = {row: [] for row in ways}
            for _ in range(effort.samples):  # in turns here too: what is close in time can be compared
                for row in rows:
                    samples[row].append(await sample_of(ways[row], times[row]))
            measured.append(samples)
    return measured


async def _ferrule(stack: AsyncExitStack) -> Way:
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

    return Way(do=call, settle=library.engine.store.flush)


async def _sdk(stack: AsyncExitStack) -> Way:
    from mcp import Client, StdioServerParameters

    client = await stack.enter_async_context(Client(StdioServerParameters(command=sys.executable, args=SERVER)))
    await client.list_tools()

    async def call() -> object:
        return await client.call_tool("add", dict(ARGUMENTS))

    return Way(do=call)


async def _line(stack: AsyncExitStack, arguments: list[str], *, greet: bool) -> Way:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    stack.push_async_callback(process.wait)
    stack.callback(stdin.close)

    def write(**message: object) -> None:
        stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    if greet:
        write(id=0, method="initialize", params=GREETING)
        await stdout.readline()
        write(method="notifications/initialized")

    async def call() -> object:
        write(id=1, method="tools/call", params={"name": "add", "arguments": ARGUMENTS})
        return json.loads(await stdout.readline())

    return Way(do=call)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asked = Effort(**json.loads(sys.argv[2])) if len(sys.argv) > 2 else Effort()
    print("\n" + json.dumps(asyncio.run(measure_rounds(int(sys.argv[1]), asked))))
