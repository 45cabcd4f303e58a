"""The tools that a text may call, and values of their parameters that were written as plain text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ferrule.core.json_schema import allowed_types, list_branches, resolve_schema
from ferrule.core.messages import Schema, ToolCall
from ferrule.core.names import decode_model_name, encode_model_name, similar_names
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.literals import LiteralError, parse_literal

_NAMESPACE = lazy_pattern(r"(?:functions?|default_api|tools?|api)[.:/]")
_SURROUNDING_CHARACTERS = " \t\r\n`\"'*"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A tool that can be called."""

    name: str
    """The name in the schema, which parsed calls have."""
    parameters: Mapping[str, Any]
    """JSON Schema."""

    @property
    def properties(self) -> Mapping[str, Any]:
        properties = self.parameters.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def only_parameter(self) -> str | None:
        """Return the parameter for a value without a name: the only one, or the only required one."""
        if not self.properties:
            return "input"
        names = list(self.properties)
        required = [name for name in self.parameters.get("required") or () if name in self.properties]
        return names[0] if len(names) == 1 else required[0] if len(required) == 1 else None


class KnownTools:
    """Finds tools by the names that models write. Build it once for many texts with the same schemas."""

    __slots__ = ("_by_name",)

    def __init__(self, schemas: Iterable[Schema]) -> None:
        tools = [tool for schema in schemas if (tool := _read_tool(schema))]
        self._by_name = {decode_model_name(tool.name): tool for tool in tools}
        self._by_name.update({tool.name: tool for tool in tools})

    def find(self, raw_name: str) -> CallableTool | None:
        """Return the tool with this name: the name in the schema, or the one before its encoding for models."""
        name = unescape_name(raw_name)
        once = name[: len(name) // 2]
        doubled = once if name == f"{once}.{once}" else name
        for candidate in (name, _NAMESPACE.sub("", name, count=1), name.removesuffix(".call"), doubled):
            if tool := self._by_name.get(candidate) or self._by_name.get(encode_model_name(candidate)):
                return tool
        return None

    def has_similar(self, raw_name: str, arguments: Iterable[str]) -> bool:
        """Return whether a tool with a similar name takes these arguments: then the text is probably a call."""
        names = similar_names(unescape_name(raw_name), self._by_name, limit=1)
        argument_names = set(arguments)
        return bool(names and argument_names) and argument_names <= set(self._by_name[names[0]].properties)

    def unknown_tool_call(self, raw_name: str, raw: str, arguments: dict[str, Any] | None = None) -> ToolCall:
        """Return the call of a tool that does not exist."""
        name = unescape_name(raw_name)
        similar = dict.fromkeys(repr(self._by_name[n].name) for n in similar_names(name, self._by_name))
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        error = f"There is no tool {name!r}.{hint}"
        return ToolCall(name=encode_model_name(name), arguments=arguments or {}, error=error, raw=raw)

    def invalid_call(self, raw_name: str, reason: str, raw: str) -> ToolCall:
        """Return the call with an error for arguments that cannot be parsed, or for a tool that does not exist."""
        tool = self.find(raw_name)
        return unreadable_call(tool, reason, raw) if tool else self.unknown_tool_call(raw_name, raw)


def unreadable_call(tool: CallableTool, reason: str, raw: str) -> ToolCall:
    """Return the call of an existing tool whose arguments cannot be parsed."""
    return ToolCall(name=tool.name, error=f"The arguments of {tool.name!r} cannot be read: {reason}.", raw=raw)


def _read_tool(schema: Schema) -> CallableTool | None:
    described = schema.get("function", schema)
    if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
        return None
    parameters = described.get("parameters", described.get("input_schema"))
    return CallableTool(name=described["name"], parameters=parameters if isinstance(parameters, Mapping) else {})


def unescape_name(raw_name: str) -> str:
    """Return a name without the escapes of Markdown and XML, and without what surrounds it."""
    return html.unescape(raw_name).removesuffix("\\n").strip(_SURROUNDING_CHARACTERS).replace("\\", "")


# Arguments that were written as plain text, between tags: their type is in the tool's schema.

_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
_MAX_DEPTH = 8
_WRAPPER_NAMES = frozenset({"arguments", "parameters", "properties", "input", "args"})


def parse_argument(raw_text: str, tool: CallableTool, parameter: str, *, is_text: bool = False) -> Any:
    """Return the value of a parameter: text stays text if the schema accepts text.

    `is_text` is what the model declared, for parameters that the schema does not contain.
    """
    kinds = _schema_types(tool.properties.get(parameter), dict(tool.parameters))
    if is_text and not kinds:
        return raw_text
    if "string" in kinds and not _could_be_other_type(raw_text, kinds):
        return raw_text
    try:
        value = _parse_value(raw_text, kinds)
    except LiteralError:
        return raw_text
    return raw_text if isinstance(value, str) else value


def _parse_value(raw_text: str, kinds: set[str]) -> Any:
    """Parse a literal; also an object or a list whose quotes are escaped, as if it were inside a string."""
    try:
        return parse_literal(raw_text)
    except LiteralError:
        if not kinds & {"object", "array"}:
            raise
        return parse_literal(parse_literal(f'"{raw_text}"'))


def unwrap_arguments(arguments: dict[str, Any], tool: CallableTool) -> dict[str, Any]:
    """Return the inner arguments if a model put all of them into one parameter such as `arguments`."""
    if len(arguments) != 1:
        return arguments
    [(name, value)] = arguments.items()
    if name in tool.properties or name not in _WRAPPER_NAMES:
        return arguments
    if isinstance(value, str):
        try:
            value = parse_literal(value)
        except LiteralError:
            return arguments
    return value if isinstance(value, dict) else arguments


def _schema_types(schema: Any, root: dict[str, Any], depth: int = 0) -> set[str]:
    """Return the types that a value may have, through references and unions."""
    types: set[str] = set()
    for branch in list_branches(resolve_schema(schema, root), root):
        types.update(allowed_types(branch))
        for part in branch.get("allOf") or () if depth < _MAX_DEPTH else ():
            types |= _schema_types(part, root, depth + 1)
        for option in [branch["const"]] if "const" in branch else branch.get("enum") or ():
            types.add(_TYPE_NAMES.get(type(option), "null"))
    return types


def _could_be_other_type(raw_text: str, kinds: set[str]) -> bool:
    """Recognize null, objects and lists by their form, where the schema accepts them beside text."""
    raw_text = raw_text.strip()
    return ("null" in kinds and raw_text in ("null", "None")) or {"{": "object", "[": "array"}.get(
        raw_text[:1]
    ) in kinds
