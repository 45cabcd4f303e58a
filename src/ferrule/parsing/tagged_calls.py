"""Formats that are used for calls only: the tags and tokens of model families, and XML.

The content after a tag differs less than the tags do: JSON, Python, or a name with its arguments. One table has the
tags and their ends; one function parses any content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing import json_calls, python_calls
from ferrule.parsing.known_tools import (
    CallableTool,
    KnownTools,
    parse_argument,
    unescape_name,
    unreadable_call,
    unwrap_arguments,
)
from ferrule.parsing.literals import MAX_DEPTH, LiteralError, LiteralReader
from ferrule.parsing.text import SPACE, CallsAndEnd, MarkedSegment, SourceText

_TAGS: tuple[tuple[str, str], ...] = (
    (r"<tool_calls?>", r"</tool_calls?>"),  # Hermes, Qwen, Hunyuan, Jamba, GLM
    (r"<(?:longcat|seed:|dots_|minimax:)_?tool_call>", r"</(?:longcat|seed:|dots_|minimax:)_?tool_call>"),
    (r"<(?:dots_)?function_calls?>", r"</(?:dots_)?function_calls?>"),  # Granite 20B, Olmo
    (
        r"<(?:TOOL_?CALL|tool-?call|tool_(?:code|request|use))>",
        r"</(?:TOOL_?CALL|tool-?call|tool_(?:code|request|use))>",
    ),
    (r"\[TOOL_REQUEST\]", r"\[END_TOOL_REQUEST\]"),  # LM Studio
    (r"<\|tool_call\|>", r"<\|/?tool_call\|>|<\|end"),  # Granite, Phi
    (r"<\|tool_call>", r"<tool_call\|>"),  # Gemma 4
    (r"<start_function_call>", r"<end_function_call>"),  # FunctionGemma
    (r"<\|tool_call_start\|>", r"<\|tool_call_end\|>"),  # LFM 2
    (r"<\|tools_prefix\|>", r"<\|tools_suffix\|>"),  # Apertus
    (r"<\|START_ACTION\|>", r"<\|END_ACTION\|>"),  # Command R
    (r"<\|action_start\|>(?:\s*<\|plugin\|>)?", r"<\|action_end\|>"),  # InternLM
    (r"<\|python_(?:tag|start)\|>", r"<\|python_end\|>|<\|eo[tm]_id\|>"),  # Llama
    (r"<\|function_call\|>|<\|message_sep\|>\s*function call<\|role_sep\|>", r"</s>"),  # GigaChat
    (r"(?:<\|message_model\|>[^<\n]{0,80})?<\|content_invoke_tool_(?:json|text)\|>", r"<\|end_message\|>"),  # Inkling
    (r"<[|｜]tool▁call▁begin[|｜]>", r"<[|｜]tool▁call▁end[|｜]>"),  # DeepSeek V3, R1, V3.1; distilled models
    (r"<\|tool_call_begin\|>", r"<\|tool_call_end\|>"),  # Kimi
    (
        r"(?:<\|start\|>assistant)?<\|channel\|>[^<\n]{0,80}?(?=\bto=)"
        r"|<\|start\|>assistant(?=[ ]to=)(?![ ]to=(?:self|user)<)|\A\s*(?=to=[\w.:-]{1,100}[ ]?<\|channel\|>)",
        r"<\|call\|>|<\|end\|>|<\|start\|>",
    ),  # gpt-oss
    # Around the calls of DeepSeek, Step, Kimi, MiniMax M3, Muse
    (r"<[|｜]tool[▁_]calls[▁_]begin[|｜]>", r"<[|｜]tool[▁_]calls[▁_]end[|｜]>"),
    (r"<｜DSML｜(?:function|tool)_calls?>", r"</｜DSML｜(?:function|tool)_calls?>"),
    (r"<\|tool_calls_section_begin\|>", r"<\|tool_calls_section_end\|>"),
    (r"<\|open\|>tools<\|sep\|>", r"<\|close\|>tools<\|sep\|>"),
    (r"\]<\]minimax\[>\[\s*<tool_call>", r"\]<\]minimax\[>\[\s*</tool_call>"),
    (r"<[A-Za-z]+:(?:function|tool)_calls?>", r"</[A-Za-z]+:(?:function|tool)_calls?>"),
    (r"\[TOOL_CALLS\]", r"\[TOOL_CALLS\]|</s>"),  # Mistral
    (r"\bfunctools(?=\[)", r"(?!)"),  # Phi 4 mini, Firefunction
    (r"(?:<\|from\|>assistant\s*)?<\|recipient\|>(?!\s*all\b)", r"<\|(?:stop|from|recipient)\|>"),  # Functionary 2
    (r"✿FUNCTION✿[:：]", r"(?=✿(?:RESULT|RETURN|FUNCTION)✿)"),  # Qwen-Agent
)
TAG_OPENING = "|".join(opening for opening, _ in _TAGS)
_OPENING = lazy_pattern("|".join(f"(?P<m{index}>{opening})" for index, (opening, _) in enumerate(_TAGS)))
_CLOSING = tuple(lazy_pattern(closing) for _, closing in _TAGS)
_FENCE = lazy_pattern(r"\s*```[a-z]*\s*")
_BEFORE_JSON = lazy_pattern(
    r"(?:to=|call:|function<[|｜]tool▁sep[|｜]>)?"
    r"(?P<name>[^\W\d][\w./\\-]*+)(?::\d+)?\s*+"
    r"(?:<[|｜]tool▁sep[|｜]>|(?:\[CALL_ID\]\w+)?\[ARGS\]|<\|tool_call_argument_begin\|>|<\|content\|>|✿ARGS✿[:：]"
    r"|(?:<\|(?:channel|constrain)\|>[^<\n]*+|code|json|[ \t])*<\|message\|>)?\s*+(?:```(?:json)?\s*+)?(?=\{)"
)
_LINE_BREAKS = r"(?:\s|\\n)*"
_ARGUMENT_KEY = lazy_pattern(
    rf"{_LINE_BREAKS}<arg_key>(?P<name>[^<\n]*)</arg_key>(?P<value>{_LINE_BREAKS}<arg_value>)?"
)
_TOOL_CALL_END = lazy_pattern(r"</tool_call>|<tool_call>")
_NAME_ONLY = lazy_pattern(r"(?P<name>[^\W\d][\w./\\-]*+)\s*(?:<tool_sep>)?\s*")
_LEFTOVERS = lazy_pattern(r"[\s}\]`]*+")
_EMPTY_LIST = lazy_pattern(r"\[\s*\]")
_MARKUP = lazy_pattern(r"\]<\]minimax\[>\[|<[^<>\n]{1,80}>|\bfunction(?=<)")


def read_tagged_calls(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read the calls after the tag at `at`."""
    mark = _OPENING.match(text.whole, at)
    if mark is None:
        return None
    closing = _CLOSING[int((mark.lastgroup or "m0")[1:])]
    if nothing := _EMPTY_LIST.match(text.whole, text.skip(SPACE, mark.end())):
        behind = closing.match(text.whole, text.skip(SPACE, nothing.end()))
        return MarkedSegment(at, behind.end() if behind else nothing.end(), kind="token")
    read = _read_body(text, mark.end(), closing, tools) or _report_unreadable(text, mark, closing, tools)
    if read is None:
        text.record_failure(at, mark.end())
        return None
    calls, end = read
    debris = _LEFTOVERS.match(text.whole, end)
    behind = closing.match(text.whole, debris.end() if debris else end)
    if behind and not behind.group().startswith("[TOOL"):
        end = behind.end()
    return MarkedSegment(at, end, tuple(calls), is_tagged=True)


def _report_unreadable(
    text: SourceText, mark: re.Match[str], closing: re.Pattern[str], tools: KnownTools
) -> CallsAndEnd | None:
    """Report a body without a call; None if the tag only wraps other tags, or is mentioned in a sentence.

    Some models write the opening tag again to close their calls.
    """
    at, (stop, closed) = mark.end(), text.find(closing, mark.end())
    inner = text.find(_ANY_OPENING, at)[0]
    end = min(stop, inner)
    body = text.excerpt(at, end).strip()
    if not _MARKUP.sub("", body).strip() and inner < stop:
        return None
    if _is_mention(text, mark, body, stop, closed) or (stop == text.end and mark.group() == "functools"):
        return None
    named = _NAME_ONLY.match(body)
    tool = tools.find(named.group("name")) if named else None
    raw = text.excerpt(mark.start(), end)
    if tool:
        return [unreadable_call(tool, "they must be JSON", raw)], end
    reason = "contains neither JSON nor a name with arguments" if body else "is empty"
    return [unreadable_markup(f"{mark.group()} {reason}", raw)], end


def unreadable_markup(reason: str, raw: str) -> ToolCall:
    """Return the error for what is written as a call but names no tool."""
    error = f"The tool call cannot be read: {reason}. Write the call again with its name and arguments."
    return ToolCall(name="tool_call", error=error, raw=raw)


def _is_mention(text: SourceText, mark: re.Match[str], body: str, stop: int, closed: int) -> bool:
    """Return whether a tag without a call is part of a sentence: never closed, or followed by more words."""
    line = _MARKUP.sub("", text.line_before(mark.start())[0]).strip()
    if stop < text.end:
        return bool(line) and "\n" not in body and text.is_sentence_continued(closed)
    is_after_calls = text.calls_end > 0 and text.is_blank(text.calls_end, mark.start())
    return body[:1] not in ("{", "[") and bool(is_after_calls or line)


def _read_body(text: SourceText, at: int, closing: re.Pattern[str], tools: KnownTools) -> CallsAndEnd | None:
    stop = text.find(closing, at)[0]
    fence = _FENCE.match(text.whole, at, stop)
    at = fence.end() if fence else LiteralReader(text, stop).skip_space(at)
    if at >= stop or text.whole[at] == "<":
        return None
    if text.whole[at] in "{[":
        return _read_json(text, at, closing, tools) or _read_python(text, at, stop, tools)
    return (
        _read_key_values(text, at, stop, tools)
        or _read_named_json(text, at, stop, tools)
        or _read_python(text, at, stop, tools)
        or _read_bare_name(text, at, stop, tools)
    )


def _read_json(text: SourceText, at: int, closing: re.Pattern[str], tools: KnownTools) -> CallsAndEnd | None:
    """Read JSON. Its strings may contain the closing tag, which is a limit only if the values are invalid."""
    stop = text.find(closing, at)[0]
    for limit in (text.end, stop) if stop < text.end else (stop,):
        if read := json_calls.read_json_calls(text, at, limit, tools, is_certain=True):
            return read
    if text.whole[at] == "[" and python_calls.read_list(text, at, stop, tools):
        return None
    reason = "they are not complete, or not JSON"
    broken = json_calls.invalid_json_call(text.excerpt(at, stop), reason, tools)
    return ([broken], stop) if broken else None


def _read_named_json(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read a name and its arguments: Mistral's `name[ARGS]{…}`, Kimi's `functions.name:0`, DeepSeek's, Gemma's."""
    head = _BEFORE_JSON.match(text.whole, at)
    if head is None:
        return None
    name, body = head.group("name"), head.end()
    tool = tools.find(name)
    literals = LiteralReader(text)
    try:
        value, end = literals.read_value(body)
    except LiteralError as failure:
        text.record_failure(at, failure.at)
        return [tools.invalid_call(name, failure.reason, text.excerpt(at, stop))], max(stop, body)
    if literals.unclosed or not isinstance(value, dict):
        return [tools.invalid_call(name, "a closing bracket is missing", text.excerpt(at, end))], end
    if tool is None:
        return [tools.unknown_tool_call(name, text.excerpt(at, end))], end
    return [ToolCall(name=tool.name, arguments=value)], end


def _read_key_values(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read GLM's form: a name, then `<arg_key>` and `<arg_value>` in turn."""
    head = _NAME_ONLY.match(text.whole, at)
    if head is None or not _ARGUMENT_KEY.match(text.whole, head.end()):
        return None
    name, place = head.group("name"), head.end()
    tool = tools.find(name)
    raw_values: dict[str, str] = {}
    while key := _ARGUMENT_KEY.match(text.whole, place):
        argument = unescape_name(key.group("name"))
        ending, place = text.find("</arg_value>", key.end()) if key.group("value") else (key.end(), key.end())
        if ending == text.end or not key.group("value"):
            reason = "they are cut off" if ending == text.end else f"{argument!r} has no value"
            end = text.find(_TOOL_CALL_END, ending)[0]
            return [tools.invalid_call(name, reason, text.excerpt(at, end))], end
        raw_values[argument] = text.whole[key.end() : ending]
    if tool is None:
        return [tools.unknown_tool_call(name, text.excerpt(at, place))], place
    if stop == text.end:
        return [unreadable_call(tool, "the call is not closed", text.excerpt(at, place))], place
    arguments = {argument: parse_argument(raw, tool, argument) for argument, raw in raw_values.items()}
    return [ToolCall(name=tool.name, arguments=arguments)], place


def _read_python(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    if text.whole[at] == "[":
        read = python_calls.read_list(text, at, stop, tools)
    else:
        read = python_calls.read_calls(text, at, stop, tools)
    if read is None:
        return None
    leftover = LiteralReader(text, stop).skip_space(read[1])
    return read if leftover >= stop or stop == text.end else None


def _read_bare_name(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read a name and nothing else: a call without arguments."""
    head = _NAME_ONLY.match(text.whole, at, stop)
    tool = tools.find(head.group("name")) if head and head.end() == stop else None
    return ([ToolCall(name=tool.name)], stop) if tool else None


# Calls written as XML: `<function=name>`, `<invoke name=…>` and the like, with a tag for each argument.

# Some tokenizers leave their mark for a space in the text, others lose the space.
_GAP = r"[\sĠ]*"
# MiniMax M3 writes its mark before each tag; Kimi K3 has tokens for angle brackets.
_MARK = r"(?:\]<\]minimax\[>\[\s*)?"
_PREFIX = r"(?:｜DSML｜|[A-Za-z_-]+:)?"
_OPEN, _CLOSE, _END = rf"{_MARK}(?:<{_PREFIX}|<\|open\|>)", rf"{_MARK}(?:</{_PREFIX}|<\|close\|>)", r"(?:>|<\|sep\|>)"
_CALL_TAG, _PARAMETER_TAG = (
    r"(?:function_call|function|invoke|tool_call|tool_use|call)",
    r"(?:parameter|param|argument|arg)",
)
_IS = r"(?:=|(?:name|tool|key)\s*=)"
_NAME_ELEMENT = r"<(?:tool_|function_)?name>"
_NAMED = rf"""{_GAP}{_IS}\s*["']?(?P<name>[^"'<>{{\n]+)["']?(?P<rest>[^<>{{\n]*){_END}?"""
XML_OPENING = rf"{_OPEN}{_CALL_TAG}(?:(?=[\sĠ=]|name\s*=){_GAP}{_IS}|>\s*(?={_NAME_ELEMENT}))"
_ANY_OPENING = lazy_pattern(rf"{XML_OPENING}|{TAG_OPENING}|<tool>")
_ARGUMENTS_TAG = r"(?:arguments|parameters|args|params|input)"
_XML_CALL = lazy_pattern(rf"{_OPEN}{_CALL_TAG}{_NAMED}")
_XML_CALL_WITH_ELEMENTS = lazy_pattern(
    rf"{_OPEN}{_CALL_TAG}>\s*{_NAME_ELEMENT}(?P<name>[^<\n]+)</\w+>(?P<rest>\s*)(?:<{_ARGUMENTS_TAG}>)?"
)
_XML_PARAMETER = lazy_pattern(rf"\s*{_OPEN}(?P<tag>{_PARAMETER_TAG}){_NAMED}")
_XML_PARAMETER_ENDINGS = {
    tag: lazy_pattern(rf"{_CLOSE}{tag}{_END}|{_OPEN}{_PARAMETER_TAG}{_GAP}{_IS}|{_CLOSE}(?:function|invoke|call){_END}")
    for tag in ("parameter", "param", "argument", "arg")
}
_XML_CLOSING = lazy_pattern(rf"{_CLOSE}{_CALL_TAG}{_END}")
_XML_CLOSING_AFTER_SPACE = lazy_pattern(rf"\s*(?:</{_ARGUMENTS_TAG}>\s*)?{_CLOSE}{_CALL_TAG}{_END}")
_ATTRIBUTE_END = lazy_pattern(r"[\"'][^<>\n]*>")
_CDATA_OPENING = lazy_pattern(r"\s*<!\[CDATA\[")
_CDATA = lazy_pattern(r"\s*<!\[CDATA\[(.*)\]\]>\s*\Z", re.DOTALL)
ELEMENT_OPENING = r"<[^\W\d][\w.\\-]{0,100}>"
_ELEMENT = lazy_pattern(r"\s*(?P<mark>\]<\]minimax\[>\[\s*)?<(?P<name>[\w.\\-]+)>")
_ELEMENT_CLOSING = lazy_pattern(rf"\s*{_MARK}</(?P<name>[\w.\\-]+)>")
_ELEMENT_END = lazy_pattern(r"\]<\]minimax\[>\[\s*(?=</?[\w.\\-]+>)")


def read_xml_call(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read the call whose tag starts at `at`."""
    opened = _XML_CALL.match(text.whole, at) or _XML_CALL_WITH_ELEMENTS.match(text.whole, at)
    if opened is None:
        return None
    name, is_empty = unescape_name(opened.group("name")), opened.group("rest").rstrip().endswith("/")
    tool = tools.find(name)
    if tool is None:
        end = opened.end() if is_empty else text.find(_XML_CLOSING, opened.end())[1]
        return MarkedSegment(at, end, (tools.unknown_tool_call(name, text.excerpt(at, end)),), is_tagged=True)
    try:
        arguments, end = ({}, opened.end()) if is_empty else _read_xml_arguments(text, opened.end(), tool)
    except LiteralError as failure:
        text.record_failure(at, failure.at)
        end = max(text.find(_XML_CLOSING, failure.at)[1], failure.at)
        return MarkedSegment(at, end, (unreadable_call(tool, failure.reason, text.excerpt(at, end)),), is_tagged=True)
    return MarkedSegment(at, end, (ToolCall(name=tool.name, arguments=arguments),), is_tagged=True)


def read_element_call(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read `<get_weather><city>Paris</city></get_weather>`, whose tag is the name of a tool; None for other tags.

    Only parameters of the tool, JSON or nothing may be inside: text in an element is markup, whatever it is called.
    """
    opened = _ELEMENT.match(text.whole, at)
    tool = tools.find(opened.group("name")) if opened and not text.line_before(at)[0].strip() else None
    if opened is None or tool is None:
        return None
    body = text.skip(SPACE, opened.end())
    is_json = text.whole.startswith("{", body)
    try:
        arguments, end = LiteralReader(text).read_value(body) if is_json else _read_elements(text, body, tool)
        closed = _ELEMENT_CLOSING.match(text.whole, end)
        if closed and closed.group("name") == opened.group("name"):
            return MarkedSegment(at, closed.end(), (ToolCall(name=tool.name, arguments=arguments),), is_tagged=True)
        unknown = _ELEMENT.match(text.whole, end)
        reason = f"there is no parameter {unknown.group('name')!r}" if unknown else "the call is not closed"
        is_call = bool(arguments) and (is_json or unknown is not None or text.is_blank(end, text.end))
    except LiteralError as failure:
        reason, end, is_call = failure.reason, failure.at, is_json or failure.at >= text.end
    if not is_call:
        text.record_failure(at, end)
        return None
    end = text.find(f"</{opened.group('name')}>", end)[1]
    return MarkedSegment(at, end, (unreadable_call(tool, reason, text.excerpt(at, end)),), is_tagged=True)


def _read_xml_arguments(text: SourceText, at: int, tool: CallableTool) -> tuple[dict[str, Any], int]:
    literals = LiteralReader(text)
    body = literals.skip_space(at)
    if text.whole.startswith("{", body):
        value, end = literals.read_value(body)
        if not isinstance(value, dict) or literals.unclosed:
            raise LiteralError("a closing bracket is missing", end)
        closed = _XML_CLOSING_AFTER_SPACE.match(text.whole, end) or _ATTRIBUTE_END.match(text.whole, end)
        return value, closed.end() if closed else end
    arguments, end = _read_elements(text, at, tool)
    if not arguments:
        arguments, end = _read_xml_parameters(text, at, tool)
    closed = _XML_CLOSING_AFTER_SPACE.match(text.whole, end)
    if closed is None:
        raise LiteralError("the call is not closed, or a parameter has no name", end)
    return unwrap_arguments(arguments, tool), closed.end()


def _read_elements(text: SourceText, at: int, tool: CallableTool, depth: int = 0) -> tuple[dict[str, Any], int]:
    """Read an element for each argument, with elements inside for objects and lists.

    MiniMax M3 writes its mark before each tag; without the mark only the names of parameters are elements.
    """
    values: dict[str, Any] = {}
    repeated: set[str] = set()
    while opened := _ELEMENT.match(text.whole, at):
        name, is_marked = unescape_name(opened.group("name")), opened.group("mark") is not None
        schema = tool.properties.get(name, {})
        if not is_marked and name not in tool.properties:
            break
        value: Any = {}
        if depth < MAX_DEPTH and (is_marked or schema.get("type") in ("object", "array")):
            items = {"item": schema.get("items", {})}
            inner = CallableTool(name=name, parameters={**schema, "properties": schema.get("properties", items)})
            value, ending = _read_elements(text, opened.end(), inner, depth + 1)
        if value:
            value = _unwrap_items(value, schema)
        else:
            ending = text.find(_ELEMENT_END if is_marked else f"</{opened.group('name')}>", opened.end())[0]
            value = _parse_xml_value(text.whole[opened.end() : ending], tool, name)
        closed = _ELEMENT_CLOSING.match(text.whole, ending)
        if closed is None or closed.group("name") != opened.group("name"):
            raise LiteralError(f"{name!r} is not closed", ending)
        at = closed.end()
        if name == "item" and name not in values:
            values[name], repeated = [value], {*repeated, name}
        elif name not in values:
            values[name] = value
        elif depth == 0:
            raise LiteralError(f"{name!r} is given twice", at)
        else:
            values[name] = [*(values[name] if name in repeated else [values[name]]), value]
            repeated = {*repeated, name}
    return values, at


def _unwrap_items(values: dict[str, Any], schema: Mapping[str, Any]) -> Any:
    """Return the items of a list: the elements `item`, or those of the only name if a list is expected."""
    [name, *others] = values
    is_list = name == "item" and name not in schema.get("properties", {})
    if others or not (is_list or schema.get("type") == "array"):
        return values
    return values[name] if isinstance(values[name], list) else [values[name]]


def _read_xml_parameters(text: SourceText, at: int, tool: CallableTool) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}
    while opened := _XML_PARAMETER.match(text.whole, at):
        name = unescape_name(opened.group("name"))
        data = _CDATA_OPENING.match(text.whole, opened.end())
        begin = text.find("]]>", data.end())[1] if data else opened.end()
        ending, at = text.find(_XML_PARAMETER_ENDINGS[opened.group("tag")], begin)
        if ending == text.end:
            raise LiteralError(f"{name!r} is not closed", text.end)
        if name in arguments:
            raise LiteralError(f"{name!r} is given twice", at)
        raw_value = text.whole[opened.end() : ending]
        arguments[name] = _parse_xml_value(raw_value, tool, name, opened.group("rest"))
        if _XML_PARAMETER.match(text.whole, ending) or _XML_CLOSING_AFTER_SPACE.match(text.whole, ending):
            at = ending
    return arguments, at


def _parse_xml_value(raw_value: str, tool: CallableTool, name: str, rest: str = "") -> Any:
    if data := _CDATA.match(raw_value):
        raw_value = data.group(1)
    elif raw_value.startswith("\n"):
        raw_value = raw_value.removeprefix("\n").removesuffix("\n")
    return parse_argument(raw_value, tool, name, is_text='string="true"' in rest or 'type="string"' in rest)


# Parts of calls whose beginning is missing.

CALL_PART = (
    r"<arg_key>|<[|｜]tool[▁_]sep[|｜]>|<\|tool_call_argument_begin\|>"
    r"|<\|channel\|>commentary[ ]*<\|constrain\|>\w+<\|message\|>"
    rf"|{_OPEN}(?:parameter{_GAP}{_IS}|invoke>)|<function>(?=\s*<)|<\|open\|>call(?=[ ]|<\|sep\|>)"
)
_CALL_PART = lazy_pattern(CALL_PART)
_PART_CLOSING = lazy_pattern(rf"</arg_key>|{_CLOSE}(?:parameter|invoke|function){_END}")
_NAME_OF_CALL = lazy_pattern(r"[\w./\\-]*[._:][\w.:/\\-]*")


def read_call_part(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Report tags inside a call whose own tag is missing; None if a sentence mentions them."""
    part = _CALL_PART.match(text.whole, at)
    if part is None:
        return None
    word = _MARKUP.sub("", text.line_before(at)[0]).strip()
    is_tag = not part.group().startswith(("<|", "<｜"))
    if (word and not (tools.find(word) or _NAME_OF_CALL.fullmatch(word))) or (
        is_tag and text.find(_PART_CLOSING, part.end())[0] == text.end
    ):
        return None
    end = max(text.find("\n\n", part.end())[0], part.end())
    return MarkedSegment(
        at, end, (unreadable_markup(f"{part.group()} is outside of a call", text.excerpt(at, end)),), is_tagged=True
    )
