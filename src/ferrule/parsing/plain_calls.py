"""Calls without tags: in a fenced block, on a line, or as JSON inside prose.

Here it matters what is *not* a call. Code that does more than call tools is code; a call in the middle of a sentence,
or introduced as an example, is text about a tool.
"""

from __future__ import annotations

import re

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing import calls as syntax
from ferrule.parsing import notations
from ferrule.parsing.known_tools import CallableTool, KnownTools
from ferrule.parsing.literals import LiteralError, LiteralReader
from ferrule.parsing.text import END_OF_TURN, CallsAndEnd, MarkedSegment, SourceText

_FENCE = lazy_pattern(r"[ \t]*(?P<marks>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")
_CLOSING = {
    "`": lazy_pattern(r"^[ \t]*```+[ \t]*$|(?<=[^\s`])```+[ \t]*$", re.MULTILINE),
    "~": lazy_pattern(r"^[ \t]*~~~+[ \t]*$", re.MULTILINE),
}
_SPACE = lazy_pattern(r"[\s;,]*+")
_WRAPPER = lazy_pattern(r"\s*+(?:</?[\w:]++>\s*+)*")
_CALL_LANGUAGES = frozenset(
    {"", "json", "jsonc", "json5", "python", "py", "python3", "text", "txt", "plaintext", "action", "xml"}
)
_TOOL_LANGUAGE = lazy_pattern(r"(?:tools?|functions?)(?:[_-]?(?:calls?|code|uses?))?")
_CALL_LANGUAGE = lazy_pattern(r"(?:tools?|functions?)[_-]?(?:calls?|code|uses?)")
TOOL_LABEL = r"(?:(?:Tool|Function)(?:[ \t]Name)?|(?:工具|函数)名?称?)[ \t*]*[:：]"
_NAME_BEFORE = (
    rf"(?:^[ \t*#`>]*+(?:{TOOL_LABEL}[ \t*`]*)?|(?<=[.:!?。：])[ \t]*`?)"
    rf"(?P<name>{syntax.NAME})[ \t*`:]*"
)
_ARGUMENTS_LABEL = (
    r"\**(?:(?:(?:Tool|Function)[ \t])?(?:Arguments|Parameters|Input|Args)|(?:工具|函数)?(?:参数|输入))"
    r"[ \t*]*[:：][ \t*]*"
)
_NAME_LINE = lazy_pattern(rf"{_NAME_BEFORE}(?:\n\s*)?(?:{_ARGUMENTS_LABEL}\s*)?\Z", re.MULTILINE)
_NAME_LINE_SO_FAR = lazy_pattern(rf"{_NAME_BEFORE}(?:\n\s*[\w \t*:：]{{0,30}}\s*)?\Z", re.MULTILINE)
_MAX_NAME_LINE = 200
_LINE_HEAD = lazy_pattern(
    r"(?P<bullet>[ \t]*(?:(?:[-*•>→]|->|=>|>>>)[ \t]+|\d{1,3}[.)][ \t]+)?\**`?)"
    r"(?:[^\W\d]\w*(?:,[ \t]*[^\W\d]\w*){0,8}[ \t]*=[ \t]*)?(?:await[ \t]+)?(?:print[ \t]*\([ \t]*)?\Z"
)
_MARKDOWN_LINK = lazy_pattern(r"\[|\(|:[ \t]*\S")
"""What follows the text of a link: `[…](address)`, `[…][name]`, or `[…]: address` where the name is defined."""
_AFTER_COLON = lazy_pattern(r"[:：][*`]*+[ \t]*+`?\Z")
_LINE_END = lazy_pattern(rf"[ \t]*`?\**[ \t]*[;,.。]?[ \t]*(?:\\(?=\n)|\#[^\n]*)?(?=\n|\Z|{END_OF_TURN})")
_END_OF_TURN = lazy_pattern(END_OF_TURN)
_NO_REQUEST = lazy_pattern(
    r"\b(?:for example|for instance|e\.g\.|such as"
    r"|you (?:can|could|may|might) (?:also )?(?:call|use|write|run|invoke|try)"
    r"|(?:if|once|when|after) you (?:confirm|agree|approve|allow))\b|例如|比如|举例"
    r"|(?:如果|若|待|等)[你您](?:确认|同意|批准)"
    r"|\b(?:can[’']?t|cannot|won[’']t|will not)(?: (?:call|run|execute|do|make) (?:this|that|it))?[ \t*]*[:：]\Z"
    r"|(?:不能|不会|无法|拒绝)(?:直接)?(?:执行|调用|运行)[^，,]{0,10}[:：]\Z",
    re.IGNORECASE,
)
"""In the sentence before a call: it introduces an example, a call that waits for the user, or one that is refused."""
_EXAMPLE_WORD = lazy_pattern(r"\b(?:examples?(?!\.\w)|usage)\b|示例|例子|用法", re.IGNORECASE)
_SEARCH_FOR = lazy_pattern(
    r"\b(?:I[’']ll|I will|I am going to|I[’']m going to|let me|let[’']s) (?:now |first )?"
    r"(?:search|look|find|check|query|fetch|get)\b"
    r"|(?:我来|我将|我会|让我|我先)(?:帮[你您])?(?:搜索|搜|查|找|检索|获取)",
    re.IGNORECASE,
)
"""`I'll search for examples:` introduces no example."""
_TAGGED_EXAMPLE = lazy_pattern(
    r"(?:\b(?:for example|for instance|e\.g\.|(?:is|as) an example(?: call)?)|例如|比如|举例(?:来说|说明)?|示例如下)"
    r"[ \t*]*[:：,，]?[ \t*]*\Z",
    re.IGNORECASE,
)
_WORD_BEFORE = lazy_pattern(r"[^\W\d_][ \t`*]*\Z")
_SENTENCE_END = lazy_pattern(r"[.!?]\s+(?=[A-Z])|[。！？]")
_COMPOUND_STATEMENT = lazy_pattern(
    r"^[ \t]*(?:async[ \t]+)?(?:for|while|if|elif|else|def|with|try|except|finally|class)\b"
    r"[^\n]*:[ \t]*\n(?:[ \t][^\n]*\n|\n)*\Z",
    re.MULTILINE,
)


def read_fenced_block(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read a fenced block: its calls if it contains nothing else, otherwise code, which is not parsed further."""
    opened = _FENCE.match(text.whole, at)
    if opened is None or text.line_before(at)[0].strip(" \t>"):
        return read_inline_code(text, at, tools)
    marks, language = opened.group("marks"), opened.group("language").lower()
    is_certain = _TOOL_LANGUAGE.fullmatch(language) is not None
    if is_certain or (language in _CALL_LANGUAGES and not _is_introduced_as_example(text, at)):
        # The arguments for the tool which is named above the block.
        begin, tool = find_name_line(text, at, tools)
        place = text.skip(_SPACE, opened.end())
        has_object = text.whole.startswith("{", place)
        segment = _read_arguments_object(text, begin, place, tool) if tool and has_object else None
        if segment and (end := _end_of_block(text, segment.end, marks)) is not None:
            return MarkedSegment(begin, end, segment.calls)
        for read in (_read_tagged, _read_json_values, _read_statements):
            result = read(text, opened.end(), tools, is_certain=is_certain)
            end = _end_of_block(text, result[1], marks) if result else None
            if result and end is None and read is not _read_statements:
                is_never_closed = text.find(_CLOSING[marks[0]], result[1])[0] == text.end
                end = result[1] if is_never_closed else None  # then what follows may be prose
            if result and end is not None:
                return MarkedSegment(at, end, tuple(result[0]), is_tagged=is_certain or read is _read_tagged)
        begin = text.skip(_SPACE, opened.end())
        is_json = text.whole.startswith(("{", "["), begin)
        broken = syntax.read_json_segment(text, begin, tools) if is_json else None
        if broken and any(call.error for call in broken.calls):
            return MarkedSegment(at, _end_of_block(text, broken.end, marks) or broken.end, broken.calls)
    closing, end = text.find(_CLOSING[marks[0]], opened.end())
    body = text.excerpt(opened.end(), closing)
    if _CALL_LANGUAGE.fullmatch(language) and body.strip() and not _is_introduced_as_example(text, at):
        reason = f"the block {language!r} contains no call of a tool that exists, or more than calls"
        return MarkedSegment(at, end, (notations.unreadable_markup(reason, body),), is_tagged=True)
    return MarkedSegment(at, end, kind="code")


def read_inline_code(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read code quoted within a line, which is not parsed further; unless it is the whole line."""
    line_end = text.find("\n", at)[0]
    closing = text.whole.find("`", at + 1, line_end)
    if closing < 0 or text.whole[at] != "`":
        return None
    before, whole = text.line_before(at)
    head = whole and _LINE_HEAD.match(before)
    if (head or _AFTER_COLON.search(before)) and _LINE_END.match(text.whole, closing + 1):
        return None
    return MarkedSegment(at, closing + 1, kind="code")


def read_json(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read a JSON value that is a call, anywhere in the text."""
    begin, tool = find_name_line(text, at, tools)
    segment = _read_arguments_object(text, begin, at, tool) if tool else None
    segment = segment or syntax.read_json_segment(text, at, tools)
    if segment is None:
        return None
    # Words of the same sentence may be before and after it.
    is_in_sentence = (
        _WORD_BEFORE.search(text.line_before(segment.start)[0]) is not None
        and text.calls_end <= text.line_start(segment.start)
        and text.is_prose_until_line_end(segment.end)
    )
    if is_in_sentence or _is_introduced_as_example(text, segment.start):
        return MarkedSegment(at, segment.end, kind="code")
    return segment


def find_name_line(text: SourceText, at: int, tools: KnownTools) -> tuple[int, CallableTool | None]:
    """Find the name of a tool before its arguments, and the tool; GLM-4 writes it on the line above them.

    At the end of a text that is not complete yet, the arguments or their label may follow.
    """
    if at < text.end and text.whole[at] not in "{`~":
        return at, None
    pattern = _NAME_LINE if at < text.end else _NAME_LINE_SO_FAR
    line = pattern.search(text.whole, max(0, at - _MAX_NAME_LINE), at)
    tool = tools.find(line.group("name")) if line else None
    return (line.start(), tool) if line and tool else (at, None)


def _read_arguments_object(text: SourceText, begin: int, at: int, tool: CallableTool) -> MarkedSegment | None:
    """Read the object at `at` as the arguments of the tool whose name begins at `begin`."""
    is_below_name = "\n" in text.whole[begin:at]
    literals = LiteralReader(text)
    try:
        value, end = literals.read_value(at)
        failure = LiteralError("a closing bracket is missing", end) if literals.unclosed else None
    except LiteralError as error:
        text.record_failure(at, error.at)
        value, failure = {}, error
        end = syntax.end_of_invalid_json(text, error.at)
    if not isinstance(value, dict) or not set(value) <= set(tool.properties):
        return None
    if failure is not None:
        error_call = tool.report(failure.reason, text.excerpt(begin, end))
        return MarkedSegment(begin, end, (error_call,)) if is_below_name else None
    if not is_below_name and not (value and set(tool.parameters.get("required") or ()) <= set(value)):
        return None
    return MarkedSegment(begin, end, (ToolCall(name=tool.name, arguments=value),))


def read_list(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read a Python list of calls, anywhere in the text; Markdown may escape its brackets."""
    read = syntax.read_python_calls(text, at, text.end, tools)
    if read is None or not _are_plausible(read[0], tools) or _MARKDOWN_LINK.match(text.whole, read[1]):
        return None
    begin = at - text.whole.startswith("\\", at - 1) if at else at
    is_example = _is_introduced_as_example(text, begin)
    return MarkedSegment(at, read[1], kind="code") if is_example else MarkedSegment(begin, read[1], tuple(read[0]))


def read_line_of_calls(text: SourceText, at: int, tools: KnownTools) -> MarkedSegment | None:
    """Read calls that are a whole line, or end one after a colon; the first one's name starts at `at`."""
    start = text.line_start(at)
    before, whole = text.line_before(at)
    head = _LINE_HEAD.match(before) if whole else None
    if head:
        begin, place = start, start + head.end("bullet")
    elif _AFTER_COLON.search(before):
        begin, place = at - before.endswith("`"), at
    else:
        return None
    # An indented line belongs to the loop or the definition above it.
    is_indented = head is not None and text.whole.startswith((" ", "\t"), start)
    is_in_program = is_indented and _COMPOUND_STATEMENT.search(text.whole, max(0, start - 400), start)
    if is_in_program or _is_introduced_as_example(text, begin):
        read = syntax.read_python_calls(text, place, text.end, tools)
        return MarkedSegment(begin, read[1], kind="code") if read else None
    read = _read_rest_of_line(text, place, tools)
    if read is None:
        return None
    calls, end = read
    are_known = all(tools.find(call.name) for call in calls)
    is_only_call = text.is_blank(0, begin) and text.is_blank(end, text.end) and _are_plausible(calls, tools)
    readable = all(call.error is None for call in calls)
    return MarkedSegment(begin, end, tuple(calls)) if is_only_call or (are_known and readable) else None


def _read_rest_of_line(text: SourceText, at: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read calls up to the end of a line that contains nothing else."""
    calls: list[ToolCall] = []
    while read := syntax.read_statement(text, at, text.end, tools):
        call, end = read
        calls.append(call)
        if ended := _LINE_END.match(text.whole, end):
            return calls, ended.end()
        at = text.skip(syntax.BETWEEN_CALLS, end, text.find("\n", end)[0])
    return None


def _end_of_block(text: SourceText, at: int, marks: str) -> int | None:
    """Return where a block ends after its calls: at its closing fence or the end of the text; else None."""
    at = text.skip(_SPACE, at)
    if at == text.end or _END_OF_TURN.match(text.whole, at):
        return at
    return at + len(marks) if text.whole.startswith(marks, at) else None


def _read_tagged(text: SourceText, at: int, tools: KnownTools, *, is_certain: bool) -> CallsAndEnd | None:
    calls: list[ToolCall] = []
    while True:
        at = text.skip(_SPACE, at)
        segment = (
            notations.read_tagged_calls(text, at, tools)
            or notations.read_xml_call(text, at, tools)
            or notations.read_element_call(text, at, tools)
        )
        if segment is None and text.whole.startswith("<", at) and (wrapper := _WRAPPER.match(text.whole, at)):
            inner = notations.read_xml_call(text, wrapper.end(), tools)
            segment = inner or (MarkedSegment(at, wrapper.end()) if calls and wrapper.end() > at else None)
        if segment is None:
            return (calls, at) if calls else None
        calls += segment.calls
        at = segment.end


def _read_json_values(text: SourceText, at: int, tools: KnownTools, *, is_certain: bool) -> CallsAndEnd | None:
    return syntax.read_json_calls(text, at, text.end, tools, is_certain=is_certain)


def _read_statements(text: SourceText, at: int, tools: KnownTools, *, is_certain: bool) -> CallsAndEnd | None:
    begin = text.skip(syntax.BETWEEN_CALLS, at)
    read = syntax.read_python_calls(text, begin, text.end, tools)
    if read is None or not (is_certain or _are_plausible(read[0], tools)):
        return None
    return read[0], text.skip(syntax.BETWEEN_CALLS, read[1])


def _are_plausible(calls: list[ToolCall], tools: KnownTools) -> bool:
    """Return whether every name is known, or similar to a known one."""
    return all(tools.find(call.name) or tools.has_similar(call.name, call.arguments) for call in calls)


def _is_introduced_as_example(text: SourceText, at: int) -> bool:
    """Return whether the sentence before introduces an example, or a call that is not meant to be made now."""
    sentence = _SENTENCE_END.split(_find_introduction(text, at))[-1]
    is_example = _EXAMPLE_WORD.search(sentence) is not None and _SEARCH_FOR.search(sentence) is None
    return is_example or _NO_REQUEST.search(sentence) is not None


def is_tagged_example(text: SourceText, at: int) -> bool:
    """Return whether the words directly before a tag introduce an example. Tags are for calls: other words do not."""
    return _TAGGED_EXAMPLE.search(_find_introduction(text, at)) is not None


def _find_introduction(text: SourceText, at: int) -> str:
    """Return the line before, without what was a call."""
    return text.whole[max(text.calls_end, at - 400) : at].rstrip(" \t\n`").rpartition("\n")[2]
