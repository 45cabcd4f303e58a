"""An outline of a page: what can be used on it, and which of that is nearest to something that is not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ferrule.tools.browser.world import World

LIMITS: Final = {
    "milliseconds": 1500,
    "scanned": 20_000,
    "text": 80,
    "each": {
        "link": 60,
        "button": 30,
        "textbox": 30,
        "heading": 20,
        "table": 10,
        "frame": 5,
        "number": 30,
        "other": 15,
    },
}
SHOWN: Final = 8
"""Elements that an error names."""

_SCRIPT: Final = Path(__file__).with_name("outline.js")
_WORD = re.compile(r"[^\W\d_]{3,}")
_TAG = re.compile(r"([A-Za-z][\w-]*)?[^\s>+~]*\Z")
_BEGINNING: Final = 4


async def outline_of(world: World) -> dict[str, Any]:
    """`elements`, in the order of the page, and how many were `left_out`."""
    found: dict[str, Any] = await world.run(_SCRIPT.read_text(encoding="utf-8").rstrip().rstrip(";"), LIMITS)
    return found


def nearest(elements: Sequence[dict[str, Any]], selector: str) -> list[dict[str, Any]]:
    """The elements most like what a selector looked for, then those that stand first."""
    wanted = _beginnings(selector)
    tag = _TAG.search(selector.strip())
    ranked = sorted(elements, key=lambda element: -_likeness(element, wanted, (tag and tag[1] or "").lower()))
    return ranked[:SHOWN]


def in_words(elements: Sequence[dict[str, Any]], selector: str) -> str:
    """`a#stars (link, '28.4k stars'); span#n (number, '3', class 'count')`; the class where it is like the selector."""
    wanted = _beginnings(selector)
    return "; ".join(_named(element, wanted) for element in elements)


def _named(element: dict[str, Any], wanted: set[str]) -> str:
    said = [str(element["role"])]
    if element["text"]:
        said.append(_quoted(element["text"]))
    if wanted & _beginnings(element.get("class", "")):
        said.append(f"class {_quoted(element['class'])}")
    return f"{element['selector']} ({', '.join(said)})"


def _quoted(text: Any) -> str:
    return "'" + str(text).replace("'", "’") + "'"


def _likeness(element: dict[str, Any], wanted: set[str], tag: str) -> float:
    said = _beginnings(f"{element['selector']} {element['text']} {element.get('class', '')}")
    shared = len(wanted & said) / len(wanted) if wanted else 0.0
    return shared + (0.3 if element["tag"] == tag else 0.0) + (0.1 if re.search(r"\d", str(element["text"])) else 0.0)


def _beginnings(text: str) -> set[str]:
    return {word[:_BEGINNING].lower() for word in _WORD.findall(text)}
