"""A batch of tasks, then an evaluation: run everything once, look at what failed, and compare two configurations.

The batch writes one trajectory per task and can be killed and continued at any time. The suite repeats its tasks and
says how sure the result is. Both use the offline model here; name another one to compare models.
"""

import asyncio
import tempfile
from pathlib import Path

from ferrule import UnifiedToolLibrary
from ferrule.batch import Batch, BatchDirectory, BatchTask, LocalBackend, WaitingModel
from ferrule.evaluation import Evaluator, Suite
from ferrule.models import choose_model

TASKS = [BatchTask(id=f"square-{n}", task=f"what is {n} * {n}?", tools=("calculator",)) for n in range(1, 9)]
TASKS.append(BatchTask(id="impossible", task="paint the moon green", tools=("calculator",)))

SUITE = {
    "name": "prices",
    "repetitions": 3,
    "configurations": {"all tools": {"model": "offline"}, "one tool": {"model": "offline", "tools": ["calculator"]}},
    "tasks": [
        {"id": "total", "task": "what is 3 * 19.90?", "checks": [{"contains": "59.7"}, {"calls": "calculator"}]},
        {"id": "tip", "task": "what is 15% of 80?", "checks": [{"contains": "12"}]},
    ],
}


async def run_batch(folder: Path) -> None:
    model = WaitingModel(choose_model("offline"))
    with BatchDirectory(folder / "squares").open({"model": model.name}) as directory:
        async with UnifiedToolLibrary() as library:
            batch = Batch(directory, LocalBackend(library, model), model=model, concurrency=4)
            result = await batch.run(TASKS, total=len(TASKS))
        print("batch:", result.summary["states"])
        print("square-7:", directory.find("square-7")["answer"])
        print("impossible:", directory.find("impossible")["state"])


async def run_evaluation() -> None:
    async with UnifiedToolLibrary() as library:
        result = await Evaluator(Suite.model_validate(SUITE), library, choose_model).run()
    for name in SUITE["configurations"]:
        print(f"{name}: {result.rate(name)}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await run_batch(Path(folder))
        await run_evaluation()


if __name__ == "__main__":
    asyncio.run(main())
