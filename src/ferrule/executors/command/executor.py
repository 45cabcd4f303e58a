"""The `command` executor: a tool that is a program on this machine.

However a call ends, by itself, by a time-out or an error, the program and everything it started has ended before
the call returns. Nobody waits for the end of a pipe: a process that left the session may hold it open for ever.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
from contextlib import suppress
from itertools import count
from typing import Any

from ferrule.call import Invocation, Progress
from ferrule.errors import CallError, ExecutionFailed, Retry, TransportFault
from ferrule.executors.command.line import CommandLine, fill_command
from ferrule.executors.command.output import CommandOutput, LineHandler
from ferrule.executors.process_group import (
    GRACE,
    KILL_PATIENCE,
    close_pipes,
    end_process_group,
    to_the_end,
    wait_at_most,
)
from ferrule.executors.secrets import Secrets

logger = logging.getLogger("ferrule.executors")

MAX_OUTPUT = 5_000_000
MAX_LOGGED_LINES = 1_000


class CommandExecutor:
    """Runs the command in a tool's `implementation_config`: command, cwd, env, inherit_env, stdin, stream."""

    def __init__(self, *, grace: float = GRACE, max_output: int = MAX_OUTPUT) -> None:
        self._grace, self._max_output = grace, max_output

    async def execute(self, invocation: Invocation, /) -> Any:
        config = invocation.tool.spec.implementation_config
        line = fill_command(config, invocation.params, os.environ)
        return await self.run(line, invocation, stream=bool(config.get("stream")))

    async def run(self, line: CommandLine, invocation: Invocation, *, stream: bool = False) -> Any:
        """Run a program for a call, and give what it wrote. `stream` reports each line as progress."""
        output = CommandOutput(
            self._max_output,
            on_stdout_line=_reporter(invocation, line.secrets) if stream else None,
            on_stderr_line=_logger_of(invocation, line.secrets),
        )
        with line.secrets.hidden_in_errors():
            await self._to_its_end(line, output)
            return line.secrets.hide(self._result(line.arguments[0], output, line.secrets))

    def _result(self, program: str, output: CommandOutput, secrets: Secrets) -> Any:
        if output.is_too_large:
            raise ExecutionFailed(
                f"{program!r} wrote more than {self._max_output:,} bytes and was ended. Ask for less."
            )
        if output.exit_code != 0:
            complaint = output.complaint(secrets.hide)
            said = f": {complaint}" if complaint else "."
            raise ExecutionFailed(f"{program!r} {_how_it_ended(output.exit_code)}{said}", exit_code=output.exit_code)
        return _json_or_text(output.stdout.decode("utf-8", "replace"))

    async def _to_its_end(self, line: CommandLine, output: CommandOutput) -> None:
        """Run the program to its end, or until the call is cancelled."""
        try:
            await to_the_end(_start(line, output))
            await output.finished.wait()
        finally:
            if output.transport is not None:
                await to_the_end(_end(output.transport, output, self._grace))


async def _start(line: CommandLine, output: CommandOutput) -> None:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: output,
            *line.arguments,
            stdin=nothing if line.stdin is None else pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=line.directory,
            env=line.environment,
            start_new_session=True,
        )
    except OSError as error:
        raise _start_failure(line, error) from error
    stdin = transport.get_pipe_transport(0)
    if line.stdin is not None and isinstance(stdin, asyncio.WriteTransport):
        stdin.write(line.stdin)
        stdin.close()  # when all is written


async def _end(transport: asyncio.SubprocessTransport, output: CommandOutput, grace: float) -> None:
    """End what is left of the session, take what was written, close the pipes."""
    await end_process_group(transport.get_pid(), grace)
    await wait_at_most(output.exited, KILL_PATIENCE)
    await close_pipes(transport, output.closed, reads_stdin=output.reads_stdin)


def _start_failure(line: CommandLine, error: OSError) -> CallError:
    program = line.arguments[0]
    if error.errno == errno.E2BIG:
        return Retry(f"the arguments for {program!r} are too long for a command line. Shorten them.")
    if line.directory is not None and error.filename == line.directory:
        return ExecutionFailed(f"the directory {line.directory!r} to run {program!r} in cannot be used: {error}")
    if isinstance(error, FileNotFoundError):
        return ExecutionFailed(f"the program {program!r} was not found. Install it, or write where it is.")
    if isinstance(error, PermissionError) or error.errno == errno.ENOEXEC:
        return ExecutionFailed(f"{program!r} cannot be run: {error}. Is it a program, and executable?")
    return TransportFault(f"{program!r} could not be started: {error}")


def _how_it_ended(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code} ({signal.strsignal(-code)})"


def _json_or_text(stdout: str) -> Any:
    """A JSON object or list that was printed; any other text as it is, without the newline at its end."""
    if stdout.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(stdout)
    return stdout.removesuffix("\n")


def _reporter(invocation: Invocation, secrets: Secrets) -> LineHandler:
    return lambda text: invocation.report(Progress(message=secrets.hide(text)))


def _logger_of(invocation: Invocation, secrets: Secrets) -> LineHandler:
    lines = count(1)

    def log(text: str) -> None:
        if next(lines) <= MAX_LOGGED_LINES:
            shown = secrets.hide(text)
            logger.info("tool=<%s>, call=<%s> | stderr: %s", invocation.tool.id, invocation.call_id, shown)

    return log
