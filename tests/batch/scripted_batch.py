"""A batch with a model that follows the task: run in a process of its own, so that it can be killed."""

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.batch import Batch, BatchDirectory, BatchResult, BatchTask, LocalBackend, WaitingModel
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.engine import ToolEngineConfig
from ferrule.policy.budgets import Budget

PRICE = ModelPrice(input=1.0, output=10.0)


class AddingModel:
    """Calls `add` with the two numbers of the task, and answers with its result."""

    name = "adding"

    def __init__(self) -> None:
        self.requests = 0

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        self.requests += 1
        await asyncio.sleep(0)  # as a model that answers later
        last = request.messages[-1]
        if last["role"] == "user" or "interrupted" in last["content"]:  # killed: what the call did is not known
            task = next(message["content"] for message in request.messages if message["role"] == "user")
            first, second = task.split("+")
            call = ToolCall(name="add", arguments={"a": int(first), "b": int(second)})
            usage = Usage(requests=1, input_tokens=100, output_tokens=10)
            return ModelReply(tool_calls=(call,), usage=usage, finish_reason="tool_calls")
        return ModelReply(text=str(last["content"]), usage=Usage(requests=1, input_tokens=120, output_tokens=2))


def make_tasks(number: int) -> Iterable[BatchTask]:
    return (BatchTask(id=f"t{n}", task=f"{n} + {n}") for n in range(number))


def make_add(log: Path | None = None) -> Any:
    @tool(name="add", isolation="inline")
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        if log is not None:
            with log.open("a") as file:
                file.write(f"{a}\n")
        return a + b

    return add


async def run_batch(
    out: Path,
    tasks: Iterable[BatchTask],
    *,
    model: Any = None,
    concurrency: int = 8,
    budget: float | None = None,
    store: str | None = None,
    add: Any = None,
    total: int | None = None,
    budgets: Sequence[Budget] = (),
) -> BatchResult:
    waiting_model = WaitingModel(model or AddingModel(), price=PRICE)
    with BatchDirectory(out).open({"model": waiting_model.name}) as directory:
        prices = PriceList(models={"*": PRICE}, tools={"add": 0.001})
        config = ToolEngineConfig(builtin_tools=False)
        async with UnifiedToolLibrary(config, store=store, prices=prices, budgets=budgets) as library:
            library.register(add or make_add())
            backend = LocalBackend(library, waiting_model, tools=["add"])
            batch = Batch(directory, backend, model=waiting_model, concurrency=concurrency, budget=budget)
            return await batch.run(tasks, total=total)


def read_lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trajectories.jsonl").read_bytes().splitlines()]


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    result = asyncio.run(
        run_batch(
            folder / "out",
            make_tasks(count),
            store=f"sqlite:///{folder}/calls.db",
            add=make_add(folder / "effects"),
            total=count,
        )
    )
    print(json.dumps({"stopped": result.stopped, "tasks": result.summary["tasks"]}))
