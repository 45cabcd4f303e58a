"""ReAct: `Action:` and `Action Input:` lines, and the `<tool>` tags of LangChain's XML agents."""

from __future__ import annotations

import re
from typing import Any

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.known_tools import CallableTool, KnownTools, parse_argument, unreadable_call
from ferrule.parsing.literals import LiteralError, LiteralReader, parse_literal
from ferrule.parsing.tagged_calls import unreadable_markup
from ferrule.parsing.text import END_OF_TURN, MarkedSegment, SourceText

_LINE = r"^[ \t>*#]*+"
_COLON = r"(?:[ \t]*+\d++)?[ \t]*+\**+[ \t]*+[:：]\**+"
_ACTION_LABEL, _OBSERVATION_LABEL = r"(?:Action|行动|动作)", r"(?:Observation|观察(?:结果)?)"
_INPUT_LABEL = r"(?:Action[ \t]Input|(?:行动|动作)(?:输入|参数))"
FIRST_WORDS = r"(?:Action|Final[ \t]Answer|行动|动作|最终(?:答案|回答))"
"""What the lines begin with that matter to a reader of the text."""
ACTION_OPENING = rf"{_LINE}{_ACTION_LABEL}{_COLON}"
FINAL_ANSWER = rf"{_LINE}(?:Final[ \t]Answer|最终(?:答案|回答)){_COLON}"
NEXT_TURN = r"^[ \t]*\#{2,4}[ \t]*(?:Instructions?|Question|User|Human)[ \t]*:|✿RE(?:SULT|TURN)✿"
_ACTION = lazy_pattern(rf"{ACTION_OPENING}\s*+(?P<name>[^\n]++)\n\s*+[>*#]*+{_INPUT_LABEL}{_COLON}", re.MULTILINE)
_ACTION_WITH_INPUT = lazy_pattern(
    rf"{ACTION_OPENING}[ \t]*+(?P<name>[^\W\d][\w.-]*+)\[(?P<input>[^\n]*)\][ \t]*(?=\n|\Z)", re.MULTILINE
)
_NEXT_LABEL = lazy_pattern(
    rf"{_LINE}(?:{_OBSERVATION_LABEL}|Thought|思考|{FIRST_WORDS}){_COLON}",
    re.MULTILINE,
)
_OBSERVATION = lazy_pattern(rf"\s*+{_LINE}{_OBSERVATION_LABEL}{_COLON}", re.MULTILINE)
_FINAL_ANSWER = lazy_pattern(FINAL_ANSWER, re.MULTILINE)
_BEFORE_OBJECT = lazy_pattern(r"(?:```[a-z]*\s*)?(?=\{)")
_FIRST_KEY = lazy_pattern(r"""(?:```[a-z]*\s*)?\{\s*["'](\w+)["']\s*:""")
_AFTER_OBJECT = lazy_pattern(r"\s*(?:```)?[ \t]*(?:\n|\Z)")
_TRAILING_TOKENS = lazy_pattern(rf"(?:\s*(?:{END_OF_TURN}))+\s*\Z")
_TOOL_TAG = lazy_pattern(r"<tool>\s*+(?P<name>[^<\n]*+)</tool>(?P<input>\s*+<tool_input>)?")
_ACTION_ALONE = lazy_pattern(rf"{ACTION_OPENING}[ \t]*+(?P<name>[^\n]++)\s*+\Z", re.MULTILINE)


def read_react_action(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read the action whose line starts at `at`, and its input.

    An observation that the model wrote itself is invented: nothing after it is parsed or shown.
    """
    action = _ACTION.match(text.whole, at) or _ACTION_WITH_INPUT.match(text.whole, at)
    if action is None:
        return _read_action_without_input(text, at, tools)
    name = action.group("name").strip()
    bracketed = action.groupdict().get("input")
    if bracketed is None:
        end = text.find(_NEXT_LABEL, action.end())[0]
        input_text = _TRAILING_TOKENS.sub("", text.whole[action.end() : end]).strip()
    else:
        end, input_text = action.end(), bracketed
    raw = text.excerpt(at, end)
    is_invented = _OBSERVATION.match(text.whole, end) is not None
    end = text.end if is_invented else end
    tool = tools.find(name)
    if tool is None:
        is_call = bracketed is None and re.fullmatch(r"[\w./\\`*-]{1,64}", name)
        return MarkedSegment(at, end, (tools.unknown_tool_call(name, raw),)) if is_call else None
    if not is_invented and text.find(_FINAL_ANSWER, action.end())[0] < text.end:
        reason = "the text has an action and a final answer. Write one of them"
        return MarkedSegment(at, text.end, (unreadable_call(tool, reason, raw),))
    return MarkedSegment(at, end, (_make_action_call(tool, input_text, raw),))


def _read_action_without_input(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read an action at the end of the text that is only the name of a tool."""
    action = _ACTION_ALONE.match(text.whole, at)
    tool = tools.find(_TRAILING_TOKENS.sub("", action.group("name"))) if action else None
    if tool is None:
        return None
    call = ToolCall(name=tool.name)
    if tool.properties:
        call = unreadable_call(tool, "there is no line 'Action Input:'", text.excerpt(at, text.end))
    return MarkedSegment(at, text.end, (call,))


def read_tool_tags(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read `<tool>search</tool><tool_input>weather in SF</tool_input>`."""
    tags = _TOOL_TAG.match(text.whole, at)
    if tags is None:
        return None
    tool = tools.find(tags.group("name"))
    if tags.group("input") is None:
        error = unreadable_call(tool, "<tool_input> is missing", tags.group()) if tool else None
        return MarkedSegment(at, tags.end(), (error,), is_tagged=True) if error else None
    begin, end = text.find("</tool_input>", tags.end())
    input_text, raw = text.whole[tags.end() : begin].strip(), text.excerpt(at, end)
    if tool:
        call = _make_action_call(tool, input_text, raw)
    elif tags.group("name"):
        call = tools.unknown_tool_call(tags.group("name"), raw)
    else:
        call = unreadable_markup("<tool> is empty", raw)
    return MarkedSegment(at, end, (call,), is_tagged=True)


def _make_action_call(tool: CallableTool, input_text: str, raw: str) -> ToolCall:
    arguments = _parse_arguments_object(input_text)
    if arguments is not None and (
        not tool.properties or set(arguments) <= set(tool.properties) or tool.only_parameter is None
    ):
        return ToolCall(name=tool.name, arguments=arguments)
    only = tool.only_parameter
    key = _FIRST_KEY.match(input_text)
    if arguments is None and key and key.group(1) in tool.properties:
        return unreadable_call(tool, "they are not complete, or not JSON", raw)
    if only is not None:
        return ToolCall(name=tool.name, arguments={only: parse_argument(_remove_quotes(input_text), tool, only)})
    if not tool.properties or not input_text:
        return ToolCall(name=tool.name)
    return unreadable_call(tool, f"it takes several, so its input must be JSON: {', '.join(tool.properties)}", raw)


def _parse_arguments_object(input_text: str) -> dict[str, Any] | None:
    """Read the object that the input begins with; what a model writes below it is not part of it."""
    begin = _BEFORE_OBJECT.match(input_text)
    if begin is None:
        return None
    literals = LiteralReader(SourceText(input_text))
    try:
        value, end = literals.read_value(begin.end())
    except LiteralError:
        return None
    is_complete = not literals.unclosed and _AFTER_OBJECT.match(input_text, end)
    return value if isinstance(value, dict) and is_complete else None


def _remove_quotes(input_text: str) -> str:
    try:
        value = parse_literal(input_text) if input_text[:1] in ("'", '"') else input_text
    except LiteralError:
        return input_text
    return value if isinstance(value, str) else input_text
