"""A text in which what was understood is struck out, so that no word is used twice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

STRUCK = "\0"
RESULT_OPENS, RESULT_CLOSES = "\ue000", "\ue001"
"""Stand around the result of an earlier step where it was put into a later one: quotes that nobody types."""

_QUOTED = re.compile(
    rf"{RESULT_OPENS}([^{RESULT_CLOSES}]*){RESULT_CLOSES}"
    r"|```(?:\w*\n)?(.*?)```|\"([^\"]+)\"|“([^”]+)”|「([^」]+)」|『([^』]+)』|《([^》]+)》|`([^`]+)`|‘([^’]+)’"
    r"|(?<![\w])'([^'\n]+)'(?!\w)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A value that was found in a text, and where."""

    value: Any
    start: int
    end: int


class Reading:
    """One step of a question while it is being understood."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.left = text
        """The text with what was taken struck out; positions stay the same."""

    @property
    def unquoted(self) -> str:
        """What is left, with quoted text struck out too: nobody looks for numbers in what shall be said as it is."""
        return _QUOTED.sub(lambda match: STRUCK * len(match.group()), self.left)

    @property
    def quotes(self) -> list[Found]:
        return quotes_in(self.left)

    def take(self, found: Found) -> Any:
        self.strike(found.start, found.end)
        return found.value

    def strike(self, start: int, end: int) -> None:
        self.left = self.left[:start] + STRUCK * (end - start) + self.left[end:]


def quotes_in(text: str) -> list[Found]:
    return [
        Found(next(group for group in match.groups() if group is not None), match.start(), match.end())
        for match in _QUOTED.finditer(text)
    ]
