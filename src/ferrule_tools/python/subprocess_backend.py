"""Running a script in a full CPython: a process that is watched, and killed together with everything it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from ferrule.core.aio import finish_despite_cancellation, wait_at_most
from ferrule.core.content import is_nested_deeper, plain_json
from ferrule.errors import ExecutionFailed
from ferrule.process.groups import WatchedProcess, end_process_group, find_session_processes
from ferrule_tools.python.bubblewrap import ENVIRONMENT, Bubblewrap
from ferrule_tools.python.config import PythonExecutorConfig
from ferrule_tools.python.script import (
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    FailureKind,
    Script,
    ScriptFailure,
    ScriptResult,
    TracebackLine,
)

StopReason: TypeAlias = Literal["timeout", "memory", "printed", "result"]

_MAX_REPORT: Final = 2 * MAX_JSON_BYTES + 100_000
"""Bytes: characters may be written as escape sequences in it."""
_MEMORY_CHECK_INTERVAL: Final = 0.1
_INIT_EXIT_TIMEOUT: Final = 1.0


async def run_in_full_python(script: Script, config: PythonExecutorConfig, bubblewrap: Bubblewrap) -> ScriptResult:
    """Run a script; its failures are in the result. When this returns or raises, nothing of it runs any more."""
    process = _ScriptProcess(max_output={1: config.printed_bytes, 2: _MAX_REPORT})
    watcher: asyncio.Task[None] | None = None
    try:
        await finish_despite_cancellation(
            _start_process(process, bubblewrap.arguments(), bubblewrap.encode_job(script))
        )
        watcher = asyncio.create_task(_watch_memory(process, config.memory))
        with suppress(TimeoutError):
            async with asyncio.timeout(config.seconds):
                await process.finished.wait()
        if not process.finished.is_set():
            process.stop("timeout")
    finally:
        if watcher is not None:
            watcher.cancel()
        if process.transport is not None:
            await finish_despite_cancellation(_kill_session(process, process.transport))
    return _script_result(process)


# The process


class _ScriptProcess(WatchedProcess):
    """The process: it writes what the script prints to descriptor 1, and the report of the runner to 2."""

    stop_reason: StopReason | None = None

    def stop(self, reason: StopReason) -> None:
        if not self.finished.is_set():
            self.stop_reason = reason
            self.finished.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        super().pipe_data_received(fd, data)
        if self.exceeded_descriptor is not None:
            self.stop_reason = "printed" if self.exceeded_descriptor == 1 else "result"


async def _start_process(process: _ScriptProcess, arguments: list[str], job: bytes) -> None:
    try:
        await process.start(*arguments, stdin=job, directory="/", environment=ENVIRONMENT)
    except OSError as error:
        raise ExecutionFailed(f"{arguments[0]!r} could not be started: {error}") from error


async def _kill_session(process: _ScriptProcess, transport: asyncio.SubprocessTransport) -> None:
    """Kill what remains of the session, read what was written, close the pipes."""
    bubblewrap = transport.get_pid()
    # Bubblewrap itself gets some time to end: it waits for its children, which would stay as zombies without it.
    for other in find_session_processes(bubblewrap) - {bubblewrap}:
        with suppress(OSError):
            os.kill(other, signal.SIGKILL)
    await wait_at_most(process.exited, _INIT_EXIT_TIMEOUT)
    await end_process_group(bubblewrap, grace=0.0)
    await process.close_pipes(transport)


async def _watch_memory(process: _ScriptProcess, limit: int) -> None:
    """The kernel limits each process by itself; this limits all of them together.

    A script cannot leave its session: the system call filter refuses `setsid`.
    """
    assert process.transport is not None
    session = process.transport.get_pid()
    while not process.finished.is_set():
        if sum(map(_read_process_memory, find_session_processes(session))) > limit:
            process.stop("memory")
        await asyncio.sleep(_MEMORY_CHECK_INTERVAL)


def _read_process_memory(process: int) -> int:
    """Bytes that a process has for itself, or shares with others of its session."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith((b"RssAnon:", b"RssShmem:")))


# Its report, which a script may have forged


def _script_result(process: _ScriptProcess) -> ScriptResult:
    printed = process.output[1].decode("utf-8", "replace")

    def make_failure(kind: FailureKind, message: str = "", lines: list[TracebackLine] | None = None) -> ScriptResult:
        return ScriptResult(printed=printed, failure=ScriptFailure(kind=kind, message=message, lines=lines or []))

    if process.stop_reason is not None:
        return make_failure(process.stop_reason, "it is too large." if process.stop_reason == "result" else "")
    report = _parse_report(process.output[2])
    if is_nested_deeper(report, MAX_JSON_DEPTH):
        return make_failure("result", f"it is nested more than {MAX_JSON_DEPTH} deep: make it flatter.")
    report = plain_json(report)  # Python's JSON may contain lone surrogates, NaN and Infinity
    match report:
        case {"result": value}:
            return ScriptResult(value=value, printed=printed)
        case {"error": str(message)}:
            return make_failure(
                "memory" if message.startswith("MemoryError") else "raised", message, _parse_traceback(report)
            )
        case {"too_large": int(size)}:
            return make_failure(
                "result", f"it has {size:,} bytes, more than {MAX_JSON_BYTES:,}: use a part or a summary of it."
            )
        case _:
            return make_failure(*_failure_without_report(process))


def _parse_report(report: bytearray) -> Any:
    try:
        return json.loads(report)
    except (ValueError, RecursionError):
        return None


def _parse_traceback(report: dict[str, Any]) -> list[TracebackLine]:
    lines = report.get("lines")
    return [
        TracebackLine(number=line[0], function=line[1], source=line[2])
        for line in (lines if isinstance(lines, list) else ())
        if isinstance(line, list) and [type(part) for part in line] == [int, str, str]
    ]


def _failure_without_report(process: _ScriptProcess) -> tuple[FailureKind, str]:
    # Like a shell, bubblewrap and the runner's init process exit with 128 and the number of the signal.
    number = -process.exit_code if process.exit_code < 0 else process.exit_code - 128
    if number == signal.SIGXCPU:
        return "timeout", ""
    if 0 < number < signal.NSIG:
        return "broken", f"it was ended by signal {number} ({signal.strsignal(number)})."
    text = process.output[2].decode("utf-8", "replace").strip()[-500:]
    message = f" and the message: {text}" if text else ""
    return "broken", f"it ended with exit code {process.exit_code}{message}, before the script's end."
