"""A batch on a Ray cluster whose nodes are removed in the middle of the work, and whose own process is killed.

The tool is not idempotent and takes a while, so that most losses interrupt calls. The model does not repeat a call
whose effect is not known. In the end every task has exactly one line, and no effect has happened twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from chaos.scenario import Load, Outcome, append_line, duplicates, read_lines
from ferrule import ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.batch import Batch, BatchDirectory, BatchTask, ClusterBackend, LocalBackend, WaitingModel
from ferrule.batch.directory import TRAJECTORIES
from ferrule.cluster import connect, disconnect
from ferrule.core.messages import ToolCall
from ferrule.core.model import ModelReply, ModelRequest, TextSink

ROOT = Path(__file__).parents[1]
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000, "resources": {"batch": 1}}
WORKERS, CONCURRENCY = 2, 16
TASK_SECONDS = 0.5
PROGRESS_TIMEOUT = 180.0
"""Seconds without a finished task after which the batch hangs."""


class PayingModel:
    """Calls `pay` once for each task, and answers with its result."""

    name = "paying"

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        last = request.messages[-1]
        if last["role"] == "user":
            return ModelReply(tool_calls=(ToolCall(name="pay", arguments={"order": last["content"]}),))
        return ModelReply(text=str(last["content"]))


@asynccontextmanager
async def open_backend(folder: Path) -> AsyncIterator[LocalBackend]:
    """The back end of a worker, on its node."""

    @tool(isolation="inline")
    async def pay(order: str) -> str:
        """Pay for an order."""
        append_line(folder / "effects", order)
        await asyncio.sleep(TASK_SECONDS)
        return f"paid {order}"

    append_line(folder / "workers", str(os.getpid()))
    config = ToolEngineConfig(tools_directory="no-such-folder", builtin_tools=False, auto_reload=False)
    async with UnifiedToolLibrary(config, store=f"sqlite:///{folder}/calls.db") as library:
        library.register(pay)
        yield LocalBackend(library, WaitingModel(PayingModel()), tools=["pay"])


async def run_batch(folder: Path, number: int) -> None:
    with BatchDirectory(folder / "out").open({"model": PayingModel.name}) as directory:
        backend = ClusterBackend(
            partial(open_backend, folder), workers=WORKERS, concurrency=CONCURRENCY, resources={"batch": 1}
        )
        try:
            tasks = (BatchTask(id=f"t{n}", task=f"order {n}") for n in range(number))
            await Batch(directory, backend, concurrency=CONCURRENCY).run(tasks, total=number)
        finally:
            await backend.aclose()


def lose_nodes(load: Load) -> Outcome:
    if find_spec("ray") is None:
        return Outcome(figures={"skipped": 'Ray is not installed: pip install "ferrule[cluster]"'})
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # with this, Ray uses loopback addresses only
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": NODE["object_store_memory"], "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        return _lose_nodes(cluster, load, load.count(500, 40), load.count(6, 2))
    finally:
        cluster.shutdown()


def _lose_nodes(cluster: Any, load: Load, number: int, losses: int) -> Outcome:
    chance = random.Random(load.seed)
    nodes = [cluster.add_node(**NODE) for _ in range(WORKERS)]
    moments = sorted(chance.sample(range(number // 8, number - number // 8), losses))
    command = [sys.executable, "-m", "chaos.cluster", cluster.address, str(load.folder), str(number)]
    driver = subprocess.Popen(command, cwd=ROOT)
    removed = kills = 0
    for index, moment in enumerate(moments):
        _wait_for_lines(load.folder, moment, driver)
        if index % 2:
            driver.kill()
            driver.wait()
            driver, kills = subprocess.Popen(command, cwd=ROOT), kills + 1
        else:
            cluster.remove_node(nodes.pop(chance.randrange(len(nodes))), allow_graceful=False)
            nodes.append(cluster.add_node(**NODE))
            removed += 1
    _wait_for_lines(load.folder, number, driver)
    exit_code = driver.wait(PROGRESS_TIMEOUT)
    outcome = _compare(load.folder, number)
    outcome.figures |= {"nodes removed": removed, "kills of the batch": kills}
    outcome.check(exit_code == 0, f"the batch ended with exit code {exit_code}")
    return outcome


def _wait_for_lines(folder: Path, number: int, driver: subprocess.Popen[bytes]) -> None:
    path, last, seen_at = folder / "out" / TRAJECTORIES, -1, time.monotonic()
    while driver.poll() is None:
        lines = path.read_bytes().count(b"\n") if path.exists() else 0
        if lines >= number:
            return
        if lines > last:
            last, seen_at = lines, time.monotonic()
        if time.monotonic() - seen_at > PROGRESS_TIMEOUT:
            driver.kill()
            raise TimeoutError(f"no task was finished for {PROGRESS_TIMEOUT:g} s, after {lines} of them")
        time.sleep(0.02)


def _compare(folder: Path, number: int) -> Outcome:
    trajectories = [orjson.loads(line) for line in (folder / "out" / TRAJECTORIES).read_bytes().splitlines()]
    ids, effects = [trajectory["id"] for trajectory in trajectories], read_lines(folder / "effects")
    paid = {line["task"] for line in trajectories if line["answer"] == f"paid {line['task']}"}
    outcome = Outcome(
        figures={
            "tasks": number,
            "workers": len(read_lines(folder / "workers")),
            "continued": sum(trajectory.get("is_resumed", False) for trajectory in trajectories),
            "calls with unknown effect": number - len(paid),
        }
    )
    outcome.check_none({f"t{n}" for n in range(number)} - set(ids), "tasks are lost")
    outcome.check_none(duplicates(ids), "tasks have two lines")
    outcome.check_none(duplicates(effects), "effects happened twice")
    outcome.check_none(paid - set(effects), "tasks say that they paid, and did not")
    outcome.check_none((line["id"] for line in trajectories if line["state"] != "finished"), "tasks did not finish")
    return outcome


if __name__ == "__main__":
    connect(sys.argv[1])
    asyncio.run(run_batch(Path(sys.argv[2]), int(sys.argv[3])))
    disconnect()
