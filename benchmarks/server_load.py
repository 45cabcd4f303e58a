"""The server under load, beside a bare Starlette route: `python -m benchmarks.server_load [--calls 300000]`.

Figures of one run are compared with each other, so that a busy machine changes them little: processor time of the
server process for each request, lost streams and sessions, latencies relative to each other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

CONNECTIONS = 8
CALLS = 3_000
QUESTIONS = 500
SESSIONS = 200
LOAD = 0.7
BODY = b'{"arguments":{"a":1,"b":2}}'
TOOL = '''
from ferrule import tool

@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''


async def bare_route(scope, receive, send):  # type: ignore[no-untyped-def]
    """What a handler in plain Starlette does for the same request."""
    await _make_bare_app()(scope, receive, send)


_bare_apps: list[object] = []


def _make_bare_app():  # type: ignore[no-untyped-def]
    if not _bare_apps:
        import orjson
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Route

        async def add(request: Request) -> Response:
            arguments = orjson.loads(await request.body())["arguments"]
            result = {"result": arguments["a"] + arguments["b"]}
            return Response(orjson.dumps(result), media_type="application/json")

        _bare_apps.append(Starlette(routes=[Route("/v1/tools/{name}/call", add, methods=["POST"])]))
    return _bare_apps[0]


class MeasuredServer:
    """A server process and its port."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes in memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def run_server(command: list[str], port: int, folder: Path) -> Iterator[MeasuredServer]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        _wait_until_open(port, process)
        yield MeasuredServer(process, port)
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("The server did not start.")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# Calls


class CallConnection:
    """A connection that makes the same call again and again."""

    def __init__(self, port: int) -> None:
        self._port = port
        head = f"POST /v1/tools/add/call HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        self._request = head.encode() + f"Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def call(self) -> None:
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


async def make_calls(port: int, calls: int) -> list[float]:
    """The seconds of each of some calls, over a few connections."""
    connections = [CallConnection(port) for _ in range(CONNECTIONS)]
    times: list[float] = []
    numbers = iter(range(calls))

    async def work(connection: CallConnection) -> None:
        await connection.open()
        for _ in numbers:
            started = time.perf_counter()
            await connection.call()
            times.append(time.perf_counter() - started)
        connection.close()

    await asyncio.gather(*map(work, connections))
    return times


async def cost_of_calls(server: MeasuredServer, calls: int) -> float:
    """Processor seconds of the server for each call."""
    before = server.processor_seconds()
    await make_calls(server.port, calls)
    return (server.processor_seconds() - before) / calls


async def latencies_at(port: int, calls_per_second: float, seconds: float) -> list[float]:
    """The latencies of calls that arrive at a constant rate, whether or not earlier ones have ended."""
    free: list[CallConnection] = []
    times: list[float] = []

    async def call(at: float) -> None:
        if free:
            connection = free.pop()
        else:
            connection = CallConnection(port)
            await connection.open()
        await connection.call()
        times.append(time.perf_counter() - at)
        free.append(connection)

    started, tasks = time.perf_counter(), []
    for number in range(int(calls_per_second * seconds)):
        at = started + number / calls_per_second
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tasks.append(asyncio.create_task(call(at)))
    await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return sorted(times)


# Streams and sessions


async def count_answers(url: str, questions: int) -> int:
    """How many of so many concurrent questions end with an answer."""
    limits = httpx.Limits(max_connections=None)

    async def ask(client: httpx.AsyncClient, number: int) -> bool:
        body = {"question": f"What is {number} + {number}?", "stream": True}
        try:
            async with client.stream("POST", "/v1/ask", json=body) as response:
                text = "".join([piece async for piece in response.aiter_text()])
        except httpx.HTTPError:
            return False
        return "event: answer" in text and str(2 * number) in text

    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        return sum(await asyncio.gather(*(ask(client, number) for number in range(1, questions + 1))))


async def count_sessions(url: str, sessions: int) -> int:
    """How many of so many concurrent MCP clients get the result of a call."""
    from mcp import Client

    everybody_is_there = asyncio.Barrier(sessions)

    async def use_session() -> bool:
        try:
            async with Client(f"{url}/mcp") as client:
                await everybody_is_there.wait()
                result = await client.call_tool("add", {"a": 1, "b": 2})
                return not result.is_error
        except Exception:
            await everybody_is_there.abort()
            return False

    return sum(await asyncio.gather(*(use_session() for _ in range(sessions))))


async def read_nothing(port: int) -> asyncio.StreamWriter:
    """A client that asks for all events and reads none of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    await writer.drain()
    return writer


# The report


async def measure(bare: MeasuredServer, ferrule: MeasuredServer, calls: int) -> None:
    for server in (bare, ferrule):
        await make_calls(server.port, 500)
    costs: dict[MeasuredServer, list[float]] = {bare: [], ferrule: []}
    for _ in range(3):
        for server, samples in costs.items():
            samples.append(await cost_of_calls(server, CALLS))
    base, own = (statistics.median(samples) for samples in costs.values())
    _report("a call, of the throughput of a bare route", base / own, "≥ 0.5", base / own >= 0.5)
    print(f"  processor time of a call: {own * 1e6:.0f} µs; of the bare route {base * 1e6:.0f} µs", flush=True)

    alone = statistics.median(await make_calls(ferrule.port, CALLS))
    writer = await read_nothing(ferrule.port)
    beside = statistics.median(await make_calls(ferrule.port, CALLS))
    writer.close()
    _report("a call beside a client that reads nothing, of its time alone", beside / alone, "< 2", beside / alone < 2)

    times = await latencies_at(ferrule.port, LOAD / own, 5)
    ratio = times[int(len(times) * 0.99)] / times[len(times) // 2]
    _report(f"p99 of p50 at {LOAD:.0%} load", ratio, "< 10", ratio < 10)

    answers = await count_answers(ferrule.url, QUESTIONS)
    _report(f"answers to {QUESTIONS} concurrent streamed questions", answers, f"= {QUESTIONS}", answers == QUESTIONS)
    sessions = await count_sessions(ferrule.url, SESSIONS)
    _report(f"results for {SESSIONS} concurrent MCP clients", sessions, f"= {SESSIONS}", sessions == SESSIONS)

    await make_calls(ferrule.port, calls // 3)
    before = ferrule.memory()
    await make_calls(ferrule.port, calls)
    growth = ferrule.memory() / before
    _report(f"memory after {calls:,} more calls, of that before", growth, "< 1.1", growth < 1.1)


def _report(text: str, value: float, goal: str, is_met: bool) -> None:
    print(f"{'met   ' if is_met else 'NOT MET'} {text}: {value:.2f} (goal {goal})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=30_000, help="calls over which memory is compared")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare is not None:
        uvicorn.run("benchmarks.server_load:bare_route", port=options.bare, log_level="warning", access_log=False)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tools").mkdir()
        (folder / "tools" / "add.py").write_text(TOOL)
        settings = {"engine": {"tools_directory": "tools"}, "store": {"url": "sqlite:///calls.db"}}
        settings |= {"agent": {"model": "offline"}, "limits": {"max_concurrent": 1_000, "queue_size": 10_000}}
        lines = [
            f"[{section}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in values.items())
            for section, values in settings.items()
        ]
        (folder / "ferrule.toml").write_text("\n".join(lines))
        ports = _free_port(), _free_port()
        bare_command = [sys.executable, "-m", "benchmarks.server_load", "--bare", str(ports[0])]
        command = [sys.executable, "-m", "ferrule", "--config", "ferrule.toml", "serve", "--port", str(ports[1])]
        with run_server(bare_command, ports[0], folder) as bare, run_server(command, ports[1], folder) as ferrule:
            asyncio.run(measure(bare, ferrule, options.calls))


if __name__ == "__main__":
    main()
