"""Resources that run out: disk space and file descriptors. The kernel's limits for one process stand for them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.scenario import Load, Outcome, child_pids
from ferrule import ToolEngine, ToolEngineConfig, tool
from ferrule.store import ToolCallRecord, ToolKnowledgeStore

FILLER = "x" * 20_000
"""An argument that fills a journal segment with some hundred calls."""
RECOVERY_TIMEOUT = 60.0


def _config(**options: Any) -> ToolEngineConfig:
    return ToolEngineConfig(tools_directory="no-such-folder", builtin_tools=False, auto_reload=False, **options)


# ---- a full disk


def fill_disk(load: Load) -> Outcome:
    outcome, chance, rounds = Outcome(), random.Random(load.seed), 0
    totals: Counter[str] = Counter()
    deadline = time.monotonic() + load.seconds
    while time.monotonic() < deadline or rounds < 2:
        on_store_failure = ("refuse_destructive", "refuse")[rounds % 2]
        path, kill = load.folder / f"{rounds}.db", rounds % 4 < 2
        acknowledged = _call_on_a_full_disk(path, on_store_failure, kill=kill, seed=chance.randrange(1_000_000))
        rounds += 1
        totals.update(event["event"] for event in acknowledged)
        records = {record.record_id: record for record in asyncio.run(_read_all(path))}
        for event in acknowledged:
            is_promised = on_store_failure == "refuse" or event["event"] == "wipe" or not kill
            if is_promised and event["event"] in ("wipe", "note") and event["id"] not in records:
                outcome.failures.append(f"round {rounds}: the record of {event} is lost ({on_store_failure})")
        outcome.check(kill or any(e["event"] == "recovered" for e in acknowledged), f"round {rounds}: no recovery")
    outcome.figures |= {"rounds": rounds, "of these killed": (rounds + 1) // 2}
    outcome.figures |= {"accepted calls": totals["wipe"] + totals["note"], "refused calls": totals["refused"]}
    return outcome


def _call_on_a_full_disk(path: Path, on_store_failure: str, *, kill: bool, seed: int) -> list[dict[str, Any]]:
    """The calls that were acknowledged by a process which met a full disk, and was killed there or went on."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "chaos.limits", str(path), on_store_failure, str(int(kill)), str(seed)]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != (-signal.SIGKILL if kill else 0):
        raise RuntimeError(f"the process ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]


async def _call_until_killed(path: str, on_store_failure: Any, kill: str, seed: str) -> None:
    @tool(destructive=True)
    async def wipe(text: str) -> str:
        """Delete something."""
        return "wiped"

    @tool
    async def note(text: str) -> str:
        """Write something down."""
        return "noted"

    def acknowledge(event: str, call_id: str = "") -> None:
        os.write(1, (json.dumps({"event": event, "id": call_id}) + "\n").encode())

    chance = random.Random(int(seed))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    config = _config(on_store_failure=on_store_failure)
    async with ToolEngine(config, store=ToolKnowledgeStore(path)) as engine:
        engine.register(wipe, note)

        async def call(number: int) -> bool:
            refused = False
            for _ in range(number):
                name = chance.choice(["wipe", "note"])
                result = await engine.execute(name, {"text": FILLER[: chance.randrange(len(FILLER))]})
                acknowledge(name if result.is_success else "refused", result.call_id)
                refused = refused or not result.is_success
            return refused

        await call(chance.randrange(100))
        limit = os.path.getsize(path) + chance.randrange(100_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        while not await call(50):
            pass
        await call(chance.randrange(100))
        if int(kill):
            os.kill(os.getpid(), signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        deadline = time.monotonic() + RECOVERY_TIMEOUT
        while await call(1):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.1)
        acknowledge("recovered")


async def _read_all(path: Path) -> list[ToolCallRecord]:
    async with ToolKnowledgeStore(str(path)) as store:
        return await store.query_call_records(limit=1_000_000)


# ---- no file descriptors


@tool
def count_letters(text: str) -> int:
    """Count letters, in a worker process."""
    return len(text)


def exhaust_descriptors(load: Load) -> Outcome:
    return asyncio.run(_exhaust_descriptors(load))


async def _exhaust_descriptors(load: Load) -> Outcome:
    outcome, chance, rounds = Outcome(), random.Random(load.seed), 0
    kinds: Counter[str] = Counter()
    deadline = time.monotonic() + load.seconds
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    @tool
    async def note(text: str) -> str:
        """Write something down."""
        return text

    before = len(_descriptors())
    async with ToolEngine(_config(), store=f"sqlite:///{load.folder}/calls.db") as engine:
        engine.register(note, count_letters)
        calls = [await engine.execute("note", {"text": "first"}), await engine.execute("count_letters", {"text": "a"})]
        while time.monotonic() < deadline or rounds < 3:
            for worker in child_pids():  # so that the next call needs a new one, for which there is nothing left
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            free = chance.randrange(8)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(_descriptors()) + 1 + free, hard))
            results = await asyncio.gather(
                *(engine.execute("note", {"text": str(n)}) for n in range(20)),
                *(engine.execute("count_letters", {"text": "x" * n}) for n in range(4)),
            )
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            kinds.update(result.error_type or "success" for result in results)
            failed = [result.error for result in results[:20] if not result.is_success]
            outcome.check_none(failed, "calls failed that need no descriptor")
            after = await engine.execute("count_letters", {"text": "after"})
            outcome.check(after.is_success, f"a call failed after the limit was lifted: {after.error}")
            calls += [*results, after]
            rounds += 1
        recorded = {record.record_id for record in await engine.query_call_records(limit=1_000_000)}
        outcome.check_none({call.call_id for call in calls} - recorded, "calls have no record")
    leaked = len(_descriptors()) - before
    outcome.check(leaked <= 0, f"{leaked} descriptors are leaked in {rounds} rounds")
    outcome.figures |= {"rounds": rounds, "calls": len(calls), **kinds, "descriptors leaked": leaked}
    return outcome


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


if __name__ == "__main__":
    asyncio.run(_call_until_killed(*sys.argv[1:]))
