"""The two halves of a `SKILL.md`: its front matter, read when it is loaded, and its body, read when it is wanted."""

from __future__ import annotations

from typing import NamedTuple

FENCE = "---"


class SkillText(NamedTuple):
    front_matter: str
    """What stands between the fences; it begins in line 2 of the file."""
    body: str


def split_skill(text: str) -> SkillText:
    """The halves of a file; ValueError says why it has none."""
    first, *lines = text.splitlines(keepends=True) or [""]
    if first.rstrip() != FENCE:
        raise ValueError(f"the file does not begin with a line {FENCE!r}: its front matter is missing")
    for index, line in enumerate(lines):
        if line.rstrip() == FENCE:
            return SkillText("".join(lines[:index]), "".join(lines[index + 1 :]).strip())
    raise ValueError(f"the front matter does not end: there is no second line {FENCE!r}")
