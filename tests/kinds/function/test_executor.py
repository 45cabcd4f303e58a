import asyncio
import importlib
import inspect
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from ferrule.core.call import Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Image, Output, Text
from ferrule.errors import ExecutionFailed, InvalidArguments, NeedsApproval, Rejected, Retry, SetupError, TransportFault
from ferrule.kinds.function.executor import FunctionExecutor
from ferrule.process import worker_process
from ferrule.process.pool import WorkerPool
from ferrule.process.python_module import load_python_module
from ferrule.process.thread import FunctionThreads
from tests.kinds.function import sample_functions as sample
from tests.kinds.function import sample_state
from tests.kinds.function.invocations import invocation_of
from tests.support.waiting import is_running, until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def executor() -> Iterator[FunctionExecutor]:
    executor = FunctionExecutor(WorkerPool())
    yield executor
    asyncio.run(executor.aclose())


async def run(executor: FunctionExecutor, function: Any, params: dict[str, Any] | None = None) -> Any:
    return result_of(await executor.execute(invocation_of(function, params)))


def result_of(value: Any) -> Any:
    return Output.of(value).data["result"]


# Where functions run


async def test_an_async_function_runs_in_the_task_of_its_caller(executor):
    async def which_task() -> Any:
        return asyncio.current_task()

    assert await executor.execute(invocation_of(which_task)) is asyncio.current_task()


@pytest.mark.parametrize("function", [sample.process_id, sample.process_id_async, sample.Toolbox.static])
async def test_a_function_that_can_be_imported_runs_in_another_process(executor, function):
    output = await executor.execute(invocation_of(function, isolation="process"))
    assert result_of(output) not in (os.getpid(), None)


async def test_a_sync_function_runs_in_another_process_unless_something_else_is_asked(executor):
    assert await run(executor, sample.process_id) != os.getpid()
    assert (await run(executor, sample.Toolbox.of_class)).startswith("Toolbox ")
    assert await run(executor, os.path.basename, {"p": "a/b"}) == "b"


async def test_modules_stay_imported_from_call_to_call():
    executor = FunctionExecutor(WorkerPool(size=1, max_workers=1))
    await run(executor, sample.keep, {"number": 1})
    assert await run(executor, sample.keep, {"number": 2}) == [1, 2]
    await executor.aclose()


async def test_a_function_runs_in_a_thread_or_on_the_event_loop_when_asked(executor):
    def here() -> tuple[int, bool]:
        return os.getpid(), threading.current_thread() is threading.main_thread()

    async def name_thread() -> str:
        return threading.current_thread().name

    assert await executor.execute(invocation_of(here, isolation="thread")) == (os.getpid(), False)
    assert await executor.execute(invocation_of(here, isolation="inline")) == (os.getpid(), True)
    assert await executor.execute(invocation_of(name_thread, isolation="thread")) == "ferrule-name_thread"


async def test_closures_run_in_a_thread_and_that_is_logged_once(executor, caplog):
    total = 40

    def closure(n: int) -> list[int]:
        return [total + n, os.getpid()]

    invocation = invocation_of(closure, {"n": 2})
    with caplog.at_level(logging.INFO, "ferrule.kinds"):
        assert await executor.execute(invocation) == await executor.execute(invocation) == [42, os.getpid()]
    assert [r.getMessage() for r in caplog.records] == [
        "tool=<closure>, reason=<it is defined inside a function> | runs in a thread, which cannot be killed"
    ]


@pytest.mark.parametrize("function", [lambda: os.getpid(), sample.Toolbox().method], ids=["lambda", "method"])
async def test_lambdas_and_methods_of_objects_run_in_a_thread(executor, function):
    assert await executor.execute(invocation_of(function)) == os.getpid()


async def test_a_function_that_cannot_be_sent_fails_when_it_must_run_in_a_process(executor):
    with pytest.raises(ExecutionFailed) as caught:
        await executor.execute(invocation_of(sample.Toolbox().method, isolation="process"))
    assert str(caught.value) == (
        "Tool 'method' has isolation='process', but cannot be sent to another process: "
        "tests.kinds.function.sample_functions.Toolbox.method is a method of a Toolbox object. "
        "Make it a function at the top level of a module, or give it isolation='thread'."
    )


async def test_a_function_whose_module_cannot_be_loaded_elsewhere_runs_in_a_thread(
    executor, tmp_path, monkeypatch, caplog
):
    (tmp_path / "only_here.py").write_text(
        "import os\n"
        f"if os.getpid() != {os.getpid()}: raise RuntimeError('not here')\n"
        "def me() -> int: return os.getpid()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.INFO, "ferrule.kinds"):
        assert await run(executor, importlib.import_module("only_here").me) == os.getpid()
    assert "loading it there failed with RuntimeError: not here" in caplog.text


async def test_a_new_version_of_a_tool_takes_the_place_of_the_old_one(executor):
    async def same_name() -> int:
        return 1

    first = invocation_of(same_name)

    async def same_name() -> int:  # type: ignore[no-redef]
        return 2

    assert [await executor.execute(i) for i in (first, invocation_of(same_name), first)] == [1, 2, 1]


# What goes in and out


async def test_arguments_become_what_the_function_takes_and_results_become_plain(executor):
    output = await executor.execute(invocation_of(sample.mirror, {"point": {"x": 1, "y": 2}}))
    assert output.data == {"name": "2,1", "at": 3}
    with pytest.raises(InvalidArguments) as caught:
        await executor.execute(invocation_of(sample.mirror, {"point": {"x": "far", "y": 2}}))
    assert [error["path"] for error in caught.value.errors] == ["point.x"]
    assert (await executor.execute(invocation_of(sample.picture))).parts[1] == Image(data=b"\x89PNG")


async def test_five_megabytes_go_in_and_out(executor):
    size = 5_000_000
    assert await run(executor, sample.length, {"text": "x" * size}) == size
    assert len(await run(executor, sample.repeat, {"text": "x", "times": size})) == size


async def test_what_a_tool_prints_goes_to_standard_error(capfd, monkeypatch):
    monkeypatch.setattr(worker_process, "OUTPUT_TIMEOUT", 60.0)
    executor = FunctionExecutor(WorkerPool())
    assert await run(executor, sample.noisy) == "quiet"
    await executor.aclose()
    assert capfd.readouterr() == ("", "printed\nfrom a child\nwritten to descriptor 1\n")


async def test_arguments_that_cannot_be_sent_fail_the_call(executor):
    with pytest.raises(ExecutionFailed, match="The arguments of tool 'length' cannot be sent to a worker process"):
        await run(executor, sample.length, {"text": threading.Lock()})


async def test_arguments_that_cannot_be_read_in_the_worker_fail_the_call(executor, monkeypatch):
    class Local:
        pass

    Local.__qualname__, Local.__module__ = "Local", "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "Local", Local, raising=False)
    with pytest.raises(ExecutionFailed, match="cannot be read in a worker process"):
        await run(executor, sample.length, {"text": Local()})


async def test_a_worker_sees_the_environment_and_the_directory_of_the_moment(executor, monkeypatch, tmp_path):
    assert await run(executor, sample.variable, {"name": "FERRULE_SAMPLE"}) is None
    (tmp_path / "note").write_text("found")
    monkeypatch.setenv("FERRULE_SAMPLE", "set")
    monkeypatch.chdir(tmp_path)
    assert await run(executor, sample.variable, {"name": "FERRULE_SAMPLE"}) == "set"
    assert await run(executor, sample.read_file, {"path": "note"}) == "found"
    monkeypatch.undo()
    assert await run(executor, sample.variable, {"name": "FERRULE_SAMPLE"}) is None


async def test_a_tool_that_changes_its_directory_does_not_move_the_next_one(executor, tmp_path):
    await run(executor, sample.wander, {"to": str(tmp_path)})
    assert await run(executor, sample.wander, {"to": str(tmp_path)}) == os.getcwd()


async def test_a_sync_function_may_return_a_coroutine(executor):
    assert await run(executor, sample.returns_coroutine) != os.getpid()
    here = await executor.execute(invocation_of(sample.returns_coroutine, isolation="inline"))
    assert here == os.getpid()


# Generators


@pytest.mark.parametrize("isolation", ["process", "thread", "inline"])
async def test_a_generator_reports_its_items_and_returns_them_all(executor, isolation):
    events: list[Progress] = []
    value = await executor.execute(
        invocation_of(sample.count_up_to, {"n": 3}, isolation=isolation, report=events.append)
    )
    assert result_of(value) == [1, 2, 3]
    assert events == [Progress(data=1), Progress(data=2), Progress(data=3)]


async def test_yielded_progress_is_reported_and_a_returned_value_is_the_result(executor):
    events: list[Progress] = []
    output = await executor.execute(invocation_of(sample.half_way, report=events.append))
    assert output.data == {"answer": 42}
    assert events == [Progress(fraction=0.5, message="half way"), Progress(data="piece")]
    assert await run(executor, sample.words, {"text": "你好"}) == "你好"  # pieces of text become one


async def test_items_arrive_while_the_generator_runs(executor, tmp_path):
    def let_it_go_on(progress: Progress) -> None:
        (tmp_path / str(progress.data)).touch()

    invocation = invocation_of(sample.lockstep, {"folder": str(tmp_path)}, report=let_it_go_on)
    assert result_of(await executor.execute(invocation)) == [0, 1, 2]


async def test_a_cancelled_async_generator_is_closed(executor, tmp_path):
    events: list[Progress] = []
    invocation = invocation_of(sample.count_slowly, {"folder": str(tmp_path)}, report=events.append)
    task = asyncio.create_task(executor.execute(invocation))
    await until(lambda: bool(events))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "closed").exists()


# Failures


async def test_signals_arrive_with_their_details(executor):
    with pytest.raises(Retry, match="try a smaller number") as caught:
        await run(executor, sample.fail, {"kind": "retry"})
    assert caught.value.details["limit"] == 5
    with pytest.raises(NeedsApproval, match="ask first"):
        await run(executor, sample.fail, {"kind": "approval"})


async def test_exceptions_arrive_as_they_were(executor):
    with pytest.raises(FileNotFoundError) as missing:
        await run(executor, sample.fail, {"kind": "file"})
    assert (missing.value.errno, missing.value.filename) == (2, "/no/such/file")
    with pytest.raises(sample.OddlyMade) as odd:
        await run(executor, sample.fail, {"kind": "odd"})
    assert (str(odd.value), odd.value.code) == ("error 7: odd", 7)
    with pytest.raises(UnicodeDecodeError, match="can't decode byte 0xff in position 0"):
        await run(executor, sample.fail, {"kind": "decode"})


async def test_what_an_exception_carries_arrives_as_text_if_it_cannot_travel(executor):
    with pytest.raises(sample.Unpicklable, match="with a lambda inside") as caught:
        await run(executor, sample.fail, {"kind": "unpicklable"})
    assert caught.value.args[1].startswith("<function")
    with pytest.raises(Retry) as signal:
        await run(executor, sample.fail, {"kind": "details"})
    assert signal.value.details == {"advice": "change_arguments", "point": {"x": 1, "y": 2}}


async def test_an_exception_that_would_say_something_else_arrives_as_execution_failed(executor):
    with pytest.raises(ExecutionFailed) as caught:
        await run(executor, sample.fail, {"kind": "talkative"})
    assert str(caught.value) == "Talkative: at 1"


async def test_an_exception_this_process_does_not_know_is_not_imported_for(executor, tmp_path, monkeypatch):
    (tmp_path / "ferrule_test_unknown.py").write_text("class Odd(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ExecutionFailed, match=r"^Odd: how odd"):
        await run(executor, sample.fail_in, {"module": "ferrule_test_unknown", "name": "Odd"})
    assert "ferrule_test_unknown" not in sys.modules


@pytest.mark.parametrize("where", ["data", "text", "image", "failure", "progress", "question"])
async def test_nothing_a_tool_sends_runs_code_in_this_process(executor, tmp_path, where):
    invocation = invocation_of(sample.smuggle, {"folder": str(tmp_path), "where": where}, call_tool=square)
    with suppress(Exception):
        await executor.execute(invocation)
    assert not (tmp_path / str(os.getpid())).exists()
    assert (tmp_path / "sent").exists()


async def test_what_a_tool_puts_into_a_part_arrives_as_text(executor, tmp_path):
    output = await executor.execute(invocation_of(sample.smuggle, {"folder": str(tmp_path), "where": "text"}))
    assert output == Output(data={"content": [{"type": "text", "text": "smuggled"}]}, parts=(Text(text="smuggled"),))


async def test_a_worker_that_breaks_the_rules_is_ended_and_the_call_fails(executor):
    pid = await run(executor, sample.process_id)
    with pytest.raises(ExecutionFailed, match=r"something else than plain values \(posix\.system is no plain value\)"):
        await run(executor, sample.forge_a_frame)
    assert not is_running(pid)
    assert await run(executor, sample.add, {"a": 1, "b": 2}) == 3


async def test_an_exception_says_where_in_the_worker_it_was_raised(executor):
    with pytest.raises(KeyError) as caught:
        await run(executor, sample.fail, {"kind": "other"})
    assert "sample_functions.py" in caught.value.__notes__[0]
    assert "raise KeyError(kind)" in caught.value.__notes__[0]


@pytest.mark.parametrize("isolation", ["process", "thread", "inline"])
async def test_a_tool_that_exits_or_stops_fails_and_the_program_goes_on(executor, isolation):
    with pytest.raises(ExecutionFailed, match=r"Tool 'end' raised SystemExit\(3\)"):
        await executor.execute(invocation_of(sample.end, {"how": "exit"}, isolation=isolation))
    with pytest.raises(ExecutionFailed, match="StopIteration"):
        await executor.execute(invocation_of(sample.fail, {"kind": "stop"}, isolation=isolation))


async def test_an_async_tool_that_exits_fails_and_the_program_goes_on(executor):
    async def leave() -> None:
        sys.exit(3)

    with pytest.raises(ExecutionFailed, match=r"Tool 'leave' raised SystemExit\(3\)"):
        await executor.execute(invocation_of(leave))


@pytest.mark.parametrize(("how", "reason"), [("_exit", "exit code 7"), ("crash", "killed by signal 11, SIGSEGV")])
async def test_the_death_of_the_process_is_a_transport_fault(executor, how, reason):
    with pytest.raises(TransportFault) as caught:
        await run(executor, sample.end, {"how": how})
    assert str(caught.value) == (
        f"The process that ran tool 'end' died ({reason}). Its last messages are in the standard error output."
    )
    assert await run(executor, sample.add, {"a": 1, "b": 2}) == 3


async def test_endless_recursion_is_an_ordinary_failure(executor):
    with pytest.raises(RecursionError):
        await run(executor, sample.recurse)


# Context, progress, calls of other tools


@pytest.mark.parametrize("isolation", ["process", "thread", "inline"])
async def test_progress_is_reported_in_order_from_everywhere(executor, isolation):
    events: list[Progress] = []
    # Here the engine's part: what runs in this very task finds its invocation in the task's context.
    invocation = invocation_of(sample.report, {"steps": 3}, isolation=isolation, report=events.append)
    token = type(invocation).current.set(invocation)
    await executor.execute(invocation)
    type(invocation).current.reset(token)
    assert [progress.message for progress in events] == ["step 0", "step 1", "step 2"]


async def square(tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult:
    await asyncio.sleep(0)
    return ToolExecutionResult(is_success=True, tool_name=tool_name, output={"result": params["n"] ** 2})


@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_a_sync_tool_calls_another_tool(executor, isolation):
    invocation = invocation_of(sample.ask, {"name": "square", "n": 7}, isolation=isolation, call_tool=square)
    assert result_of(await executor.execute(invocation)) == "square says 49"


@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_an_async_tool_calls_other_tools_from_wherever_it_runs(executor, isolation):
    invocation = invocation_of(sample.ask_twice, {"name": "square"}, isolation=isolation, call_tool=square)
    assert result_of(await executor.execute(invocation)) == [1, 4]


async def test_an_inline_tool_that_calls_another_is_told_why_it_cannot(executor):
    invocation = invocation_of(sample.ask, {"name": "square", "n": 5}, isolation="inline", call_tool=square)
    token = type(invocation).current.set(invocation)
    with pytest.raises(SetupError, match="A tool with isolation='inline' can call no other tools"):
        await executor.execute(invocation)
    type(invocation).current.reset(token)


@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_what_goes_wrong_with_a_nested_call_is_raised_in_the_tool(executor, isolation):
    async def refuse(tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult:
        raise SetupError(f"no {tool_name} today")

    invocation = invocation_of(sample.ask, {"name": "square", "n": 7}, isolation=isolation, call_tool=refuse)
    with pytest.raises(SetupError, match="no square today"):
        await executor.execute(invocation)


@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_a_nested_call_ends_with_the_call_that_made_it(executor, isolation):
    ended: list[str] = []
    nested_call_started = asyncio.Event()

    async def wait(tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult:
        nested_call_started.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(tool_name)
        raise AssertionError

    invocation = invocation_of(sample.ask, {"name": "slow", "n": 1}, isolation=isolation, call_tool=wait)
    task = asyncio.create_task(executor.execute(invocation))
    await nested_call_started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["slow"]


async def test_the_context_goes_to_the_worker_without_what_cannot(executor, caplog):
    context = ToolExecutionContext.for_conversation("agent", "talk", variables={"x": [1], "lock": threading.Lock()})
    with caplog.at_level(logging.INFO, "ferrule.process"):
        output = await executor.execute(invocation_of(sample.who, context=context))
    assert output.data == {"caller": "agent", "conversation": "talk", "variables": {"x": [1]}}
    assert "variable=<lock> | left out of the context in the worker process" in caplog.text


# Time-outs


async def test_a_tool_that_was_stopped_never_does_its_work_later(executor, tmp_path):
    (tmp_path / "late.py").write_text(inspect.getsource(sample.write_when_allowed))
    write_when_allowed = load_python_module(tmp_path / "late.py").write_when_allowed

    async def stop_in_the_middle(name: str) -> None:
        arguments = {"folder": str(tmp_path), "name": name}
        task = asyncio.create_task(executor.execute(invocation_of(write_when_allowed, arguments)))
        await until((tmp_path / f"{name}.started").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for batch in range(2):
        await asyncio.gather(*(stop_in_the_middle(f"{batch}-{number}") for number in range(5)))
    (tmp_path / "allowed").touch()
    pids = [int(file.read_text()) for file in tmp_path.glob("*.pid")]
    assert len(pids) == 10 and not any(map(is_running, pids))
    assert list(tmp_path.glob("*.late")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes in sessions of their own are not found")
async def test_everything_a_stopped_tool_has_started_is_gone(executor, tmp_path):
    task = asyncio.create_task(executor.execute(invocation_of(sample.start_children, {"folder": str(tmp_path)})))
    await until((tmp_path / "pids").exists)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(is_running(pid) for pid in pids)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [pid for pid in pids if is_running(pid)] == []


async def test_a_tool_that_holds_the_interpreter_is_stopped_too(executor, tmp_path):
    task = asyncio.create_task(executor.execute(invocation_of(sample.compute_without_end, {"folder": str(tmp_path)})))
    await until((tmp_path / "computing").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(int((tmp_path / "computing").read_text()))


async def test_a_thread_is_stopped_at_its_next_instruction(executor, tmp_path):
    arguments = {"folder": str(tmp_path), "name": "it"}
    call = invocation_of(sample.write_when_allowed, arguments, isolation="thread")
    task = asyncio.create_task(executor.execute(call))
    await until((tmp_path / "it.started").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not any(t.name == "ferrule-write_when_allowed" for t in threading.enumerate()))
    assert not (tmp_path / "it.late").exists()


async def test_stuck_threads_are_bounded(monkeypatch):
    monkeypatch.setattr("ferrule.process.thread.MAX_THREADS", 1)
    release = threading.Event()
    executor = FunctionExecutor(WorkerPool(), FunctionThreads())
    stuck = asyncio.create_task(executor.execute(invocation_of(release.wait)))
    await asyncio.sleep(0)
    with pytest.raises(Rejected, match="Tool 'wait' needs a thread, but 1 tools still run in threads"):
        await executor.execute(invocation_of(release.wait))
    release.set()
    assert await stuck is True


# Code that changes, and code of scripts


async def test_each_version_of_a_file_runs_its_own_code(executor, tmp_path):
    file = tmp_path / "greetings.py"
    file.write_text("def greet() -> str: return 'old'")
    old = load_python_module(file).greet
    file.write_text("def greet() -> str: return 'new'")
    new = load_python_module(file).greet
    file.write_text("this is broken")
    assert [await run(executor, f) for f in (old, new, old)] == ["old", "new", "old"]


async def test_a_reloaded_module_never_runs_its_old_code(executor, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for number in range(3):
        (tmp_path / "reloaded.py").write_text(f"def version() -> int: return {number}")
        module = importlib.reload(importlib.import_module("reloaded"))
        assert await run(executor, module.version) == number


async def test_a_module_that_was_imported_on_the_way_never_runs_its_old_code(executor, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "inner.py").write_text("def version() -> int: return 1")
    (tmp_path / "outer.py").write_text("from inner import version\ndef ask() -> int: return version()")
    assert await run(executor, importlib.import_module("outer").ask) == 1
    (tmp_path / "inner.py").write_text("def version() -> int: return 22")
    inner = importlib.reload(importlib.import_module("inner"))
    assert await run(executor, inner.version) == 22


SCRIPT = """
from __future__ import annotations
import asyncio, os
from dataclasses import dataclass
from ferrule.kinds.function.executor import FunctionExecutor
from ferrule.process.pool import WorkerPool
from tests.kinds.function.invocations import invocation_of

print("running")
FACTOR = 2

@dataclass
class Order:
    amount: int

class TooMuch(Exception):
    pass

def double(order: Order) -> list[int]:
    if order.amount > 100:
        raise TooMuch(order.amount)
    return [order.amount * FACTOR, os.getpid()]

def factorial(n: int) -> int:
    return n * factorial(n - 1) if n else 1

async def main():
    executor = FunctionExecutor(WorkerPool())
    output = await executor.execute(invocation_of(double, {"order": {"amount": 21}}, isolation="process"))
    amount, pid = output.data["result"]
    print(amount, pid != os.getpid())
    print((await executor.execute(invocation_of(factorial, {"n": 5}, isolation="process"))).data)
    try:
        await executor.execute(invocation_of(double, {"order": {"amount": 101}}, isolation="process"))
    except TooMuch as error:
        print("too much:", error)

asyncio.run(main())
"""


def test_functions_of_a_script_need_no_guard(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["running", "42 True", "{'result': 120}", "too much: 101"]


async def test_a_module_that_calls_tools_when_imported_does_not_start_workers_without_end(
    executor, tmp_path, monkeypatch
):
    started = tmp_path / "started"
    (tmp_path / "unguarded.py").write_text(
        f"""
import asyncio
from ferrule.kinds.function.executor import FunctionExecutor
from ferrule.process.pool import WorkerPool
from tests.kinds.function.invocations import invocation_of

with open({str(started)!r}, "a") as file:
    file.write("x")

def it() -> int:
    return 1

async def main():
    pool = WorkerPool()
    await FunctionExecutor(pool).execute(invocation_of(it))
    await pool.aclose()

task = asyncio.run(main()) if {os.getpid()} != __import__("os").getpid() else None
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    unguarded = importlib.import_module("unguarded")
    with pytest.raises(ExecutionFailed, match="importing unguarded calls tools, and would do so again"):
        await executor.execute(invocation_of(unguarded.it, isolation="process"))
    assert started.read_text() == "xx"


# Variables that a function in a worker process would change in vain


def warnings_about_variables(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "variables=" in record.getMessage()]


@pytest.mark.parametrize("function", sample_state.CHANGING)
async def test_a_function_that_changes_a_variable_is_warned_about_once(executor, caplog, function):
    invocation = invocation_of(function)
    for _ in range(2):
        await executor.execute(invocation)
    [warning] = warnings_about_variables(caplog)
    assert f"tool=<{function.__name__}>, variables=<{sample_state.CHANGING[function]}>" in warning
    assert 'isolation="thread"' in warning


@pytest.mark.parametrize("function", sample_state.READING)
async def test_a_function_that_only_reads_variables_is_not_warned_about(executor, caplog, function):
    await executor.execute(invocation_of(function))
    assert warnings_about_variables(caplog) == []


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_function_whose_isolation_was_chosen_is_not_warned_about(executor, caplog, isolation):
    await executor.execute(invocation_of(sample_state.append_to_list, isolation=isolation))
    assert warnings_about_variables(caplog) == []


async def test_a_change_in_a_thread_is_seen_by_the_program(executor):
    before = len(sample_state.names)
    await executor.execute(invocation_of(sample_state.append_to_list, isolation="thread"))
    assert len(sample_state.names) == before + 1
