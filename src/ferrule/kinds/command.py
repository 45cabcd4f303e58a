"""The `command` executor: a tool that is a program on this machine.

However a call ends (normally, by a timeout or with an error), the program and all processes of its session have ended
before the call returns. If the program is ended (by a timeout, a cancellation, too much output), so are the processes
that it started in other sessions, daemons included; if it ends by itself, a daemon that it started stays. The end of a
pipe is never waited for: a process that left the session may keep it open forever.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, cast

from ferrule.core.aio import finish_despite_cancellation, wait_at_most
from ferrule.core.call import Invocation, Progress
from ferrule.core.secrets import Secrets
from ferrule.errors import CallError, ExecutionFailed, Retry, TransportFault
from ferrule.kinds.command_line import CommandLine, build_command_line
from ferrule.process.groups import (
    GRACE_SECONDS,
    KILL_TIMEOUT,
    WatchedProcess,
    end_process_group,
    end_process_tree,
    mark_environment,
)

logger = logging.getLogger("ferrule.kinds")

MAX_OUTPUT = 5_000_000
MAX_LOGGED_LINES = 1_000
MAX_LOGGED_BYTES = 1_000_000
"""Of a program's standard error, for one call."""
MAX_LINE = 65_536
MAX_ERROR_TEXT = 2_000
_STDERR_BYTES = 2 * MAX_ERROR_TEXT
"""More than messages show: a secret that is cut in half could not be recognized and hidden."""

LineHandler: TypeAlias = Callable[[str], None]


class CommandExecutor:
    """Runs the command in a tool's `implementation_config`: command, cwd, env, inherit_env, stdin, stream."""

    def __init__(self, *, grace: float = GRACE_SECONDS, max_output: int = MAX_OUTPUT) -> None:
        self._grace, self._max_output = grace, max_output

    async def execute(self, invocation: Invocation, /) -> Any:
        config = invocation.tool.spec.implementation_config
        line = build_command_line(config, invocation.params, os.environ)
        return await self.run(line, invocation, stream=bool(config.get("stream")))

    async def run(self, line: CommandLine, invocation: Invocation, *, stream: bool = False) -> Any:
        """Run a program for a call, and return what it wrote. `stream` reports each line as progress."""
        output = OutputCollector(
            self._max_output,
            on_stdout_line=_progress_reporter(invocation, line.secrets) if stream else None,
            stderr_log=_StderrLog(invocation, line.secrets),
        )
        with line.secrets.hide_in_errors():
            await self._run_to_end(line, output)
            return line.secrets.hide(self._convert_output(line.arguments[0], output, line.secrets))

    def _convert_output(self, program: str, output: OutputCollector, secrets: Secrets) -> Any:
        if output.is_too_large:
            raise ExecutionFailed(
                f"{program!r} wrote more than {self._max_output:,} bytes and was ended. Ask for less."
            )
        if output.exit_code != 0:
            text = output.error_text(secrets.hide)
            reason = f": {text}" if text else "."
            raise ExecutionFailed(f"{program!r} {_describe_exit(output.exit_code)}{reason}", exit_code=output.exit_code)
        return _parse_stdout(output.stdout.decode("utf-8", "replace"))

    async def _run_to_end(self, line: CommandLine, output: OutputCollector) -> None:
        """Run the program to its end, or until the call is cancelled."""
        environment, mark = mark_environment(line.environment)
        try:
            await finish_despite_cancellation(_start_program(line, environment, output))
            await output.finished.wait()
        finally:
            if output.transport is not None:
                await finish_despite_cancellation(_end_program(output.transport, output, mark, self._grace))


async def _start_program(line: CommandLine, environment: dict[str, str], output: OutputCollector) -> None:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: output,
            *line.arguments,
            stdin=nothing if line.stdin is None else pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=line.directory,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise _make_start_error(line, error) from error
    if line.stdin is not None:
        stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        stdin.write(line.stdin)
        stdin.close()  # when all is written


async def _end_program(
    transport: asyncio.SubprocessTransport, output: OutputCollector, mark: str, grace: float
) -> None:
    """End the remaining processes, read the rest of the output, close the pipes."""
    if output.exited.is_set():  # by itself: a daemon that it left on purpose stays
        await end_process_group(transport.get_pid(), grace)
    else:
        await end_process_tree(transport.get_pid(), mark, grace)
    await wait_at_most(output.exited, KILL_TIMEOUT)
    await output.close_pipes(transport)


def _make_start_error(line: CommandLine, error: OSError) -> CallError:
    program = line.arguments[0]
    if error.errno == errno.E2BIG:
        return Retry(f"the arguments for {program!r} are too long for a command line. Shorten them.")
    if line.directory is not None and error.filename == line.directory:
        return ExecutionFailed(f"the directory {line.directory!r} to run {program!r} in cannot be used: {error}")
    if isinstance(error, FileNotFoundError):
        return ExecutionFailed(f"the program {program!r} was not found. Install it, or write its full path.")
    if isinstance(error, PermissionError) or error.errno == errno.ENOEXEC:
        return ExecutionFailed(f"{program!r} cannot be run: {error}. Is it a program, and executable?")
    return TransportFault(f"{program!r} could not be started: {error}")


def _describe_exit(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code} ({signal.strsignal(-code)})"


def _parse_stdout(stdout: str) -> Any:
    """A JSON object or list that was printed; any other text as it is, without the newline at its end."""
    if stdout.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(stdout)
    return stdout.removesuffix("\n")


def _progress_reporter(invocation: Invocation, secrets: Secrets) -> LineHandler:
    return lambda text: invocation.report(Progress(message=secrets.hide(text)))


# The output of a running program is collected up to a limit and passed on line by line.


class OutputCollector(WatchedProcess):
    """Collects all of stdout and the end of stderr of one program."""

    def __init__(self, limit: int, *, on_stdout_line: LineHandler | None, stderr_log: _StderrLog) -> None:
        super().__init__()
        self._limit = limit
        self._lines: dict[int, _LineSplitter | _StderrLog] = {1: _LineSplitter(on_stdout_line), 2: stderr_log}
        self.stdout = bytearray()
        self._end_of_stderr = b""
        self.is_too_large = False

    def error_text(self, hide: Callable[[str], str]) -> str:
        """The end of what the program wrote to stderr or, if that is empty, to stdout, for messages."""
        content = self._end_of_stderr.strip() or bytes(self.stdout[-_STDERR_BYTES:]).strip()
        return hide(content.decode("utf-8", "replace"))[-MAX_ERROR_TEXT:]

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._end_of_stderr = (self._end_of_stderr + data)[-_STDERR_BYTES:]
        elif len(self.stdout) + len(data) > self._limit:
            self.is_too_large = True
            self.finished.set()
            return
        else:
            self.stdout += data
        self._lines[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        if fd != 0:
            self._lines[fd].end()


class _LineSplitter:
    """Cuts a stream of bytes into lines of text."""

    def __init__(self, handle: LineHandler | None) -> None:
        self._handle = handle
        self._partial = b""

    def feed(self, data: bytes) -> None:
        if self._handle is None:
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._handle(line.decode("utf-8", "replace").rstrip("\r"))
        if len(self._partial) > MAX_LINE:
            self.end()

    def discard(self) -> int:
        """Forget the beginning of a line; how many bytes it had."""
        length, self._partial = len(self._partial), b""
        return length

    def end(self) -> None:
        if self._handle is not None and self._partial:
            self._handle(self._partial.decode("utf-8", "replace"))
            self._partial = b""


class _StderrLog:
    """Logs what a program writes to standard error, up to a limit, and how much more it wrote."""

    def __init__(self, invocation: Invocation, secrets: Secrets) -> None:
        self._invocation, self._secrets = invocation, secrets
        self._lines = _LineSplitter(self._log_line)
        self._bytes_allowed, self._lines_allowed = MAX_LOGGED_BYTES, MAX_LOGGED_LINES
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        if self._lines_allowed and len(data) <= self._bytes_allowed:
            self._bytes_allowed -= len(data)
            self._lines.feed(data)
        else:  # also of its first line: half of a secret could not be recognized
            self._bytes_allowed = 0
            self._dropped += len(data) + self._lines.discard()

    def end(self) -> None:
        self._lines.end()
        if self._dropped:
            self._log(f"[{self._dropped:,} more bytes, which are not logged]")

    def _log_line(self, text: str) -> None:
        if self._lines_allowed:
            self._lines_allowed -= 1
            self._log(text)
        else:
            self._dropped += len(text) + 1

    def _log(self, text: str) -> None:
        invocation = self._invocation
        logger.info(
            "tool=<%s>, call=<%s> | stderr: %s", invocation.tool.id, invocation.call_id, self._secrets.hide(text)
        )
