"""What one process, two processes and the nodes of a Ray cluster carry: tasks and calls per second, and their CPU time.

    python -m benchmarks.cluster [--quick] [--json FILE]

A task is one call of a tool and two replies of a scripted model, which takes no time. Beside it: one step of asyncio's
own loop, and a bare call of an actor with the same payload. Clusters are started on this machine. CPU time is that of
all processes that take part, Ray's own included; the smallest of several rounds counts: the machine may be busy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.batch import BatchTask, ClusterBackend, LocalBackend, WaitingModel
from ferrule.cluster import ClusterExecutor, connect, disconnect
from ferrule.core.messages import ToolCall
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.engine import ToolEngineConfig

ROOT = Path(__file__).parents[1]
SAMPLES, QUICK_SAMPLES = 200, 20
ROUNDS = 4
IN_FLIGHT = 32
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
TICKS = os.sysconf("SC_CLK_TCK")


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


async def measure(function: Callable[[int], Awaitable[Any]], samples: int) -> dict[str, float]:
    """The median of single calls in ms; with many in flight, the calls per second and the CPU time of one in ms."""
    for number in range(samples // 8):
        await function(-number - 1)
    times = []
    for number in range(samples):
        started = time.perf_counter()
        await function(number)
        times.append(time.perf_counter() - started)
    limit, rates, costs = asyncio.Semaphore(IN_FLIGHT), [], []

    async def run(number: int) -> None:
        async with limit:
            await function(number)

    for part in range(1, ROUNDS + 1):
        started, cpu = time.perf_counter(), read_cpu_seconds()
        await asyncio.gather(*(run(part * samples + number) for number in range(samples)))
        rates.append(samples / (time.perf_counter() - started))
        costs.append((read_cpu_seconds() - cpu) / samples)
    return {
        "median_ms": round(statistics.median(times) * 1000, 3),
        "per_second": round(max(rates)),
        "cpu_ms": round(min(costs) * 1000, 3),
    }


def read_cpu_seconds() -> float:
    """Of this process and of all that it has started, directly or not."""
    parents: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(path.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    own, total = os.getpid(), 0.0
    for pid, (_, seconds) in parents.items():
        ancestor = pid
        while ancestor in parents and ancestor != own:
            ancestor = parents[ancestor][0]
        if ancestor == own:
            total += time.process_time() if pid == own else seconds
    return total


async def measure_process(samples: int) -> dict[str, Any]:
    """One process without Ray."""
    trajectory: dict[str, Any] = {}
    async with open_backend() as local:

        async def run_here(number: int) -> None:
            task = BatchTask(id=f"l{number}", task="1 + 2")
            trajectory.update(await local.run_task(task, f"here-{number}", may_exist=False))

        results: dict[str, Any] = {"task in one process": await measure(run_here, samples)}
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(add)
        results["call in one process"] = await measure(lambda number: library.execute("add", {"a": 1, "b": 2}), samples)
    results["step of asyncio's loop"] = await measure(lambda number: asyncio.sleep(0), 20 * samples)
    return {"rows": results, "trajectory": trajectory}


def measure_two_processes(samples: int) -> dict[str, Any]:
    """The same twice at a time: rates are added, the CPU time of one task is the average."""
    command = [sys.executable, "-m", "benchmarks.cluster", "--process", str(samples)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    parts = [json.loads(process.communicate()[0])["rows"] for process in processes]
    rows: dict[str, Any] = {}
    for kind in ("task", "call"):
        both = [part[f"{kind} in one process"] for part in parts]
        rows[f"{kind} in two processes"] = {
            "median_ms": max(each["median_ms"] for each in both),
            "per_second": sum(each["per_second"] for each in both),
            "cpu_ms": round(statistics.mean(each["cpu_ms"] for each in both), 3),
        }
    return rows


async def measure_cluster(nodes: int, trajectory: dict[str, Any], samples: int) -> dict[str, Any]:
    """A cluster with this many nodes beside its head, and one worker on each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # with this, Ray uses loopback addresses only
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": NODE["object_store_memory"], "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        cluster.add_node(**NODE)
    ray = connect(cluster.address)
    name, rows = ("one node", {}) if nodes == 1 else (f"{nodes} nodes", {})
    try:
        backend = ClusterBackend(open_backend, workers=nodes, concurrency=IN_FLIGHT, resources={"cpu": 0.5})
        rows[f"task on {name}"] = await measure(
            lambda number: backend.run_task(
                BatchTask(id=f"c{number}", task="1 + 2"), f"{name}-{number}", may_exist=False
            ),
            samples,
        )
        await backend.aclose()
        if nodes == 1:
            actor = ray.remote(BareActor).options(num_cpus=0).remote()
            # With the same payload: the trajectory of a task goes through Ray in any case.
            rows["bare call of an actor"] = await measure(lambda number: actor.echo.remote(trajectory), samples)
            async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
                library.engine.register_executor("cluster", ClusterExecutor(max_workers=1))
                library.register(find_process, find_process_here)
                rows["call in a worker process here"] = await measure(
                    lambda number: library.execute("find_process_here"), samples
                )
                rows["call of a tool on one node"] = await measure(
                    lambda number: library.execute("find_process"), samples
                )
    finally:
        disconnect()
        cluster.shutdown()
    return rows


def run_all(samples: int) -> dict[str, Any]:
    here = asyncio.run(measure_process(samples))
    rows = {**here["rows"], **measure_two_processes(samples)}
    for nodes in (1, 2):
        rows |= asyncio.run(measure_cluster(nodes, here["trajectory"], samples))
    task, on_node, bare = (rows[name] for name in ("task in one process", "task on one node", "bare call of an actor"))
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "rows": rows,
        "overhead_of_a_task_on_ray_cpu_ms": round(on_node["cpu_ms"] - task["cpu_ms"], 2),
        "overhead_of_a_task_on_ray_ms": round(on_node["median_ms"] - task["median_ms"], 2),
        "overhead_beside_a_bare_call_ms": round(on_node["median_ms"] - task["median_ms"] - bare["median_ms"], 2),
    }


def format_table(results: dict[str, Any]) -> str:
    lines = ["| | median, ms | per second | CPU each, ms |", "| --- | ---: | ---: | ---: |"]
    for name, row in results["rows"].items():
        lines.append(f"| {name} | {row['median_ms']:g} | {row['per_second']:,} | {row['cpu_ms']:g} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure less of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--process", type=int, metavar="SAMPLES", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.process:
        print(json.dumps(asyncio.run(measure_process(options.process))))
        return 0
    results = run_all(QUICK_SAMPLES if options.quick else SAMPLES)
    print(format_table(results))
    print("\n".join(f"{name}: {value}" for name, value in results.items() if name != "rows"))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
