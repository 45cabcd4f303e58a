"""Worker processes are killed while they run sync tools."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path

from chaos.scenario import Load, Outcome, append_line, child_pids, duplicates, read_lines
from ferrule import ToolEngine, ToolEngineConfig, ToolExecutionResult, tool
from ferrule.engine.resilience import BreakerConfig

CONFIG = ToolEngineConfig(
    tools_directory="no-such-folder",
    builtin_tools=False,
    auto_reload=False,
    breaker=BreakerConfig(threshold=0),  # else most calls would be refused, because the tools fail so often
)
CALLERS = 4
PAUSES = (0.02, 0.2, 1.0, 2.0)
"""Seconds between two kills."""
CALL_TIMEOUT = 60.0
GIVE_UP = 300.0
"""Seconds after which a call that has not ended hangs."""


@tool
def write_once(path: str, text: str) -> str:
    """Write a line, slowly; must not be repeated."""
    append_line(path, text)
    time.sleep(0.01)
    return text


@tool(idempotent=True)
def write_again(path: str, text: str) -> str:
    """Write a line, slowly; may be repeated."""
    append_line(path, text)
    time.sleep(0.01)
    return text


def kill_workers(load: Load) -> Outcome:
    return asyncio.run(_kill_workers(load))


async def _kill_workers(load: Load) -> Outcome:
    outcome, chance = Outcome(), random.Random(load.seed)
    path, results = load.folder / "lines", dict[str, ToolExecutionResult]()
    numbers, deadline, kills = count(), time.monotonic() + load.seconds, 0
    async with ToolEngine(CONFIG, store=f"sqlite:///{load.folder}/calls.db") as engine:
        engine.register(write_once, write_again)

        async def make_calls() -> None:
            while time.monotonic() < deadline:
                name = chance.choice(["write_once", "write_again"])
                text = f"{name}-{next(numbers)}"
                call = engine.execute(name, {"path": str(path), "text": text}, timeout=CALL_TIMEOUT)
                results[text] = await asyncio.wait_for(call, GIVE_UP)

        calls = [asyncio.create_task(make_calls()) for _ in range(CALLERS)]
        while not all(call.done() for call in calls):
            await asyncio.wait(calls, timeout=chance.choice(PAUSES))
            if workers := child_pids():
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(chance.choice(sorted(workers)), signal.SIGKILL)
                    kills += 1
        for call in calls:
            outcome.check(call.exception() is None, f"a caller got an exception: {call.exception()!r}")
        records = {record.record_id: record for record in await engine.query_call_records(limit=1_000_000)}
    _check_results(results, path, outcome)
    different = [text for text, result in results.items() if records[result.call_id].is_success != result.is_success]
    outcome.check_none(different, "calls have a record that differs from their result")
    outcome.check_none(child_pids(), "processes are left")
    kinds = Counter(result.error_type or "success" for result in results.values())
    outcome.figures |= {"workers killed": kills, "calls": len(results), **kinds}
    return outcome


def _check_results(results: dict[str, ToolExecutionResult], path: Path, outcome: Outcome) -> None:
    lines = read_lines(path)
    outcome.check_none(
        [line for line in duplicates(lines) if line.startswith("write_once")],
        "tools that must not be repeated ran twice",
    )
    wrong = [text for text, result in results.items() if result.is_success and result.text != text]
    outcome.check_none(wrong, "calls got the result of another call")
    missing = [text for text, result in results.items() if result.is_success and text not in lines]
    outcome.check_none(missing, "calls succeeded without an effect")
