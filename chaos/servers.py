"""Calls to MCP servers that misbehave at random, beside an honest one."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

from chaos.scenario import Load, Outcome, child_pids, resident_megabytes
from ferrule import ToolEngine, ToolEngineConfig

HOSTILE_SERVERS = 3
CALL_TIMEOUT = 3.0
HONEST_TIMEOUT = 120.0
GIVE_UP = 300.0
MAX_LAG = 15.0
"""Seconds the event loop may be blocked; generous, because the machine may be busy."""
MAX_GROWTH = 600.0
"""Megabytes, while lines of 70 MB come from several servers."""


def call_hostile_servers(load: Load) -> Outcome:
    return asyncio.run(_call_hostile_servers(load))


async def _call_hostile_servers(load: Load) -> Outcome:
    outcome, kinds = Outcome(), Counter[str]()
    _write_mcp_file(load)
    config = ToolEngineConfig(
        tools_directory="no-such-folder", builtin_tools=False, auto_reload=False, mcp_file=str(load.folder / "mcp.json")
    )
    before, lag = resident_megabytes(), _LagMeter()
    async with ToolEngine(config, store=f"sqlite:///{load.folder}/calls.db") as engine:
        meter = asyncio.create_task(lag.measure())
        deadline, chance = time.monotonic() + load.seconds, random.Random(load.seed)
        calls: list[str] = []

        async def call(server: str, timeout: float) -> None:
            numbers = count()
            while time.monotonic() < deadline or next(numbers) < 3:
                text = f"{server} {next(numbers)}"
                action = chance.choice(["echo", "echo", "echo", "look"])
                result = await asyncio.wait_for(
                    engine.execute(server, {"text": text}, action=action, timeout=timeout), GIVE_UP
                )
                calls.append(result.call_id)
                kind = "success" if result.is_success else result.error_type or "no error type"
                kinds[f"{'honest' if server == 'honest' else 'hostile'}, {kind}"] += 1
                if result.is_success and result.text != text:
                    outcome.failures.append(f"a call got a result that is not its own: {result.text[:100]!r}")
                if server == "honest" and not result.is_success:
                    outcome.failures.append(f"a call of the honest server failed: {result.error}")

        servers = [*(f"hostile{number}" for number in range(1, HOSTILE_SERVERS + 1))] * 2
        ended = await asyncio.gather(
            *(call(server, CALL_TIMEOUT) for server in servers), call("honest", HONEST_TIMEOUT), return_exceptions=True
        )
        outcome.check_none(filter(None, ended), "callers got an exception")
        meter.cancel()
        records = await engine.query_call_records(limit=1_000_000)
        outcome.check_none(set(calls) - {record.record_id for record in records}, "calls have no record")
        growth = resident_megabytes() - before
    outcome.check_none(child_pids(), "server processes are left")
    outcome.check(lag.longest < MAX_LAG, f"the event loop was blocked for {lag.longest:.1f} s")
    outcome.check(growth < MAX_GROWTH, f"memory grew by {growth:.0f} MB")
    outcome.figures |= {"calls": len(calls), **dict(sorted(kinds.items()))}
    outcome.figures |= {"longest block of the event loop, s": round(lag.longest, 2), "growth, MB": round(growth)}
    return outcome


class _LagMeter:
    """How long the event loop did nothing else."""

    longest = 0.0

    async def measure(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, time.monotonic() - before - 0.01)


def _write_mcp_file(load: Load) -> None:
    script = str(Path(__file__).with_name("hostile_server.py"))
    seeds = {"honest": 0, **{f"hostile{number}": load.seed + number for number in range(1, HOSTILE_SERVERS + 1)}}
    servers = {name: {"command": sys.executable, "args": [script, str(seed)]} for name, seed in seeds.items()}
    (load.folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
