"""One process with a script in it: watched while it runs, and ended with all that it has started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ferrule.errors import ExecutionFailed
from ferrule.executors.process_group import KILL_PATIENCE, close_pipes, end_process_group, to_the_end, wait_at_most

Stopped: TypeAlias = Literal["timeout", "memory", "printed", "result"]

_LOOK_EVERY: Final = 0.1
_KEEPER_PATIENCE: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start, and what it may use."""

    arguments: Sequence[str]
    environment: dict[str, str]
    stdin: Callable[[int], bytes]
    """What it reads, given the number of its process."""
    seconds: float
    memory: int
    """Bytes, of all its processes together."""
    printed: int
    """Bytes it may write to standard output,"""
    reported: int
    """and to standard error."""
    has_keeper: bool
    """Its first process is not the script's, and ends by itself when all others have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What was left when nothing of it ran any more."""

    exit_code: int
    printed: bytes
    report: bytes
    stopped: Stopped | None
    """Why it was ended before its time; None: by itself."""


async def run_process(command: Command) -> Ended:
    """Run it to its end, or until it is stopped. Nothing of it runs when this returns, or raises."""
    pipes = _Pipes(command)
    watch: asyncio.Task[None] | None = None
    try:
        await to_the_end(_start(command, pipes))
        watch = asyncio.create_task(_watch_memory(pipes, command.memory))
        with suppress(TimeoutError):
            async with asyncio.timeout(command.seconds):
                await pipes.finished.wait()
        if not pipes.finished.is_set():
            pipes.stop("timeout")
    finally:
        if watch is not None:
            watch.cancel()
        if pipes.transport is not None:
            await to_the_end(_end(pipes.transport, pipes, has_keeper=command.has_keeper))
    return Ended(
        exit_code=pipes.exit_code,
        printed=bytes(pipes.written[1]),
        report=bytes(pipes.written[2]),
        stopped=pipes.stopped,
    )


class _Pipes(asyncio.SubprocessProtocol):
    """What it writes, up to its limits."""

    def __init__(self, command: Command) -> None:
        self._most = {1: command.printed, 2: command.reported}
        self.written = {1: bytearray(), 2: bytearray()}
        self.transport: asyncio.SubprocessTransport | None = None
        self.stopped: Stopped | None = None
        self.exit_code = -signal.SIGKILL
        self.reads_stdin = True
        self.finished = asyncio.Event()
        """It has ended, or must be ended."""
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()

    def stop(self, why: Stopped) -> None:
        if not self.finished.is_set():
            self.stopped = why
            self.finished.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        room = self._most[fd] - len(self.written[fd])
        self.written[fd] += data[:room]
        if len(data) > room:
            self.stop("printed" if fd == 1 else "result")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.reads_stdin = False

    def process_exited(self) -> None:
        code = self.transport.get_returncode() if self.transport is not None else None
        self.exit_code = self.exit_code if code is None else code
        self.exited.set()
        self.finished.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def _start(command: Command, pipes: _Pipes) -> None:
    pipe = asyncio.subprocess.PIPE
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: pipes,
            *command.arguments,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd="/",
            env=command.environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ExecutionFailed(f"{command.arguments[0]!r} could not be started: {error}") from error
    stdin = transport.get_pipe_transport(0)
    assert isinstance(stdin, asyncio.WriteTransport)
    stdin.write(command.stdin(transport.get_pid()))
    stdin.close()  # when all is written


async def _end(transport: asyncio.SubprocessTransport, pipes: _Pipes, *, has_keeper: bool) -> None:
    """Kill what is left of the session, take what was written, close the pipes."""
    if has_keeper:  # who waits for its children: without it they would stay as zombies where nobody else does
        for process in _processes_of(transport.get_pid()) - {transport.get_pid()}:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        await wait_at_most(pipes.exited, _KEEPER_PATIENCE)
    await end_process_group(transport.get_pid(), grace=0.0)
    await wait_at_most(pipes.exited, KILL_PATIENCE)
    await close_pipes(transport, pipes.closed, reads_stdin=pipes.reads_stdin)


async def _watch_memory(pipes: _Pipes, most: int) -> None:
    """The kernel limits each process by itself; many small ones together are seen here."""
    assert pipes.transport is not None
    session = pipes.transport.get_pid()
    while not pipes.finished.is_set():
        if sum(map(_memory_of, _processes_of(session))) > most:
            pipes.stop("memory")
        await asyncio.sleep(_LOOK_EVERY)


def _processes_of(session: int) -> set[int]:
    """Found on Linux only."""
    found = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdecimal():
            with suppress(OSError):  # it has just gone
                if os.getsid(int(name)) == session:
                    found.add(int(name))
    return found


def _memory_of(process: int) -> int:
    """Bytes that a process has for itself, or shares with others of its session."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:  # it has just gone
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith((b"RssAnon:", b"RssShmem:")))
