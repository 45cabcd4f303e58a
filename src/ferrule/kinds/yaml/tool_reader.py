"""One YAML document as a tool.

`entry` says what runs a tool: a named executor, a command, an HTTP endpoint, or a Python callable. The entry becomes
the tool's `implementation_config` as it is written, `${VAR}` and `{param}` included: the executor replaces them in each
call.

A separate module, because its models import pydantic: only when a file is read.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import NO_EFFECTS, Effects, Limits, Tool, ToolCapability, ToolSpec, ToolType
from ferrule.core.variables import find_parameters, find_placeholders
from ferrule.kinds.command import SCRIPT_HINT, CommandArgument, find_unsafe_script
from ferrule.kinds.function.targets import ImportedTarget
from ferrule.kinds.yaml.models import (
    ActionSection,
    BuiltinEntry,
    CommandEntry,
    CustomEntry,
    EffectsSection,
    EntryType,
    HttpEntry,
    LimitsSection,
    ToolSection,
    validate_section,
)
from ferrule.kinds.yaml.reader import Document, Place, describe_place, describe_value
from ferrule.kinds.yaml.schema_notation import read_output_schema, read_parameters_schema

HTTP_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")

_SHELL_OPERATORS: Final = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"})
_CALLABLE_PATTERN: Final = lazy_pattern(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def read_tool(document: Document) -> Tool | None:
    """Read the tool of a document. Return None, with the problems in the document, when the tool is not valid."""
    section = validate_section(ToolSection, document.value, document)
    if not isinstance(document.value, dict):
        return None
    # Schemas and the entry are read even after a problem: all problems of the file are reported together.
    schemas = _read_schemas(document, document.value)
    entry: ToolEntry | None = None
    if document.value.get("entry") is not None:
        parameters = [name for parameters, _ in schemas for name in parameters["properties"]]
        entry = read_entry(document, document.value["entry"], parameters)
    if section is None or entry is None or document.errors:
        return None
    return _make_tool(document, section, schemas, entry)


def _read_schemas(document: Document, value: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    if value.get("actions") is None:
        return [_read_action_schemas(document, (), value)]
    for key in ("parameters", "output", "examples"):
        if value.get(key) is not None:
            hint = f"move {key} into the actions it belongs to"
            document.problem(f"{key} and actions exclude each other", (key,), hint)
    actions = value["actions"] if isinstance(value["actions"], list) else []
    if value["actions"] == []:
        document.problem("actions is empty", ("actions",), "describe an action, or leave actions out")
    numbered = [(index, action) for index, action in enumerate(actions) if isinstance(action, dict)]
    names: set[Any] = set()
    for index, action in numbered:
        name = str(action.get("name"))
        if name in names:
            message = f"actions[{index}]: there are two actions {name!r}"
            document.problem(message, ("actions", index, "name"), "rename one of them")
        names.add(name)
    return [_read_action_schemas(document, ("actions", index), action) for index, action in numbered]


def _read_action_schemas(
    document: Document, place: Place, value: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    return (
        read_parameters_schema(document, (*place, "parameters"), value.get("parameters")),
        read_output_schema(document, (*place, "output"), value.get("output")),
    )


def _make_tool(
    document: Document,
    section: ToolSection,
    schemas: list[tuple[dict[str, Any], dict[str, Any] | None]],
    entry: ToolEntry,
) -> Tool | None:
    effects = _merge_effects(document, (), section, NO_EFFECTS)
    limits = replace(Limits(), **_dump_explicit_values(section.limits))
    capabilities = []
    actions: Sequence[ToolSection | ActionSection] = section.actions or [section]
    for index, (action, (parameters, output)) in enumerate(zip(actions, schemas, strict=True)):
        capability = ToolCapability(
            name=action.name,
            description=action.description,
            parameters=parameters,
            examples=action.examples,
            category=section.category.value,
            output=output,
        )
        if isinstance(action, ActionSection):
            own_effects = _merge_effects(document, ("actions", index), action, effects) if action.effects else None
            own_limits = replace(limits, **_dump_explicit_values(action.limits)) if action.limits else None
            capability = replace(capability, effects=own_effects, limits=own_limits, price=action.price)
        capabilities.append(capability)
    if document.errors:
        return None
    metadata = section.metadata
    if entry.target is not None and entry.target.version is not None:
        # When the code changes, the tool has changed.
        metadata = {**metadata, "source_hash": entry.target.version.digest}
    spec = ToolSpec(
        tool_id=section.name,
        aliases=list(dict.fromkeys(section.aliases)),
        description=section.description,
        version=document.texts.get(("version",)) or str(section.version),
        category=section.category,
        subcategory=section.subcategory,
        priority=section.priority,
        dependencies=section.dependencies,
        tags=list(dict.fromkeys(section.tags)),
        enabled=section.enabled,
        metadata=metadata,
        capabilities=capabilities,
        effects=effects,
        limits=limits,
        price=section.price,
        tool_type=entry.tool_type,
        implementation_config=entry.config,
    )
    origin = f"{document.path}:{document.line(('name',))}"
    return Tool(spec=spec, handler=entry.handler, target=entry.target, origin=origin)


def _merge_effects(document: Document, place: Place, section: ToolSection | ActionSection, base: Effects) -> Effects:
    effects = base if section.effects is None else replace(base, **_dump_explicit_values(section.effects))
    if effects.read_only and effects.destructive:
        where = (*place, "effects")
        message = f"{describe_place(where)}: read_only and destructive contradict each other"
        document.problem(message, (*where, "destructive"), "drop one of them")
    return effects


def _dump_explicit_values(section: EffectsSection | LimitsSection | None) -> dict[str, Any]:
    return {} if section is None else section.model_dump(exclude_none=True)


# What runs a tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEntry:
    """How a tool is run."""

    handler: str
    tool_type: ToolType
    config: dict[str, Any] = field(default_factory=dict)
    target: ImportedTarget | None = None


def read_entry(document: Document, value: Any, parameters: Collection[str]) -> ToolEntry | None:
    """Read the entry of a tool with these parameters. Return None, with the problems in the document, if it is bad."""
    entry_type = validate_section(EntryType, value, document, ("entry",))
    if entry_type is None:
        return None
    reader = _EntryReader(document, value)
    match entry_type.type:
        case "builtin":
            entry = validate_section(BuiltinEntry, value, document, ("entry",))
            if entry is None:
                return None
            return ToolEntry(handler=entry.handler, tool_type=ToolType.BUILTIN, config=entry.config)
        case "external":
            return reader.external(parameters)
        case "custom":
            return reader.custom()


class _EntryReader:
    def __init__(self, document: Document, value: dict[str, Any]) -> None:
        self._document, self._value = document, value

    def external(self, parameters: Collection[str]) -> ToolEntry | None:
        has_command = self._value.get("command") is not None
        if has_command == (self._value.get("url") is not None):
            self._problem("an external entry has either a command or a url", None, "write command: [program, argument]")
            return None
        config = self._command_config() if has_command else self._http_config()
        for key in ("command", "env", "stdin", "url", "headers", "query", "body"):
            for name in dict.fromkeys(find_parameters(config.get(key))):
                if name not in parameters:
                    near = did_you_mean(name, parameters).strip()
                    hint = f"{near} Write {{{{{name}}}}} if you mean the text itself".strip()
                    self._problem(f"{{{name}}} is none of the tool's parameters", key, hint)
        if has_command:
            return ToolEntry(handler="command", tool_type=ToolType.COMMAND, config=config)
        return ToolEntry(handler="http", tool_type=ToolType.HTTP, config=config)

    def custom(self) -> ToolEntry | None:
        entry = validate_section(CustomEntry, self._value, self._document, ("entry",))
        if entry is None:
            return None
        if entry.handler.isidentifier():  # the name of an executor: engine.register_executor(…)
            return ToolEntry(handler=entry.handler, tool_type=ToolType.FUNCTION, config={"handler": entry.handler})
        if not _CALLABLE_PATTERN.fullmatch(entry.handler):
            module, _, name = entry.handler.rpartition(".")
            is_dotted = module and ":" not in entry.handler
            hint = f"write {module}:{name}" if is_dotted else "write my_module:my_function"
            self._problem(f"handler {entry.handler!r} is not of the form module:callable", "handler", hint)
            return None
        line = self._document.line(("entry", "handler"))
        target = ImportedTarget(entry.handler, path=self._document.path, line=line)
        config = {"handler": entry.handler}
        return ToolEntry(handler="function", tool_type=ToolType.FUNCTION, config=config, target=target)

    # Commands

    def _command_config(self) -> dict[str, Any]:
        entry = validate_section(CommandEntry, self._value, self._document, ("entry",))
        program = self._program()
        if entry is None:
            return {}
        config: dict[str, Any] = {"command": [*program, *self._arguments("args", entry.args)]}
        if program:
            self._check_command(config["command"])
        config |= entry.model_dump(include={"cwd", "stdin", "inherit_env", "stream"}, exclude_none=True)
        if entry.env is not None:
            config["env"] = self._texts("env", entry.env)
        return config

    def _program(self) -> list[Any]:
        """Return the words of `command`; no words, with a problem, when `command` has no program."""
        command = self._value["command"]
        try:
            words = shlex.split(command) if isinstance(command, str) else self._arguments("command", command)
        except ValueError as error:
            self._problem(f"the command cannot be split into words: {error}", "command", "write it as a list")
            return []
        if words and isinstance(words[0], str) and words[0]:
            return words
        self._problem("the command names no program", "command", "write command: [program, argument]")
        return []

    def _arguments(self, key: str, values: Any) -> list[Any]:
        """Return text and numbers, exactly as written (`007` stays `007`), and groups of them."""
        arguments: list[Any] = []
        for index, value in enumerate(values if isinstance(values, list) else []):
            place: Place = ("entry", key, index)
            parts = value if isinstance(value, list) else [value]
            if any(isinstance(part, (dict, list)) for part in parts):
                message = f"{describe_place(place)} must be text, not {describe_value(value)}"
                self._document.problem(message, place, "put text that contains ': ' in quotes")
            elif isinstance(value, list):
                arguments.append([self._document.texts[*place, position] for position in range(len(parts))])
            else:
                arguments.append(self._document.texts[place])
        return arguments

    def _check_command(self, command: list[Any]) -> None:
        if find_placeholders(command[0]):
            self._problem(f"the program {command[0]!r} cannot be chosen by a call", "command", "name it")
        for word in command:
            if isinstance(word, str) and word in _SHELL_OPERATORS:
                hint = "run a shell yourself if you must: command: [sh, -c, …]"
                self._problem(f"no shell reads the command: {word!r} would be an argument", "command", hint)
        words = [word for item in command for word in (item if isinstance(item, list) else [item])]
        if (script := find_unsafe_script([CommandArgument(word, word) for word in words])) is not None:
            self._problem(f"a {{param}} inside the script {script!r} would be run as code", "command", SCRIPT_HINT)

    # Endpoints

    def _http_config(self) -> dict[str, Any]:
        entry = validate_section(HttpEntry, self._value, self._document, ("entry",))
        if entry is None:
            return {}
        config: dict[str, Any] = {"url": entry.url}
        if not entry.url.startswith(("http://", "https://", "${")):
            self._problem(f"the url {entry.url!r} names no web server", "url", "it starts with https:// or http://")
        if entry.method is not None:
            config["method"] = entry.method.upper()
            if config["method"] not in HTTP_METHODS:
                hint = f"allowed: {', '.join(HTTP_METHODS)}"
                self._problem(f"method {config['method']!r} is not known", "method", hint)
        for key, values in (("headers", entry.headers), ("query", entry.query)):
            if values is not None:
                config[key] = self._texts(key, values)
        return config | entry.model_dump(include={"body", "timeout"}, exclude_none=True)

    # Both

    def _texts(self, key: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return text and numbers exactly as written. Several values stay a list."""
        texts = self._document.texts
        return {name: "" if each is None else texts.get(("entry", key, name), each) for name, each in values.items()}

    def _problem(self, message: str, key: str | None, hint: str) -> None:
        self._document.problem(f"entry: {message}", ("entry",) if key is None else ("entry", key), hint)
