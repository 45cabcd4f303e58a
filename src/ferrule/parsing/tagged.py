"""Formats that serve for nothing but calls: model families mark them with tokens or tags of their own.

What stands behind a mark differs less than the marks do: JSON, Python, or a name with its arguments. One table says
which marks there are and where their body ends; one function reads any body.
"""

from __future__ import annotations

import re

from ferrule.messages import ToolCall
from ferrule.parsing import objects, pythonic
from ferrule.parsing.found import Found
from ferrule.parsing.known import Known, KnownTools, refused
from ferrule.parsing.literals import Literals, Unreadable
from ferrule.parsing.text import Text
from ferrule.parsing.values import value_of

_MARKS: tuple[tuple[str, str], ...] = (
    (r"<tool_calls?>", r"</tool_calls?>"),  # Hermes, Qwen, Hunyuan, Jamba, GLM
    (r"<(?:longcat|seed:|dots_|minimax:)_?tool_call>", r"</(?:longcat|seed:|dots_|minimax:)_?tool_call>"),
    (r"<(?:dots_)?function_calls?>", r"</(?:dots_)?function_calls?>"),  # Granite 20B, Olmo
    (r"<TOOLCALL>", r"</TOOLCALL>"),  # Nemotron
    (r"<\|tool_call\|>", r"<\|/?tool_call\|>|<\|end"),  # Granite, Phi
    (r"<\|tool_call>", r"<tool_call\|>"),  # Gemma 4
    (r"<start_function_call>", r"<end_function_call>"),  # FunctionGemma
    (r"<\|tool_call_start\|>", r"<\|tool_call_end\|>"),  # LFM 2
    (r"<\|tools_prefix\|>", r"<\|tools_suffix\|>"),  # Apertus
    (r"<\|START_ACTION\|>", r"<\|END_ACTION\|>"),  # Command R
    (r"<\|action_start\|>\s*<\|plugin\|>", r"<\|action_end\|>"),  # InternLM
    (r"<\|python_(?:tag|start)\|>", r"<\|python_end\|>|<\|eo[tm]_id\|>"),  # Llama
    (r"<\|function_call\|>|<\|message_sep\|>\s*function call<\|role_sep\|>", r"</s>"),  # GigaChat
    (r"<\|content_invoke_tool_json\|>", r"<\|end_message\|>"),  # Inkling
    (r"<｜tool▁call▁begin｜>", r"<｜tool▁call▁end｜>"),  # DeepSeek V3, R1, V3.1
    (r"<\|tool_call_begin\|>", r"<\|tool_call_end\|>"),  # Kimi
    (
        r"(?:<\|start\|>assistant)?<\|channel\|>[^<\n]{0,80}?(?=\bto=)|<\|start\|>assistant(?=[ ]to=)",
        r"<\|call\|>|<\|end\|>|<\|start\|>",
    ),  # gpt-oss
    (r"\[TOOL_CALLS\]", r"\[TOOL_CALLS\]|</s>"),  # Mistral
    (r"\bfunctools(?=\[)", r"(?!)"),  # Phi 4 mini, Firefunction
)
OPENING = "|".join(opening for opening, _ in _MARKS)
_OPENING = re.compile("|".join(f"(?P<m{index}>{opening})" for index, (opening, _) in enumerate(_MARKS)))
_CLOSING = tuple(re.compile(closing) for _, closing in _MARKS)
_FENCE = re.compile(r"\s*```[a-z]*\s*")
_BEFORE_JSON = re.compile(
    r"(?:to=|call:|function<｜tool▁sep｜>)?(?P<name>[^\W\d][\w./\\-]*+)(?::\d+)?\s*+"
    r"(?:<｜tool▁sep｜>|(?:\[CALL_ID\]\w+)?\[ARGS\]|<\|tool_call_argument_begin\|>"
    r"|(?:<\|(?:channel|constrain)\|>[^<\n]*+|code|json|[ \t])*<\|message\|>)?\s*+(?:```(?:json)?\s*+)?(?=\{)"
)
_KEY = re.compile(r"\s*<arg_key>(?P<name>[^<\n]*)</arg_key>\s*<arg_value>")
_NAME_ONLY = re.compile(r"(?P<name>[^\W\d][\w./\\-]*+)\s*(?:<tool_sep>)?\s*")
_DEBRIS = re.compile(r"[\s}\]`]*+")


def read_tagged(text: Text, at: int, tools: KnownTools) -> Found | None:
    """The calls behind the mark that stands at `at`."""
    mark = _OPENING.match(text.whole, at)
    if mark is None:
        return None
    closing = _CLOSING[int((mark.lastgroup or "m0")[1:])]
    read = _read_body(text, mark.end(), closing, tools)
    if read is None:
        text.failed(at, mark.end())
        return None
    calls, end = read
    debris = _DEBRIS.match(text.whole, end)
    behind = closing.match(text.whole, debris.end() if debris else end)
    if behind and not behind.group().startswith("[TOOL"):
        end = behind.end()
    return Found(at, end, tuple(calls), tagged=True)


def _read_body(text: Text, at: int, closing: re.Pattern[str], tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    stop = text.find(closing, at)[0]
    fence = _FENCE.match(text.whole, at, stop)
    at = fence.end() if fence else Literals(text, stop).space(at)
    if at >= stop or text.whole[at] == "<":
        return None
    if text.whole[at] in "{[":
        return _json(text, at, closing, tools) or _python(text, at, stop, tools)
    return (
        _key_values(text, at, tools)
        or _named_json(text, at, stop, tools)
        or _python(text, at, stop, tools)
        or _bare_name(text, at, stop, tools)
    )


def _json(text: Text, at: int, closing: re.Pattern[str], tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    """JSON values. Their texts may hold the closing mark, so it limits them only where they cannot be read without."""
    stop = text.find(closing, at)[0]
    for limit in (text.end, stop) if stop < text.end else (stop,):
        if read := objects.read_objects(text, at, limit, tools, sure=True):
            return read
    if text.whole[at] == "[" and pythonic.read_list(text, at, stop, tools):
        return None
    reason = "they are not complete, or not JSON"
    broken = objects.unreadable(text.quote(at, stop), reason, tools)
    return ([broken], stop) if broken else None


def _named_json(text: Text, at: int, stop: int, tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    """A name and then its arguments: Mistral's `name[ARGS]{…}`, Kimi's `functions.name:0`, DeepSeek's, Gemma's."""
    head = _BEFORE_JSON.match(text.whole, at)
    if head is None:
        return None
    name, body = head.group("name"), head.end()
    tool = tools.find(name)
    literals = Literals(text)
    try:
        value, end = literals.value(body)
    except Unreadable as failure:
        text.failed(at, failure.at)
        return [_broken(tool, name, failure.reason, text.quote(at, stop), tools)], max(stop, body)
    if literals.forced or not isinstance(value, dict):
        return [_broken(tool, name, "a closing bracket is missing", text.quote(at, end), tools)], end
    if tool is None:
        return [tools.missing(name, text.quote(at, end))], end
    return [ToolCall(name=tool.name, arguments=value)], end


def _key_values(text: Text, at: int, tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    """GLM: a name, then `<arg_key>` and `<arg_value>` in turn."""
    head = _NAME_ONLY.match(text.whole, at)
    if head is None or not _KEY.match(text.whole, head.end()):
        return None
    tool = tools.find(head.group("name"))
    given: dict[str, str] = {}
    place = head.end()
    while key := _KEY.match(text.whole, place):
        ending, place = text.find("</arg_value>", key.end())
        if ending == text.end:
            return [_broken(tool, head.group("name"), "they are cut off", text.quote(at, ending), tools)], ending
        given[key.group("name").strip()] = text.whole[key.end() : ending]
    if tool is None:
        return [tools.missing(head.group("name"), text.quote(at, place))], place
    arguments = {name: value_of(said, tool, name) for name, said in given.items()}
    return [ToolCall(name=tool.name, arguments=arguments)], place


def _python(text: Text, at: int, stop: int, tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    if text.whole[at] == "[":
        read = pythonic.read_list(text, at, stop, tools)
    else:
        read = pythonic.read_calls(text, at, stop, tools)
    if read is None:
        return None
    leftover = Literals(text, stop).space(read[1])
    return read if leftover >= stop or stop == text.end else None


def _bare_name(text: Text, at: int, stop: int, tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    """A name and nothing else, closed or at the end: a call without arguments."""
    head = _NAME_ONLY.match(text.whole, at, stop)
    tool = tools.find(head.group("name")) if head and head.end() == stop else None
    return ([ToolCall(name=tool.name)], stop) if tool else None


def _broken(tool: Known | None, name: str, reason: str, raw: str, tools: KnownTools) -> ToolCall:
    return refused(tool, reason, raw) if tool else tools.missing(name, raw)
