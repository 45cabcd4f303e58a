"""The text being parsed, its segments, and the prose between them.

Parsers try many places and often fail. The results of searches are cached, and failed attempts are limited in length
and number: however hostile a text is, parsing it takes time in proportion to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ferrule.core.messages import ToolCall
from ferrule.core.patterns import lazy_pattern

_MAX_EXCERPT = 4_000
_MAX_HEAD = 200
_MAX_EFFORT = 50_000
"""The limit for failed attempts. No real text reaches it; the rest of a text that does counts as prose."""
CallsAndEnd: TypeAlias = "tuple[list[ToolCall], int]"
"""The calls that were read, and where the last one ends."""
SPACE = lazy_pattern(r"\s*+")
_NON_SPACE = lazy_pattern(r"\S")
_WORD_ON_LINE = lazy_pattern(r"[ \t,;:]*+[^\W\d_]")
_PUNCTUATION = lazy_pattern(r"[.,;:!?)。，；：！？）、]")
END_OF_TURN = r"<\|(?:im_end|eot_id|eom_id|eo[mt]|end|end_?of_?text|return)\|>|<｜end▁of▁sentence｜>|</s>"
"""The tokens that end a reply, which some servers leave in the text."""


class SourceText:
    """A text with a cache of searches; parsers move through it from left to right."""

    __slots__ = ("_budget", "_line", "_searches", "calls_end", "effort", "end", "resume", "whole")

    def __init__(self, whole: str) -> None:
        self.whole = whole
        self.end = len(whole)
        self.effort = 0
        """The cost of the attempts so far."""
        self.resume = 0
        """Nothing before this position is tried again."""
        self.calls_end = 0
        """Where the last calls end: nothing before that is prose about the next ones."""
        self._line = (0, 0)
        self._budget = len(whole) // 2 + 10_000
        self._searches: dict[str | re.Pattern[str], tuple[int, int, int]] = {}

    def find(self, needle: str | re.Pattern[str], start: int) -> tuple[int, int]:
        """Return where `needle` next begins and ends; the end of the text, twice, if it does not occur."""
        searched_from, begin, end = self._searches.get(needle, (start + 1, 0, 0))
        if searched_from <= start <= begin:
            return begin, end
        if isinstance(needle, str):
            begin = self.whole.find(needle, start)
            begin, end = (begin, begin + len(needle)) if begin >= 0 else (self.end, self.end)
        else:
            match = needle.search(self.whole, start)
            begin, end = match.span() if match else (self.end, self.end)
        self._searches[needle] = (start, begin, end)
        return begin, end

    def record_failure(self, start: int, reached: int) -> None:
        """Count an attempt that began at `start` and failed at `reached`.

        Parsing continues directly after its start, since something valid may be inside, as long as the budget lasts.
        """
        self._budget -= reached - start
        if self._budget <= 0:
            self.resume = max(self.resume, reached)
        self.spend_effort(10 + (reached - start) // 16)

    def spend_effort(self, effort: int = 1) -> None:
        """Count an attempt; after too many of them the rest of the text is not parsed."""
        self.effort += effort
        if self.effort > _MAX_EFFORT:
            self.resume = self.end

    def skip_to(self, reached: int) -> None:
        """Parse nothing up to here any more, and no part of it either."""
        self.resume = max(self.resume, reached)

    def excerpt(self, start: int, end: int) -> str:
        """Return the source of a call, for an error; shortened to what a model can use."""
        return self.whole[start : min(end, start + _MAX_EXCERPT)]

    def is_blank(self, start: int, end: int) -> bool:
        return _NON_SPACE.search(self.whole, start, end) is None

    def skip(self, separators: re.Pattern[str], at: int, stop: int | None = None) -> int:
        """Return where the separators end that begin at `at`. The pattern must match the empty text."""
        match = separators.match(self.whole, at, self.end if stop is None else stop)
        return match.end() if match else at

    def is_prose_until_line_end(self, at: int) -> bool:
        """Return whether words follow on the same line."""
        return _WORD_ON_LINE.match(self.whole, at) is not None

    def is_sentence_continued(self, at: int) -> bool:
        """Return whether words follow on the same line, or punctuation follows directly."""
        return self.is_prose_until_line_end(at) or _PUNCTUATION.match(self.whole, at) is not None

    def line_start(self, at: int) -> int:
        searched_from, start = self._line
        if at < searched_from:
            searched_from, start = 0, 0
        start = self.whole.rfind("\n", searched_from, at) + 1 or start
        self._line = (at, start)
        return start

    def line_before(self, at: int) -> tuple[str, bool]:
        """Return the line up to `at`, or its end if it is long; and whether that is all of it."""
        start = self.line_start(at)
        return self.whole[max(start, at - _MAX_HEAD) : at], at - start <= _MAX_HEAD


@dataclass(frozen=True, slots=True)
class MarkedSegment:
    """A part of the text that is not prose, and the calls in it."""

    start: int
    end: int
    calls: tuple[ToolCall, ...] = ()
    is_tagged: bool = False
    """In a format that is used for calls only: if a text has such a segment, nothing else in it counts as a call."""
    kind: Literal["calls", "thought", "wrapper", "token", "code"] = "calls"
    """A wrapper is removed with the calls in it, a token always, and code stays in the text."""
    notation: str = ""
    """The kind of marker that calls began with."""


class ProseBuilder:
    """Joins the pieces of prose between calls. What it returned never changes, so it also works for a stream."""

    __slots__ = ("_after_gap", "_has_text", "_spaces")

    def __init__(self) -> None:
        self._spaces = ""
        self._has_text = False
        self._after_gap = True

    def add(self, piece: str) -> str:
        """Return the text to show after this piece. Spaces are held back until something follows them."""
        if self._after_gap:
            piece = piece.lstrip()
        stripped = piece.rstrip()
        if not stripped:
            self._spaces += piece
            return ""
        between = ("\n" if self._has_text else "") if self._after_gap else self._spaces
        self._spaces, self._has_text, self._after_gap = piece[len(stripped) :], True, False
        return between + stripped

    def add_gap(self) -> None:
        """Note that something was removed here: the spaces around it are removed too."""
        self._spaces, self._after_gap = "", True
