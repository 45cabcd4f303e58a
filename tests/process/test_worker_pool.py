import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ferrule.core.call import ToolExecutionResult
from ferrule.errors import ExecutionFailed, SetupError, TransportFault
from ferrule.kinds.function.executor import FunctionExecutor
from ferrule.process.pool import WorkerPool
from ferrule.process.worker_process import MAX_OUTPUT
from tests.kinds.function import sample_functions as sample
from tests.kinds.function.invocations import invocation_of
from tests.support.waiting import is_running, until

pytestmark = pytest.mark.integration


async def process_id(pool: WorkerPool) -> int:
    output = await FunctionExecutor(pool).execute(invocation_of(sample.process_id))
    return int(output.data["result"])


@contextmanager
def program_of(folder: Path, code: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that uses a pool, and finds the same modules as this one; it is killed at the end."""
    (folder / "program.py").write_text(
        "import asyncio, os, sys\n"
        "from ferrule.kinds.function.executor import FunctionExecutor\n"
        "from ferrule.process import worker_process\n"
        "from ferrule.process.pool import WorkerPool\n"
        "from tests.kinds.function import sample_functions as sample\n"
        "from tests.kinds.function.invocations import invocation_of\n"
        "worker_process.OUTPUT_WINDOW = worker_process.OUTPUT_TIMEOUT = 600.0  # more than a busy machine needs\n"
        "pool = WorkerPool()\n"
        "executor = FunctionExecutor(pool)\n"
        "def call(function, **params):\n"
        "    return executor.execute(invocation_of(function, params))\n" + code
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(folder / "program.py")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **options) as program:
        try:
            yield program
        finally:
            program.kill()


def output_of(program: subprocess.Popen[str]) -> str:
    out, _ = program.communicate(timeout=120)
    assert program.returncode == 0
    return out.strip()


async def test_twenty_concurrent_calls_share_the_workers():
    pool = WorkerPool(size=2, max_workers=4)
    executor = FunctionExecutor(pool)
    calls = [invocation_of(sample.add, {"a": n, "b": n}) for n in range(20)]
    outputs = await asyncio.gather(*map(executor.execute, calls))
    assert [output.data["result"] for output in outputs] == [2 * n for n in range(20)]
    assert len(pool.pids) <= 4
    await pool.aclose()


async def test_calls_one_after_another_use_one_worker_and_a_spare_one_is_kept_warm():
    pool = WorkerPool(size=2)
    assert len({await process_id(pool) for _ in range(5)}) == 1
    assert len(pool.pids) == 2
    await pool.aclose()


async def test_a_worker_is_replaced_after_so_many_calls(monkeypatch):
    monkeypatch.setattr("ferrule.process.pool.MAX_CALLS_PER_WORKER", 2)
    pool = WorkerPool(size=1)
    used = [await process_id(pool) for _ in range(4)]
    assert used[0] == used[1] != used[2] == used[3]
    await until(lambda: not is_running(used[0]))
    await pool.aclose()


async def test_superfluous_idle_workers_are_ended(monkeypatch):
    monkeypatch.setattr("ferrule.process.pool.IDLE_TIME", 0.05)
    pool = WorkerPool(size=1, max_workers=4)
    used = await asyncio.gather(*(process_id(pool) for _ in range(4)))
    assert len(set(used)) == 4
    await until(lambda: len(pool.pids) == 1)
    await pool.aclose()


async def test_a_worker_that_died_while_idle_is_replaced():
    pool = WorkerPool(size=1)
    first = await process_id(pool)
    os.kill(first, signal.SIGKILL)
    await until(lambda: not is_running(first))
    assert await process_id(pool) != first
    await pool.aclose()


def test_a_pool_outlives_its_event_loop():
    pool = WorkerPool()
    assert asyncio.run(process_id(pool)) == asyncio.run(process_id(pool))
    asyncio.run(pool.aclose())


async def test_workers_are_started_when_they_are_needed_and_closing_ends_them():
    pool = WorkerPool()
    assert not pool.pids
    first = await process_id(pool)
    assert first in pool.pids
    await pool.aclose()
    assert not pool.pids and not is_running(first)
    assert await process_id(pool) != first
    await pool.aclose()


async def test_closing_ends_calls_that_run(tmp_path):
    pool = WorkerPool()
    arguments = {"folder": str(tmp_path), "name": "it"}
    call = asyncio.create_task(FunctionExecutor(pool).execute(invocation_of(sample.write_when_allowed, arguments)))
    await until((tmp_path / "it.started").exists)
    await pool.aclose()
    with pytest.raises(TransportFault, match="killed by signal 9, SIGKILL"):
        await call


async def test_a_waiting_call_that_is_cancelled_does_not_block_the_next(tmp_path):
    pool = WorkerPool(size=1, max_workers=1)
    executor = FunctionExecutor(pool)
    arguments = {"folder": str(tmp_path), "name": "it"}
    busy = asyncio.create_task(executor.execute(invocation_of(sample.write_when_allowed, arguments)))
    await until((tmp_path / "it.started").exists)
    waiting = [asyncio.create_task(process_id(pool)) for _ in range(3)]
    await asyncio.sleep(0)  # all three wait now
    waiting[0].cancel()
    (tmp_path / "allowed").touch()
    assert (await busy).data == {"result": "written"}
    waiting[1].cancel()  # its turn has come, perhaps
    assert await waiting[2] in pool.pids
    await pool.aclose()


async def test_tools_that_call_tools_do_not_exceed_or_exhaust_the_limit():
    pool = WorkerPool(size=1, max_workers=1)
    executor = FunctionExecutor(pool)

    async def call_tool(tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult:
        deeper = {"name": "deeper", "n": params["n"] - 1}
        invocation = invocation_of(sample.ask, deeper, call_tool=call_tool)
        result = (await executor.execute(invocation)).data["result"] if params["n"] else "the bottom"
        return ToolExecutionResult(is_success=True, tool_name=tool_name, output={"result": result})

    output = await executor.execute(invocation_of(sample.ask, {"name": "top", "n": 2}, call_tool=call_tool))
    assert output.data["result"] == "top says deeper says deeper says the bottom"
    await pool.aclose()


async def test_a_result_that_is_too_large_fails_the_call_before_it_is_read(monkeypatch):
    monkeypatch.setattr("ferrule.process.pool.MAX_RESULT_BYTES", 10_000)
    pool = WorkerPool(size=1)
    executor = FunctionExecutor(pool)
    with pytest.raises(ExecutionFailed, match="more than the 10,000 allowed, and was ended. Let the tool return less"):
        await executor.execute(invocation_of(sample.repeat, {"text": "x", "times": 20_000}))
    output = await executor.execute(invocation_of(sample.repeat, {"text": "x", "times": 3}))
    assert output.data == {"result": "xxx"}
    await pool.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which groups a session has")
async def test_groups_a_tool_left_in_the_session_end_with_the_worker():
    pool = WorkerPool(size=1)
    output = await FunctionExecutor(pool).execute(invocation_of(sample.leave_a_job))
    assert is_running(output.data["result"])
    await pool.aclose()
    await until(lambda: not is_running(output.data["result"]))


async def test_a_worker_that_cannot_be_started_is_a_transport_fault(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TransportFault, match="A worker process could not be started: .*No such file"):
        await process_id(WorkerPool())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the descriptors of a process as a folder")
async def test_a_worker_that_cannot_be_started_leaves_no_descriptors(monkeypatch):
    open_pipe, pipes = os.pipe, []

    def fail_at_the_second() -> tuple[int, int]:
        pipes.append(0)
        if len(pipes) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return open_pipe()

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "pipe", fail_at_the_second)
    with pytest.raises(TransportFault, match="A worker process could not be started: .*Too many open files"):
        await process_id(WorkerPool())
    assert os.listdir("/proc/self/fd") == before


def test_impossible_sizes_are_rejected():
    with pytest.raises(SetupError, match="a worker pool needs 1 <= size <= max_workers, not size=3 and max_workers=2"):
        WorkerPool(size=3, max_workers=2)


# The end of the parent process


def test_workers_end_with_the_program(tmp_path):
    with program_of(tmp_path, "asyncio.run(call(sample.add, a=1, b=2))\nprint(*pool.pids)") as program:
        pids = [int(pid) for pid in output_of(program).split()]
    assert pids and not any(is_running(pid) for pid in pids)


async def test_an_idle_worker_ends_when_its_parent_is_killed(tmp_path):
    code = "asyncio.run(call(sample.add, a=1, b=2))\nprint(*pool.pids, flush=True)\nsys.stdin.read()"
    with program_of(tmp_path, code, stdin=subprocess.PIPE) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert pids and all(is_running(pid) for pid in pids)
    await until(lambda: not any(is_running(pid) for pid in pids))


async def test_a_busy_worker_and_its_children_end_when_the_parent_is_killed(tmp_path):
    with program_of(tmp_path, f"asyncio.run(call(sample.start_children, folder={str(tmp_path)!r}))"):
        await until((tmp_path / "pids").exists)
        worker, child, shell, detached, grandchild = map(int, (tmp_path / "pids").read_text().split())
    await until(lambda: not any(map(is_running, (worker, child, shell, grandchild))))
    os.kill(detached, signal.SIGKILL)  # the parent that would have looked for it is dead


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process that holds the GIL")
async def test_a_worker_that_holds_the_gil_ends_when_its_parent_is_killed(tmp_path):
    with program_of(tmp_path, f"asyncio.run(call(sample.compute_without_end, folder={str(tmp_path)!r}))"):
        await until((tmp_path / "computing").exists)
        worker = int((tmp_path / "computing").read_text())
    await until(lambda: not is_running(worker))


def close_input_and_error() -> None:
    os.close(0)
    os.close(2)


def test_a_program_without_standard_input_and_error_can_use_workers(tmp_path):
    code = "print(asyncio.run(call(sample.add, a=1, b=2)).data)"
    with program_of(tmp_path, code, preexec_fn=close_input_and_error) as program:
        assert output_of(program) == "{'result': 3}"


def test_a_fork_of_the_program_starts_workers_of_its_own_and_leaves_the_others_alone(tmp_path):
    code = """
def worker():
    return asyncio.run(call(sample.process_id)).data["result"]

first = worker()
child = os.fork()
if child == 0:
    sys.exit(0 if worker() != first else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), worker() == first)
"""
    with program_of(tmp_path, code) as program:
        assert output_of(program) == "0 True"


# What functions print


def test_what_a_function_prints_is_passed_on_in_order_before_its_call_ends(tmp_path):
    code = """
def talk():
    for number in range(100):
        print(number)
        print("to standard error", file=sys.stderr)
    os.write(2, b"unfinished line,")
def crash():
    print("last words", flush=True)
    os.abort()

async def main():
    for _ in range(3):
        await call(talk)
        os.write(2, b" next\\n")
    try:
        await call(crash)
    except Exception:
        os.write(2, b"after the crash\\n")
asyncio.run(main())
"""
    lines = "".join(f"{number}\nto standard error\n" for number in range(100))
    with program_of(tmp_path, code, stderr=subprocess.PIPE) as program:
        _, printed = program.communicate(timeout=120)
    assert printed.startswith(f"{lines}unfinished line, next\n" * 3 + "last words\n")
    assert printed.endswith("after the crash\n")


@pytest.mark.parametrize("line", ["b'x' * 99 + b'\\n'", "b'x' * 100"])
def test_too_much_output_of_a_function_is_dropped_with_a_note(tmp_path, line):
    code = f"""
def flood():
    for _ in range(60):
        os.write(2, ({line}) * 1000)
    return "done"

async def main():
    print((await call(flood)).data["result"], flush=True)
    os.write(2, b"after\\n")
    await pool.aclose()
asyncio.run(main())
"""
    with program_of(tmp_path, code, stderr=subprocess.PIPE) as program:
        out, printed = program.communicate(timeout=120)
    assert out == "done\n" and len(printed) < 2 * MAX_OUTPUT
    *_, note, after = printed.splitlines()
    dropped = int(re.findall(r"([\d,]+) bytes that tool 'flood' printed were dropped", note)[0].replace(",", ""))
    assert dropped + len(printed.partition("ferrule: ")[0].rstrip("\n")) in range(5_999_999, 6_000_001)
    assert after == "after"


def test_a_worker_is_not_held_up_when_nobody_reads_the_output(tmp_path):
    code = """
worker_process.OUTPUT_TIMEOUT = 0.01
def flood():
    for _ in range(100):
        os.write(2, b"x" * 100_000)
    return "done"
print(asyncio.run(call(flood)).data["result"], flush=True)
os._exit(0)
"""
    with program_of(tmp_path, code, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdout.readline() == "done\n"  # its standard error is not read
