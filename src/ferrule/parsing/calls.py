"""The two syntaxes of a call: JSON (`{"name": …, "arguments": {…}}` with various keys) and Python (`f(a="x")`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.known_tools import CallableTool, KnownTools, parse_argument, unwrap_arguments
from ferrule.parsing.literals import LiteralError, LiteralReader, parse_literal
from ferrule.parsing.text import CallsAndEnd, MarkedSegment, SourceText

# JSON

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


def find_name_in_json(source: str) -> str | None:
    """Return the name of the tool that JSON seems to call, which need not be valid."""
    named = _TOOL_NAME.search(source)
    return named[1] if named else None


def _report_invalid_object(text: SourceText, at: int, failure: LiteralError, tools: KnownTools) -> MarkedSegment | None:
    """Report invalid JSON that is clearly a call: it names a known tool and has arguments."""
    source = text.excerpt(at, max(failure.at, at + 1))
    tool = tools.find(find_name_in_json(source) or "")
    text.record_failure(at, failure.at)
    if tool is None or not _HAS_ARGUMENTS.search(source):
        return None
    end = end_of_invalid_json(text, failure.at)
    return MarkedSegment(at, end, (tool.report(failure.reason, text.excerpt(at, end)),))


def end_of_invalid_json(text: SourceText, at: int) -> int:
    """Return where invalid JSON is assumed to end: with its paragraph or its fence."""
    return min(text.find("\n\n", at)[0], text.find("\n```", at)[0])


def extract_calls(
    value: Any, tools: KnownTools, unclosed: Sequence[Any], raw: str, *, is_certain: bool
) -> list[ToolCall]:
    """Return the calls in a JSON value; nothing if any part of it is something else.

    `unclosed` are the objects and lists whose closing bracket is missing.
    """
    calls: list[ToolCall] = []
    for part in _iter_call_parts(value):
        named = _find_named_arguments(part, tools, is_certain=is_certain)
        if not named:
            return []
        for name, key, arguments in named:
            tool = tools.find(name)
            calls.append(
                _make_json_call(tool, arguments, key, unclosed, raw) if tool else tools.make_call(name, raw=raw)
            )
    return calls


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


def _find_named_arguments(part: Any, tools: KnownTools, *, is_certain: bool) -> list[tuple[str, str | None, Any]]:
    """Return the names of the tools that an object calls, each with the key and the value of its arguments."""
    if not isinstance(part, dict):
        return []
    if isinstance(part.get("function"), dict):
        part = part["function"]
    names = [part[key] for key in _NAME_KEYS if isinstance(part.get(key), str) and part[key].strip()]
    name = next((name for name in names if tools.find(name)), names[0] if names else None)
    key = next((k for k in _ARGUMENTS_KEYS if k in part and part[k] != name), None)
    if name is None or not (key or is_certain):
        # `{"get_weather": {"city": "Paris"}}`: each key is a tool, and each value its arguments.
        for keyed, arguments in part.items():
            tool = tools.find(keyed)
            if tool is None or not isinstance(arguments, dict):
                return []
            if not is_certain and not (arguments and set(arguments) <= set(tool.properties)):
                return []
        return [(keyed, "arguments", arguments) for keyed, arguments in part.items()]
    arguments = part[key] if key else {}
    if tool := tools.find(name):
        is_call = not _is_tool_schema(part, arguments, tool)
    else:
        is_similar = is_certain or tools.has_similar(name, arguments if isinstance(arguments, dict) else ())
        is_call = is_similar and name.casefold() not in ("final answer", "final_answer")
    return [(name, key, arguments)] if is_call else []


def _is_tool_schema(part: Mapping[str, Any], arguments: Any, tool: CallableTool) -> bool:
    """Return whether a model quotes the schema of a tool instead of calling it."""
    if not isinstance(arguments, dict) or arguments == {}:
        return False
    members = arguments.get("properties") if "properties" not in tool.properties else None
    described = isinstance(members, dict) and all(isinstance(member, dict) for member in members.values())
    return described or arguments == tool.parameters or ("description" in part and "type" in arguments)


def _make_json_call(tool: CallableTool, arguments: Any, key: str | None, unclosed: Sequence[Any], raw: str) -> ToolCall:
    if isinstance(arguments, str):
        arguments = _arguments_from_text(arguments, tool, key)
    if isinstance(arguments, dict) and arguments.keys() <= {"type", "properties", "required"}:
        arguments = unwrap_arguments({k: v for k, v in arguments.items() if k == "properties"} or arguments, tool)
    if any(arguments is container for container in unclosed):
        return tool.report("they are not complete, a closing bracket is missing", raw)
    if not isinstance(arguments, dict | None):
        return tool.report("they must be an object with a name for each argument", raw)
    return ToolCall(name=tool.name, arguments=arguments or {})


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


# Python

NAME = r"(?:[^\W\d]|\\_)[\w./\\-]*+"
_CALLEE = lazy_pattern(rf"(?P<name>{NAME})[ \t]*\(")
_HEAD = lazy_pattern(
    rf"(?:[^\W\d]\w*+(?:,[ \t]*[^\W\d]\w*+)*[ \t]*=(?!=)[ \t]*|return[ \t]+)?(?:await[ \t]+)?"
    rf"(?P<printed>print[ \t]*\([ \t]*(?={NAME}\())?(?:await[ \t]+)?"
)
_KEYWORD = lazy_pattern(r"(?P<quote>[\"']?)(?P<name>(?:[^\W\d]|\\_)\w*+(?:\\_\w*+)*)(?P=quote)[ \t]*[=:](?!=)")
BETWEEN_CALLS = lazy_pattern(
    r"[\s;,|&]*+(?:(?:\\(?=\n)|\#[^\n]*+|\band\b|^print\([^\W\d]\w*+\))[\s;,|&]*+)*", re.MULTILINE
)
_BLANKS = lazy_pattern(r"[ \t]*+")
_BRACKET = lazy_pattern(r"\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*\"|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*'|[()\[\]{}]")
_LIST_END = lazy_pattern(r"\\?\]|\Z")
_ITEM_QUOTE = lazy_pattern("['\"`]?")
_MAX_BROKEN_CALL = 20_000
"""Invalid calls that are longer are not analyzed."""


def read_python_calls(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read calls, as statements or as a list whose items may be quoted, and return where the last one or the list ends.

    Returns None if there is no call, or if a list has anything else.
    """
    calls: list[ToolCall] = []
    is_list = text.whole.startswith("[", at)
    end = at + is_list
    while True:
        place = text.skip(BETWEEN_CALLS, end, stop)
        begin = text.skip(_ITEM_QUOTE, place, stop) if is_list else place
        quote = text.whole[place:begin]
        read = read_statement(text, begin, stop, tools)
        if read is None or not text.whole.startswith(quote, read[1]):
            break
        calls.append(read[0])
        end = read[1] + len(quote)
    if not is_list:
        return (calls, end) if calls else None
    end = text.skip(BETWEEN_CALLS, end, stop)
    closed = _LIST_END.match(text.whole, end, stop)
    if calls and closed:
        return calls, closed.end()
    text.record_failure(at, end)
    return None


def read_statement(text: SourceText, at: int, stop: int, tools: KnownTools) -> tuple[ToolCall, int] | None:
    """Read one call, perhaps awaited, printed or assigned to a name, and return where it ends."""
    head = _HEAD.match(text.whole, at, stop)
    callee = _CALLEE.match(text.whole, head.end() if head else at, stop)
    if callee is None:
        return None
    call, end = _read_call(text, callee, stop, tools)
    if head and head.group("printed"):
        end = text.skip(_BLANKS, end)
        if not text.whole.startswith(")", end):
            return None
        end += 1
    return call, end


def _read_call(text: SourceText, callee: re.Match[str], stop: int, tools: KnownTools) -> tuple[ToolCall, int]:
    name, at = callee.group("name"), callee.end()
    arguments: dict[str, Any] = {}
    reason = ""
    try:
        arguments, end = _ArgumentParser(text, stop, tools.find(name)).read(at)
    except LiteralError as failure:
        text.record_failure(at, failure.at)
        end, reason = _find_call_end(text, at, stop), failure.reason
        if "call inside a call" in reason:
            reason += ". Make that call first and pass its result as a plain value"
    return tools.make_call(name, arguments, raw=text.excerpt(callee.start(), end), failure=reason), end


class _ArgumentParser:
    """Parses the text between the parentheses of a call."""

    def __init__(self, text: SourceText, stop: int, tool: CallableTool | None) -> None:
        self._text, self._stop = text, stop
        self._tool = tool
        self._literals = LiteralReader(text, stop)

    def read(self, at: int) -> tuple[dict[str, Any], int]:
        named: dict[str, Any] = {}
        unnamed: list[Any] = []
        whole, literals = self._text.whole, self._literals
        while True:
            at = literals.skip_space(at)
            if whole.startswith(")", at) and at < self._stop:
                return self._combine_arguments(unnamed, named), at + 1
            if keyword := _KEYWORD.match(whole, at, self._stop):
                name = keyword.group("name").replace("\\", "")
                if name in named:
                    raise LiteralError(f"{name!r} is given twice", at)
                named[name], at = self._read_value(keyword.end())
            else:
                value, at = literals.read_value(at)
                unnamed.append(value)
            if literals.unclosed:
                raise LiteralError("a bracket is not closed", at)
            at = literals.skip_space(at)
            if whole.startswith((",", ";", "，"), at) and at < self._stop:
                at += 1
            elif not whole.startswith(")", at) and not _KEYWORD.match(whole, at, self._stop):
                raise LiteralError(
                    "they are not closed" if at >= self._stop else f"{whole[at : at + 12]!r} is not an argument", at
                )

    def _read_value(self, at: int) -> tuple[Any, int]:
        """Read a value; for a string that contains its own quotes unescaped, the only possible reading."""
        whole = self._text.whole
        at = self._literals.skip_space(at)
        try:
            value, end = self._literals.read_value(at)
            after = self._literals.skip_space(end)
            if after >= self._stop or not isinstance(value, str) or whole.startswith((",", ")", ";", "，"), after):
                return value, end
            failure = LiteralError("a text is followed by something else", after)
            is_complete = _KEYWORD.match(whole, after) is not None
        except LiteralError as error:
            failure, is_complete = error, False
        closed = self._find_last_quote(at) if whole.startswith(("'", '"'), at) else None
        if closed is not None:
            return whole[at + 1 : closed], closed + 1
        if is_complete:
            return value, end
        raise failure

    def _find_last_quote(self, at: int) -> int | None:
        """Find the quote before the last parenthesis of the text, if no other quote could close the string."""
        if self._stop - at > _MAX_BROKEN_CALL:
            return None
        self._text.spend_effort((self._stop - at) // 64)
        quote = self._text.whole[at]
        body = self._text.whole[at + 1 : self._stop].rstrip().removesuffix("]").rstrip()
        if not body.endswith(")") or not body[:-1].rstrip().endswith(quote):
            return None
        remainder = body[:-1].rstrip()[:-1]
        if re.search(rf"{quote}\s*(?:,\s*[^\W\d]\w*\s*=|\)\s*[,;\n]\s*[^\W\d][\w.]*\()", remainder):
            return None
        return at + 1 + len(remainder)

    def _combine_arguments(self, unnamed: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        if self._tool is None:
            return named
        order = list(self._tool.properties)
        if len(unnamed) == 1 and not named and isinstance(unnamed[0], dict) and set(unnamed[0]) <= set(order):
            # A single object has the arguments by name, unless it can be the first argument itself.
            first = self._tool.properties.get(order[0], {}) if order else {}
            if unnamed[0] and first.get("type") != "object":
                return unnamed[0]
        if len(unnamed) > len(order):
            raise LiteralError(f"{len(unnamed)} have no name, but the tool has {len(order)}", self._stop)
        arguments = dict(zip(order, unnamed, strict=False))
        if twice := arguments.keys() & named.keys():
            raise LiteralError(f"{min(twice)!r} is given twice", self._stop)
        return unwrap_arguments({**arguments, **named}, self._tool)


def _find_call_end(text: SourceText, at: int, stop: int) -> int:
    """Return where an invalid call ends: at its closing parenthesis, or with its line."""
    depth = 1
    far = min(stop, at + _MAX_BROKEN_CALL // 4)
    text.spend_effort((far - at) // 64)
    for bracket in _BRACKET.finditer(text.whole, at, far):
        char = bracket.group()
        depth += 1 if char in ("(", "[", "{") else -1 if char in (")", "]", "}") else 0
        if depth == 0:
            return bracket.end()
    return min(text.find("\n", at)[0], stop)
