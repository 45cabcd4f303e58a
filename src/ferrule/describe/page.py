"""A page of tools that must not grow longer than its budget."""

from __future__ import annotations

from ferrule.describe.tokens import estimate_tokens
from ferrule.describe.wording import Wording

SEPARATOR = "\n" + "=" * 80 + "\n"
_SEPARATOR_TOKENS = estimate_tokens(SEPARATOR)


class Page:
    """Tools in full, then others by one line each, then how many are left out."""

    def __init__(self, budget_tokens: int, words: Wording) -> None:
        self._words = words
        self._in_full: list[str] = []
        self._lines: list[str] = []
        # What stands at the end has its room from the beginning.
        self._left = budget_tokens - estimate_tokens(f"{words.other_tools}:\n{words.more}") - 2 * _SEPARATOR_TOKENS

    def add(self, text: str) -> None:
        """Put in a tool in full, whatever that costs."""
        self._in_full.append(text)
        self._left -= estimate_tokens(text) + _SEPARATOR_TOKENS

    def add_if_it_fits(self, text: str) -> bool:
        if estimate_tokens(text) + _SEPARATOR_TOKENS > self._left:
            return False
        self.add(text)
        return True

    def mention_if_it_fits(self, line: str) -> bool:
        cost = estimate_tokens(line + "\n")
        if cost > self._left:
            return False
        self._lines.append(line)
        self._left -= cost
        return True

    def text(self, of_tools: int) -> str:
        """The page, with a word about those of so many tools that are not on it."""
        left_out = of_tools - len(self._in_full) - len(self._lines)
        ends = []
        if self._lines:
            ends.append("\n".join([f"{self._words.other_tools}:", *self._lines]))
        if left_out:
            ends.append(self._words.more.format(count=left_out))
        return SEPARATOR.join([*self._in_full, *(["\n".join(ends)] if ends else [])])
