"""Patterns of paths: `*.py`, `docs/*.md`, `src/**/test_*.py`, `*.{yaml,yml}`."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Final

from ferrule.errors import Retry
from ferrule.tools.files.workspace import Parts

_LONGEST: Final = 300
_MOST_CHOICES: Final = 32
_CHOICE: Final = re.compile(r"\{([^{}]*)\}")


def matcher(pattern: str) -> Callable[[Parts], bool]:
    """Whether a path matches. A pattern without a slash is about names, in whichever folder they stand."""
    if len(pattern) > _LONGEST:
        raise Retry(f"A pattern of {len(pattern)} characters is too long: write one such as src/**/*.py.")
    choices = [_Choice(each) for each in _choices(pattern)]
    return lambda parts: any(choice.matches(parts) for choice in choices)


def reaches_deeper(pattern: str) -> bool:
    """Whether a pattern is about more than the names in one folder."""
    return "/" in pattern.strip("/") or "**" in pattern


class _Choice:
    def __init__(self, pattern: str) -> None:
        names = [name for name in pattern.removeprefix("./").split("/") if name]
        names = names if len(names) > 1 or pattern.startswith("/") else ["**", *names]
        # Part by part: each is matched in linear time, whatever stars it has.
        self._names = [None if name == "**" else re.compile(translate(name)) for name in names]

    def matches(self, parts: Parts) -> bool:
        """Which of the first names have been matched by the parts so far, for each part anew."""
        reached = self._without_more({0})
        for part in parts:
            further = set()
            for at in reached:
                name = self._names[at] if at < len(self._names) else ...
                if name is None:
                    further.add(at)
                elif name is not ... and name.match(part):
                    further.add(at + 1)
            reached = self._without_more(further)
        return len(self._names) in reached

    def _without_more(self, reached: set[int]) -> set[int]:
        """`**` may stand for no folder at all."""
        for at in sorted(reached):
            while at < len(self._names) and self._names[at] is None:
                at += 1
                reached = reached | {at}
        return reached


def _choices(pattern: str) -> list[str]:
    """`*.{yaml,yml}` is two patterns."""
    waiting, found = [pattern], []
    while waiting:
        each = waiting.pop(0)
        choice = _CHOICE.search(each)
        if choice is None:
            found.append(each)
        else:
            waiting += [each[: choice.start()] + one + each[choice.end() :] for one in choice[1].split(",")]
        if len(waiting) + len(found) > _MOST_CHOICES:
            raise Retry(f"{pattern!r} stands for more than {_MOST_CHOICES} patterns: write a simpler one.")
    return found
