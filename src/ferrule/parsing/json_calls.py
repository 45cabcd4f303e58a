"""Calls written as JSON: `{"name": …, "arguments": {…}}` with various keys, alone or in lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.known_tools import CallableTool, KnownTools, parse_argument, unreadable_call, unwrap_arguments
from ferrule.parsing.literals import LiteralError, LiteralReader, parse_literal
from ferrule.parsing.text import MarkedSegment, SourceText

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
NO_NAMES: frozenset[str] = frozenset()


def read_json_segment(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Calls in the JSON value that starts at `at`."""
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


def read_json_calls(
    text: SourceText, at: int, stop: int, tools: KnownTools, *, is_certain: bool
) -> tuple[list[ToolCall], int] | None:
    """Calls in the JSON values from `at` on, one after the other, and where they end; None if they are not all calls.

    `is_certain`: the format around them is used for calls only.
    """
    calls: list[ToolCall] = []
    end = at
    while (at := _skip_separators(text, at, stop)) < stop and text.whole[at] in "{[":
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
    """The call with an error for JSON that is invalid but names a tool."""
    named = _TOOL_NAME.search(source)
    if named is None:
        return None
    tool = tools.find(named.group(1))
    return unreadable_call(tool, reason, source) if tool else tools.unknown_tool_call(named.group(1), source)


def extract_calls(
    value: Any, tools: KnownTools, unclosed: Sequence[Any], raw: str, *, is_certain: bool
) -> list[ToolCall]:
    """The calls in a JSON value; none if any part of it is something else."""
    calls: list[ToolCall] = []
    for part in _iter_call_parts(value):
        part_calls = list(_convert_part(part, tools, unclosed, raw, is_certain=is_certain))
        if not part_calls:
            return []
        calls += part_calls
    return calls


def _report_invalid_object(text: SourceText, at: int, failure: LiteralError, tools: KnownTools) -> MarkedSegment | None:
    """Invalid JSON is reported if it is clearly a call: it names a known tool and has arguments."""
    source = text.excerpt(at, max(failure.at, at + 1))
    named = _TOOL_NAME.search(source)
    tool = tools.find(named.group(1)) if named else None
    text.record_failure(at, failure.at)
    if tool is None or not _HAS_ARGUMENTS.search(source):
        return None
    end = _end_of_invalid_json(text, failure.at)
    source = text.excerpt(at, end)
    return MarkedSegment(at, end, (unreadable_call(tool, failure.reason, source),))


def _end_of_invalid_json(text: SourceText, at: int) -> int:
    """Invalid JSON is assumed to end with its paragraph or its fence."""
    return min(text.find("\n\n", at)[0], text.find("\n```", at)[0])


def _skip_separators(text: SourceText, at: int, stop: int) -> int:
    match = _SEPARATORS.match(text.whole, at, stop)
    return match.end() if match else at


def _iter_call_parts(value: Any, depth: int = 0) -> Iterator[Any]:
    """The single calls in lists and in the wrappers of APIs; a name and its arguments may be a list, too."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict):
        yield {"name": value[0], "arguments": value[1]}
        return
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


def _convert_part(
    part: Any, tools: KnownTools, unclosed: Sequence[Any], raw: str, *, is_certain: bool
) -> Iterator[ToolCall]:
    if not isinstance(part, dict):
        return
    inner = part.get("function")
    if isinstance(inner, dict):
        part = inner
    name = _find_tool_name(part, tools)
    key = next((k for k in _ARGUMENTS_KEYS if k in part and part[k] != name), None)
    if name and key is None and (flat := _arguments_beside_name(part, name, tools)):
        part, key = {"arguments": flat}, "arguments"
    if name is None or not (key or is_certain):
        yield from _convert_keyed_calls(part, tools, unclosed, raw, is_certain=is_certain)
        return
    arguments = part[key] if key else {}
    tool = tools.find(name)
    if tool is None:
        keys = arguments if isinstance(arguments, dict) else NO_NAMES
        if name.casefold() not in ("final answer", "final_answer") and (is_certain or tools.has_similar(name, keys)):
            yield tools.unknown_tool_call(name, raw)
    elif not _is_tool_schema(part, arguments, tool):
        yield _make_call(tool, arguments, key, unclosed, raw)


def _find_tool_name(part: Mapping[str, Any], tools: KnownTools) -> str | None:
    source = [part[key] for key in _NAME_KEYS if isinstance(part.get(key), str) and part[key].strip()]
    return next((name for name in source if tools.find(name)), source[0] if source else None)


def _arguments_beside_name(part: Mapping[str, Any], name: str, tools: KnownTools) -> dict[str, Any] | None:
    """`{"name": "get_weather", "city": "Paris"}`: all required arguments, and nothing but arguments."""
    tool = tools.find(name)
    arguments = {key: value for key, value in part.items() if value != name or key not in _NAME_KEYS}
    if tool is None or not set(tool.parameters.get("required") or ()) <= set(arguments) <= set(tool.properties):
        return None
    return arguments


def _convert_keyed_calls(
    part: Mapping[str, Any], tools: KnownTools, unclosed: Sequence[Any], raw: str, *, is_certain: bool
) -> Iterator[ToolCall]:
    """`{"get_weather": {"city": "Paris"}}`: each key a tool, and each value its arguments."""
    for name, arguments in part.items():
        tool = tools.find(name)
        if tool is None or not isinstance(arguments, dict):
            return
        if not is_certain and not (arguments and set(arguments) <= set(tool.properties)):
            return
    for name, arguments in part.items():
        if tool := tools.find(name):
            yield _make_call(tool, arguments, "arguments", unclosed, raw)


def _is_tool_schema(part: Mapping[str, Any], arguments: Any, tool: CallableTool) -> bool:
    """Whether a model quotes the schema of a tool instead of calling it."""
    if not isinstance(arguments, dict) or arguments == {}:
        return False
    members = arguments.get("properties") if "properties" not in tool.properties else None
    described = isinstance(members, dict) and all(isinstance(member, dict) for member in members.values())
    return described or arguments == tool.parameters or ("description" in part and "type" in arguments)


def _make_call(tool: CallableTool, arguments: Any, key: str | None, unclosed: Sequence[Any], raw: str) -> ToolCall:
    if isinstance(arguments, str):
        arguments = _arguments_from_text(arguments, tool, key)
    if isinstance(arguments, list) and arguments:
        arguments = _arguments_from_list(arguments, tool)
    if isinstance(arguments, dict) and arguments.keys() <= {"type", "properties", "required"}:
        arguments = unwrap_arguments({k: v for k, v in arguments.items() if k == "properties"} or arguments, tool)
    if any(arguments is container for container in unclosed):
        return unreadable_call(tool, "they are not complete, a closing bracket is missing", raw)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return unreadable_call(tool, "they must be an object with a name for each argument", raw)
    return ToolCall(name=tool.name, arguments=arguments)


def _arguments_from_list(items: list[Any], tool: CallableTool) -> Any:
    """Arguments as a list: the values in the order of the parameters, or an object for each argument."""
    names = list(tool.properties)
    if not any(isinstance(item, dict) for item in items):
        return dict(zip(names, items, strict=False)) if len(items) <= len(names) else items
    pairs = (
        [
            pair
            for item in items
            for pair in ([(item["name"], item["value"])] if item.keys() == {"name", "value"} else item.items())
        ]
        if all(isinstance(item, dict) for item in items)
        else []
    )
    merged = dict(pairs)
    return merged if merged.keys() <= tool.properties.keys() and len(merged) == len(pairs) > 0 else items


def _arguments_from_text(source: str, tool: CallableTool, key: str | None) -> Any:
    """Arguments as text: JSON, or the value of the only parameter."""
    try:
        value = parse_literal(source) if source.strip() else {}
    except LiteralError:
        value = source
    if isinstance(value, dict):
        return value
    only = tool.only_parameter
    return {only: parse_argument(source, tool, only)} if key in _PLAIN_INPUT_KEYS and only else source
