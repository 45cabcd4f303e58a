"""Selectors that ask for less than one that found nothing: without its surroundings, or by a part of its names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferrule.memory.adjustments.failed_selector import FailedSelector, compounds

_PIECE = re.compile(r"(?P<tag>\A[A-Za-z][\w-]*)|#(?P<id>[\w-]+)|\.(?P<class>[\w-]+)|(?P<attribute>\[[^\]]*\])")
_POSITION = re.compile(r":(?:nth-[\w-]+\([^)]*\)|first-child|last-child|only-child|first-of-type|last-of-type)")
_EXACT = re.compile(r"\[([\w-]+)=[\"']?([^\"'\]]+)[\"']?\]")
_WORD = re.compile(r"[A-Za-z]{3,}")
_INDEX = re.compile(r"\[\d+\]")
_CLASS_IS = re.compile(r"@(class|id)\s*=\s*([\"'])(\s*[\w-]+)[^\"']*\2")
_TEXT_IS = re.compile(r"(?:text\(\)|\.)\s*=\s*(\"[^\"]*\"|'[^']*')")


def wider(selector: FailedSelector) -> Iterator[tuple[str, str]]:
    """Wider selectors, the narrowest first, and what was widened."""
    if selector.dialect == "xpath":
        yield from _wider_xpath(selector.text)
    elif selector.dialect == "css" and not selector.speaks_playwright:
        yield from _wider_css(selector.text)


def _wider_css(text: str) -> Iterator[tuple[str, str]]:
    parts = compounds(text)
    if not parts:
        return
    last = parts[-1]
    plain = _POSITION.sub("", last)
    if plain != last and _is_specific(plain):
        yield " ".join([*parts[:-1], plain]), "without its position"
    if len(parts) > 1 and _is_specific(plain):
        yield plain, "without what it is nested in"
    pieces = list(_PIECE.finditer(plain))
    classes = [piece["class"] for piece in pieces if piece["class"]]
    tag = next((piece["tag"] for piece in pieces if piece["tag"]), "")
    for dropped in reversed(classes[1:]):
        yield plain.replace(f".{dropped}", "", 1), f"without its class {dropped!r}"
    for names, attribute in ((classes, "class"), ([piece["id"] for piece in pieces if piece["id"]], "id")):
        for word in _words(names):
            yield f'{tag}[{attribute}*="{word}"]', f"by a part of its {attribute}"
            yield f'[{attribute}*="{word}"]', f"by a part of its {attribute}, whatever its tag"
    for exact in _EXACT.finditer(plain):
        for word in _words([exact[2]])[:2]:
            yield f'{tag}[{exact[1]}*="{word}"]', f"by a part of its {exact[1]}"


def _wider_xpath(text: str) -> Iterator[tuple[str, str]]:
    prefix = "xpath=" if text.startswith("xpath=") else ""
    path = text.removeprefix(prefix)
    by_part = _CLASS_IS.sub(lambda found: f'contains(@{found[1]}, "{found[3].strip()}")', path)
    if by_part != path:
        yield prefix + by_part, "by a part of its attribute"
    inside = _TEXT_IS.sub(lambda found: f"contains(normalize-space(.), {found[1]})", path)
    if inside != path:
        yield prefix + inside, "by a part of its text"
    last = _last_step(path)
    if "[" in _INDEX.sub("", last) and f"//{last}" != path:
        yield f"{prefix}//{_INDEX.sub('', last)}", "without what it is nested in"
    if _INDEX.search(path) and "[" in _INDEX.sub("", path):
        yield prefix + _INDEX.sub("", path), "without positions"


def _last_step(path: str) -> str:
    depth = 0
    for at in range(len(path) - 1, -1, -1):
        depth += {"]": 1, ")": 1, "[": -1, "(": -1}.get(path[at], 0)
        if path[at] == "/" and depth == 0:
            return path[at + 1 :]
    return path


def _is_specific(compound: str) -> bool:
    """Whether more than a tag is left."""
    return any(mark in compound for mark in "#.[")


def _words(names: list[str]) -> list[str]:
    return list(dict.fromkeys(word for name in names for word in _WORD.findall(name)))[:4]
