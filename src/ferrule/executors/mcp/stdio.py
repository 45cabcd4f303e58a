"""A server that is a program of ours: JSON-RPC, one message a line, on its standard input and output.

Whatever happens, when the connection is left the program and everything it started has ended: first its input is
closed, as the protocol asks, then the process group is ended by signals.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from ferrule.errors import ExecutionFailed, TransportFault
from ferrule.executors.mcp.config import McpServerConfig
from ferrule.executors.mcp.streams import MANY, Inbox, Outbox, Signals, Streams
from ferrule.executors.process_group import KILL_PATIENCE, end_process_group, to_the_end
from ferrule.executors.process_tree import groups_that_left

LARGEST_MESSAGE: Final = 64 * 1024 * 1024
END_PATIENCE: Final = 1.0
"""Seconds a server has to end by itself once its input is closed."""


class Program(asyncio.SubprocessProtocol):
    """A running server and its pipes, as asyncio reports on them."""

    def __init__(self, signals: Signals) -> None:
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        self._read = jsonrpc_message_adapter.validate_json
        self._message = SessionMessage
        self._signals, self._log = signals, signals.log
        self._line = bytearray()
        self._paused: set[str] = set()
        """Why nothing is read at the moment."""
        self._writers = 0
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._turn = asyncio.Lock()
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self.inbox = Inbox(lambda crowded: self._pause("crowded", crowded))
        self.outbox = Outbox(self._write)
        self.takes_input = True
        """Nobody has closed its standard input yet."""
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        """It has ended, and all its pipes are closed."""

    @property
    def has_started(self) -> bool:
        return self._transport is not None

    @property
    def transport(self) -> asyncio.SubprocessTransport:
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        self._stdin = stdin

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._log.feed(data)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._line:
                line = bytes(self._line + line)
                self._line.clear()
            self._take(line)
        self._line += rest
        if len(self._line) > LARGEST_MESSAGE:
            self._signals.ending = f"it sent a message of more than {LARGEST_MESSAGE:,} bytes"
            self._line.clear()
            self._pause("ended", True)
            self._end()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            self._log.end()
            return
        self.takes_input = self.takes_input and fd != 0
        self._end()  # without one of the two there is no conversation

    def process_exited(self) -> None:
        code = self.transport.get_returncode() or 0
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code} ({signal.strsignal(-code)})"
        self._signals.ending = self._signals.ending or f"its program ended {how}"
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._end()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def _take(self, line: bytes) -> None:
        try:
            message = self._read(line, by_name=False)
        except ValueError:
            if line.strip():
                shown = line[:200].decode("utf-8", "replace")
                self._log.message("warning", f"on standard output, where only messages may be: {shown}")
            return
        self.inbox.put(self._message(message))

    async def _write(self, text: str, urgent: bool) -> None:
        if urgent or (not self._writers and self._can_write.is_set()):
            self._send(text)
        else:
            await self._send_in_turn(text)

    def _send(self, text: str) -> None:
        if self._stdin is None or self._stdin.is_closing():
            raise BrokenPipeError("the server has closed its input")
        self._stdin.write(text.encode() + b"\n")

    async def _send_in_turn(self, text: str) -> None:
        """Wait until the server reads, behind those who wait already.

        One that asks and asks but never listens is not read from meanwhile.
        """
        self._writers += 1
        self._pause("deaf", self._writers > MANY)
        try:
            async with self._turn:
                await self._can_write.wait()
                self._send(text)
        finally:
            self._writers -= 1
            self._pause("deaf", self._writers > MANY)

    def _pause(self, why: str, wanted: bool) -> None:
        was_paused = bool(self._paused)
        self._paused.add(why) if wanted else self._paused.discard(why)
        stdout = self.transport.get_pipe_transport(1)
        if bool(self._paused) != was_paused and isinstance(stdout, asyncio.ReadTransport) and not stdout.is_closing():
            stdout.pause_reading() if self._paused else stdout.resume_reading()

    def _end(self) -> None:
        self._can_write.set()
        self.inbox.end()
        self._signals.ended.set()


@asynccontextmanager
async def stdio_streams(config: McpServerConfig, signals: Signals) -> AsyncIterator[Streams]:
    """The server, running."""
    program = Program(signals)
    try:
        await to_the_end(_start(config, program))
        yield program.inbox, program.outbox
    finally:
        if program.has_started:  # also when whoever waited for that was stopped meanwhile
            await to_the_end(_end(program))


async def _start(config: McpServerConfig, program: Program) -> None:
    pipe: Any = asyncio.subprocess.PIPE
    assert config.command is not None
    directory = config.directory
    try:
        await asyncio.get_running_loop().subprocess_exec(
            lambda: program,
            os.path.expanduser(config.command),
            *config.args,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=directory,
            env=config.environment(os.environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _start_failure(config.command, directory, error) from error


async def _end(program: Program) -> None:
    transport = program.transport
    stdin = transport.get_pipe_transport(0)
    try:
        # What it gave a session of its own, as browsers are given, is found by its parent, while there is one.
        left = groups_that_left(transport.get_pid(), since=0.0)
        if stdin is not None:
            stdin.close()
        await _wait(program.exited, END_PATIENCE)
        # Also when it has ended by itself: what it started may still be there.
        for leader in (transport.get_pid(), *left):
            await end_process_group(leader)
        await _wait(program.exited, KILL_PATIENCE)
    finally:  # even where the loop itself is being closed
        if isinstance(stdin, asyncio.WriteTransport) and program.takes_input:
            stdin.abort()  # closing alone would wait until somebody has read what was written
        transport.close()
    await _wait(program.closed, KILL_PATIENCE)


async def _wait(event: asyncio.Event, patience: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await event.wait()


def _start_failure(command: str, directory: str | None, error: OSError | ValueError) -> ExecutionFailed:
    if isinstance(error, FileNotFoundError) and directory is not None and error.filename == directory:
        return ExecutionFailed(f"the directory {directory!r} to start it in is not there")
    if isinstance(error, FileNotFoundError):
        return ExecutionFailed(f"the program {command!r} was not found: install it, or write where it is")
    if isinstance(error, (PermissionError, ValueError)):
        return ExecutionFailed(f"the program {command!r} cannot be run: {error}")
    return TransportFault(f"the program {command!r} could not be started: {error}")
