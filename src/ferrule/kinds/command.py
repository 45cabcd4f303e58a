"""The `command` executor: a tool that is a program on this machine.

However a call ends (normally, by a timeout or with an error), the program and all processes of its session have ended
before the call returns. If the program is ended (by a timeout, a cancellation, too much output), so are the processes
that it started in other sessions, daemons included; if it ends by itself, a daemon that it started stays. The end of a
pipe is never waited for: a process that left the session may keep it open forever.

No shell reads a command. `{param}` becomes text inside one argument, whatever that text is. An item that names a
parameter without a value is omitted, and a list within the list (`["--limit", "{limit}"]`) is omitted as a whole.
Parameters that no template names are written to the program's standard input as a JSON object.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ferrule.core.aio import finish_despite_cancellation
from ferrule.core.call import Invocation, Progress
from ferrule.core.content import encode_json
from ferrule.core.patterns import lazy_pattern
from ferrule.core.secrets import Secrets
from ferrule.core.variables import (
    expand_variables,
    fill_if_complete,
    fill_template,
    find_parameters,
    find_placeholders,
    is_common_variable,
)
from ferrule.errors import CallError, ExecutionFailed, Retry, SetupError, TransportFault
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

        def log(text: str) -> None:
            text = line.secrets.hide(text)
            logger.info("tool=<%s>, call=<%s> | stderr: %s", invocation.tool.id, invocation.call_id, text)

        readers = {2: LineReader(log, max_lines=MAX_LOGGED_LINES, max_bytes=MAX_LOGGED_BYTES)}
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
            text, code = output.error_text(secrets.hide), output.exit_code
            by_signal = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else ""
            how = by_signal or f"ended with exit code {code}"
            raise ExecutionFailed(f"{program!r} {how}" + (f": {text}" if text else "."), exit_code=code)
        stdout = output.output[1].decode("utf-8", "replace")
        if stdout.lstrip()[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                return json.loads(stdout)
        return stdout.removesuffix("\n")

    async def _run_to_end(self, line: CommandLine, output: OutputCollector) -> None:
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
                await finish_despite_cancellation(self._end(output.transport, output, mark))

    async def _end(self, transport: asyncio.SubprocessTransport, output: OutputCollector, mark: str) -> None:
        """End the remaining processes, read the rest of the output, close the pipes."""
        if output.exited.is_set():  # by itself: a daemon that it left on purpose stays
            await end_process_group(transport.get_pid(), self._grace)
        else:
            await end_process_tree(transport.get_pid(), mark, self._grace)
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


class OutputCollector(WatchedProcess):
    """The collected stdout and the end of the stderr of one program, which are passed on line by line."""

    def __init__(self, max_stdout: int, readers: Mapping[int, LineReader]) -> None:
        super().__init__({1: max_stdout})
        self._readers = readers
        self._end_of_stderr = b""

    def error_text(self, hide: Callable[[str], str]) -> str:
        """Return the end of what the program wrote to stderr or, if that is empty, to stdout."""
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


# Command lines

_VALUE_MARKER = "\0"
"""Stands for a value where only its position matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    arguments: list[str]
    """The program first."""
    environment: dict[str, str]
    directory: str | None
    stdin: bytes | None
    secrets: Secrets = Secrets()
    """Hidden in results and messages."""


def build_command_line(config: Mapping[str, Any], params: Mapping[str, Any], environ: Mapping[str, str]) -> CommandLine:
    """Make the command line that a call runs. Raises SetupError for a wrong description, Retry for wrong arguments."""
    command = config.get("command")
    if not isinstance(command, (list, tuple)) or not command or not isinstance(command[0], str):
        raise SetupError(f"a command must be a list such as ['grep', '-r', '{{pattern}}'], not {command!r}")
    if find_placeholders(command[0]):
        raise SetupError(f"the program of a command is fixed: {command[0]!r} cannot contain a {{param}}")
    values = {name: value for name, value in params.items() if value is not None}
    parts = list(_fill_arguments(command, values, environ))
    if (script := find_unsafe_script(parts)) is not None:
        raise SetupError(f"a {{param}} inside the script {script!r} would be run as code: {SCRIPT_HINT}")
    named = set(find_parameters([config.get("command"), config.get("env")]))
    rest = {name: value for name, value in values.items() if name not in named}
    stdin = encode_json(rest) if rest else None
    if config.get("stdin") is not None:
        text = fill_if_complete(str(config["stdin"]), values, environ)
        stdin = None if text is None else text.encode("utf-8", "replace")
    filled = CommandLine(
        arguments=[part.text for part in parts],
        environment=_build_environment(config, values, environ),
        directory=expand_variables(config["cwd"], environ) if config.get("cwd") else None,
        stdin=stdin,
        secrets=Secrets.from_template([config.get(key) for key in ("command", "env", "stdin")], environ),
    )
    _refuse_unencodable_texts([*filled.arguments, *filled.environment.values()])
    return filled


def literal_command(
    arguments: list[str], *, directory: str, stdin: str | None, environ: Mapping[str, str]
) -> CommandLine:
    """Make the command line of a program and arguments that contain no templates."""
    _refuse_unencodable_texts(arguments)
    return CommandLine(
        arguments=arguments,
        environment=_build_environment({}, {}, environ),
        directory=directory,
        stdin=None if stdin is None else stdin.encode("utf-8", "replace"),
    )


def _fill_arguments(
    command: Sequence[Any], values: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[CommandArgument]:
    only_operands = False
    for item in command:
        group = item if isinstance(item, (list, tuple)) else [item]
        texts = [fill_if_complete(str(part), values, environ) for part in group]
        if None in texts:
            continue
        is_pair = len(group) > 1 and str(group[0]).startswith("-")
        for position, (part, text) in enumerate(zip(group, texts, strict=True)):
            may_be_option = not only_operands and not (is_pair and position == 1) and (text or "").startswith("-")
            if may_be_option and fill_template(str(part), environ, lambda _: _VALUE_MARKER).startswith(_VALUE_MARKER):
                raise Retry(
                    f"the value of {find_placeholders(str(part))[0]!r} begins with '-': the program would take it for "
                    "an option. Begin it with something else, for a file with './'."
                )
            yield CommandArgument(str(part), text or "")
        only_operands = only_operands or item == "--"


def _refuse_unencodable_texts(texts: Iterable[str]) -> None:
    if not all(map(is_encodable, texts)):
        raise Retry("an argument of a command cannot contain NUL characters or unpaired surrogates.")


def is_encodable(text: str) -> bool:
    """Return whether the system accepts a text as an argument or a path."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _build_environment(
    config: Mapping[str, Any], values: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, str]:
    inherits_all = bool(config.get("inherit_env"))
    inherited = {k: v for k, v in environ.items() if inherits_all or is_common_variable(k)}
    added = {name: fill_if_complete(str(text), values, environ) for name, text in (config.get("env") or {}).items()}
    return inherited | {name: text for name, text in added.items() if text is not None}


# Arguments that are scripts: the program would run as code what a caller puts into them. Recognized are the usual
# shells (`sh -c …`), languages (`python -c …`, `perl -e …`) and `env -S …`, also when another program starts them
# (`timeout 5 sh -c …`). Which arguments other programs run as code is not known here.

SCRIPT_HINT = """give it as an argument: [sh, -c, 'grep -- "$1" notes.txt', sh, "{pattern}"]"""
"""What to write instead of a `{param}` in a script."""


class CommandArgument(NamedTuple):
    """One argument: its template in the tool's description, and its text with the values of a call."""

    template: str
    text: str


class _OptionSyntax(NamedTuple):
    """How a program reads its options, up to the first argument that is not an option."""

    script: re.Pattern[str]
    """Options whose value is a script: the rest of the same argument, or the next one."""
    valued: re.Pattern[str] = lazy_pattern("(?!)")
    """Options whose value is the next argument."""
    last: re.Pattern[str] = lazy_pattern("--")
    """The option after which no other option is read."""


_PYTHON_OPTIONS = _OptionSyntax(
    script=lazy_pattern("-[A-Za-z]*?c(.*)", re.S),
    valued=lazy_pattern("-[A-Za-z]*[WX]|--check-hash-based-pycs"),
    last=lazy_pattern("--|-[A-Za-z]*m.*"),
)
_PERL_OPTIONS = _OptionSyntax(script=lazy_pattern("-(?![MmI])[A-Za-z0-9.]*?[eE](.*)", re.S), valued=lazy_pattern("-I"))
_RUBY_OPTIONS = _OptionSyntax(
    script=lazy_pattern("-(?![rICE])[A-Za-z0-9]*?e(.*)", re.S), valued=lazy_pattern("-[rICE]")
)
_NODE_OPTIONS = _OptionSyntax(
    script=lazy_pattern("-[pe]+()|--(?:eval|print)(?:=(.*))?", re.S), valued=lazy_pattern("-[rC]|--require|--import")
)
_PHP_OPTIONS = _OptionSyntax(script=lazy_pattern("-[A-Za-z]*?[rBRE](.*)", re.S), valued=lazy_pattern("-[cdz]"))
_OTHER_LANGUAGE_OPTIONS = _OptionSyntax(script=lazy_pattern("-e(.*)", re.S), valued=lazy_pattern("-l"))
_ENV_OPTIONS = _OptionSyntax(
    script=lazy_pattern("-[A-Za-z0-9]*?S(.*)|--split-string(?:=(.*))?", re.S),
    valued=lazy_pattern("-[uCPa]|--unset|--chdir"),
)
_OPTIONS_BY_LANGUAGE = {
    **dict.fromkeys(("python", "pypy"), _PYTHON_OPTIONS),
    **dict.fromkeys(("node", "nodejs", "bun"), _NODE_OPTIONS),
    **dict.fromkeys(("lua", "osascript", "Rscript"), _OTHER_LANGUAGE_OPTIONS),
    "perl": _PERL_OPTIONS,
    "php": _PHP_OPTIONS,
    "ruby": _RUBY_OPTIONS,
}
_SHELLS = frozenset("sh bash rbash dash ash zsh ksh mksh pdksh yash csh tcsh fish".split())
_SHELL_OPTIONS_WITH_VALUE = lazy_pattern("[-+][A-Za-z]*[oO][A-Za-z]*|--rcfile|--init-file")
_VERSION_SUFFIX = lazy_pattern(r"[-.\d]*$")


def find_unsafe_script(parts: Sequence[CommandArgument]) -> str | None:
    """Return the script that contains a `{param}`, if there is one."""
    return next((script.template for script in _find_scripts(list(parts)) if find_placeholders(script.template)), None)


def _find_scripts(parts: list[CommandArgument]) -> Iterator[CommandArgument]:
    for at, part in enumerate(parts):
        # A value from the caller is not the program: it is a file or a word that has the same name.
        name = "" if find_placeholders(part.template) else _VERSION_SUFFIX.sub("", os.path.basename(part.text))
        rest = parts[at + 1 :]
        if name == "env":
            # The text that `env -S` splits into words, and the scripts of the command that these words begin.
            for position, text in _find_scripts_in_options(_ENV_OPTIONS, rest):
                yield text
                with suppress(ValueError):  # env cannot split it either
                    words = [CommandArgument(word, word) for word in shlex.split(text.text)]
                    yield from _find_scripts([*words, *rest[position + 1 :]])
        elif name in _SHELLS:
            yield from _find_shell_scripts(rest)
        elif name in _OPTIONS_BY_LANGUAGE:
            yield from (script for _, script in _find_scripts_in_options(_OPTIONS_BY_LANGUAGE[name], rest))


def _find_scripts_in_options(
    options: _OptionSyntax, rest: list[CommandArgument]
) -> Iterator[tuple[int, CommandArgument]]:
    """Yield the scripts, each with the position of its argument."""
    at = 0
    while at < len(rest) and rest[at].text.startswith("-") and not options.last.fullmatch(rest[at].text):
        option = options.script.fullmatch(rest[at].text)
        attached = next(filter(None, option.groups()), "") if option else ""
        takes_next = options.valued.fullmatch(rest[at].text) or (option and not attached)
        if attached:
            yield at, rest[at]._replace(text=attached)
        elif option and at + 1 < len(rest):
            yield at + 1, rest[at + 1]
        at += 2 if takes_next else 1


def _find_shell_scripts(rest: list[CommandArgument]) -> Iterator[CommandArgument]:
    """Yield the script of a shell, which comes after all options."""
    takes_script = is_value = are_over = False
    for part in rest:
        text = part.text
        if text.startswith(("-", "+")) and len(text) > 1 and not are_over:
            if text.startswith(("--command=", "--init-command=")):
                yield part
            is_long = text.startswith("--")
            takes_script |= text in ("--command", "--init-command") or (not is_long and "c" in text.lower())
            is_value = _SHELL_OPTIONS_WITH_VALUE.fullmatch(text) is not None
            are_over = text == "--"
        elif is_value:
            is_value = False
        else:
            if takes_script:
                yield part
            return
