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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ferrule.core.aio import finish_despite_cancellation
from ferrule.core.call import Invocation, Progress
from ferrule.core.secrets import Secrets
from ferrule.errors import CallError, ExecutionFailed, Retry, TransportFault
from ferrule.kinds.command_line import CommandLine, build_command_line
from ferrule.process.groups import (
    GRACE_SECONDS,
    LineReader,
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
MAX_ERROR_TEXT = 2_000
_STDERR_BYTES = 2 * MAX_ERROR_TEXT
"""More than messages show: a secret that is cut in half could not be recognized and hidden."""


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
        readers = {2: _make_stderr_log(invocation, line.secrets)}
        if stream:
            readers[1] = LineReader(lambda text: invocation.report(Progress(message=line.secrets.hide(text))))
        output = OutputCollector(self._max_output, readers)
        with line.secrets.hide_in_errors():
            await self._run_to_end(line, output)
            return line.secrets.hide(self._convert_output(line.arguments[0], output, line.secrets))

    def _convert_output(self, program: str, output: OutputCollector, secrets: Secrets) -> Any:
        if output.exceeded_descriptor is not None:
            raise ExecutionFailed(
                f"{program!r} wrote more than {self._max_output:,} bytes and was ended. Ask for less."
            )
        if output.exit_code != 0:
            text = output.error_text(secrets.hide)
            reason = f": {text}" if text else "."
            raise ExecutionFailed(f"{program!r} {_describe_exit(output.exit_code)}{reason}", exit_code=output.exit_code)
        return _parse_stdout(output.output[1].decode("utf-8", "replace"))

    async def _run_to_end(self, line: CommandLine, output: OutputCollector) -> None:
        """Run the program to its end, or until the call is cancelled."""
        environment, mark = mark_environment(line.environment)
        try:
            await finish_despite_cancellation(
                output.start(*line.arguments, stdin=line.stdin, directory=line.directory, environment=environment)
            )
            await output.finished.wait()
        except OSError as error:
            raise _make_start_error(line, error) from error
        finally:
            if output.transport is not None:
                await finish_despite_cancellation(_end_program(output.transport, output, mark, self._grace))


async def _end_program(
    transport: asyncio.SubprocessTransport, output: OutputCollector, mark: str, grace: float
) -> None:
    """End the remaining processes, read the rest of the output, close the pipes."""
    if output.exited.is_set():  # by itself: a daemon that it left on purpose stays
        await end_process_group(transport.get_pid(), grace)
    else:
        await end_process_tree(transport.get_pid(), mark, grace)
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


def _make_stderr_log(invocation: Invocation, secrets: Secrets) -> LineReader:
    def log(text: str) -> None:
        logger.info("tool=<%s>, call=<%s> | stderr: %s", invocation.tool.id, invocation.call_id, secrets.hide(text))

    return LineReader(log, max_lines=MAX_LOGGED_LINES, max_bytes=MAX_LOGGED_BYTES)


class OutputCollector(WatchedProcess):
    """Collects all of stdout and the end of stderr of one program, and passes them on line by line."""

    def __init__(self, max_stdout: int, readers: Mapping[int, LineReader]) -> None:
        super().__init__({1: max_stdout})
        self._readers = readers
        self._end_of_stderr = b""

    def error_text(self, hide: Callable[[str], str]) -> str:
        """The end of what the program wrote to stderr or, if that is empty, to stdout, for messages."""
        content = self._end_of_stderr.strip() or bytes(self.output[1][-_STDERR_BYTES:]).strip()
        return hide(content.decode("utf-8", "replace"))[-MAX_ERROR_TEXT:]

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._end_of_stderr = (self._end_of_stderr + data)[-_STDERR_BYTES:]
        else:
            super().pipe_data_received(fd, data)
        if fd in self._readers and self.exceeded_descriptor != fd:
            self._readers[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        if fd in self._readers:
            self._readers[fd].end()
