"""Nothing lost, nothing later: what holds when a process is killed, and after a time-out."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule import ToolEngine, ToolEngineConfig, ToolKnowledgeStore
from tests.engine import late_tools
from tests.support.waiting import is_running, until

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
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def recorded(path: Path) -> set[str]:
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        return {r.record_id for r in await store.query_call_records(status="success", limit=100_000)}


def test_every_acknowledged_call_is_in_the_store_whenever_the_process_is_killed(tmp_path: Path):
    chance = random.Random(7)
    acknowledged: set[str] = set()
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", CALLS, str(tmp_path / "calls.db")], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        first = b"".join(process.stdout.readline() for _ in range(chance.randrange(100)))
        process.send_signal(signal.SIGKILL)
        lines = (first + process.stdout.read()).decode().splitlines(keepends=True)
        acknowledged |= {line.strip() for line in lines if line.endswith("\n") and line != "end\n"}
        process.wait()
        process.stdout.close()
    assert len(acknowledged) > 100
    assert acknowledged <= asyncio.run(recorded(tmp_path / "calls.db"))


async def test_a_thousand_calls_of_a_process_killed_at_its_end_are_all_there(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALLS, str(tmp_path / "calls.db"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    acknowledged = set()
    while (line := (await process.stdout.readline()).decode().strip()) != "end":
        acknowledged.add(line)
    process.kill()
    await process.wait()
    acknowledged.discard("ready")
    assert len(acknowledged) == 1000
    assert acknowledged <= await recorded(tmp_path / "calls.db")


async def test_a_sync_tool_never_does_its_work_after_its_timeout(tmp_path: Path):
    """A hundred of a hundred."""
    async with ToolEngine(ToolEngineConfig(auto_reload=False)) as engine:
        engine.register(late_tools.write_when_allowed)
        calls = [("write_when_allowed", {"folder": str(tmp_path), "name": str(n)}) for n in range(100)]
        results = await engine.execute_batch(calls, timeout=0.2)
    assert {r.error_type for r in results} == {"timeout"}
    await nothing_is_written(tmp_path)


async def test_what_a_timed_out_tool_started_is_gone(tmp_path: Path):
    async with ToolEngine(ToolEngineConfig(auto_reload=False)) as engine:
        engine.register(late_tools.start_child)
        await engine.execute("start_child", {"path": str(tmp_path / "first"), "seconds": 0})  # a worker is ready
        result = await engine.execute("start_child", {"path": str(tmp_path / "pid"), "seconds": 60}, timeout=3)
        pid = int((tmp_path / "pid").read_text())
        assert result.error_type == "timeout"
        assert not is_running(pid)


async def test_a_cancelled_caller_leaves_no_worker_at_work(tmp_path: Path):
    async with ToolEngine(ToolEngineConfig(auto_reload=False)) as engine:
        engine.register(late_tools.write_when_allowed)
        task = asyncio.create_task(engine.execute("write_when_allowed", {"folder": str(tmp_path), "name": "it"}))
        await until((tmp_path / "it.begun").exists)
        task.cancel()
        await asyncio.wait([task])
        await nothing_is_written(tmp_path)
        [record] = await engine.query_call_records()
        assert task.cancelled() and record.status == "cancelled"


async def nothing_is_written(folder: Path) -> None:
    (folder / "allowed").touch()
    await asyncio.sleep(0.3)  # a process that still ran would write within 10 ms
    assert list(folder.glob("*.late")) == []
