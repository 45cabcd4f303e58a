"""The benchmark `fleet`: a call whose limit holds for all servers of a store, beside one whose limit is local.

    python -m benchmarks.fleet_limits ROUNDS [WORKLOAD as JSON]

Both engines record in SQLite. The process with the shared limit has a lease on some of the slots, which it renews in
the background: that counts as CPU time, but not as the caller's.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks.interface import Operation, SamplesByVariant, Workload
from benchmarks.timing import measure_alternately, print_rounds, sample_of, warm_up
from ferrule import ConcurrencyConfig, ToolEngine, ToolEngineConfig, tool


@tool(bucket="payments")
async def pay() -> str:
    """Pay."""
    return "paid"


async def measure_rounds(rounds: int, workload: Workload) -> list[SamplesByVariant]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
        measures = {}
        for name, is_shared in (("local", False), ("shared", True)):
            limits = ConcurrencyConfig(bucket_limits={"payments": 4}, shared=is_shared)
            config = ToolEngineConfig(builtin_tools=False, tools_directory=str(folder / "tools"), auto_reload=False)
            engine = ToolEngine(config, concurrency=limits, store=f"sqlite:///{folder}/{name}.db")
            operation = _make_operation(await stack.enter_async_context(engine))
            times = await warm_up(operation, workload.seconds)
            measures[f"ferrule: ToolEngine.execute, {name} limit"] = partial(sample_of, operation, times)
        return await measure_alternately(measures, rounds, 3 * workload.samples)


def _make_operation(engine: ToolEngine) -> Operation:
    engine.register(pay)

    async def call() -> None:
        result = await engine.execute("pay", {})
        assert result.success, result.error

    return Operation(run=call, flush=engine.store.flush)


if __name__ == "__main__":
    print_rounds(measure_rounds)
