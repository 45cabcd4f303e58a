"""Calls written as JSON: `{"name": …, "arguments": {…}}` with various keys, alone or in lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.known_tools import CallableTool, KnownTools, parse_argument, unreadable_call, unwrap_arguments
from ferrule.parsing.literals import LiteralError, LiteralReader, parse_literal
from ferrule.parsing.text import CallsAndEnd, MarkedSegment, SourceText

_NAME_KEYS = ("name", "tool_name", "tool", "function_name", "function", "action", "recipient_name", "api_name")
_ARGUMENTS_KEYS = (
    *("arguments", "parameters", "args", "input", "params", "kwargs", "action_input", "tool_input", "tool_args"),
    *("tool_arguments", "tool_parameters", "function_args", "function_arguments", "function_parameters"),
)
_PLAIN_INPUT_KEYS = frozenset({"input", "action_input", "tool_input"})
_CALL_LIST_KEYS = (
    *("tool_calls", "function_calls", "tool_uses", "calls", "function_call", "tool_call"),
    *("toolCalls", "functionCalls", "toolUses", "functionCall", "toolCall", "toolUse"),
)
_SEPARATORS = lazy_pattern(r"[\s;,|]*+")
_TOOL_NAME = lazy_pattern(
    r"""["'](?:name|tool_name|tool|function_name|function|action)["']\s*:\s*["']([^"'\n]{1,200})["']"""
)
_HAS_ARGUMENTS = lazy_pattern(rf"""["'](?:{"|".join(_ARGUMENTS_KEYS)})["']\s*:""")


def read_json_segment(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read the calls in the JSON value that starts at `at`."""
    reader = LiteralReader(text)
    try:
        value, end = reader.read_value(at)
    except LiteralError as failure:
        return _report_invalid_object(text, at, failure, tools)
    calls = extract_calls(value, tools, reader.unclosed, text.excerpt(at, end), is_certain=False)
    if reader.unclosed and not calls:
        incomplete = LiteralError("they are not complete, a closing bracket is missing", end)
        if report := _report_invalid_object(text, at, incomplete, tools):
            return report
    # A value that is not a call is data, and so is anything inside it that looks like a call.
    return MarkedSegment(at, end, tuple(calls)) if calls else MarkedSegment(at, end, kind="code")


def read_json_calls(text: SourceText, at: int, stop: int, tools: KnownTools, *, is_certain: bool) -> CallsAndEnd | None:
    """Read the calls in successive JSON values, and return where they end; None if any value is something else.

    `is_certain`: the format around them is used for calls only.
    """
    calls: list[ToolCall] = []
    end = at
    while (at := text.skip(_SEPARATORS, at, stop)) < stop and text.whole[at] in "{[":
        reader = LiteralReader(text, stop)
        try:
            value, end = reader.read_value(at)
        except LiteralError as failure:
            text.record_failure(at, failure.at)
            return None
        part_calls = extract_calls(value, tools, reader.unclosed, text.excerpt(at, end), is_certain=is_certain)
        if not part_calls:
            return None
        calls += part_calls
        at = end
    return (calls, end) if calls else None


def invalid_json_call(source: str, reason: str, tools: KnownTools) -> ToolCall | None:
    """Return the call with an error for JSON that is invalid but names a tool."""
    named = _TOOL_NAME.search(source)
    if named is None:
        return None
    return tools.invalid_call(named.group(1), reason, source)


def extract_calls(
    value: Any, tools: KnownTools, unclosed: Sequence[Any], raw: str, *, is_certain: bool
) -> list[ToolCall]:
    """Return the calls in a JSON value; nothing if any part of it is something else."""
    converter = _CallConverter(tools=tools, unclosed=unclosed, raw=raw, is_certain=is_certain)
    calls = [list(converter.convert(part)) for part in _iter_call_parts(value)]
    return [call for part_calls in calls for call in part_calls] if all(calls) else []


def _report_invalid_object(text: SourceText, at: int, failure: LiteralError, tools: KnownTools) -> MarkedSegment | None:
    """Report invalid JSON that is clearly a call: it names a known tool and has arguments."""
    source = text.excerpt(at, max(failure.at, at + 1))
    named = _TOOL_NAME.search(source)
    tool = tools.find(named.group(1)) if named else None
    text.record_failure(at, failure.at)
    if tool is None or not _HAS_ARGUMENTS.search(source):
        return None
    end = end_of_invalid_json(text, failure.at)
    return MarkedSegment(at, end, (unreadable_call(tool, failure.reason, text.excerpt(at, end)),))


def end_of_invalid_json(text: SourceText, at: int) -> int:
    """Return where invalid JSON is assumed to end: with its paragraph or its fence."""
    return min(text.find("\n\n", at)[0], text.find("\n```", at)[0])


def _iter_call_parts(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the single calls in lists and in the wrappers of APIs."""
    if isinstance(value, list) and depth < 4:
        for item in value:
            yield from _iter_call_parts(item, depth + 1)
        return
    if isinstance(value, dict):
        for key in _CALL_LIST_KEYS:
            if isinstance(value.get(key), (list, dict)):
                yield from _iter_call_parts(value[key], depth + 1)
                return
    yield value


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallConverter:
    """The conversion of single JSON objects to calls."""

    tools: KnownTools
    unclosed: Sequence[Any]
    """Objects and lists whose closing bracket is missing."""
    raw: str
    is_certain: bool
    """The format around the objects is used for calls only."""

    def convert(self, part: Any) -> Iterator[ToolCall]:
        if not isinstance(part, dict):
            return
        inner = part.get("function")
        if isinstance(inner, dict):
            part = inner
        name = _find_tool_name(part, self.tools)
        key = next((k for k in _ARGUMENTS_KEYS if k in part and part[k] != name), None)
        if name is None or not (key or self.is_certain):
            yield from self._convert_keyed_calls(part)
            return
        arguments = part[key] if key else {}
        tool = self.tools.find(name)
        if tool is None:
            keys = arguments if isinstance(arguments, dict) else ()
            is_call = self.is_certain or self.tools.has_similar(name, keys)
            if is_call and name.casefold() not in ("final answer", "final_answer"):
                yield self.tools.unknown_tool_call(name, self.raw)
        elif not _is_tool_schema(part, arguments, tool):
            yield self._make_call(tool, arguments, key)

    def _convert_keyed_calls(self, part: Mapping[str, Any]) -> Iterator[ToolCall]:
        """Read `{"get_weather": {"city": "Paris"}}`: each key a tool, and each value its arguments."""
        calls: list[ToolCall] = []
        for name, arguments in part.items():
            tool = self.tools.find(name)
            if tool is None or not isinstance(arguments, dict):
                return
            if not self.is_certain and not (arguments and set(arguments) <= set(tool.properties)):
                return
            calls.append(self._make_call(tool, arguments, "arguments"))
        yield from calls

    def _make_call(self, tool: CallableTool, arguments: Any, key: str | None) -> ToolCall:
        if isinstance(arguments, str):
            arguments = _arguments_from_text(arguments, tool, key)
        if isinstance(arguments, dict) and arguments.keys() <= {"type", "properties", "required"}:
            arguments = unwrap_arguments({k: v for k, v in arguments.items() if k == "properties"} or arguments, tool)
        if any(arguments is container for container in self.unclosed):
            return unreadable_call(tool, "they are not complete, a closing bracket is missing", self.raw)
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return unreadable_call(tool, "they must be an object with a name for each argument", self.raw)
        return ToolCall(name=tool.name, arguments=arguments)


def _find_tool_name(part: Mapping[str, Any], tools: KnownTools) -> str | None:
    source = [part[key] for key in _NAME_KEYS if isinstance(part.get(key), str) and part[key].strip()]
    return next((name for name in source if tools.find(name)), source[0] if source else None)


def _is_tool_schema(part: Mapping[str, Any], arguments: Any, tool: CallableTool) -> bool:
    """Return whether a model quotes the schema of a tool instead of calling it."""
    if not isinstance(arguments, dict) or arguments == {}:
        return False
    members = arguments.get("properties") if "properties" not in tool.properties else None
    described = isinstance(members, dict) and all(isinstance(member, dict) for member in members.values())
    return described or arguments == tool.parameters or ("description" in part and "type" in arguments)


def _arguments_from_text(source: str, tool: CallableTool, key: str | None) -> Any:
    """Read arguments as text: JSON, or the value of the only parameter."""
    try:
        value = parse_literal(source) if source.strip() else {}
    except LiteralError:
        value = source
    if isinstance(value, dict):
        return value
    only = tool.only_parameter
    return {only: parse_argument(source, tool, only)} if key in _PLAIN_INPUT_KEYS and only else source
