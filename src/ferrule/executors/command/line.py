"""From a command's description and the arguments of a call to one program with its arguments.

No shell reads any of it. `{param}` becomes text inside one argument, whatever that text is. An item that names a
parameter without a value is left out, and a list within the list (`["--limit", "{limit}"]`) is left out as a whole.
Parameters no template names are given to the program as a JSON object on its standard input.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.content import encode_json
from ferrule.errors import Retry, SetupError
from ferrule.executors.command.script import INSTEAD, Part, script_of_caller
from ferrule.executors.secrets import Secrets
from ferrule.executors.templates import fill_text, names_in
from ferrule.executors.variables import expand_variables, fill_template, is_common, placeholders_in

_MARK = "\0"
"""Stands for a value where only its place matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    arguments: list[str]
    """The program first."""
    environment: dict[str, str]
    directory: str | None
    stdin: bytes | None
    secrets: Secrets = Secrets()
    """Must not show in what is told about the call."""


def fill_command(config: Mapping[str, Any], params: Mapping[str, Any], environ: Mapping[str, str]) -> CommandLine:
    """What a call runs."""
    command = config.get("command")
    if not isinstance(command, (list, tuple)) or not command or not isinstance(command[0], str):
        raise SetupError(f"a command must be a list such as ['grep', '-r', '{{pattern}}'], not {command!r}")
    if placeholders_in(command[0]):
        raise SetupError(f"the program of a command is fixed: {command[0]!r} cannot contain a {{param}}")
    given = {name: value for name, value in params.items() if value is not None}
    parts = list(_parts(command, given, environ))
    _refuse_script(parts)
    filled = CommandLine(
        arguments=[part.text for part in parts],
        environment=_environment(config, given, environ),
        directory=expand_variables(config["cwd"], environ) if config.get("cwd") else None,
        stdin=_stdin(config, given, environ),
        secrets=Secrets([config.get(key) for key in ("command", "env", "stdin")], environ),
    )
    for text in (*filled.arguments, *filled.environment.values()):
        _refuse_unfit(text)
    return filled


def literal_command(
    arguments: list[str], *, directory: str, stdin: str | None, environ: Mapping[str, str]
) -> CommandLine:
    """A program and its arguments just as they are: nothing in them is a template."""
    for text in arguments:
        _refuse_unfit(text)
    return CommandLine(
        arguments=arguments,
        environment=_environment({}, {}, environ),
        directory=directory,
        stdin=None if stdin is None else stdin.encode("utf-8", "replace"),
    )


def _refuse_script(parts: Sequence[Part]) -> None:
    if (script := script_of_caller(parts)) is not None:
        raise SetupError(f"a {{param}} inside the script {script!r} would be run as code: {INSTEAD}")


def _parts(command: Sequence[Any], given: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Part]:
    only_operands = False
    for item in command:
        group = item if isinstance(item, (list, tuple)) else [item]
        texts = [fill_text(str(part), given, environ) for part in group]
        if None in texts:
            continue
        is_pair = len(group) > 1 and str(group[0]).startswith("-")
        for position, (part, text) in enumerate(zip(group, texts, strict=True)):
            if not only_operands and not (is_pair and position == 1):
                _refuse_option(str(part), text or "", environ)
            yield Part(str(part), text or "")
        only_operands = only_operands or item == "--"


def _refuse_option(template: str, text: str, environ: Mapping[str, str]) -> None:
    if text.startswith("-") and fill_template(template, environ, lambda name: _MARK).startswith(_MARK):
        raise Retry(
            f"the value of {placeholders_in(template)[0]!r} begins with '-': the program would take it for an option. "
            "Begin it with something else, for a file with './'."
        )


def _refuse_unfit(text: str) -> None:
    try:
        fits = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise Retry("an argument of a command cannot contain NUL characters or halves of characters.")


def _environment(config: Mapping[str, Any], given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    inherits_all = bool(config.get("inherit_env"))
    inherited = {k: v for k, v in environ.items() if inherits_all or is_common(k)}
    added = {name: fill_text(str(text), given, environ) for name, text in (config.get("env") or {}).items()}
    return inherited | {name: text for name, text in added.items() if text is not None}


def _stdin(config: Mapping[str, Any], given: Mapping[str, Any], environ: Mapping[str, str]) -> bytes | None:
    if config.get("stdin") is not None:
        text = fill_text(str(config["stdin"]), given, environ)
        return None if text is None else text.encode("utf-8", "replace")
    named = set(names_in([config.get("command"), config.get("env")]))
    rest = {name: value for name, value in given.items() if name not in named}
    return encode_json(rest) if rest else None
