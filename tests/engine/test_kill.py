"""Nothing lost, nothing later: what holds when a process is killed, and after a time-out."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ferrule import ToolEngine, ToolEngineConfig, ToolKnowledgeStore
from tests.engine import late_tools
from tests.support.processes import ROOT, PythonProcess
from tests.support.waiting import is_running, time_out_after_start, until

pytestmark = pytest.mark.integration

CALLS = """
import asyncio, sys
from ferrule import ToolEngine, ToolEngineConfig, tool

@tool
async def step(n: int) -> int:
    \"\"\"Take a step.\"\"\"
    if n % 7 == 0:
        await asyncio.sleep(0)
    return n

async def main():
    async with ToolEngine(ToolEngineConfig(auto_reload=False), store="sqlite:///" + sys.argv[1]) as engine:
        engine.register(step)
        print("ready", flush=True)
        for n in range(1000):
            result = await engine.execute("step", {"n": n})
            print(result.call_id, flush=True)
        print("end", flush=True)
        await asyncio.sleep(600)  # until it is killed

asyncio.run(main())
"""


def test_every_acknowledged_call_is_in_the_store_whenever_the_process_is_killed(tmp_path: Path):
    chance = random.Random(7)
    # Nine are killed somewhere, and one when it has made all of its calls.
    acknowledged = {
        call_id
        for number_of_lines in (*(chance.randrange(100) for _ in range(9)), 10_000)
        for call_id in kill_after_lines(tmp_path / "calls.db", number_of_lines)
    }
    assert len(acknowledged) > 1000
    assert acknowledged <= asyncio.run(recorded(tmp_path / "calls.db"))


def kill_after_lines(path: Path, number: int) -> set[str]:
    """The calls of which a process told that they had ended, until it was killed after so many lines."""
    reading, writing = os.pipe()
    with open(reading) as output:
        with open(writing, "w") as theirs, open(os.devnull) as nothing:
            process = PythonProcess("-c", CALLS, str(path), cwd=ROOT, stdin=nothing, stdout=theirs, stderr=sys.stderr)
        lines: list[str] = []
        for line in output:
            if len(lines) > number or line == "end\n":
                process.kill()
            lines.append(line)
        process.wait(60)
    return {line.strip() for line in lines if line.endswith("\n")} - {"ready", "end"}


async def recorded(path: Path) -> set[str]:
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        return {r.record_id for r in await store.query_call_records(status="success", limit=100_000)}


@asynccontextmanager
async def open_engine() -> AsyncIterator[ToolEngine]:
    """An engine whose first worker process has started: what follows takes no longer than its own work."""
    async with ToolEngine(ToolEngineConfig(auto_reload=False)) as engine:
        engine.register(late_tools.write_when_allowed, late_tools.start_child)
        assert (await engine.execute("start_child", {"path": os.devnull, "seconds": 0}, timeout=300)).is_success
        yield engine


@pytest.mark.parametrize("calls", [10, pytest.param(100, marks=pytest.mark.long)])
async def test_a_sync_tool_never_does_its_work_after_its_timeout(tmp_path: Path, calls: int):
    names = [str(number) for number in range(calls)]
    async with open_engine() as engine:
        batch = [("write_when_allowed", {"folder": str(tmp_path), "name": name}) for name in names]
        results = await time_out_after_start(
            lambda timeout: engine.execute_batch(batch, timeout=timeout), lambda: find_pids(tmp_path)
        )
        assert {r.error_type for r in results} == {"timeout"}
        assert not any(map(is_running, find_pids(tmp_path)))
    assert list(tmp_path.glob("*.late")) == []


async def test_what_a_timed_out_tool_started_is_gone(tmp_path: Path):
    async with open_engine() as engine:
        arguments = {"path": str(tmp_path / "child.pid"), "seconds": 600}
        result = await time_out_after_start(
            lambda timeout: engine.execute("start_child", arguments, timeout=timeout), lambda: find_pids(tmp_path)
        )
        assert result.error_type == "timeout"
        assert not any(map(is_running, find_pids(tmp_path)))


async def test_a_cancelled_caller_leaves_no_worker_at_work(tmp_path: Path):
    async with open_engine() as engine:
        task = asyncio.create_task(engine.execute("write_when_allowed", {"folder": str(tmp_path), "name": "it"}))
        await until(lambda: find_pids(tmp_path))
        task.cancel()
        await asyncio.wait([task])
        assert not any(map(is_running, find_pids(tmp_path)))
        [record] = await engine.query_call_records(tool_name="write_when_allowed")
        assert task.cancelled() and record.status == "cancelled"


def find_pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("*.pid") if (text := path.read_text())]
