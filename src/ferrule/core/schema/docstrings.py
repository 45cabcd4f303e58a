"""Reading docstrings: the description of a function and of each of its parameters.

The sections about parameters (Google's `Args:`, NumPy's underlined `Parameters`, reST's `:param x:`) are cut out
and parsed; the rest, including notes on results and errors, is the description. A section that cannot be parsed stays
in the description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ferrule.core.patterns import lazy_pattern

Entries: TypeAlias = Iterable[tuple[str, str]]
"""Names with their descriptions."""

_TITLES: Final = "Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|参数|參數"
_PARAMETER_NAME: Final = r"\\?\*{0,2}([^\W\d]\w*)"

# A section goes on as long as lines are indented or empty.
_GOOGLE_SECTION: Final = lazy_pattern(
    rf"^(?:{_TITLES})[ \t]*[:：][ \t]*\n((?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)+)", re.MULTILINE
)
_GOOGLE_ENTRY: Final = lazy_pattern(rf"\s*{_PARAMETER_NAME}[ \t]*(?:[(（].*?[)）])?[ \t]*[:：][ \t]*(.*)")

# A section goes on until the next underlined title.
_NUMPY_SECTION: Final = lazy_pattern(
    rf"^(?:{_TITLES})[ \t]*\n-{{3,}}[ \t]*\n((?:(?!^\S.*\n[-=]{{3,}}[ \t]*$).*\n?)+)", re.MULTILINE
)
_NUMPY_ENTRY: Final = lazy_pattern(rf"{_PARAMETER_NAME}(?:[ \t]*,[ \t]*{_PARAMETER_NAME})*[ \t]*(?::.*)?$")

# A field goes on as long as lines are indented. `:type x:` repeats the hint and is dropped.
_REST_FIELD: Final = lazy_pattern(
    rf"^:(?:(?:param|parameter|arg|argument|key|keyword)[ \t]+(?:[^:\n]*[ \t])?{_PARAMETER_NAME}|type[^:\n]*)[ \t]*:"
    r"[ \t]*(.*(?:\n+[ \t]+\S.*)*)\n?",
    re.MULTILINE,
)
_MANY_EMPTY_LINES: Final = lazy_pattern(r"\n{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """The parts of a docstring."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Docstring:
    """Parse a docstring of any of the three styles; one that cannot be parsed is all description."""
    if not text:
        return Docstring()
    text = inspect.cleandoc(text).strip()
    for sections, read in _STYLES:
        matches = list(sections.finditer(text))
        if matches:
            try:
                parameters = {name: entry for match in matches for name, entry in read(match) if entry}
            except _MalformedSection:
                break
            description = _MANY_EMPTY_LINES.sub("\n\n", sections.sub("\n", text)).strip()
            return Docstring(description=description, parameters=parameters)
    return Docstring(description=text)


class _MalformedSection(Exception):
    """A section is not written as its title promises."""


def _parse_google_section(section: re.Match[str]) -> Entries:
    """Read `name (type): text`; lines that are indented deeper belong to the text."""
    lines = section[1].strip("\n").split("\n")
    margin = _indent_width(lines[0])
    return [(match[1], entry) for match, entry in _split_entries(lines, margin, _GOOGLE_ENTRY, lambda match: match[2])]


def _parse_numpy_section(section: re.Match[str]) -> Entries:
    """Read `name : type`, or `name, name : type`, with the text indented below."""
    lines = section[1].strip("\n").split("\n")
    entries = _split_entries(lines, 0, _NUMPY_ENTRY, lambda match: "")
    return [(name, entry) for match, entry in entries for name in re.findall(r"\w+", match[0].partition(":")[0])]


def _split_entries(
    lines: list[str], margin: int, entry: re.Pattern[str], first_line: Callable[[re.Match[str]], str]
) -> Iterable[tuple[re.Match[str], str]]:
    """Yield entries: a line at the margin begins one, all other lines continue its text."""
    entries: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if line.strip() and _indent_width(line) <= margin:
            match = entry.match(line)
            if match is None:
                raise _MalformedSection(line)
            entries.append((match, [first_line(match)]))
        elif entries:
            entries[-1][1].append(line)
    return [(match, text[0] if len(text) == 1 else inspect.cleandoc("\n".join(text))) for match, text in entries]


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip())


_STYLES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Entries]], ...]] = (
    (_REST_FIELD, lambda field: [(field[1], inspect.cleandoc(field[2]))] if field[1] else []),
    (_NUMPY_SECTION, _parse_numpy_section),
    (_GOOGLE_SECTION, _parse_google_section),
)
