"""Very many calls: at the same time, and one after another."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from chaos.scenario import Load, Outcome, resident_megabytes
from ferrule import ConcurrencyConfig, ToolEngine, ToolEngineConfig, tool

CONFIG = ToolEngineConfig(tools_directory="no-such-folder", builtin_tools=False, auto_reload=False, default_timeout=600)
MAX_CONCURRENT = 100
MAX_GROWTH = 40.0
"""Megabytes by which memory may grow between the first tenth and the end of the serial calls."""


def call_concurrently(load: Load) -> Outcome:
    return asyncio.run(_call_concurrently(load))


async def _call_concurrently(load: Load) -> Outcome:
    outcome, number = Outcome(), load.count(10_000, 200)
    running = most_running = 0

    @tool
    async def wait(n: int) -> int:
        """Wait for an instant."""
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        await asyncio.sleep(0.001 * (n % 7))
        running -= 1
        return n

    limits = ConcurrencyConfig(max_concurrent=MAX_CONCURRENT, queue_size=number, default_timeout=math.inf)
    async with ToolEngine(CONFIG, store=f"sqlite:///{load.folder}/calls.db", concurrency=limits) as engine:
        engine.register(wait)
        started = time.monotonic()
        results = await asyncio.gather(*(engine.execute("wait", {"n": n}) for n in range(number)))
        seconds = time.monotonic() - started
        wrong = [n for n, result in enumerate(results) if not result.is_success or result.output != {"result": n}]
        outcome.check_none(wrong, "calls have no result, or that of another call")
        await _check_records(engine, [result.call_id for result in results], outcome)
        outcome.check(most_running <= MAX_CONCURRENT, f"{most_running} calls ran concurrently, not {MAX_CONCURRENT}")
    refused = await _fill_queue(load, number, outcome)
    outcome.figures |= {"calls": number, "most concurrent": most_running, "calls per second": round(number / seconds)}
    outcome.figures |= {"refused by a queue for a tenth of them": refused}
    return outcome


async def _fill_queue(load: Load, number: int, outcome: Outcome) -> int:
    """More calls than the queue has places: each is either made or refused, and recorded."""

    @tool
    async def wait(n: int) -> int:
        """Wait for an instant."""
        await asyncio.sleep(0.001)
        return n

    limits = ConcurrencyConfig(max_concurrent=MAX_CONCURRENT, queue_size=number // 10, default_timeout=math.inf)
    async with ToolEngine(CONFIG, store=f"sqlite:///{load.folder}/refused.db", concurrency=limits) as engine:
        engine.register(wait)
        results = await asyncio.gather(*(engine.execute("wait", {"n": n}) for n in range(number)))
        await _check_records(engine, [result.call_id for result in results], outcome)
        kinds = Counter(result.error_type for result in results)
        outcome.check(set(kinds) <= {None, "rejected"}, f"calls ended otherwise: {dict(kinds)}")
        places = MAX_CONCURRENT + number // 10
        outcome.check(kinds[None] >= min(number, places), f"{kinds[None]} calls were made, with {places} places")
        return kinds["rejected"]


async def _check_records(engine: ToolEngine, call_ids: list[str], outcome: Outcome) -> None:
    metrics: Any = engine.concurrency.get_metrics()
    slots = metrics.current_concurrent + metrics.queue_length
    outcome.check(slots == 0, f"{slots} slots or places in the queue are not given back")
    records = await engine.query_call_records(limit=len(call_ids) + 100)
    outcome.check_none(set(call_ids) - {record.record_id for record in records}, "calls have no record")
    outcome.check(len(records) == len(call_ids), f"{len(call_ids)} calls have {len(records)} records")


def call_serially(load: Load) -> Outcome:
    return asyncio.run(_call_serially(load))


async def _call_serially(load: Load) -> Outcome:
    outcome, number = Outcome(), load.count(300_000, 2_000)
    path = load.folder / "calls.db"

    @tool
    async def double(n: int) -> int:
        """Twice a number."""
        return 2 * n

    async with ToolEngine(CONFIG, store=f"sqlite:///{path}") as engine:
        engine.register(double)
        first, most, started = 0.0, 0.0, time.monotonic()
        for n in range(number):
            result = await engine.execute("double", {"n": n})
            if not result.is_success:
                outcome.failures.append(f"call {n} failed: {result.error}")
                break
            if n % max(1, number // 100) == 0:
                most = max(most, resident_megabytes())
                first = most if n <= number // 10 else first
        seconds = time.monotonic() - started
        await engine.store.flush()
        growth = resident_megabytes() - first
        statistics = await engine.store.get_call_statistics()
    outcome.check(growth < MAX_GROWTH, f"memory grew by {growth:.0f} MB")
    outcome.check(statistics.total == number, f"{number} calls have {statistics.total} records")
    left = _files_left(path)
    outcome.check(not left, f"journal segments are left: {left}")
    outcome.figures |= {
        "calls": number,
        "calls per second": round(number / seconds),
        "memory after a tenth, MB": round(first),
        "growth until the end, MB": round(growth, 1),
        "database, MB": round(os.path.getsize(path) / 1e6),
    }
    return outcome


def _files_left(path: Path) -> list[str]:
    return [file.name for file in path.with_name(f"{path.name}.journal").glob("*.jsonl")]
