"""Calls written as Python: `get_weather(city="Paris")`, alone, in lists, or as the statements of a block."""

from __future__ import annotations

import re
from typing import Any

from ferrule.messages import ToolCall
from ferrule.parsing.known import Known, KnownTools, refused
from ferrule.parsing.literals import Literals, Unreadable
from ferrule.parsing.text import Text
from ferrule.parsing.values import unwrapped

NAME = r"[^\W\d][\w./\\-]*+"
_CALLEE = re.compile(rf"(?P<name>{NAME})[ \t]*\(")
_HEAD = re.compile(
    rf"(?:[^\W\d]\w*+[ \t]*=(?!=)[ \t]*)?(?:await[ \t]+)?(?P<printed>print[ \t]*\([ \t]*(?={NAME}\())?(?:await[ \t]+)?"
)
_KEYWORD = re.compile(r"(?P<quote>[\"']?)(?P<name>[^\W\d]\w*+(?:\\_\w*+)*)(?P=quote)[ \t]*[=:](?!=)")
_BETWEEN = re.compile(r"[\s;,|&]*+(?:(?:\#[^\n]*+|\band\b)[\s;,|&]*+)*")
_BRACKET = re.compile(r"\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*\"|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*'|[()\[\]{}]")

_FAR = 20_000
"""Broken calls longer than this are not looked at closely."""


def read_list(text: Text, at: int, stop: int, tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    """Calls in a Python list, and where it ends."""
    read = read_calls(text, at + 1, stop, tools)
    if read is None:
        return None
    calls, end = read
    end = skip(text, end, stop)
    if text.whole.startswith("]", end) and end < stop:
        return calls, end + 1
    text.failed(at, end)
    return None


def read_calls(text: Text, at: int, stop: int, tools: KnownTools) -> tuple[list[ToolCall], int] | None:
    """Calls one after the other, as statements or as members of a list, and where the last one ends."""
    calls: list[ToolCall] = []
    end = at
    while (read := read_statement(text, skip(text, end, stop), stop, tools)) is not None:
        call, end = read
        calls.append(call)
    return (calls, end) if calls else None


def read_statement(text: Text, at: int, stop: int, tools: KnownTools) -> tuple[ToolCall, int] | None:
    """One call, perhaps awaited, printed or given a name, and where it ends."""
    head = _HEAD.match(text.whole, at, stop)
    begin = head.end() if head else at
    callee = _CALLEE.match(text.whole, begin, stop)
    if callee is None:
        return None
    call, end = read_call(text, callee, stop, tools)
    if head and head.group("printed"):
        end = _spaces(text, end)
        if not text.whole.startswith(")", end):
            return None
        end += 1
    return call, end


def read_call(text: Text, callee: re.Match[str], stop: int, tools: KnownTools) -> tuple[ToolCall, int]:
    name, at = callee.group("name"), callee.end()
    tool = tools.find(name)
    try:
        arguments, end = _Arguments(text, stop, tool).read(at)
    except Unreadable as failure:
        text.failed(at, failure.at)
        end = _closing(text, at, stop)
        raw = text.quote(callee.start(), end)
        return (refused(tool, _explain(failure), raw) if tool else tools.missing(name, raw)), end
    if tool is None:
        return tools.missing(name, text.quote(callee.start(), end), arguments), end
    return ToolCall(name=tool.name, arguments=arguments), end


class _Arguments:
    """Reads what stands between the parentheses of a call."""

    def __init__(self, text: Text, stop: int, tool: Known | None) -> None:
        self._text, self._stop = text, stop
        self._order = list(tool.properties) if tool else []
        self._tool = tool
        self._literals = Literals(text, stop)

    def read(self, at: int) -> tuple[dict[str, Any], int]:
        named: dict[str, Any] = {}
        unnamed: list[Any] = []
        whole, literals = self._text.whole, self._literals
        while True:
            at = literals.space(at)
            if whole.startswith(")", at) and at < self._stop:
                return self._combine(unnamed, named), at + 1
            at = self._one(at, unnamed, named)
            if literals.forced:
                raise Unreadable("a bracket is not closed", at)
            at = literals.space(at)
            if whole.startswith((",", ";", "，"), at) and at < self._stop:
                at += 1
            elif not whole.startswith(")", at) and not _KEYWORD.match(whole, at, self._stop):
                raise Unreadable(
                    "they are not closed" if at >= self._stop else f"{whole[at : at + 12]!r} is in the way", at
                )

    def _one(self, at: int, unnamed: list[Any], named: dict[str, Any]) -> int:
        whole = self._text.whole
        if whole.startswith("**", at):
            value, end = self._literals.value(at + 2)
            if not isinstance(value, dict):
                raise Unreadable("** needs an object", at)
            named.update(value)
            return end
        keyword = _KEYWORD.match(whole, at, self._stop)
        if keyword is None:
            value, end = self._literals.value(at)
            unnamed.append(value)
            return end
        name = keyword.group("name").replace("\\", "")
        if name in named:
            raise Unreadable(f"{name!r} is given twice", at)
        named[name], end = self._value(keyword.end())
        return end

    def _value(self, at: int) -> tuple[Any, int]:
        """A value; or, where a text holds its own quotes unescaped, the only way to read it."""
        at = self._literals.space(at)
        try:
            value, end = self._literals.value(at)
            after = self._literals.space(end)
            if (
                after >= self._stop
                or not isinstance(value, str)
                or self._text.whole.startswith((",", ")", ";", "，"), after)
            ):
                return value, end
            failure = Unreadable("a text is followed by something else", after)
        except Unreadable as error:
            failure = error
        quote = self._text.whole[at : at + 1]
        closed = self._last_quote(at, quote) if quote in ("'", '"') else None
        if closed is None:
            if failure.reason.startswith("a text is followed") and _KEYWORD.match(self._text.whole, failure.at):
                return value, end
            raise failure
        return self._text.whole[at + 1 : closed], closed + 1

    def _last_quote(self, at: int, quote: str) -> int | None:
        """The quote before the closing parenthesis at the very end, if no other one could close the text."""
        if self._stop - at > _FAR:
            return None
        self._text.spend((self._stop - at) // 64)
        body = self._text.whole[at + 1 : self._stop].rstrip().removesuffix("]").rstrip()
        if not body.endswith(")") or not body[:-1].rstrip().endswith(quote):
            return None
        said = body[:-1].rstrip()[:-1]
        if re.search(rf"{quote}\s*(?:,\s*[^\W\d]\w*\s*=|\)\s*[,;\n]\s*[^\W\d][\w.]*\()", said):
            return None
        return at + 1 + len(said)

    def _combine(self, unnamed: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        if self._tool is None:
            return named
        if len(unnamed) == 1 and not named and isinstance(unnamed[0], dict) and self._is_all(unnamed[0]):
            return unnamed[0]
        if len(unnamed) > len(self._order):
            raise Unreadable(f"{len(unnamed)} were given without a name, but there are {len(self._order)}", self._stop)
        arguments = dict(zip(self._order, unnamed, strict=False))
        if twice := arguments.keys() & named.keys():
            raise Unreadable(f"{min(twice)!r} is given twice", self._stop)
        return unwrapped({**arguments, **named}, self._tool)

    def _is_all(self, value: dict[str, Any]) -> bool:
        """Whether a single object holds the arguments by name, and is not itself the first one."""
        first = self._tool.properties.get(self._order[0], {}) if self._tool and self._order else {}
        return bool(value) and set(value) <= set(self._order) and first.get("type") != "object"


def _explain(failure: Unreadable) -> str:
    if "call inside a call" in failure.reason:
        return f"{failure.reason}. Make that call first and give its result as a plain value"
    return failure.reason


def _closing(text: Text, at: int, stop: int) -> int:
    """Where a call that cannot be read ends: at its closing parenthesis, or with its line."""
    depth = 1
    far = min(stop, at + _FAR // 4)
    text.spend((far - at) // 64)
    for bracket in _BRACKET.finditer(text.whole, at, far):
        char = bracket.group()
        depth += 1 if char in ("(", "[", "{") else -1 if char in (")", "]", "}") else 0
        if depth == 0:
            return bracket.end()
    return min(text.find("\n", at)[0], stop)


def skip(text: Text, at: int, stop: int) -> int:
    """Over what models put between calls."""
    match = _BETWEEN.match(text.whole, at, stop)
    return match.end() if match else at


def _spaces(text: Text, at: int) -> int:
    while text.whole.startswith((" ", "\t"), at):
        at += 1
    return at
