"""ReAct: `Action:` and `Action Input:` lines, and the `<tool>` tags of the same school."""

from __future__ import annotations

import re
from typing import Any

from ferrule.messages import ToolCall
from ferrule.parsing.found import Found
from ferrule.parsing.known import Known, KnownTools, refused
from ferrule.parsing.literals import Unreadable, read_whole
from ferrule.parsing.text import Text
from ferrule.parsing.values import value_of

_LINE = r"^[ \t>*#]*+"
_COLON = r"(?:[ \t]*+\d++)?[ \t]*+\**+[ \t]*+[:：]\**+"
OPENING = rf"{_LINE}Action{_COLON}"
FINAL = rf"{_LINE}Final[ \t]Answer{_COLON}"
_ACTION = re.compile(rf"{OPENING}\s*+(?P<name>[^\n]++)\n\s*+[>*#]*+Action[ \t]Input{_COLON}", re.MULTILINE)
_NEXT = re.compile(rf"{_LINE}(?:Observation|Thought|Action|Final[ \t]Answer){_COLON}", re.MULTILINE)
_INVENTED = re.compile(rf"{_LINE}Observation{_COLON}", re.MULTILINE)
_FINAL = re.compile(FINAL, re.MULTILINE)
_FENCED = re.compile(r"```[a-z]*\s*(\{.*\})\s*```\Z", re.DOTALL)
_TOOL = re.compile(r"<tool>\s*+(?P<name>[^<\n]*+)</tool>\s*+<tool_input>")


def read_action(text: Text, at: int, tools: KnownTools) -> Found | None:
    """The action whose line begins at `at`, and its input.

    An observation the model wrote itself is made up: nothing from there on is read or shown.
    """
    action = _ACTION.match(text.whole, at)
    if action is None:
        return None
    name = action.group("name").strip()
    end = text.find(_NEXT, action.end())[0]
    said, raw = text.whole[action.end() : end].strip(), text.quote(at, end)
    if text.find(_INVENTED, end)[0] == end:
        end = text.end
    tool = tools.find(name)
    if tool is None:
        return Found(at, end, (tools.missing(name, raw),)) if _looks_like_a_name(name) else None
    if text.find(_FINAL, action.end())[0] < text.end:
        reason = "an action and a final answer came together. Write one of them"
        return Found(at, text.end, (refused(tool, reason, raw),))
    return Found(at, end, (_call(tool, said, raw),))


def read_tool_tags(text: Text, at: int, tools: KnownTools) -> Found | None:
    """`<tool>search</tool><tool_input>weather in SF</tool_input>`."""
    tags = _TOOL.match(text.whole, at)
    if tags is None:
        return None
    begin, end = text.find("</tool_input>", tags.end())
    said, raw = text.whole[tags.end() : begin].strip(), text.quote(at, end)
    tool = tools.find(tags.group("name"))
    call = _call(tool, said, raw) if tool else tools.missing(tags.group("name"), raw)
    return Found(at, end, (call,), tagged=True)


def _looks_like_a_name(said: str) -> bool:
    return bool(re.fullmatch(r"[\w./\\`*-]{1,64}", said))


def _call(tool: Known, said: str, raw: str) -> ToolCall:
    given = _object(said)
    if given is not None and (not tool.properties or set(given) <= set(tool.properties) or tool.only_parameter is None):
        return ToolCall(name=tool.name, arguments=given)
    only = tool.only_parameter
    if only is not None:
        return ToolCall(name=tool.name, arguments={only: value_of(_unquoted(said), tool, only)})
    if not tool.properties or not said:
        return ToolCall(name=tool.name)
    return refused(tool, f"it takes several, so its input must be JSON: {', '.join(tool.properties)}", raw)


def _object(said: str) -> dict[str, Any] | None:
    fenced = _FENCED.match(said)
    said = fenced.group(1) if fenced else said
    if not said.startswith("{"):
        return None
    try:
        value = read_whole(said)
    except Unreadable:
        return None
    return value if isinstance(value, dict) else None


def _unquoted(said: str) -> str:
    try:
        value = read_whole(said) if said[:1] in ("'", '"') else said
    except Unreadable:
        return said
    return value if isinstance(value, str) else said
