"""`entry`: what runs a tool. A named executor, a command, an HTTP endpoint, or a Python callable.

What the entry says goes to the tool's `implementation_config` as it stands, `${VAR}` and `{param}` included: they
are replaced when a call is made, by the executor.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from ferrule.executors.command.script import INSTEAD, Part, script_of_caller
from ferrule.executors.templates import names_in
from ferrule.executors.variables import placeholders_in
from ferrule.names import did_you_mean
from ferrule.sources.imported import ImportedTarget
from ferrule.sources.section import Section, describe_place, kind_of
from ferrule.spec import ToolType

METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")

_EXAMPLE: Final = "entry: {type: builtin, handler: echo}"
_COMMAND_KEYS: Final = ("type", "command", "args", "cwd", "env", "inherit_env", "stdin", "stream")
_HTTP_KEYS: Final = ("type", "url", "method", "headers", "query", "body", "timeout")
_SHELL_WORDS: Final = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"})
_CALLABLE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How a tool is run."""

    handler: str
    tool_type: ToolType
    config: dict[str, Any] = field(default_factory=dict)
    target: ImportedTarget | None = None


_NONE: Final = Entry(handler="", tool_type=ToolType.BUILTIN)
"""What stands for an entry with a problem."""


def read_entry(tool: Section, parameters: Collection[str]) -> Entry:
    """The entry of a tool whose parameters have these names."""
    if not tool.has("entry"):
        tool.problem("entry is missing", None, f"say what runs the tool, for instance {_EXAMPLE}")
    entry = tool.section("entry")
    if entry is None or not entry.required_text("type", "builtin"):
        return _NONE
    match entry.choice("type", ("builtin", "external", "custom"), ""):
        case "builtin":
            return _builtin(entry)
        case "external":
            return _external(entry, parameters)
        case "custom":
            return _custom(entry)
    return _NONE


def _builtin(entry: Section) -> Entry:
    entry.allow(("type", "handler", "config"))
    handler = entry.required_text("handler", "echo")
    return Entry(handler=handler, tool_type=ToolType.BUILTIN, config=entry.mapping("config"))


def _external(entry: Section, parameters: Collection[str]) -> Entry:
    if entry.has("command") == entry.has("url"):
        entry.problem("an external entry has either a command or a url", None, "write command: [program, argument]")
        return _NONE
    if entry.has("command"):
        entry.allow(_COMMAND_KEYS, "time-outs stand under limits" if "timeout" in entry.values else None)
        config = _command_config(entry)
        _check_placeholders(entry, config, ("command", "env", "stdin"), parameters)
        return Entry(handler="command", tool_type=ToolType.COMMAND, config=config)
    entry.allow(_HTTP_KEYS)
    config = _http_config(entry)
    _check_placeholders(entry, config, ("url", "headers", "query", "body"), parameters)
    return Entry(handler="http", tool_type=ToolType.HTTP, config=config)


def _command_config(entry: Section) -> dict[str, Any]:
    program = _program(entry)
    config: dict[str, Any] = {"command": [*program, *_arguments(entry, "args")]}
    if program:
        _check_command(entry, config["command"])
    for key in ("cwd", "stdin"):
        if entry.has(key):
            config[key] = entry.text(key)
    for key in ("inherit_env", "stream"):
        if entry.has(key):
            config[key] = entry.flag(key)
    if entry.has("env"):
        config["env"] = _scalar_map(entry, "env")
    return config


def _program(entry: Section) -> list[Any]:
    """The words of `command`; none, and a problem, when it has no first one."""
    command = entry.values["command"]
    try:
        words = shlex.split(command) if isinstance(command, str) else _arguments(entry, "command")
    except ValueError as error:
        entry.problem(f"the command cannot be split into words: {error}", "command", "write it as a list")
        return []
    if words and isinstance(words[0], str) and words[0]:
        return words
    entry.problem("the command names no program", "command", "write command: [program, argument]")
    return []


def _arguments(entry: Section, key: str) -> list[Any]:
    """Text and numbers, exactly as written (an argument `007` stays that), and groups of them."""
    texts = entry.document.texts
    arguments: list[Any] = []
    for index, value in enumerate(entry.entries(key)):
        place = (*entry.place, key, index)
        parts = value if isinstance(value, list) else [value]
        if any(isinstance(part, (dict, list)) for part in parts):
            hint = "put text that contains ': ' in quotes"
            entry.document.problem(f"{describe_place(place)} must be text, not {kind_of(value)}", place, hint)
        elif isinstance(value, list):
            arguments.append([texts[*place, position] for position in range(len(parts))])
        else:
            arguments.append(texts[place])
    return arguments


def _check_command(entry: Section, command: list[Any]) -> None:
    if placeholders_in(command[0]):
        entry.problem(f"the program {command[0]!r} cannot be chosen by a call", "command", "name it")
    for word in command:
        if isinstance(word, str) and word in _SHELL_WORDS:
            hint = "run a shell yourself if you must: command: [sh, -c, …]"
            entry.problem(f"no shell reads the command: {word!r} would be an argument", "command", hint)
    words = [word for item in command for word in (item if isinstance(item, list) else [item])]
    if (script := script_of_caller([Part(word, word) for word in words])) is not None:
        entry.problem(f"a {{param}} inside the script {script!r} would be run as code", "command", INSTEAD)


def _http_config(entry: Section) -> dict[str, Any]:
    config: dict[str, Any] = {"url": entry.text("url")}
    if not config["url"].startswith(("http://", "https://", "${")):
        entry.problem(f"the url {config['url']!r} names no web server", "url", "it starts with https:// or http://")
    if entry.has("method"):
        config["method"] = entry.text("method").upper()
        if config["method"] not in METHODS:
            entry.problem(f"method {config['method']!r} is not known", "method", f"allowed: {', '.join(METHODS)}")
    if entry.has("headers"):
        config["headers"] = _scalar_map(entry, "headers")
    if entry.has("query"):
        config["query"] = _scalar_map(entry, "query", lists=True)
    if entry.has("body"):
        config["body"] = entry.values["body"]
    if entry.has("timeout"):
        config["timeout"] = entry.positive("timeout")
    return config


def _custom(entry: Section) -> Entry:
    entry.allow(("type", "handler"))
    handler = entry.required_text("handler", "my_module:my_function")
    if not handler:
        return _NONE
    if not _CALLABLE.fullmatch(handler):
        module, _, name = handler.rpartition(".")
        hint = f"write {module}:{name}" if module and ":" not in handler else "write my_module:my_function"
        entry.problem(f"handler {handler!r} is not of the form module:callable", "handler", hint)
        return _NONE
    path, line = entry.document.path, entry.document.line((*entry.place, "handler"))
    target = ImportedTarget(handler, path=path, line=line)
    return Entry(handler="function", tool_type=ToolType.FUNCTION, config={"handler": handler}, target=target)


def _scalar_map(entry: Section, key: str, *, lists: bool = False) -> dict[str, Any]:
    """Names with text or numbers, exactly as written; where several values make sense also lists of them."""
    section = entry.section(key)
    if section is None:
        return {}
    return {
        name: value if lists and isinstance(value, list) else section.as_written(name, "")
        for name, value in section.values.items()
    }


def _check_placeholders(
    entry: Section, config: dict[str, Any], keys: Collection[str], parameters: Collection[str]
) -> None:
    for key in keys:
        for name in dict.fromkeys(names_in(config.get(key))):
            if name not in parameters:
                near = did_you_mean(name, parameters).strip()
                hint = f"{near} Write {{{{{name}}}}} if you mean the text itself".strip()
                entry.problem(f"{{{name}}} is none of the tool's parameters", key, hint)
