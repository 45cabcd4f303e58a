"""Values as models write them: JSON, Python literals and mixtures of both. They are parsed, never evaluated.

One lenient parser serves all formats. It accepts single, triple and typographic quotes, `True` and `None`, bare keys,
trailing commas, raw line breaks in strings, comments, tuples and sets (as lists), and `\\_` for an underscore. It does
not guess: an ambiguous text is a `LiteralError`.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ferrule.core.patterns import lazy_pattern
from ferrule.parsing.text import SourceText

MAX_DEPTH = 64

# No group is repeated possessively: Python before 3.11.5 does that wrong.
_SPACE = lazy_pattern(r"\s*+(?:(?:\#|//)[^\n]*+\s*+)*")
_WORD = lazy_pattern(r"[^\W\d][\w.]*+")
_KEY = lazy_pattern(r"[^\W\d](?:[\w.$-]|\\_)*")
_SIMPLE_KEY = lazy_pattern(r'"([^"\\]*+)"\s*+:')
_NUMBER = lazy_pattern(
    r"[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])",
)
_WORD_VALUES = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_KEY_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSING = {"“": "”", "‘": "’", '<|"|>': '<|"|>', "<escape>": "<escape>"}
_QUOTE = lazy_pattern(r"""(?P<raw>[rR])?(?P<quote>\"{3}|'{3}|["'])|[uU](?=["'])|(?P<paired>[“‘]|<\|"\|>|<escape>)""")
_ESCAPED_BODIES = {
    **{c: lazy_pattern(rf"([^{c}\\]*+(?:\\.[^{c}\\]*+)*){c}", re.DOTALL) for c in "\"'”’"},
    **{c * 3: lazy_pattern(rf"([^{c}\\]*+(?:(?:\\.|{c}(?!{c}{c}))[^{c}\\]*+)*){c * 3}", re.DOTALL) for c in "\"'"},
}
_ESCAPE = lazy_pattern(
    r"\\(?:(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(0010[0-9a-fA-F]{4}|000[0-9a-fA-F]{5})|(0)(?![0-9]))|(?P<char>.))",
    re.DOTALL,
)
_ESCAPES: dict[str, str] = dict(zip("ntrbfav\n\"'\\/_“”‘’", [*"\n\t\r\b\f\a\v", "", *"\"'\\/_“”‘’"], strict=True))


class LiteralError(ValueError):
    """The text is not a literal; raised only inside this package and by `parse_literal`."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at


class LiteralReader:
    """Parses values in a text, up to `stop`."""

    __slots__ = ("stop", "text", "unclosed", "whole")

    def __init__(self, text: SourceText, stop: int | None = None) -> None:
        self.text = text
        self.whole = text.whole
        self.stop = text.end if stop is None else stop
        self.unclosed: list[Any] = []
        """Objects and lists whose closing bracket is missing at the end of the text."""

    def skip_space(self, at: int) -> int:
        return self.text.skip(_SPACE, at, self.stop)

    def read_value(self, at: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value that starts at `at`, and where it ends."""
        at = self.skip_space(at)
        if at >= self.stop:
            raise LiteralError("the text ends where a value should be", at)
        if depth > MAX_DEPTH:
            self.text.skip_to(at)
            raise LiteralError(f"it is nested deeper than {MAX_DEPTH} levels", at)
        char = self.whole[at]
        if char == "{":
            return self._read_braces(at, depth)
        if char in "[(":
            return self._read_list(at, depth)
        if _QUOTE.match(self.whole, at):
            return self.read_string(at) if depth else self._read_strings(at)
        if number := _NUMBER.match(self.whole, at, self.stop):
            return _parse_number(number.group(), at), number.end()
        return self._read_word(at)

    def _read_word(self, at: int) -> tuple[Any, int]:
        match = _WORD.match(self.whole, at, self.stop)
        word = match.group() if match else ""
        if match and self.whole.startswith("(", match.end()):
            raise LiteralError(f"{word}(…) is a call inside a call", at)
        if word not in _WORD_VALUES:
            excerpt = word or self.whole[at : at + 12]
            raise LiteralError(f"{excerpt!r} is not a value; text needs quotes", at)
        return _WORD_VALUES[word], at + len(word)

    def _read_strings(self, at: int) -> tuple[str, int]:
        """Read a string and those that follow it directly, which Python concatenates."""
        string, end = self.read_string(at)
        parts = [string]
        while _QUOTE.match(self.whole, after := self.skip_space(end), self.stop) and after < self.stop:
            string, end = self.read_string(after)
            parts.append(string)
        return "".join(parts), end

    def read_string(self, at: int) -> tuple[str, int]:
        match = _QUOTE.match(self.whole, at)
        if match is None:
            raise LiteralError("a text needs quotes", at)
        if match.group("quote") is None and match.group("paired") is None:  # u"…"
            return self.read_string(match.end())
        opened = match.group("quote") or match.group("paired")
        closing = _CLOSING.get(opened, opened)
        at = match.end()
        begin, end = self.text.find(closing, at)
        if end > self.stop or begin == end:
            raise LiteralError("a text is not closed", self.stop)
        if match.group("raw") or closing not in _ESCAPED_BODIES:
            return self.whole[at:begin], end
        body = _ESCAPED_BODIES[closing].match(self.whole, at, self.stop)
        if body is None:
            raise LiteralError("a text is not closed", self.stop)
        string = _ESCAPE.sub(_read_escape, body[1])
        if not string.isascii() and any("\ud800" <= char <= "\udfff" for char in string):
            # Pairs are joined; single ones, which JSON cannot contain, are replaced.
            string = string.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return string, body.end()

    def _read_list(self, at: int, depth: int) -> tuple[Any, int]:
        closing = "]" if self.whole[at] == "[" else ")"
        items: list[Any] = []
        tuple_like = closing == "]"
        at += 1
        while True:
            at = self.skip_space(at)
            if self.whole.startswith(closing, at) and at < self.stop:
                return (items if tuple_like or len(items) != 1 else items[0]), at + 1
            item, at = self.read_value(at, depth + 1)
            items.append(item)
            at, more = self._read_separator(at, closing)
            if more is None:
                self.unclosed.append(items)
                return items, at
            tuple_like = tuple_like or more

    def _read_braces(self, at: int, depth: int) -> tuple[Any, int]:
        mapping: dict[str, Any] = {}
        members: list[Any] = []
        at += 1
        while True:
            at = self.skip_space(at)
            if self.whole.startswith("}", at) and at < self.stop:
                return (members or mapping), at + 1
            if simple := _SIMPLE_KEY.match(self.whole, at, self.stop):
                key, at, named = simple.group(1), simple.end(), True
            else:
                key, at, named = self._read_key(at, depth)
            if named and not members:
                value, at = self.read_value(at, depth + 1)
                if mapping.setdefault(key, value) != value:
                    raise LiteralError(f"{key!r} is given twice", at)
            elif not named and not mapping:
                members.append(key)
            else:
                raise LiteralError("an object has a member without a name", at)
            at, more = self._read_separator(at, "}")
            if more is None:
                self.unclosed.append(members or mapping)
                return (members or mapping), at

    def _read_key(self, at: int, depth: int) -> tuple[Any, int, bool]:
        """Return a member's name and where its value begins; or a value, if the braces contain a Python set."""
        bare = _KEY.match(self.whole, at, self.stop)
        if bare and self.whole.startswith((":", " :"), bare.end()):
            key: Any = bare.group().replace("\\_", "_")
            at = bare.end()
        else:
            key, at = self.read_value(at, depth + 1)
        at = self.skip_space(at)
        if at < self.stop and self.whole[at] in ":：":
            if isinstance(key, (dict, list)):
                raise LiteralError("a name must be text", at)
            return key if isinstance(key, str) else _KEY_WORDS.get(str(key), str(key)), at + 1, True
        return key, at, False

    def _read_separator(self, at: int, closing: str) -> tuple[int, bool | None]:
        """Return whether a comma follows a member; None if the text ends here."""
        at = self.skip_space(at)
        if at >= self.stop:
            return at, None
        char = self.whole[at]
        if char in ",，;":
            return at + 1, True
        if char == closing:
            return at, False
        raise LiteralError(f"{self.whole[at : at + 12]!r} is where {closing!r} or a comma should be", at)


def _parse_number(digits_text: str, at: int) -> int | float:
    digits = digits_text.replace("_", "")
    try:
        if "x" in digits or "X" in digits:
            return int(digits, 16)
        value = float(digits) if re.search(r"[.eE]", digits) else int(digits)
    except ValueError:
        raise LiteralError("a number has too many digits", at) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise LiteralError(f"{digits_text} is not a finite number", at)
    return value


def _read_escape(escape: re.Match[str]) -> str:
    if char := escape["char"]:
        return _ESCAPES.get(char, f"\\{char}")
    return chr(int(next(filter(None, escape.groups())), 16))


def parse_literal(string: str) -> Any:
    """Return the value that a text consists of. Raises `LiteralError` if the text contains more or less."""
    reader = LiteralReader(SourceText(string))
    value, at = reader.read_value(0)
    at = reader.skip_space(at)
    if at < reader.stop or reader.unclosed:
        raise LiteralError("there is more than one value" if at < reader.stop else "a bracket is not closed", at)
    return value
