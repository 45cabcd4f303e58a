"""Values as models write them: JSON, Python literals and what lies between. Read, never evaluated.

One lenient reader serves all formats. It takes single, triple and typographic quotes, `True` and `None`, bare keys,
trailing commas, raw line breaks in strings, comments, tuples and sets (as lists), and `\\_` for an underscore. It does
not guess: what could be read in two ways is `Unreadable`.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ferrule.parsing.text import Text

MAX_DEPTH = 64

# No group is repeated possessively: Python before 3.11.5 does that wrong.
SPACE = re.compile(r"\s*+(?:(?:\#|//)[^\n]*+\s*+)*")
_WORD = re.compile(r"[^\W\d][\w.]*+")
_KEY = re.compile(r"[^\W\d][\w.$-]*+")
_SIMPLE_KEY = re.compile(r'"([^"\\]*+)"\s*+:')
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])",
)
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_CLOSING = {"“": "”", "‘": "’", '<|"|>': '<|"|>', "<escape>": "<escape>"}
_QUOTE = re.compile(r"""(?P<raw>[rR])?(?P<quote>\"{3}|'{3}|["'])|[uU](?=["'])|(?P<paired>[“‘]|<\|"\|>|<escape>)""")
_UNTIL = {
    '"': re.compile(r'[^"\\]*+'),
    "'": re.compile(r"[^'\\]*+"),
    '"""': re.compile(r'[^"\\]*+(?:"(?!"")[^"\\]*+)*'),
    "'''": re.compile(r"[^'\\]*+(?:'(?!'')[^'\\]*+)*"),
    "”": re.compile(r"[^”\\]*+"),
    "’": re.compile(r"[^’\\]*+"),
}
_ESCAPES = {
    **dict(zip("ntrbfav", "\n\t\r\b\f\a\v", strict=True)),
    **{c: c for c in "\"'\\/_“”‘’"},
    "\n": "",
}
_CODE = re.compile(r"u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(0010[0-9a-fA-F]{4}|000[0-9a-fA-F]{5})|(0)(?![0-9])")


class Unreadable(ValueError):
    """No literal, and where that showed. Never leaves this room."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at


class Literals:
    """Reads values out of a text; nothing behind `stop` belongs to them."""

    __slots__ = ("forced", "stop", "text", "whole")

    def __init__(self, text: Text, stop: int | None = None) -> None:
        self.text = text
        self.whole = text.whole
        self.stop = text.end if stop is None else stop
        self.forced: list[Any] = []
        """Objects and lists whose closing bracket was missing at the very end."""

    def space(self, at: int) -> int:
        match = SPACE.match(self.whole, at, self.stop)
        return match.end() if match else at

    def value(self, at: int, depth: int = 0) -> tuple[Any, int]:
        """The value that begins at `at`, and where it ends."""
        at = self.space(at)
        if at >= self.stop:
            raise Unreadable("the text ends where a value should be", at)
        if depth > MAX_DEPTH:
            self.text.give_up(at)
            raise Unreadable(f"it is nested deeper than {MAX_DEPTH} levels", at)
        char = self.whole[at]
        if char == "{":
            return self._braces(at, depth)
        if char in "[(":
            return self._list(at, depth)
        if _QUOTE.match(self.whole, at):
            return self.string(at) if depth else self._strings(at)
        if number := _NUMBER.match(self.whole, at, self.stop):
            return _number(number.group(), at), number.end()
        return self._word(at)

    def _word(self, at: int) -> tuple[Any, int]:
        match = _WORD.match(self.whole, at, self.stop)
        word = match.group() if match else ""
        if match and self.whole.startswith("(", match.end()):
            raise Unreadable(f"{word}(…) is a call inside a call", at)
        if word not in _WORDS:
            shown = word or self.whole[at : at + 12]
            raise Unreadable(f"{shown!r} is not a value; text needs quotes", at)
        return _WORDS[word], at + len(word)

    def _strings(self, at: int) -> tuple[str, int]:
        """A string, with those that follow it directly, as Python allows between arguments."""
        said, end = self.string(at)
        parts = [said]
        while _QUOTE.match(self.whole, after := self.space(end), self.stop) and after < self.stop:
            said, end = self.string(after)
            parts.append(said)
        return "".join(parts), end

    def string(self, at: int) -> tuple[str, int]:
        match = _QUOTE.match(self.whole, at)
        if match is None:
            raise Unreadable("a text needs quotes", at)
        if match.group("quote") is None and match.group("paired") is None:  # u"…"
            return self.string(match.end())
        opened = match.group("quote") or match.group("paired")
        closing = _CLOSING.get(opened, opened)
        if match.group("raw") or closing not in _UNTIL:
            return self._verbatim(match.end(), closing)
        return self._escaped(match.end(), closing)

    def _verbatim(self, at: int, closing: str) -> tuple[str, int]:
        begin, end = self.text.find(closing, at)
        if end > self.stop or begin == end:
            raise Unreadable("a text is not closed", self.stop)
        return self.whole[at:begin], end

    def _escaped(self, at: int, closing: str) -> tuple[str, int]:
        begin, end = self.text.find(closing, at)
        if end > self.stop or begin == end:
            raise Unreadable("a text is not closed", self.stop)
        until, parts = _UNTIL[closing], []
        while True:
            match = until.match(self.whole, at, self.stop)
            assert match is not None
            parts.append(match.group())
            at = match.end()
            if self.whole.startswith(closing, at) and at + len(closing) <= self.stop:
                return _sound("".join(parts)), at + len(closing)
            if at + 1 >= self.stop:
                raise Unreadable("a text is not closed", self.stop)
            meant, at = self._escape(at + 1)
            parts.append(meant)

    def _escape(self, at: int) -> tuple[str, int]:
        char = self.whole[at]
        if char in _ESCAPES:
            return _ESCAPES[char], at + 1
        if code := _CODE.match(self.whole, at, self.stop):
            return chr(int(next(filter(None, code.groups())), 16)), code.end()
        return "\\" + char, at + 1

    def _list(self, at: int, depth: int) -> tuple[Any, int]:
        closing = "]" if self.whole[at] == "[" else ")"
        items: list[Any] = []
        tuple_like = closing == "]"
        at += 1
        while True:
            at = self.space(at)
            if self.whole.startswith(closing, at) and at < self.stop:
                return (items if tuple_like or len(items) != 1 else items[0]), at + 1
            item, at = self.value(at, depth + 1)
            items.append(item)
            at, more = self._separator(at, closing)
            if more is None:
                self.forced.append(items)
                return items, at
            tuple_like = tuple_like or more

    def _braces(self, at: int, depth: int) -> tuple[Any, int]:
        made: dict[str, Any] = {}
        members: list[Any] = []
        at += 1
        while True:
            at = self.space(at)
            if self.whole.startswith("}", at) and at < self.stop:
                return (members or made), at + 1
            if simple := _SIMPLE_KEY.match(self.whole, at, self.stop):
                key, at, named = simple.group(1), simple.end(), True
            else:
                key, at, named = self._key(at, depth)
            if named and not members:
                made[key], at = self.value(at, depth + 1)
            elif not named and not made:
                members.append(key)
            else:
                raise Unreadable("an object has a member without a name", at)
            at, more = self._separator(at, "}")
            if more is None:
                self.forced.append(members or made)
                return (members or made), at

    def _key(self, at: int, depth: int) -> tuple[Any, int, bool]:
        """A member's name and where its value begins; or a value, where the braces hold a Python set."""
        bare = _KEY.match(self.whole, at, self.stop)
        if bare and self.whole.startswith((":", " :"), bare.end()):
            key: Any = bare.group().replace("\\_", "_")
            at = bare.end()
        else:
            key, at = self.value(at, depth + 1)
        at = self.space(at)
        if at < self.stop and self.whole[at] in ":：":
            if isinstance(key, (dict, list)):
                raise Unreadable("a name must be text", at)
            return key if isinstance(key, str) else _as_key(key), at + 1, True
        return key, at, False

    def _separator(self, at: int, closing: str) -> tuple[int, bool | None]:
        """Behind a member: whether a comma follows; None where the text simply ends."""
        at = self.space(at)
        if at >= self.stop:
            return at, None
        char = self.whole[at]
        if char in ",，;":
            return at + 1, True
        if char == closing:
            return at, False
        raise Unreadable(f"{self.whole[at : at + 12]!r} stands where {closing!r} or a comma should be", at)


def _number(written: str, at: int) -> int | float:
    digits = written.replace("_", "")
    try:
        if "x" in digits or "X" in digits:
            return int(digits, 16)
        value = float(digits) if re.search(r"[.eE]", digits) else int(digits)
    except ValueError:
        raise Unreadable("a number has too many digits", at) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable(f"{written} is no finite number", at)
    return value


def _as_key(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if not _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _sound(said: str) -> str:
    """Pairs of surrogates become the character they stand for; a lone one, which no JSON can carry, a mark."""
    if said.isascii() or not any("\ud800" <= c <= "\udfff" for c in said):
        return said
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_whole(said: str) -> Any:
    """The value a text consists of; `Unreadable` if there is more or less in it."""
    reader = Literals(Text(said))
    value, at = reader.value(0)
    at = reader.space(at)
    if at < reader.stop or reader.forced:
        raise Unreadable("there is more than one value" if at < reader.stop else "a bracket is not closed", at)
    return value
