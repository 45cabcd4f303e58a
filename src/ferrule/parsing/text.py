"""The text being read, with a memory of what was looked for in it.

Readers try many places and often fail. What they looked for in vain is remembered, and failed tries are limited in
length and number: however hostile a text is, reading it takes time in proportion to its length.
"""

from __future__ import annotations

import re

_LONGEST_QUOTE = 4_000
_LONGEST_HEAD = 200
_MOST_EFFORT = 50_000
"""No model's answer looks so often like a call without being one; the rest of such a text is taken for prose."""
_INK = re.compile(r"\S")


class Text:
    """A text and what is known about it; readers move through it from left to right."""

    __slots__ = ("_found", "_line", "_patience", "effort", "end", "resume", "whole")

    def __init__(self, whole: str) -> None:
        self.whole = whole
        self.end = len(whole)
        self.effort = 0
        """How much was tried so far."""
        self.resume = 0
        """Nothing before this place is tried again."""
        self._line = (0, 0)
        self._patience = len(whole) // 2 + 10_000
        self._found: dict[str | re.Pattern[str], tuple[int, int, int]] = {}

    def find(self, needle: str | re.Pattern[str], start: int) -> tuple[int, int]:
        """Where `needle` next begins and ends; the end of the text, twice, where it does not occur."""
        asked, begin, end = self._found.get(needle, (start + 1, 0, 0))
        if asked <= start <= begin:
            return begin, end
        if isinstance(needle, str):
            begin = self.whole.find(needle, start)
            begin, end = (begin, begin + len(needle)) if begin >= 0 else (self.end, self.end)
        else:
            match = needle.search(self.whole, start)
            begin, end = match.span() if match else (self.end, self.end)
        self._found[needle] = (start, begin, end)
        return begin, end

    def failed(self, start: int, reached: int) -> None:
        """A try that began at `start` failed at `reached`.

        Reading goes on right behind its start, since something readable may lie inside, as long as that is affordable.
        """
        self._patience -= reached - start
        if self._patience <= 0:
            self.resume = max(self.resume, reached)
        self.spend(10 + (reached - start) // 16)

    def spend(self, effort: int = 1) -> None:
        """Somebody looked at a place; after too many of them the rest is not looked at."""
        self.effort += effort
        if self.effort > _MOST_EFFORT:
            self.resume = self.end

    def give_up(self, reached: int) -> None:
        """What was read up to here is hopeless, and so is every part of it."""
        self.resume = max(self.resume, reached)

    def quote(self, start: int, end: int) -> str:
        """What was written, for an error; not more than a model can use."""
        return self.whole[start : min(end, start + _LONGEST_QUOTE)]

    def blank(self, start: int, end: int) -> bool:
        return _INK.search(self.whole, start, end) is None

    def line_start(self, at: int) -> int:
        asked, start = self._line
        if at < asked:
            asked, start = 0, 0
        start = self.whole.rfind("\n", asked, at) + 1 or start
        self._line = (at, start)
        return start

    def before(self, at: int) -> tuple[str, bool]:
        """The line up to `at`, or its end where it is long; and whether that is all of it."""
        start = self.line_start(at)
        return self.whole[max(start, at - _LONGEST_HEAD) : at], at - start <= _LONGEST_HEAD
