"""Calls written as JSON: `{"name": …, "arguments": {…}}`, by whatever keys, alone or in lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ferrule.messages import ToolCall
from ferrule.parsing.found import Found
from ferrule.parsing.known import Known, KnownTools, refused
from ferrule.parsing.literals import Literals, Unreadable, read_whole
from ferrule.parsing.text import Text
from ferrule.parsing.values import value_of

_NAMES = ("name", "tool_name", "tool", "function_name", "function", "action", "recipient_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input", "tool_input", "params", "kwargs")
_PLAIN_INPUT = frozenset({"input", "action_input", "tool_input"})
_LISTS = ("tool_calls", "function_calls", "tool_uses", "calls", "function_call", "tool_call")
_BETWEEN = re.compile(r"[\s;,|]*+")
_NAMED = re.compile(r"""["'](?:name|tool_name|tool|function_name|function|action)["']\s*:\s*["']([^"'\n]{1,200})["']""")
_GIVEN = re.compile(rf"""["'](?:{"|".join(_ARGUMENTS)})["']\s*:""")
NO_NAMES: frozenset[str] = frozenset()


def read_object(text: Text, at: int, tools: KnownTools) -> Found | None:
    """Calls in the bare JSON value that begins at `at`."""
    reader = Literals(text)
    try:
        value, end = reader.value(at)
    except Unreadable as failure:
        return _unreadable_object(text, at, failure, tools)
    calls = calls_in(value, tools, reader.forced, text.quote(at, end), sure=False)
    # A value that is no call is data, and what looks like a call inside it is data too.
    return Found(at, end, tuple(calls)) if calls else Found(at, end, kind="code")


def read_objects(text: Text, at: int, stop: int, tools: KnownTools, *, sure: bool) -> tuple[list[ToolCall], int] | None:
    """Calls in the JSON values from `at` on, one after the other, and where they end; None if they are not all calls.

    `sure` where the text around says that calls are meant.
    """
    calls: list[ToolCall] = []
    end = at
    while (at := _skip(text, at, stop)) < stop and text.whole[at] in "{[":
        reader = Literals(text, stop)
        try:
            value, end = reader.value(at)
        except Unreadable as failure:
            text.failed(at, failure.at)
            return None
        found = calls_in(value, tools, reader.forced, text.quote(at, end), sure=sure)
        if not found:
            return None
        calls += found
        at = end
    return (calls, end) if calls else None


def unreadable(said: str, reason: str, tools: KnownTools) -> ToolCall | None:
    """What to answer to JSON that cannot be read but names a tool."""
    named = _NAMED.search(said)
    if named is None:
        return None
    tool = tools.find(named.group(1))
    return refused(tool, reason, said) if tool else tools.missing(named.group(1), said)


def calls_in(value: Any, tools: KnownTools, forced: Sequence[Any], raw: str, *, sure: bool) -> list[ToolCall]:
    """The calls a JSON value stands for; none if any part of it is something else."""
    calls: list[ToolCall] = []
    for part in _parts(value):
        found = list(_calls_of(part, tools, forced, raw, sure=sure))
        if not found:
            return []
        calls += found
    return calls


def _unreadable_object(text: Text, at: int, failure: Unreadable, tools: KnownTools) -> Found | None:
    """Broken JSON is reported where it is plainly meant as a call: it names a known tool and its arguments."""
    said = text.quote(at, max(failure.at, at + 1))
    named = _NAMED.search(said)
    tool = tools.find(named.group(1)) if named else None
    text.failed(at, failure.at)
    if tool is None or not _GIVEN.search(said):
        return None
    end = _end_of_line(text, failure.at)
    said = text.quote(at, end)
    return Found(at, end, (refused(tool, failure.reason, said),))


def _end_of_line(text: Text, at: int) -> int:
    """Broken JSON is taken to end with its paragraph or its fence."""
    return min(text.find("\n\n", at)[0], text.find("\n```", at)[0])


def _skip(text: Text, at: int, stop: int) -> int:
    match = _BETWEEN.match(text.whole, at, stop)
    return match.end() if match else at


def _parts(value: Any, depth: int = 0) -> Iterator[Any]:
    """The single calls in lists, and in the envelopes APIs put them into."""
    if isinstance(value, list) and depth < 4:
        for item in value:
            yield from _parts(item, depth + 1)
        return
    if isinstance(value, dict):
        for key in _LISTS:
            if isinstance(value.get(key), (list, dict)):
                yield from _parts(value[key], depth + 1)
                return
    yield value


def _calls_of(part: Any, tools: KnownTools, forced: Sequence[Any], raw: str, *, sure: bool) -> Iterator[ToolCall]:
    if not isinstance(part, dict):
        return
    inner = part.get("function")
    if isinstance(inner, dict):
        part = inner
    name = _name_in(part, tools)
    key = next((k for k in _ARGUMENTS if k in part and part[k] != name), None)
    if name is None or not (key or sure):
        yield from _by_name(part, tools, forced, raw, sure=sure)
        return
    given = part[key] if key else {}
    tool = tools.find(name)
    if tool is None:
        keys = given if isinstance(given, dict) else NO_NAMES
        if name.casefold() not in ("final answer", "final_answer") and (sure or tools.near(name, keys)):
            yield tools.missing(name, raw)
    elif not _is_schema(part, given, tool):
        yield _call(tool, given, key, forced, raw)


def _name_in(part: Mapping[str, Any], tools: KnownTools) -> str | None:
    said = [part[key] for key in _NAMES if isinstance(part.get(key), str) and part[key].strip()]
    return next((name for name in said if tools.find(name)), said[0] if said else None)


def _by_name(
    part: Mapping[str, Any], tools: KnownTools, forced: Sequence[Any], raw: str, *, sure: bool
) -> Iterator[ToolCall]:
    """`{"get_weather": {"city": "Paris"}}`: each key a tool, and each value its arguments."""
    for name, given in part.items():
        tool = tools.find(name)
        if tool is None or not isinstance(given, dict):
            return
        if not sure and not (given and set(given) <= set(tool.properties)):
            return
    for name, given in part.items():
        if tool := tools.find(name):
            yield _call(tool, given, "arguments", forced, raw)


def _is_schema(part: Mapping[str, Any], given: Any, tool: Known) -> bool:
    """A model that quotes what a tool takes does not call it."""
    if not isinstance(given, dict) or given == {}:
        return False
    described = isinstance(given.get("properties"), dict) and "properties" not in tool.properties
    return described or given == tool.parameters or ("description" in part and "type" in given)


def _call(tool: Known, given: Any, key: str | None, forced: Sequence[Any], raw: str) -> ToolCall:
    if isinstance(given, str):
        given = _from_text(given, tool, key)
    if isinstance(given, list) and given and not any(isinstance(item, dict) for item in given):
        names = list(tool.properties)
        given = dict(zip(names, given, strict=False)) if len(given) <= len(names) else given
    if any(given is one for one in forced):
        return refused(tool, "they are not complete, a closing bracket is missing", raw)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        return refused(tool, "they must be an object with a name for each argument", raw)
    return ToolCall(name=tool.name, arguments=given)


def _from_text(said: str, tool: Known, key: str | None) -> Any:
    """Arguments given as text: JSON text, or the value of the only parameter."""
    try:
        value = read_whole(said) if said.strip() else {}
    except Unreadable:
        value = said
    if isinstance(value, dict):
        return value
    only = tool.only_parameter
    return {only: value_of(said, tool, only)} if key in _PLAIN_INPUT and only else said
