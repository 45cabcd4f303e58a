"""Saying how a request differs from those that were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from ferrule.content import as_text


def difference(asked: dict[str, Any], recorded: Sequence[dict[str, Any]]) -> str:
    """In a sentence or two: what is different from the recorded request that is nearest."""
    if not recorded:
        return "It is empty."
    if asked in recorded:
        return f"It has this request {recorded.count(asked)} times, and it was made once more."
    near = max(recorded, key=lambda other: _same(asked, other))
    told = [
        *_told_messages(asked["messages"], near["messages"]),
        *_told_tools(asked["tools"], near["tools"]),
        *(
            f"{name} is {asked[name]!r} and was {near.get(name)!r}."
            for name in asked
            if name not in ("messages", "tools") and asked[name] != near.get(name)
        ),
    ]
    return f"Compared with request {recorded.index(near) + 1} of {len(recorded)}: {' '.join(told)}"


def _same(asked: dict[str, Any], other: dict[str, Any]) -> tuple[int, int, int]:
    """How near: messages that are equal from the start, then the length of the conversation, then the rest."""
    same = _first_difference(asked["messages"], other["messages"])
    rest = sum(asked[name] == other.get(name) for name in asked)
    return same, -abs(len(asked["messages"]) - len(other["messages"])), rest


def _first_difference(asked: list[Any], was: list[Any]) -> int:
    return next((i for i, (a, b) in enumerate(zip_longest(asked, was)) if a != b), len(asked))


def _told_messages(asked: list[Any], was: list[Any]) -> list[str]:
    i = _first_difference(asked, was)
    if i == len(asked) == len(was):
        return []
    if i >= len(was):
        return [f"there are {len(asked) - i} messages more, from {_shown(asked[i])}."]
    if i >= len(asked):
        return [f"there are {len(was) - i} messages less, from {_shown(was[i])}."]
    return [f"message {i + 1} is {_around(asked[i], was[i])} and was {_around(was[i], asked[i])}."]


def _told_tools(asked: dict[str, str], was: dict[str, str]) -> list[str]:
    if asked == was:
        return []
    groups = {
        "new": sorted(asked.keys() - was.keys()),
        "missing": sorted(was.keys() - asked.keys()),
        "changed": sorted(name for name in asked.keys() & was.keys() if asked[name] != was[name]),
    }
    told = [f"{', '.join(names)} {word}" for word, names in groups.items() if names]
    return [f"tools: {'; '.join(told)}."]


def _around(message: Any, other: Any) -> str:
    """The message from a little before the place where the two part."""
    text, compared = as_text(message), as_text(other)
    start = max(0, next((i for i, (a, b) in enumerate(zip(text, compared, strict=False)) if a != b), 0) - 30)
    return _shown(text[start:], "…" if start else "")


def _shown(message: Any, prefix: str = "") -> str:
    text = as_text(message)
    return repr(prefix + (text if len(text) <= 160 else text[:159] + "…"))
