"""A batch of many scripted tasks, killed with `kill -9` at random moments: does every task end exactly once, and does
memory stay flat?

    python -m benchmarks.batch_scale --tasks 100000 --kills 6 --folder /var/tmp/batch_scale

The model is scripted: one call of a tool, then the answer. Everything else is real: the store in SQLite, the records,
the run of each task, the folder of the batch. Figures are printed, and written with `--json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.batch import Batch, BatchDirectory, BatchTask, LocalBackend, WaitingModel
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.engine import ToolEngineConfig

ROOT = Path(__file__).parents[1]
PRICE = ModelPrice(input=1.0, output=10.0)
CONCURRENCY = 16
SAMPLE_INTERVAL = 2.0


class AddingModel:
    """Calls `add` with the two numbers of the task, and answers with its result."""

    name = "scripted-adding"

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        await asyncio.sleep(0)
        last = request.messages[-1]
        if last["role"] == "user" or "interrupted" in last["content"]:  # killed: what the call did is not known
            task = next(message["content"] for message in request.messages if message["role"] == "user")
            first, second = task.split("+")
            call = ToolCall(name="add", arguments={"a": int(first), "b": int(second)})
            usage = Usage(requests=1, input_tokens=100, output_tokens=10)
            return ModelReply(tool_calls=(call,), usage=usage, finish_reason="tool_calls")
        return ModelReply(text=str(last["content"]), usage=Usage(requests=1, input_tokens=120, output_tokens=2))


def make_tasks(number: int) -> Iterator[BatchTask]:
    return (BatchTask(id=f"t{n}", task=f"{n} + {n}") for n in range(number))


async def run_worker(folder: Path, number: int) -> None:
    with (folder / "effects").open("a", buffering=1) as effects:

        @tool(name="add", isolation="inline")
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            effects.write(f"{a}\n")
            return a + b

        model = WaitingModel(AddingModel(), price=PRICE)
        with BatchDirectory(folder / "out").open({"model": model.name}) as directory:
            config = ToolEngineConfig(builtin_tools=False)
            prices = PriceList(models={model.name: PRICE}, tools={"add": 0.001})
            async with UnifiedToolLibrary(config, store=f"sqlite:///{folder}/calls.db", prices=prices) as library:
                library.register(add)
                backend = LocalBackend(library, model, tools=["add"])
                batch = Batch(directory, backend, model=model, concurrency=CONCURRENCY)
                await batch.run(make_tasks(number), total=number)


def measure(folder: Path, number: int, kills: int) -> dict[str, Any]:
    """Run the batch to its end, killing the process at random moments; returns what was measured."""
    lines = folder / "out" / "trajectories.jsonl"
    line_size = 2_000  # for the moments of the kills only
    moments = sorted(random.randint(1, number * line_size) for _ in range(kills))
    samples: list[tuple[float, int, int]] = []
    """Seconds, bytes of trajectories, resident bytes."""
    started, was_killed = time.monotonic(), 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.batch_scale", "--worker", str(folder), str(number)], cwd=ROOT
        )
        moment = moments[was_killed] if was_killed < kills else None
        while process.poll() is None:
            size = lines.stat().st_size if lines.exists() else 0
            samples.append((time.monotonic() - started, size, _resident_bytes(process.pid)))
            if moment is not None and size >= moment:
                process.send_signal(signal.SIGKILL)
                was_killed += 1
                moment = None
            time.sleep(SAMPLE_INTERVAL if moment is None else 0.05)
        if process.returncode == 0:
            break
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"the worker failed with {process.returncode}")
    seconds = time.monotonic() - started
    return {
        "tasks": number,
        "kills": was_killed,
        "seconds": round(seconds, 1),
        "tasks_per_second": round(number / seconds, 1),
        "bytes_per_trajectory": round(lines.stat().st_size / number),
        "store_megabytes": round(sum(f.stat().st_size for f in folder.glob("calls.db*") if f.is_file()) / 1e6),
        "resident_megabytes_by_progress": _by_progress(samples, lines.stat().st_size),
    }


def check(folder: Path, number: int, kills: int) -> dict[str, Any]:
    """Whether every task has exactly one line with the right answer, and how often its tool ran."""
    tasks: Counter[str] = Counter()
    wrong = 0
    with (folder / "out" / "trajectories.jsonl").open("rb") as file:
        for line in file:
            trajectory = json.loads(line)
            tasks[trajectory["id"]] += 1
            wrong += trajectory["answer"] != str(2 * int(trajectory["id"][1:]))
    effects = Counter((folder / "effects").read_text().split())
    return {
        "missing": number - len(tasks),
        "doubled": sum(count - 1 for count in tasks.values()),
        "wrong_answers": wrong,
        "tool_calls_repeated": sum(count - 1 for count in effects.values()),
        "tool_calls_that_may_repeat": kills * CONCURRENCY,
        "tool_calls_missing": number - len(effects),
    }


def _resident_bytes(process_id: int) -> int:
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return 0
    return next((int(row.split()[1]) * 1024 for row in status.splitlines() if row.startswith("VmRSS")), 0)


def _by_progress(samples: list[tuple[float, int, int]], size: int) -> dict[str, float]:
    """The largest resident size in each tenth of the batch."""
    largest: dict[int, int] = {}
    for _, written, resident in samples:
        tenth = min(9, written * 10 // max(1, size))
        largest[tenth] = max(largest.get(tenth, 0), resident)
    return {f"{tenth * 10}%": round(resident / 1e6, 1) for tenth, resident in sorted(largest.items())}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--worker"]:
        asyncio.run(run_worker(Path(given[1]), int(given[2])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="for its files, and emptied first; without it, a temporary one")
    parser.add_argument("--quick", action="store_true", help="1,000 tasks and one kill")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(given)
    tasks, kills = (1_000, 1) if options.quick else (options.tasks, options.kills)
    with tempfile.TemporaryDirectory(prefix="batch-scale-") as temporary:
        folder = options.folder or Path(temporary) / "batch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        figures = measure(folder, tasks, kills)
        figures |= check(folder, tasks, figures["kills"])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    print(json.dumps(figures, indent=2))
    return int(bool(figures["missing"] or figures["doubled"] or figures["wrong_answers"]))


if __name__ == "__main__":
    sys.exit(main())
