"""The server under load: `python -m benchmarks.server_load [--calls 300000]`.

Figures of one run are compared with each other, so that a busy machine changes them little: lost streams and sessions,
and latencies and memory relative to each other. The cost of a call is measured by `benchmarks.server_calls`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks.server_calls import Connection, make_plain_call
from benchmarks.server_process import MeasuredServer, find_free_port, make_project, run_server, serve_command

CONNECTIONS = 8
CALLS = 3_000
QUESTIONS = 500
SESSIONS = 200
MODES = ("legacy", "2026-07-28")
LOAD = 0.7


def report(text: str, value: float, goal: str, is_met: Callable[[float], bool]) -> None:
    print(f"{'met    ' if is_met(value) else 'NOT MET'} {text}: {value:.2f} (goal {goal})", flush=True)


# Calls


async def make_calls(server: MeasuredServer, calls: int) -> list[float]:
    """The seconds of each of some calls, over a few connections."""
    connections = [Connection(server.port) for _ in range(CONNECTIONS)]
    request = make_plain_call(server).requests[0]
    times: list[float] = []
    numbers = iter(range(calls))

    async def work(connection: Connection) -> None:
        await connection.open()
        for _ in numbers:
            started = time.perf_counter()
            await connection.send(request)
            times.append(time.perf_counter() - started)
        connection.close()

    await asyncio.gather(*map(work, connections))
    return times


async def latencies_at(server: MeasuredServer, calls_per_second: float, seconds: float) -> list[float]:
    """The latencies of calls that arrive at a constant rate, whether or not earlier ones have ended."""
    request = make_plain_call(server).requests[0]
    free: list[Connection] = []
    times: list[float] = []

    async def call(at: float) -> None:
        if free:
            connection = free.pop()
        else:
            connection = Connection(server.port)
            await connection.open()
        await connection.send(request)
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
    """How many of so many concurrent MCP clients, half of each era, get the result of a call."""
    from mcp import Client

    everybody_is_there = asyncio.Barrier(sessions)

    async def use_session(mode: str) -> bool:
        try:
            async with Client(f"{url}/mcp", mode=mode) as client:
                await everybody_is_there.wait()
                result = await client.call_tool("add", {"a": 1, "b": 2})
                return not result.is_error
        except Exception:
            await everybody_is_there.abort()
            return False

    return sum(await asyncio.gather(*(use_session(MODES[number % 2]) for number in range(sessions))))


async def read_nothing(port: int) -> asyncio.StreamWriter:
    """A client that asks for all events and reads none of them."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    await writer.drain()
    return writer


# The report


async def measure(server: MeasuredServer, calls: int) -> None:
    await make_calls(server, 500)
    await compare_with_slow_client(server)

    before = time.perf_counter()
    await make_calls(server, CALLS)
    rate = CALLS / (time.perf_counter() - before)
    times = await latencies_at(server, LOAD * rate, 5)
    ratio = times[int(len(times) * 0.99)] / times[len(times) // 2]
    report(f"p99 of p50 at {LOAD:.0%} load ({LOAD * rate:,.0f} calls/s)", ratio, "< 10", lambda ratio: ratio < 10)

    answers = await count_answers(server.url, QUESTIONS)
    report(f"answers to {QUESTIONS} concurrent streamed questions", answers, f"= {QUESTIONS}", QUESTIONS.__eq__)
    sessions = await count_sessions(server.url, SESSIONS)
    report(f"results for {SESSIONS} concurrent MCP clients", sessions, f"= {SESSIONS}", SESSIONS.__eq__)

    await make_calls(server, calls // 3)
    memory = server.memory()
    await make_calls(server, calls)
    growth = server.memory() / memory
    report(f"memory after {calls:,} more calls, of that before", growth, "< 1.1", lambda growth: growth < 1.1)


async def compare_with_slow_client(server: MeasuredServer) -> None:
    """The time of a call while another client asks for events and reads none of them."""
    alone, beside = [], []
    for _ in range(3):  # alternating: the load of the machine changes
        alone.append(statistics.median(await make_calls(server, CALLS // 3)))
        writer = await read_nothing(server.port)
        beside.append(statistics.median(await make_calls(server, CALLS // 3)))
        writer.close()
    ratio = min(beside) / min(alone)
    report("a call beside a client that reads nothing, of its time alone", ratio, "< 2", lambda ratio: ratio < 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=30_000, help="calls over which memory is compared")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, port = make_project(Path(name)), find_free_port()
        with run_server([*serve_command(), "--port", str(port)], port, folder) as server:
            asyncio.run(measure(server, options.calls))


if __name__ == "__main__":
    main()
