"""Notations with marks of their own: the tags and tokens of model families, XML, and the lines of ReAct.

The content after a tag differs less than the tags do: JSON, Python, or a name with its arguments. One table has the
tags and their ends; one function parses any content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.calls import find_name_in_json, read_json_calls, read_python_calls
from ferrule.parsing.known_tools import CallableTool, KnownTools, parse_argument, unescape_name, unwrap_arguments
from ferrule.parsing.literals import MAX_DEPTH, LiteralError, LiteralReader, parse_literal
from ferrule.parsing.text import END_OF_TURN, SPACE, CallsAndEnd, MarkedSegment, SourceText

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
_ARGUMENT_KEY = lazy_pattern(rf"{_LINE_BREAKS}<arg_key>")
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
        return [tool.report("they must be JSON", raw)], end
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
    head = _NAME_ONLY.match(text.whole, at)
    if head and _ARGUMENT_KEY.match(text.whole, head.end()):
        return _read_key_values(text, head, stop, tools)
    if read := _read_named_json(text, at, stop, tools) or _read_python(text, at, stop, tools):
        return read
    tool = tools.find(head.group("name")) if head and head.end() == stop else None
    return ([ToolCall(name=tool.name)], stop) if tool else None  # a name and nothing else


def _read_json(text: SourceText, at: int, closing: re.Pattern[str], tools: KnownTools) -> CallsAndEnd | None:
    """Read JSON. Its strings may contain the closing tag, which is a limit only if the values are invalid."""
    stop = text.find(closing, at)[0]
    for limit in (text.end, stop) if stop < text.end else (stop,):
        if read := read_json_calls(text, at, limit, tools, is_certain=True):
            return read
    if text.whole[at] == "[" and read_python_calls(text, at, stop, tools):
        return None
    source = text.excerpt(at, stop)
    name = find_name_in_json(source)
    return ([tools.make_call(name, raw=source, failure="they are not complete, or not JSON")], stop) if name else None


def _read_named_json(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read a name and its arguments: Mistral's `name[ARGS]{…}`, Kimi's `functions.name:0`, DeepSeek's, Gemma's."""
    head = _BEFORE_JSON.match(text.whole, at)
    if head is None:
        return None
    name = head.group("name")
    literals = LiteralReader(text)
    try:
        value, end = literals.read_value(head.end())
        failure = "a closing bracket is missing" if literals.unclosed or not isinstance(value, dict) else ""
        return [tools.make_call(name, None if failure else value, raw=text.excerpt(at, end), failure=failure)], end
    except LiteralError as error:
        text.record_failure(at, error.at)
        end = max(stop, head.end())
        return [tools.make_call(name, raw=text.excerpt(at, stop), failure=error.reason)], end


def _read_key_values(text: SourceText, head: re.Match[str], stop: int, tools: KnownTools) -> CallsAndEnd:
    """Read GLM's form: a name, then `<arg_key>` and `<arg_value>` in turn."""
    name, tool = head.group("name"), tools.find(head.group("name"))
    arguments: dict[str, Any] = {}
    end, failure = stop, ""
    try:
        if tool:
            arguments, end = _read_parameters(text, head.end(), tool)
            failure = "the call is not closed" if stop == text.end else ""
    except LiteralError as error:
        failure, end = error.reason, max(stop, head.end())
    return [tools.make_call(name, arguments, raw=text.excerpt(head.start(), end), failure=failure)], end


def _read_python(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    read = read_python_calls(text, at, stop, tools)
    leftover = LiteralReader(text, stop).skip_space(read[1]) if read else stop
    return read if leftover >= stop or stop == text.end else None


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
_PARAMETER = lazy_pattern(
    rf"\s*{_OPEN}(?P<tag>{_PARAMETER_TAG}){_NAMED}"
    rf"|{_LINE_BREAKS}<arg_key>(?P<key>[^<\n]*)</arg_key>(?:{_LINE_BREAKS}<(?P<value>arg_value)>)?"
)
_PARAMETER_ENDINGS = {"arg_value": lazy_pattern("</arg_value>")} | {
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
    name, end = unescape_name(opened.group("name")), opened.end()
    tool = tools.find(name)
    arguments: dict[str, Any] = {}
    failure = ""
    if not opened.group("rest").rstrip().endswith("/"):
        try:
            arguments, end = _read_xml_arguments(text, end, tool) if tool else ({}, text.find(_XML_CLOSING, end)[1])
        except LiteralError as error:
            text.record_failure(at, error.at)
            failure, end = error.reason, max(text.find(_XML_CLOSING, error.at)[1], error.at)
    call = tools.make_call(name, arguments, raw=text.excerpt(at, end), failure=failure)
    return MarkedSegment(at, end, (call,), is_tagged=True)


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
    return MarkedSegment(at, end, (tool.report(reason, text.excerpt(at, end)),), is_tagged=True)


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
        arguments, end = _read_parameters(text, at, tool)
    closed = _XML_CLOSING_AFTER_SPACE.match(text.whole, end)
    if closed is None:
        raise LiteralError("the call is not closed, or a parameter has no name", end)
    return unwrap_arguments(arguments, tool), closed.end()


def _read_elements(text: SourceText, at: int, tool: CallableTool, depth: int = 0) -> tuple[dict[str, Any], int]:
    """Read an element for each argument, with elements inside for objects and lists.

    MiniMax M3 writes its mark before each tag; without the mark only the names of parameters are elements.
    """
    values: dict[str, list[Any]] = {}
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
        if depth == 0 and name in values:
            raise LiteralError(f"{name!r} is given twice", at)
        values.setdefault(name, []).append(value)
    return {k: v if len(v) > 1 or (depth and k == "item") else v[0] for k, v in values.items()}, at


def _unwrap_items(values: dict[str, Any], schema: Mapping[str, Any]) -> Any:
    """Return the items of a list: the elements `item`, or those of the only name if a list is expected."""
    [name, *others] = values
    is_list = name == "item" and name not in schema.get("properties", {})
    if others or not (is_list or schema.get("type") == "array"):
        return values
    return values[name] if isinstance(values[name], list) else [values[name]]


def _read_parameters(text: SourceText, at: int, tool: CallableTool) -> tuple[dict[str, Any], int]:
    """Read a tag with a name for each argument, or GLM's `<arg_key>` and `<arg_value>`."""
    arguments: dict[str, Any] = {}
    while opened := _PARAMETER.match(text.whole, at):
        name, tag = unescape_name(opened["name"] or opened["key"]), opened["tag"] or opened["value"]
        if tag is None:
            raise LiteralError(f"{name!r} has no value", opened.end())
        data = _CDATA_OPENING.match(text.whole, opened.end())
        begin = text.find("]]>", data.end())[1] if data else opened.end()
        ending, at = text.find(_PARAMETER_ENDINGS[tag], begin)
        if ending == text.end:
            raise LiteralError(f"{name!r} is not closed", text.end)
        if name in arguments:
            raise LiteralError(f"{name!r} is given twice", at)
        arguments[name] = _parse_xml_value(text.whole[opened.end() : ending], tool, name, opened["rest"] or "")
        if _PARAMETER.match(text.whole, ending) or _XML_CLOSING_AFTER_SPACE.match(text.whole, ending):
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


# ReAct: `Action:` and `Action Input:` lines, and the `<tool>` tags of LangChain's XML agents.

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
        return MarkedSegment(at, end, (tools.make_call(name, raw=raw),)) if is_call else None
    if not is_invented and text.find(_FINAL_ANSWER, action.end())[0] < text.end:
        reason = "the text has an action and a final answer. Write one of them"
        return MarkedSegment(at, text.end, (tool.report(reason, raw),))
    return MarkedSegment(at, end, (_make_action_call(tool, input_text, raw),))


def _read_action_without_input(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read an action at the end of the text that is only the name of a tool."""
    action = _ACTION_ALONE.match(text.whole, at)
    tool = tools.find(_TRAILING_TOKENS.sub("", action.group("name"))) if action else None
    if tool is None:
        return None
    call = ToolCall(name=tool.name)
    if tool.properties:
        call = tool.report("there is no line 'Action Input:'", text.excerpt(at, text.end))
    return MarkedSegment(at, text.end, (call,))


def read_tool_tags(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read `<tool>search</tool><tool_input>weather in SF</tool_input>`."""
    tags = _TOOL_TAG.match(text.whole, at)
    if tags is None:
        return None
    name, end = tags.group("name"), tags.end()
    tool = tools.find(name)
    if tags.group("input") is None:
        call = tool.report("<tool_input> is missing", tags.group()) if tool else None
        return MarkedSegment(at, end, (call,), is_tagged=True) if call else None
    begin, end = text.find("</tool_input>", end)
    raw = text.excerpt(at, end)
    if tool:
        call = _make_action_call(tool, text.whole[tags.end() : begin].strip(), raw)
    else:
        call = tools.make_call(name, raw=raw) if name else unreadable_markup("<tool> is empty", raw)
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
        return tool.report("they are not complete, or not JSON", raw)
    if only is not None:
        return ToolCall(name=tool.name, arguments={only: parse_argument(_remove_quotes(input_text), tool, only)})
    if not tool.properties or not input_text:
        return ToolCall(name=tool.name)
    return tool.report(f"it takes several, so its input must be JSON: {', '.join(tool.properties)}", raw)


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
