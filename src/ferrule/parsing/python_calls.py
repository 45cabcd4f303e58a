"""Calls written as Python: `get_weather(city="Paris")`, alone, in lists, or as the statements of a block."""

from __future__ import annotations

import re
from typing import Any

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.known_tools import CallableTool, KnownTools, unwrap_arguments
from ferrule.parsing.literals import LiteralError, LiteralReader
from ferrule.parsing.text import CallsAndEnd, SourceText

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
_ITEM_QUOTES = frozenset("'\"`")

_MAX_BROKEN_CALL = 20_000
"""Invalid calls that are longer are not analyzed."""


def read_list(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read calls in a Python list, each plain, quoted or in backticks, and return where the list ends."""
    calls: list[ToolCall] = []
    end = at + 1
    while (read := _read_item(text, text.skip(BETWEEN_CALLS, end, stop), stop, tools)) is not None:
        call, end = read
        calls.append(call)
    end = text.skip(BETWEEN_CALLS, end, stop)
    closed = _LIST_END.match(text.whole, end, stop)
    if calls and closed:
        return calls, closed.end()
    text.record_failure(at, end)
    return None


def _read_item(text: SourceText, at: int, stop: int, tools: KnownTools) -> tuple[ToolCall, int] | None:
    quote = text.whole[at : at + 1] if text.whole[at : at + 1] in _ITEM_QUOTES else ""
    read = read_statement(text, at + len(quote), stop, tools)
    if read is None or not text.whole.startswith(quote, read[1]):
        return None
    return read[0], read[1] + len(quote)


def read_calls(text: SourceText, at: int, stop: int, tools: KnownTools) -> CallsAndEnd | None:
    """Read successive calls, as statements or as items of a list, and return where the last one ends."""
    calls: list[ToolCall] = []
    end = at
    while (read := read_statement(text, text.skip(BETWEEN_CALLS, end, stop), stop, tools)) is not None:
        call, end = read
        calls.append(call)
    return (calls, end) if calls else None


def read_statement(text: SourceText, at: int, stop: int, tools: KnownTools) -> tuple[ToolCall, int] | None:
    """Read one call, perhaps awaited, printed or assigned to a name, and return where it ends."""
    head = _HEAD.match(text.whole, at, stop)
    begin = head.end() if head else at
    callee = _CALLEE.match(text.whole, begin, stop)
    if callee is None:
        return None
    call, end = read_call(text, callee, stop, tools)
    if head and head.group("printed"):
        end = text.skip(_BLANKS, end)
        if not text.whole.startswith(")", end):
            return None
        end += 1
    return call, end


def read_call(text: SourceText, callee: re.Match[str], stop: int, tools: KnownTools) -> tuple[ToolCall, int]:
    name, at = callee.group("name"), callee.end()
    tool = tools.find(name)
    try:
        arguments, end = _ArgumentParser(text, stop, tool).read(at)
    except LiteralError as failure:
        text.record_failure(at, failure.at)
        end = _find_call_end(text, at, stop)
        reason = failure.reason
        if "call inside a call" in reason:
            reason += ". Make that call first and pass its result as a plain value"
        return tools.invalid_call(name, reason, text.excerpt(callee.start(), end)), end
    if tool is None:
        return tools.unknown_tool_call(name, text.excerpt(callee.start(), end), arguments), end
    return ToolCall(name=tool.name, arguments=arguments), end


class _ArgumentParser:
    """Parses the text between the parentheses of a call."""

    def __init__(self, text: SourceText, stop: int, tool: CallableTool | None) -> None:
        self._text, self._stop = text, stop
        self._order = list(tool.properties) if tool else []
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
            at = self._read_argument(at, unnamed, named)
            if literals.unclosed:
                raise LiteralError("a bracket is not closed", at)
            at = literals.skip_space(at)
            if whole.startswith((",", ";", "，"), at) and at < self._stop:
                at += 1
            elif not whole.startswith(")", at) and not _KEYWORD.match(whole, at, self._stop):
                raise LiteralError(
                    "they are not closed" if at >= self._stop else f"{whole[at : at + 12]!r} is not an argument", at
                )

    def _read_argument(self, at: int, unnamed: list[Any], named: dict[str, Any]) -> int:
        keyword = _KEYWORD.match(self._text.whole, at, self._stop)
        if keyword is None:
            value, end = self._literals.read_value(at)
            unnamed.append(value)
            return end
        name = keyword.group("name").replace("\\", "")
        if name in named:
            raise LiteralError(f"{name!r} is given twice", at)
        named[name], end = self._read_value(keyword.end())
        return end

    def _read_value(self, at: int) -> tuple[Any, int]:
        """Read a value; for a string that contains its own quotes unescaped, the only possible reading."""
        at = self._literals.skip_space(at)
        try:
            value, end = self._literals.read_value(at)
            after = self._literals.skip_space(end)
            if (
                after >= self._stop
                or not isinstance(value, str)
                or self._text.whole.startswith((",", ")", ";", "，"), after)
            ):
                return value, end
            failure = LiteralError("a text is followed by something else", after)
        except LiteralError as error:
            failure = error
        quote = self._text.whole[at : at + 1]
        closed = self._find_last_quote(at, quote) if quote in ("'", '"') else None
        if closed is None:
            if failure.reason.startswith("a text is followed") and _KEYWORD.match(self._text.whole, failure.at):
                return value, end
            raise failure
        return self._text.whole[at + 1 : closed], closed + 1

    def _find_last_quote(self, at: int, quote: str) -> int | None:
        """Find the quote before the last parenthesis of the text, if no other quote could close the string."""
        if self._stop - at > _MAX_BROKEN_CALL:
            return None
        self._text.spend_effort((self._stop - at) // 64)
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
        if (
            len(unnamed) == 1
            and not named
            and isinstance(unnamed[0], dict)
            and self._contains_all_arguments(unnamed[0])
        ):
            return unnamed[0]
        if len(unnamed) > len(self._order):
            raise LiteralError(f"{len(unnamed)} have no name, but the tool has {len(self._order)}", self._stop)
        arguments = dict(zip(self._order, unnamed, strict=False))
        if twice := arguments.keys() & named.keys():
            raise LiteralError(f"{min(twice)!r} is given twice", self._stop)
        return unwrap_arguments({**arguments, **named}, self._tool)

    def _contains_all_arguments(self, value: dict[str, Any]) -> bool:
        """Return whether a single object contains the arguments by name, and is not itself the first argument."""
        first = self._tool.properties.get(self._order[0], {}) if self._tool and self._order else {}
        return bool(value) and set(value) <= set(self._order) and first.get("type") != "object"


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
