"""What a running program writes: collected up to a limit, handed on line by line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

LONGEST_LINE = 65_536
SHOWN = 2_000
KEPT = 2 * SHOWN
"""More than is shown: a secret that is cut in two could not be found."""

LineHandler = Callable[[str], None]


class CommandOutput(asyncio.SubprocessProtocol):
    """One program's pipes, as asyncio reports on them. All of stdout is kept; of stderr only the end."""

    def __init__(self, limit: int, *, on_stdout_line: LineHandler | None, on_stderr_line: LineHandler) -> None:
        self._limit = limit
        self._lines = {1: _Lines(on_stdout_line), 2: _Lines(on_stderr_line)}
        self.transport: asyncio.SubprocessTransport | None = None
        """Set once the program runs."""
        self.stdout = bytearray()
        self._end_of_stderr = b""
        self.is_too_large = False
        self.exit_code = -signal.SIGKILL
        self.reads_stdin = True
        """Nobody has closed its standard input yet."""
        self.finished = asyncio.Event()
        """It has ended, or has written too much and must be ended."""
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        """It has ended, and all its pipes are closed."""

    def complaint(self, hide: Callable[[str], str]) -> str:
        """What it said last, for messages: on stderr, or else on stdout."""
        said = self._end_of_stderr.strip() or bytes(self.stdout[-KEPT:]).strip()
        return hide(said.decode("utf-8", "replace"))[-SHOWN:]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._end_of_stderr = (self._end_of_stderr + data)[-KEPT:]
        elif len(self.stdout) + len(data) > self._limit:
            self.is_too_large = True
            self.finished.set()
            return
        else:
            self.stdout += data
        self._lines[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.reads_stdin = False
        else:
            self._lines[fd].end()

    def process_exited(self) -> None:
        code = self.transport.get_returncode() if self.transport is not None else None
        self.exit_code = self.exit_code if code is None else code
        self.exited.set()
        self.finished.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


class _Lines:
    """Cuts a stream of bytes into lines of text."""

    def __init__(self, handle: LineHandler | None) -> None:
        self._handle = handle
        self._begun = b""

    def feed(self, data: bytes) -> None:
        if self._handle is None:
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._handle(line.decode("utf-8", "replace").rstrip("\r"))
        if len(self._begun) > LONGEST_LINE:
            self.end()

    def end(self) -> None:
        if self._handle is not None and self._begun:
            self._handle(self._begun.decode("utf-8", "replace"))
            self._begun = b""
