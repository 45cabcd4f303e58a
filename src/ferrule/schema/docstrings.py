"""What a docstring says: about the function, and about each of its parameters.

The sections about parameters (Google's `Args:`, NumPy's underlined `Parameters`, reST's `:param x:`) are cut out
and read; all the rest, remarks on results and errors included, is the description. A section that cannot be read
stays where it is: a model then reads it as its author wrote it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Entries: TypeAlias = Iterable[tuple[str, str]]
"""Names, each with what is said about it."""

_TITLES: Final = "Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|参数|參數"
_NAME: Final = r"\\?\*{0,2}([^\W\d]\w*)"

# A section goes on as long as lines are indented or empty.
_GOOGLE: Final = re.compile(rf"^(?:{_TITLES})[ \t]*[:：][ \t]*\n((?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)+)", re.MULTILINE)
_GOOGLE_ENTRY: Final = re.compile(rf"\s*{_NAME}[ \t]*(?:[(（].*?[)）])?[ \t]*[:：][ \t]*(.*)")

# A section goes on until the next underlined title.
_NUMPY: Final = re.compile(
    rf"^(?:{_TITLES})[ \t]*\n-{{3,}}[ \t]*\n((?:(?!^\S.*\n[-=]{{3,}}[ \t]*$).*\n?)+)", re.MULTILINE
)
_NUMPY_ENTRY: Final = re.compile(rf"{_NAME}(?:[ \t]*,[ \t]*{_NAME})*[ \t]*(?::.*)?$")

# A field goes on as long as lines are indented. That of a type says nothing that the hint does not.
_REST: Final = re.compile(
    rf"^:(?:(?:param|parameter|arg|argument|key|keyword)[ \t]+(?:[^:\n]*[ \t])?{_NAME}|type[^:\n]*)[ \t]*:"
    r"[ \t]*(.*(?:\n+[ \t]+\S.*)*)\n?",
    re.MULTILINE,
)
_MANY_EMPTY_LINES: Final = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """A docstring, taken apart."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Take a docstring of any of the three styles apart; one that cannot be read is all description."""
    if not text:
        return Docstring()
    text = inspect.cleandoc(text).strip()
    for sections, read in _STYLES:
        found = list(sections.finditer(text))
        if found:
            try:
                parameters = {name: said for match in found for name, said in read(match) if said}
            except _Unreadable:
                break
            return Docstring(description=_without(sections, text), parameters=parameters)
    return Docstring(description=text)


class _Unreadable(Exception):
    """A section is not written as its title promises."""


def _read_google(section: re.Match[str]) -> Entries:
    """`name (type): text`, and what is indented deeper belongs to the text."""
    lines = section[1].strip("\n").split("\n")
    margin = _indent(lines[0])
    return [(match[1], said) for match, said in _entries(lines, margin, _GOOGLE_ENTRY, lambda match: match[2])]


def _read_numpy(section: re.Match[str]) -> Entries:
    """`name : type`, or `name, name : type`, with the text indented below."""
    lines = section[1].strip("\n").split("\n")
    read = _entries(lines, 0, _NUMPY_ENTRY, lambda match: "")
    return [(name, said) for match, said in read for name in re.findall(r"\w+", match[0].partition(":")[0])]


def _read_rest(field: re.Match[str]) -> Entries:
    return [(field[1], inspect.cleandoc(field[2]))] if field[1] else []


def _entries(
    lines: list[str], margin: int, entry: re.Pattern[str], first_line: Callable[[re.Match[str]], str]
) -> Iterable[tuple[re.Match[str], str]]:
    """Lines at the margin begin an entry, all others go on with the text of the last one."""
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if line.strip() and _indent(line) <= margin:
            match = entry.match(line)
            if match is None:
                raise _Unreadable(line)
            found.append((match, [first_line(match)]))
        elif found:
            found[-1][1].append(line)
    return [(match, said[0] if len(said) == 1 else inspect.cleandoc("\n".join(said))) for match, said in found]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without(sections: re.Pattern[str], text: str) -> str:
    return _MANY_EMPTY_LINES.sub("\n\n", sections.sub("\n", text)).strip()


_STYLES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Entries]], ...]] = (
    (_REST, _read_rest),
    (_NUMPY, _read_numpy),
    (_GOOGLE, _read_google),
)
