"""Calls written as XML: `<function=name>`, `<invoke name=…>` and their kin, with a tag for each argument."""

from __future__ import annotations

import re
from typing import Any

from ferrule.messages import ToolCall
from ferrule.parsing.found import Found
from ferrule.parsing.known import Known, KnownTools, refused
from ferrule.parsing.literals import Literals, Unreadable
from ferrule.parsing.text import Text
from ferrule.parsing.values import unwrapped, value_of

# Some tokenizers leave their mark for a space in the text, others lose the space.
_GAP = r"[\sĠ]*"
_PREFIX = r"(?:｜DSML｜|[A-Za-z_-]+:)?"
_NAMED = r"""(?:=|name\s*=)\s*["']?(?P<name>[^"'<>\n]+)["']?(?P<rest>[^<>\n]*)>?"""
OPENING = rf"<{_PREFIX}(?:function|invoke|tool_call|function_call|tool_use)(?=[\sĠ=]|name\s*=){_GAP}(?:=|name\s*=)"
_CALL = re.compile(rf"<{_PREFIX}(?P<tag>function|invoke|tool_call|function_call|tool_use){_GAP}{_NAMED}")
_PARAMETER = re.compile(rf"\s*<{_PREFIX}(?P<tag>parameter|param|argument|arg){_GAP}{_NAMED}")
_ENDINGS = {
    tag: re.compile(
        rf"</{_PREFIX}{tag}>|<{_PREFIX}(?:parameter|param|argument|arg){_GAP}(?:=|name\s*=)|</{_PREFIX}(?:function|invoke)>"
    )
    for tag in ("parameter", "param", "argument", "arg")
}
_CLOSED = re.compile(rf"\s*</{_PREFIX}(?:function|invoke|function_call|tool_use|tool_call)>")
_CLOSING = re.compile(rf"</{_PREFIX}(?:function|invoke|function_call|tool_use|tool_call)>")
_CDATA = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*\Z", re.DOTALL)


def read_xml_call(text: Text, at: int, tools: KnownTools) -> Found | None:
    """The call whose tag opens at `at`."""
    opened = _CALL.match(text.whole, at)
    if opened is None:
        return None
    tool = tools.find(opened.group("name"))
    if tool is None:
        end = text.find(_CLOSING, opened.end())[1]
        return Found(at, end, (tools.missing(opened.group("name"), text.quote(at, end)),), tagged=True)
    try:
        arguments, end = _arguments(text, opened.end(), tool)
    except Unreadable as failure:
        text.failed(at, failure.at)
        end = max(text.find(_CLOSING, failure.at)[1], failure.at)
        return Found(at, end, (refused(tool, failure.reason, text.quote(at, end)),), tagged=True)
    return Found(at, end, (ToolCall(name=tool.name, arguments=arguments),), tagged=True)


def _arguments(text: Text, at: int, tool: Known) -> tuple[dict[str, Any], int]:
    literals = Literals(text)
    body = literals.space(at)
    if text.whole.startswith("{", body):
        value, end = literals.value(body)
        if not isinstance(value, dict) or literals.forced:
            raise Unreadable("a closing bracket is missing", end)
        closed = _CLOSED.match(text.whole, end)
        return value, closed.end() if closed else end
    return _parameters(text, at, tool)


def _parameters(text: Text, at: int, tool: Known) -> tuple[dict[str, Any], int]:
    given: dict[str, Any] = {}
    while opened := _PARAMETER.match(text.whole, at):
        name = opened.group("name").strip()
        ending, at = text.find(_ENDINGS[opened.group("tag")], opened.end())
        if ending == text.end:
            raise Unreadable(f"{name!r} is not closed", text.end)
        if name in given:
            raise Unreadable(f"{name!r} is given twice", at)
        said = text.whole[opened.end() : ending]
        given[name] = _value(said, tool, name, rest=opened.group("rest"))
        if not text.whole.startswith("</", ending) or _CLOSED.match(text.whole, ending):
            at = ending
    closed = _CLOSED.match(text.whole, at)
    if closed is None:
        raise Unreadable("the call is not closed, or a parameter has no name", at)
    return unwrapped(given, tool), closed.end()


def _value(said: str, tool: Known, name: str, *, rest: str) -> Any:
    if data := _CDATA.match(said):
        said = data.group(1)
    elif said.startswith("\n") or said.endswith("\n"):
        said = said.removeprefix("\n").removesuffix("\n")
    return value_of(said, tool, name, is_text='string="true"' in rest)
