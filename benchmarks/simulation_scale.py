"""How long `ferrule simulate` takes for many records.

    python -m benchmarks.simulation_scale --records 1000000 --folder /var/tmp/simulation_scale

The records are those of real calls, copied in the database with other ids, times, runs and arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

from ferrule import Policy, Principal, Rule, ToolEngine, ToolEngineConfig, ToolExecutionContext, tool
from ferrule.concurrency import ConcurrencyConfig
from ferrule.config import FerruleConfig
from ferrule.core.prices import PriceList
from ferrule.simulation import SimulationRules, simulate


@tool(isolation="inline")
def read(path: str) -> str:
    """Read a file."""
    if path.endswith("7"):
        raise FileNotFoundError(path)
    return "text"


async def make_records(folder: Path, number: int) -> None:
    """Some real records, then copies of them."""
    async with ToolEngine(ToolEngineConfig(builtin_tools=False), store=f"sqlite:///{folder}/calls.db") as engine:
        engine.register(read)
        context = ToolExecutionContext(principal=Principal(kind="agent", name="a"), conversation_id="run")
        for n in range(1_000):
            await engine.execute("read", {"path": f"/data/{n}"}, context)
    connection = sqlite3.connect(folder / "calls.db")
    names = [row[1] for row in connection.execute("PRAGMA table_info(tool_calls)")]
    changes = {
        "record_id": "record_id || '-' || copy.value",
        "started_at": "started_at + copy.value * 0.05",
        "conversation_id": "'run' || (copy.value % 5000)",
    }
    columns = ", ".join(changes.get(name, name) for name in names)
    numbers = f"SELECT 1 UNION ALL SELECT value + 1 FROM copy WHERE value < {number // 1_000 - 1}"
    with connection:
        connection.execute(
            f"WITH RECURSIVE copy(value) AS ({numbers}) "
            f"INSERT INTO tool_calls ({', '.join(names)}) SELECT {columns} FROM tool_calls, copy"
        )
    connection.close()


async def measure(folder: Path) -> dict[str, float | int]:
    baseline = SimulationRules.of(FerruleConfig())
    policy = Policy(rules=[Rule(verdict="deny", tool="read", arguments={"path": "/data/1*"}, reason="not there")])
    candidate = replace(
        baseline, policy=policy, limits=ConcurrencyConfig(max_concurrent=2), prices=PriceList(tools={"read": 0.001})
    )
    async with ToolEngine(ToolEngineConfig(builtin_tools=False), store=f"sqlite:///{folder}/calls.db") as engine:
        engine.register(read)
        started, cpu = time.perf_counter(), time.process_time()
        result = await simulate(engine.store, engine.registry, baseline, candidate)
        return {
            "records": result.observed.calls,
            "seconds": round(time.perf_counter() - started, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "refused": result.candidate.refused,
            "prevented": result.baseline.prevented,
            "resident_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="It is emptied first.")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    asyncio.run(make_records(options.folder, options.records))
    print(json.dumps(asyncio.run(measure(options.folder)), indent=2))


if __name__ == "__main__":
    main()
