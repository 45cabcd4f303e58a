"""Fonts that have the characters of a text: that of matplotlib has no Chinese ones, and the system's may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STANDARD: Final = "DejaVu Sans"
_LIKELY: Final = (
    "notosanscjk",
    "notosanssc",
    "notosanshans",
    "sourcehansans",
    "pingfang",
    "hiraginosansgb",
    "msyh",
    "microhei",
    "zenhei",
    "simhei",
    "stheiti",
    "heiti",
    "droidsansfallback",
    "arialunicode",
    "simsun",
    "songti",
    "cjk",
    "notosans",
)
"""File names of those that have many characters, the best to read first."""
_NO_LETTERS: Final = ("lastresort", "emoji", "blank")
_MOST_OPENED: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    names: list[str]
    """To be tried one after the other for each character."""
    missing: str
    """Characters that none of them has."""


def families_for(text: str) -> Families:
    """The fonts to draw a text with."""
    from matplotlib.font_manager import findfont, fontManager

    names = [STANDARD]
    missing = {letter for letter in text if letter.isprintable() and not letter.isspace()}
    missing -= _letters_in(findfont(STANDARD), missing)
    for path in _system_fonts() if missing else ():
        found = _letters_in(path, missing)
        if found:
            fontManager.addfont(path)
            names.append(fontManager.ttflist[-1].name)
            missing -= found
        if not missing:
            break
    return Families(names=names, missing="".join(sorted(missing)))


def _system_fonts() -> Iterator[str]:
    from matplotlib.font_manager import findSystemFonts

    def likeliness(path: str) -> tuple[int, bool, str]:
        name = _plain_name(path)
        rank = next((index for index, likely in enumerate(_LIKELY) if likely in name), len(_LIKELY))
        return rank, "regular" not in name, path

    found = [path for path in findSystemFonts() if not any(word in _plain_name(path) for word in _NO_LETTERS)]
    yield from sorted(found, key=likeliness)[:_MOST_OPENED]


def _plain_name(path: str) -> str:
    return Path(path).name.lower().replace(" ", "").replace("-", "").replace("_", "")


def _letters_in(path: str, wanted: set[str]) -> set[str]:
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        return {letter for letter in wanted if font.get_char_index(ord(letter))}
    except (RuntimeError, OSError, ValueError):  # not every file in a folder of fonts is one
        return set()
