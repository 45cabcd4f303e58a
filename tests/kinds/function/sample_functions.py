"""Functions for the tests of executors, in a module that worker processes can import."""

from __future__ import annotations

import asyncio
import importlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrule.core.call import Progress, ToolExecutionContext, report_progress
from ferrule.core.content import Image, Output, Text
from ferrule.errors import NeedsApproval, Retry

KEPT: list[int] = []


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Place:
    name: str
    at: int


class OddlyMade(Exception):
    """Cannot be made again from its own arguments."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"error {code}: {reason}")
        self.code = code


class Unpicklable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message, lambda: None)

    def __str__(self) -> str:
        return "with a lambda inside"


class Talkative(Exception):
    def __str__(self) -> str:
        return f"at {self.args[0].x}"


class Smuggled:
    """Whoever unpickles it makes a file with the number of the process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        Path(self.folder, "sent").touch()
        return os.system, (f"touch {self.folder}/$PPID",)

    def __str__(self) -> str:
        Path(self.folder, "sent").touch()
        return "smuggled"


def smuggle(context: ToolExecutionContext, folder: str, where: str) -> Any:
    smuggled: Any = Smuggled(folder)
    if where == "failure":
        raise ValueError("x", smuggled)
    if where == "progress":
        report_progress(None, smuggled)
    if where == "question":
        context.call_tool_sync("square", {"n": smuggled})
    if where == "data":
        return Output(data={"a": smuggled})
    return Text(text=smuggled) if where == "text" else Image(data=b"", mime_type=smuggled)


def forge_a_frame() -> None:
    """Writes to whoever owns this process, past everything that would make it plain."""
    payload = b"cposix\nsystem\n(S'true'\ntR."
    for descriptor in range(3, 20):
        if stat.S_ISSOCK(_mode(descriptor)):
            os.write(descriptor, len(payload).to_bytes(8, "big") + payload)
    time.sleep(600)


def _mode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_mode
    except OSError:
        return 0


def leave_a_job() -> int:
    job = subprocess.Popen(["sleep", "600"], process_group=0)
    return job.pid


def fail_in(module: str, name: str) -> None:
    raise getattr(importlib.import_module(module), name)("how odd")


def add(a: int, b: int) -> int:
    return a + b


def process_id() -> int:
    return os.getpid()


async def process_id_async() -> int:
    await asyncio.sleep(0)
    return os.getpid()


def keep(number: int) -> list[int]:
    KEPT.append(number)
    return KEPT


def length(text: str) -> int:
    return len(text)


def repeat(text: str, times: int) -> str:
    return text * times


def mirror(point: Point) -> Place:
    return Place(name=f"{point.y},{point.x}", at=point.x + point.y)


def picture() -> list[Any]:
    return ["a dot", Image(data=b"\x89PNG")]


def noisy() -> str:
    print("printed")
    os.system("echo from a child")
    os.write(1, b"written to descriptor 1\n")
    return sys.stdin.read() + "quiet"


def variable(name: str) -> str | None:
    return os.environ.get(name)


def read_file(path: str) -> str:
    return Path(path).read_text()


def wander(to: str) -> str:
    before = os.getcwd()
    os.chdir(to)
    return before


def count_up_to(n: int) -> Iterator[int]:
    yield from range(1, n + 1)


def words(text: str) -> Iterator[str]:
    yield from text


def half_way() -> Generator[Any, None, dict[str, int]]:
    yield Progress(fraction=0.5, message="half way")
    yield "piece"
    return {"answer": 42}


def lockstep(folder: str) -> Iterator[int]:
    """Yields, and goes on only when somebody has seen it."""
    for number in range(3):
        yield number
        while not Path(folder, str(number)).exists():
            time.sleep(0.001)  # until the file is there


async def count_slowly(folder: str) -> AsyncIterator[int]:
    try:
        yield 1
        await asyncio.sleep(600)
    finally:
        Path(folder, "closed").touch()


def report(steps: int) -> str:
    for step in range(steps):
        report_progress(step / steps, f"step {step}")
    return "done"


def fail(kind: str) -> None:
    if kind == "retry":
        raise Retry("try a smaller number", limit=5)
    if kind == "approval":
        raise NeedsApproval("ask first")
    if kind == "file":
        Path("/no/such/file").read_text()
    if kind == "odd":
        raise OddlyMade(7, reason="odd")
    if kind == "details":
        raise Retry("look there", point=Point(1, 2))
    if kind == "talkative":
        raise Talkative(Point(1, 2))
    if kind == "unpicklable":
        raise Unpicklable("x")
    if kind == "decode":
        b"\xff".decode("utf-8")
    if kind == "stop":
        raise StopIteration(1)
    raise KeyError(kind)


def end(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "_exit":
        os._exit(7)
    import ctypes

    ctypes.string_at(0)


def recurse() -> None:
    recurse()


def write_when_allowed(folder: str, name: str) -> str:
    """Notes its process, waits for the file `allowed`, then writes one of its own."""
    import os
    import time
    from pathlib import Path

    Path(folder, f"{name}.pid").write_text(str(os.getpid()))
    Path(folder, f"{name}.started").touch()
    while not Path(folder, "allowed").exists():
        time.sleep(0.01)  # until the file is there
    Path(folder, f"{name}.late").touch()
    return "written"


def start_children(folder: str) -> None:
    """Starts a child, a grandchild, and one in a session of its own; then says who they are, and waits."""
    first = subprocess.Popen(["sleep", "600"])
    second = subprocess.Popen(["sh", "-c", "sleep 600 & echo $! > grandchild; wait"], cwd=folder)
    third = subprocess.Popen(["sleep", "600"], start_new_session=True)
    while not Path(folder, "grandchild").exists() or not Path(folder, "grandchild").read_text().strip():
        time.sleep(0.001)  # until the shell has written it
    numbers = [os.getpid(), first.pid, second.pid, third.pid, int(Path(folder, "grandchild").read_text())]
    write_whole(Path(folder, "pids"), " ".join(map(str, numbers)))
    time.sleep(600)


def write_whole(path: Path, text: str) -> None:
    """Whoever sees the file sees all of it."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


def compute_without_end(folder: str) -> None:
    """Holds the interpreter: no other thread of its process can run."""
    write_whole(Path(folder, "computing"), str(os.getpid()))
    pow(7, 10**9)


def ask(context: ToolExecutionContext, name: str, n: int) -> str:
    answer = context.call_tool_sync(name, {"n": n})
    return f"{name} says {answer.output['result']}"


async def ask_twice(context: ToolExecutionContext, name: str) -> list[Any]:
    answers = await asyncio.gather(context.call_tool(name, {"n": 1}), context.call_tool(name, {"n": 2}))
    return [answer.output["result"] for answer in answers]


def who(context: ToolExecutionContext) -> dict[str, Any]:
    return {"caller": context.caller_id, "conversation": context.conversation_id, "variables": context.variables}


def returns_coroutine() -> Any:
    return process_id_async()


class Toolbox:
    @staticmethod
    def static() -> int:
        return os.getpid()

    @classmethod
    def of_class(cls) -> str:
        return f"{cls.__name__} {os.getpid()}"

    def method(self) -> int:
        return os.getpid()
