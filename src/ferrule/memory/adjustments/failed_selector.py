"""A selector that found nothing, taken apart for its words and its kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ferrule.memory.adjustments.page import ROLES
from ferrule.search.words import terms_of

Dialect: TypeAlias = Literal["css", "xpath", "ref"]

_LONGEST: Final = 1000
_XPATH_STARTS: Final = ("/", "./", "(/", "xpath=")
_NODE = re.compile(r"/(?:[\w-]+::)?([A-Za-z][\w-]*)(?!\()")
_STRING = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_CSS_WORD = re.compile(r"\"([^\"]*)\"|'([^']*)'|[#.]([\w-]+)|=\s*([\w -]+)")
_ENGINE = re.compile(r"\A(?:text|role|css|id|data-testid)=|>>|:(?:has-text|text|text-is|visible)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSelector:
    """What a selector was looking for."""

    text: str
    dialect: Dialect
    tag: str
    terms: frozenset[str]
    """The words of its names and strings."""
    speaks_playwright: bool
    """It uses what only Playwright understands, such as `text=`."""

    @property
    def kind(self) -> str:
        return ROLES.get(self.tag, self.tag)


def read_selector(name: str, value: str, *, about: str = "") -> FailedSelector:
    """A locator parameter's value; `about` are words that other parameters say about what is looked for."""
    text = value.strip()[:_LONGEST]
    dialect: Dialect = "css"
    if name.lower() in ("ref", "uid"):
        dialect = "ref"
    elif "xpath" in name.lower() or text.startswith(_XPATH_STARTS):
        dialect = "xpath"
    words = _STRING if dialect == "xpath" else _CSS_WORD
    said = " ".join("".join(found) for found in words.findall(text))
    return FailedSelector(
        text=text,
        dialect=dialect,
        tag=_tag_of(text, dialect),
        terms=frozenset(terms_of(f"{said} {about[:_LONGEST]}")),
        speaks_playwright=_ENGINE.search(text) is not None,
    )


def compounds(selector: str) -> list[str]:
    """The parts of a CSS selector between its combinators, from the outermost in; of a list the first selector's."""
    parts = [""]
    closing: list[str] = []
    for char in selector:
        if closing:
            if char == closing[-1]:
                closing.pop()
            elif char in "[(" and closing[-1] not in "\"'":
                closing.append("]" if char == "[" else ")")
            elif char in "\"'" and closing[-1] not in "\"'":
                closing.append(char)
        elif char in "[(\"'":
            closing.append({"[": "]", "(": ")"}.get(char, char))
        elif char == ",":
            break
        elif char in " \t\n>+~":
            parts.append("")
            continue
        parts[-1] += char
    return [part for part in parts if part]


def _tag_of(text: str, dialect: Dialect) -> str:
    if dialect == "xpath":
        nodes = _NODE.findall(text)
        return nodes[-1].lower() if nodes else ""
    if dialect == "ref":
        return ""
    if role := re.match(r"role=(\w+)", text):
        return next((tag for tag, said in ROLES.items() if said == role[1]), "")
    last = compounds(text)
    tag = re.match(r"[A-Za-z][\w-]*(?=[#.\[:]|\Z)", last[-1]) if last else None
    return tag[0].lower() if tag else ""
