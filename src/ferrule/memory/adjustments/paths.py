"""Paths that are not there, but nearly: other case, ending, number, or folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import islice
from typing import Final

from ferrule.memory.adjustments.call import Adjustment, FailedCall, shown
from ferrule.memory.adjustments.listing import names_in
from ferrule.memory.adjustments.symptoms import says_missing
from ferrule.search.stemming import stem
from ferrule.search.words import fold, terms_of

_NAMES: Final = frozenset(terms_of("path file filename filepath dir directory folder source src"))
_LOCATES: Final = frozenset(terms_of("selector xpath css locator element url uri"))
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
_MOST_COMPARED: Final = 2000
"""Names that are compared letter by letter."""
_MOST_OFFERED: Final = 6
_NEAR_ENOUGH: Final = 0.75


def other_paths(call: FailedCall) -> Iterator[Adjustment]:
    if not says_missing(call.error):
        return
    failed = [(name, value) for name, value in call.texts() if _is_path(call, name, value) and call.blames(value)]
    if not failed:
        return
    names = names_in(call.error, call.observations)
    for name, value in failed:
        for path, why, confidence in islice(_near_paths(value, names), _MOST_OFFERED):
            reason = f"There is no {shown(value)}; {shown(path)} was seen, {why}."
            yield call.with_value(name, path, reason, confidence)


def _is_path(call: FailedCall, name: str, value: str) -> bool:
    words = call.words_about(name)
    if "://" in value or "\n" in value or len(value) > 1000 or not _LOCATES.isdisjoint(words):
        return False
    return not _NAMES.isdisjoint(words) or "/" in value or _ENDING.search(value) is not None


def _near_paths(failed: str, names: list[str]) -> Iterator[tuple[str, str, float]]:
    found = sorted(_alike(failed, names), key=lambda near: -near[2])
    seen = {failed}
    for name, why, confidence in found:
        path = _placed(name, failed)
        if path not in seen:
            seen.add(path)
            yield path, why, confidence


def _alike(failed: str, names: list[str]) -> Iterator[tuple[str, str, float]]:
    wanted = _Base(failed)
    matcher = SequenceMatcher(b=wanted.folded, autojunk=False)
    compared = 0
    for name in names:
        base = _Base(name)
        why, confidence = wanted.likeness(base, in_folder="/" in name.strip("/"))
        if not why and base.folded and compared < _MOST_COMPARED:
            compared += 1
            matcher.set_seq1(base.folded[:200])
            if matcher.real_quick_ratio() >= _NEAR_ENOUGH and (ratio := matcher.ratio()) >= _NEAR_ENOUGH:
                why, confidence = "which is spelt nearly the same", 0.65 * ratio
        if why:
            yield name, why, confidence


class _Base:
    """The last part of a path, taken apart."""

    __slots__ = ("ending", "folded", "name", "one", "stem")

    def __init__(self, path: str) -> None:
        self.name = path.rstrip("/").rpartition("/")[2]
        ending = _ENDING.search(self.name)
        self.ending = ending[0] if ending else ""
        self.stem = self.name.removesuffix(self.ending)
        self.folded = fold(self.name)[:200]
        self.one = stem(fold(self.stem))

    def likeness(self, other: _Base, *, in_folder: bool) -> tuple[str, float]:
        if not self.name or not other.name:
            return "", 0.0
        if other.name == self.name:
            return "in another folder" if in_folder else "without a folder", 0.85
        if other.name.casefold() == self.name.casefold():
            return "in other case", 0.9
        if self.folded and other.folded == self.folded:
            return "with other marks between its words", 0.8
        if self.stem and other.stem.casefold() == self.stem.casefold():
            return "with another ending", 0.75
        if self.one and other.one == self.one and other.ending.casefold() == self.ending.casefold():
            return "in the other number", 0.7
        return "", 0.0


def _placed(name: str, failed: str) -> str:
    """A seen name as the failed path would have written it: beside it, or below the folder both share."""
    folder = failed.rstrip("/").rpartition("/")[0]
    if not folder or name.startswith("/"):
        return name
    if "/" not in name.rstrip("/"):
        return f"{folder}/{name}"
    first = name.partition("/")[0]
    above = folder.split("/")
    if first in above:
        return "/".join([*above[: above.index(first)], name])
    return f"{folder}/{name}" if failed.startswith("/") else name
