"""Calls without any mark of their own: in a fenced block, on a line, or as JSON amid prose.

Here it matters what is *not* a call. Code that does more than call tools is code; a call in the middle of a sentence or
announced as an example is talk about a tool.
"""

from __future__ import annotations

import re

from ferrule.messages import ToolCall
from ferrule.parsing import objects, pythonic, tagged, xml_calls
from ferrule.parsing.found import Found
from ferrule.parsing.known import KnownTools
from ferrule.parsing.text import Text

_FENCE = re.compile(r"[ \t]*(?P<marks>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")
_CLOSING = {
    "`": re.compile(r"^[ \t]*```+[ \t]*$|(?<=[^\s`])```+[ \t]*$", re.MULTILINE),
    "~": re.compile(r"^[ \t]*~~~+[ \t]*$", re.MULTILINE),
}
_SPACE = re.compile(r"[\s;,]*+")
_WRAPPER = re.compile(r"\s*+(?:</?[\w:]++>\s*+)*")
_CALL_LANGUAGES = frozenset(
    {"", "json", "jsonc", "json5", "python", "py", "python3", "text", "txt", "plaintext", "action", "xml"}
)
_TOOL_LANGUAGES = frozenset({"tool_code", "tool_call", "tool_calls", "tool", "tools", "tool_use", "function_call"})
_LINE_HEAD = re.compile(
    r"(?P<bullet>[ \t]*(?:[-*•>][ \t]+|\d{1,3}[.)][ \t]+)?`?)"
    r"(?:[^\W\d]\w*[ \t]*=[ \t]*)?(?:await[ \t]+)?(?:print[ \t]*\([ \t]*)?\Z"
)
_ANNOUNCED = re.compile(r"[:：][*`]*+[ \t]*+`?\Z")
_LINE_END = re.compile(r"[ \t]*`?[ \t]*[;,.。]?[ \t]*(?:\#[^\n]*)?(?=\n|\Z)")
_EXAMPLE = re.compile(
    r"\b(?:for example|for instance|e\.g\.|examples?|usage|such as"
    r"|you (?:can|could|may|might) (?:also )?(?:call|use|write|run|invoke|try))\b|例如|比如|示例|例子|用法|举例",
    re.IGNORECASE,
)
_COMPOUND = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:for|while|if|elif|else|def|with|try|except|finally|class)\b"
    r"[^\n]*:[ \t]*\n(?:[ \t][^\n]*\n|\n)*\Z",
    re.MULTILINE,
)


def read_fence(text: Text, at: int, tools: KnownTools) -> Found | None:
    """A fenced block: the calls in it if it holds nothing else; or else code, which is not read further."""
    opened = _FENCE.match(text.whole, at)
    if opened is None or text.before(at)[0].strip(" \t>"):
        return read_code(text, at)
    marks, language = opened.group("marks"), opened.group("language").lower()
    sure = language in _TOOL_LANGUAGES
    if sure or (language in _CALL_LANGUAGES and not _is_example(text, at)):
        for read in (_marked, _objects, _statements):
            result = read(text, opened.end(), tools, sure=sure)
            if result and (end := _closed(text, result[1], marks)) is not None:
                return Found(at, end, tuple(result[0]), tagged=sure or read is _marked)
        if broken := _broken(text, opened.end(), tools):
            return Found(at, _closed(text, broken.end, marks) or broken.end, broken.calls)
    return Found(at, text.find(_CLOSING[marks[0]], opened.end())[1], kind="code")


def read_code(text: Text, at: int) -> Found | None:
    """Code quoted within a line, which is not read further; unless it is all there is on the line."""
    line_end = text.find("\n", at)[0]
    closing = text.whole.find("`", at + 1, line_end)
    if closing < 0 or text.whole[at] != "`":
        return None
    before, whole = text.before(at)
    head = whole and _LINE_HEAD.match(before)
    if (head or _ANNOUNCED.search(before)) and _LINE_END.match(text.whole, closing + 1):
        return None
    return Found(at, closing + 1, kind="code")


def read_json(text: Text, at: int, tools: KnownTools) -> Found | None:
    """A bare JSON value that is a call, wherever it stands."""
    found = objects.read_object(text, at, tools)
    return Found(at, found.end, kind="code") if found and _is_example(text, at) else found


def read_list(text: Text, at: int, tools: KnownTools) -> Found | None:
    """A Python list of calls, wherever it stands."""
    read = pythonic.read_list(text, at, text.end, tools)
    if read is None or not _plausible(read[0], tools):
        return None
    return Found(at, read[1], kind="code") if _is_example(text, at) else Found(at, read[1], tuple(read[0]))


def read_line(text: Text, at: int, tools: KnownTools) -> Found | None:
    """Calls that have a line to themselves, or end one behind a colon; the first one's name begins at `at`."""
    start = text.line_start(at)
    before, whole = text.before(at)
    head = _LINE_HEAD.match(before) if whole else None
    if head:
        begin, place = start, start + head.end("bullet")
    elif _ANNOUNCED.search(before):
        begin, place = at - before.endswith("`"), at
    else:
        return None
    if _is_example(text, begin) or (head and _in_a_program(text, start)):
        read = pythonic.read_calls(text, place, text.end, tools)
        return Found(begin, read[1], kind="code") if read else None
    read = _same_line(text, place, tools)
    if read is None:
        return None
    calls, end = read
    known = all(tools.find(call.name) for call in calls)
    near = text.blank(0, begin) and text.blank(end, text.end) and _plausible(calls, tools)
    readable = all(call.error is None for call in calls)
    return Found(begin, end, tuple(calls)) if near or (known and readable) else None


def _same_line(text: Text, at: int, tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    """Calls up to the end of a line, which must hold nothing else."""
    calls: list[ToolCall] = []
    while read := pythonic.read_statement(text, at, text.end, tools):
        call, end = read
        calls.append(call)
        if ended := _LINE_END.match(text.whole, end):
            return calls, ended.end()
        at = pythonic.skip(text, end, text.find("\n", end)[0])
    return None


def _closed(text: Text, at: int, marks: str) -> int | None:
    """Behind the calls of a block nothing may come but its closing mark, or the end of the text."""
    at = _after_space(text, at)
    if at == text.end:
        return at
    return at + len(marks) if text.whole.startswith(marks, at) else None


def _marked(text: Text, at: int, tools: KnownTools, *, sure: bool) -> tuple[list[ToolCall], int] | None:
    """Calls in a format of their own, which somebody put into a fence."""
    calls: list[ToolCall] = []
    while True:
        at = _after_space(text, at)
        found = tagged.read_tagged(text, at, tools) or xml_calls.read_xml_call(text, at, tools)
        if found is None and text.whole.startswith("<", at) and (wrapper := _WRAPPER.match(text.whole, at)):
            inner = xml_calls.read_xml_call(text, wrapper.end(), tools)
            found = inner or (Found(at, wrapper.end()) if calls and wrapper.end() > at else None)
        if found is None:
            return (calls, at) if calls else None
        calls += found.calls
        at = found.end


def _broken(text: Text, at: int, tools: KnownTools) -> Found | None:
    """JSON that was meant as a call and cannot be read."""
    begin = _after_space(text, at)
    found = objects.read_object(text, begin, tools) if text.whole.startswith(("{", "["), begin) else None
    return found if found and any(call.error for call in found.calls) else None


def _after_space(text: Text, at: int) -> int:
    match = _SPACE.match(text.whole, at)
    return match.end() if match else at


def _objects(text: Text, at: int, tools: KnownTools, *, sure: bool) -> tuple[list[ToolCall], int] | None:
    return objects.read_objects(text, at, text.end, tools, sure=sure)


def _statements(text: Text, at: int, tools: KnownTools, *, sure: bool) -> tuple[list[ToolCall], int] | None:
    begin = pythonic.skip(text, at, text.end)
    if text.whole.startswith("[", begin):
        read = pythonic.read_list(text, begin, text.end, tools)
    else:
        read = pythonic.read_calls(text, begin, text.end, tools)
    return read if read and (sure or _plausible(read[0], tools)) else None


def _plausible(calls: list[ToolCall], tools: KnownTools) -> bool:
    """Among calls without a mark every name must be known, or nearly."""
    return all(tools.find(call.name) or tools.near(call.name, call.arguments) for call in calls)


def _in_a_program(text: Text, line: int) -> bool:
    """Whether an indented line belongs to a loop or a definition above it."""
    return text.whole.startswith((" ", "\t"), line) and bool(_COMPOUND.search(text.whole, max(0, line - 400), line))


def _is_example(text: Text, at: int) -> bool:
    """Whether the words right before announce an example."""
    before = text.whole[max(0, at - 400) : at].rstrip(" \t\n`")
    return _EXAMPLE.search(before.rpartition("\n")[2]) is not None
