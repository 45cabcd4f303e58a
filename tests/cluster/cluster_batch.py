"""A batch whose workers are on a cluster: run in a process of its own, so that it can be killed."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from ferrule import UnifiedToolLibrary, tool
from ferrule.batch import Batch, BatchDirectory, BatchResult, ClusterBackend, LocalBackend, WaitingModel
from ferrule.cluster import connect, disconnect
from ferrule.engine import ToolEngineConfig
from tests.batch.scripted_batch import AddingModel, make_tasks

FREE_TASKS = 8
"""Tasks that do not wait for the end of the file `hold`."""


@asynccontextmanager
async def open_adding_backend(folder: Path) -> AsyncIterator[LocalBackend]:
    """The back end of a worker: all share a store in the folder, and note there what they did."""

    @tool(name="add", isolation="inline")
    async def add(a: int, b: int) -> int:
        """Add two numbers, slowly."""
        with (folder / "started").open("a") as file:
            file.write(f"{os.getpid()}\n")
        await asyncio.sleep(0.2)  # so that several tasks run when a node is lost
        while a >= FREE_TASKS and (folder / "hold").exists():  # until the test has done something to the cluster
            await asyncio.sleep(0.05)  # looks again
        with (folder / "effects").open("a") as file:
            file.write(f"{a}\n")
        return a + b

    with (folder / "workers").open("a") as file:
        file.write(f"{os.getpid()}\n")
    store = f"sqlite:///{folder}/calls.db"
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False), store=store) as library:
        library.register(add)
        backend = LocalBackend(library, WaitingModel(AddingModel()), tools=["add"])
        yield backend
        await backend.aclose()


@asynccontextmanager
async def open_broken_backend() -> AsyncIterator[LocalBackend]:
    raise LookupError("the node has no model")
    yield


async def run_cluster_batch(
    folder: Path, number: int, *, workers: int = 2, concurrency: int = 8, resources: Mapping[str, float] | None = None
) -> BatchResult:
    model = WaitingModel(AddingModel())
    with BatchDirectory(folder / "out").open({"model": model.name}) as directory:
        backend = ClusterBackend(
            partial(open_adding_backend, folder),
            workers=workers,
            concurrency=concurrency,
            resources=resources,
            model=model,
        )
        try:
            batch = Batch(directory, backend, model=model, concurrency=concurrency)
            return await batch.run(make_tasks(number), total=number)
        finally:
            await backend.aclose()


if __name__ == "__main__":
    connect(sys.argv[1])
    result = asyncio.run(run_cluster_batch(Path(sys.argv[2]), int(sys.argv[3]), workers=1))
    disconnect()
    print(json.dumps({"stopped": result.stopped, "tasks": result.summary["tasks"]}))
