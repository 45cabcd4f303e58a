"""What a Ray cluster costs: an agent's task and a tool's call on a node, beside the same here and a bare actor call.

    python -m benchmarks.cluster

Starts a cluster on this machine. The task is one call of a tool and two replies of a scripted model, which takes no
time.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.batch import BatchTask, ClusterBackend, LocalBackend, WaitingModel
from ferrule.cluster import ClusterExecutor, connect, disconnect
from ferrule.core.messages import ToolCall
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.engine import ToolEngineConfig

SAMPLES = 400
IN_FLIGHT = 32


class AddingModel:
    """Calls `add`, and answers with its result."""

    name = "adding"

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        if request.messages[-1]["role"] == "user":
            return ModelReply(tool_calls=(ToolCall(name="add", arguments={"a": 1, "b": 2}),))
        return ModelReply(text="3")


@tool(isolation="inline")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(isolation="process", read_only=True)
def find_process_here() -> int:
    """The number of the process that runs this."""
    return os.getpid()


@tool(placement="cluster", read_only=True)
def find_process() -> int:
    """The number of the process that runs this."""
    return os.getpid()


@asynccontextmanager
async def open_backend() -> AsyncIterator[LocalBackend]:
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(add)
        yield LocalBackend(library, WaitingModel(AddingModel()), tools=["add"])


class BareActor:
    async def echo(self, value: Any) -> Any:
        return value


async def measure(function: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
    """The median of single calls in ms, and calls per second with many in flight."""
    for number in range(50):
        await function(-number - 1)
    times = []
    for number in range(SAMPLES):
        started = time.perf_counter()
        await function(number)
        times.append(time.perf_counter() - started)
    limit, started = asyncio.Semaphore(IN_FLIGHT), time.perf_counter()

    async def run(number: int) -> None:
        async with limit:
            await function(number)

    await asyncio.gather(*(run(SAMPLES + number) for number in range(4 * SAMPLES)))
    rate = 4 * SAMPLES / (time.perf_counter() - started)
    return {"median_ms": round(statistics.median(times) * 1000, 2), "per_second": round(rate)}


async def main() -> dict[str, Any]:
    ray = connect("local")
    results: dict[str, Any] = {"cores": os.cpu_count(), "ray": ray.__version__}
    actor = ray.remote(BareActor).remote()
    trajectory: dict[str, Any] = {}

    async with open_backend() as local:

        async def run_here(number: int) -> None:
            task = BatchTask(id=f"l{number}", task="1 + 2")
            trajectory.update(await local.run_task(task, f"here-{number}", may_exist=False))

        results["task_here"] = await measure(run_here)
    # A bare call with the same payload: the trajectory of a task goes through Ray in any case.
    results["bare_actor_call"] = await measure(lambda number: actor.echo.remote(trajectory))
    cluster = ClusterBackend(open_backend, workers=1, concurrency=IN_FLIGHT, resources={"cpu": 0.01})
    results["task_on_cluster"] = await measure(
        lambda number: cluster.run_task(BatchTask(id=f"c{number}", task="1 + 2"), f"there-{number}", may_exist=False)
    )
    await cluster.aclose()
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.engine.register_executor("cluster", ClusterExecutor(max_workers=1))
        library.register(find_process, find_process_here)
        results["tool_in_process"] = await measure(lambda number: library.execute("find_process_here"))
        results["tool_on_cluster"] = await measure(lambda number: library.execute("find_process"))
    disconnect()
    here, there = results["task_here"]["median_ms"], results["task_on_cluster"]["median_ms"]
    results["overhead_of_a_task_ms"] = round(there - here, 2)
    results["overhead_beside_a_bare_call_ms"] = round(there - here - results["bare_actor_call"]["median_ms"], 2)
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main()), indent=2))
