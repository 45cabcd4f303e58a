"""A sentence in which the words that were used are masked, and values that are recognized by their form:
addresses, paths, quoted texts and members of an enum. Other values are found by `ferrule.texts` and `expressions`.
"""

from __future__ import annotations

import re
from typing import Any

from ferrule.catalog.search.terms import STOP_WORDS
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema_limits import BoundedValidator
from ferrule.errors import SpecError
from ferrule.texts.language import begins_with_cjk
from ferrule.texts.numbers import ValueSpan

MASK = "\0"
RESULT_START, RESULT_END = "\ue000", "\ue001"
"""Quotes around the result of an earlier step that was put into a later one: characters that are never typed."""

_QUOTED = lazy_pattern(
    rf"{RESULT_START}([^{RESULT_END}]*){RESULT_END}"
    r"|(?:\b[\w.-]+:\n)?```+(?:\w*\n)?(.*?)\n?```+|\"([^\"]+)\"|“([^”]+)”|「([^」]+)」|『([^』]+)』|《([^》]+)》|`([^`]+)`|‘([^’]+)’"
    r"|(?<![\w])'([^'\n]+)'(?!\w)",
    re.DOTALL,
)
_URL_CHAR = r"[^\s\0<>\"'“”‘’「」，。；！？、（）\ue000\ue001\u4e00-\u9fff]"
_URL = lazy_pattern(rf"\bhttps?://{_URL_CHAR}+|\bwww\.{_URL_CHAR}+", re.IGNORECASE)
_HOST = lazy_pattern(
    r"(?<![@\w./-])(?:[a-z0-9-]+\.)+(?:com|org|net|io|dev|edu|gov|cn|de|uk|ai|app|info)\b(?:/[^\s\0]*)?", re.I
)
_DATE = lazy_pattern(r"(?<![\w-])(?:\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?|\d\d:\d\d(?::\d\d)?)(?![\w:-])")
_CODE = lazy_pattern(r"(?<![A-Za-z])[A-Z]{3}(?![A-Za-z])")
_EMAIL = lazy_pattern(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_PATH = lazy_pattern(
    r"(?<![\w:/@.])(?:~|\.{1,2})?/[\w.@%+~-]+(?:/[\w.@%+~ -]*[\w.@%+~-])*/?(?![\w])"
    r"|\b[A-Za-z]:\\[^\s\0]+"
    r"|(?<![\w:/@.-])(?:[\w-]+/)+[\w.-]*\w/?"
    r"|(?<![\w:/@.-])[\w-]+(?:\.[\w-]+)*\.[A-Za-z][A-Za-z0-9]{0,4}\b(?![@/])"
    r"|(?<![\w:/@.])(?:~|\.{1,2}|/)/?(?=[\s\0?]|\Z)",
    re.ASCII,
)
_ABBREVIATIONS = ("e.g", "i.e", "a.m", "p.m")


class Sentence:
    """One step of a question while its values are searched for. Masking keeps all positions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.rest = text
        """The text without what was used."""

    @property
    def unquoted(self) -> str:
        """Return the rest without quoted text: numbers and dates in a quotation are part of it."""
        return _QUOTED.sub(lambda match: MASK * len(match.group()), self.rest)

    @property
    def quotes(self) -> list[ValueSpan]:
        return [
            ValueSpan(next(group for group in match.groups() if group is not None), *match.span())
            for match in _QUOTED.finditer(self.rest)
        ]

    def mask(self, start: int, end: int) -> None:
        self.rest = self.rest[:start] + MASK * (end - start) + self.rest[end:]


def find_urls(text: str) -> list[ValueSpan]:
    urls = []
    for match in list(_URL.finditer(text)) or _HOST.finditer(text):
        url = match.group().rstrip(".,;:!?)]")
        full = url if re.match(r"https?://", url, re.I) else f"https://{url}"
        urls.append(ValueSpan(full, match.start(), match.start() + len(url)))
    return urls


def find_codes(text: str) -> list[ValueSpan]:
    """Codes of currencies: `100 USD`. Names of currencies and languages are left to a language model."""
    return [ValueSpan(match.group(), *match.span()) for match in _CODE.finditer(text)]


def find_dates(text: str) -> list[ValueSpan]:
    """Dates and times as 2026-12-25T14:30. Other notations are left to a language model."""
    return [ValueSpan(match.group(), *match.span()) for match in _DATE.finditer(text)]


def find_emails(text: str) -> list[ValueSpan]:
    return [ValueSpan(match.group(), *match.span()) for match in _EMAIL.finditer(text)]


def find_paths(text: str) -> list[ValueSpan]:
    for other in (_EMAIL, _URL):
        text = other.sub(lambda match: MASK * len(match.group()), text)
    paths = [ValueSpan(match.group(), *match.span()) for match in _PATH.finditer(text)]
    return [path for path in paths if path.value not in _ABBREVIATIONS]


def find_matching_words(pattern: Any, text: str) -> list[ValueSpan]:
    """Words that match the `pattern` of a JSON Schema."""
    try:  # not with `re`: a pattern from outside can make it run for ever
        matches = BoundedValidator({"pattern": pattern}).is_valid
    except (ValueError, SpecError):
        return []
    words = []
    for match in re.finditer(r"[^\s\0,;，；。]+", text):
        word = match.group().rstrip(".?!:？！").strip("\"'`")
        if word and matches(word) and word.lower() not in STOP_WORDS:
            start = text.index(word, match.start())
            words.append(ValueSpan(word, start, start + len(word)))
    return words


def find_enum_members(text: str, members: list[Any]) -> list[ValueSpan]:
    """Return the members of an enum that a text names: exactly, in other case, or in the plural."""
    matches: list[ValueSpan] = []
    for member in sorted(members, key=lambda m: -len(str(m))):
        span = (
            _find_member(str(member), text) if isinstance(member, str | int) and not isinstance(member, bool) else None
        )
        if span is not None and not any(other.start < span[1] and span[0] < other.end for other in matches):
            matches.append(ValueSpan(member, *span))
    return sorted(matches, key=lambda value: value.start)


def _find_member(member: str, text: str) -> tuple[int, int] | None:
    words = [re.escape(word) for word in re.split(r"[\s_-]+", member) if word]
    if len(member) == 1 and member.isascii() and member.isalpha():  # `a` is an article, `A` may be a member
        words = [re.escape(member)] if member.isupper() else []
    if not words:
        return None
    spelled = r"[\s_-]*".join(words)
    pattern = spelled if begins_with_cjk(member) else rf"(?<![A-Za-z0-9]){spelled}(?:s|es)?(?![A-Za-z0-9])"
    match = re.search(pattern, text, 0 if len(member) == 1 else re.IGNORECASE)
    return match.span() if match else None
