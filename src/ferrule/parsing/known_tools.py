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

    def report(self, reason: str, raw: str) -> ToolCall:
        """Return the call of this tool with an error: its arguments cannot be parsed."""
        return ToolCall(name=self.name, error=f"The arguments of {self.name!r} cannot be read: {reason}.", raw=raw)


class KnownTools:
    """Finds tools by the names that models write. Build it once for many texts with the same schemas."""

    __slots__ = ("_by_name",)

    def __init__(self, schemas: Iterable[Schema]) -> None:
        self._by_name: dict[str, CallableTool] = {}
        by_schema_name: dict[str, CallableTool] = {}
        for schema in schemas:
            described = schema.get("function", schema)
            if isinstance(described, Mapping) and isinstance(name := described.get("name"), str):
                parameters = described.get("parameters", described.get("input_schema"))
                tool = CallableTool(name=name, parameters=parameters if isinstance(parameters, Mapping) else {})
                by_schema_name[name] = self._by_name[decode_model_name(name)] = tool
        self._by_name.update(by_schema_name)

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

    def make_call(
        self, raw_name: str, arguments: dict[str, Any] | None = None, *, raw: str = "", failure: str = ""
    ) -> ToolCall:
        """Return a call; with an error if the tool does not exist, or if `failure` says why the arguments are lost."""
        if tool := self.find(raw_name):
            return ToolCall(name=tool.name, arguments=arguments or {}) if not failure else tool.report(failure, raw)
        name = unescape_name(raw_name)
        similar = dict.fromkeys(repr(self._by_name[n].name) for n in similar_names(name, self._by_name))
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        error = f"There is no tool {name!r}.{hint}"
        return ToolCall(name=encode_model_name(name), arguments=arguments or {}, error=error, raw=raw)


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
    if "string" in kinds:
        # Where the schema accepts text as well, null, objects and lists are recognized by their form.
        form = raw_text.strip()
        is_null = "null" in kinds and form in ("null", "None")
        if not is_null and {"{": "object", "[": "array"}.get(form[:1]) not in kinds:
            return raw_text
    try:
        value = parse_literal(raw_text)
    except LiteralError:
        if not kinds & {"object", "array"}:
            return raw_text
        try:  # an object or a list whose quotes are escaped, as if it were inside a string
            value = parse_literal(parse_literal(f'"{raw_text}"'))
        except LiteralError:
            return raw_text
    return raw_text if isinstance(value, str) else value


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
