"""Values that show what they are by their form: addresses, paths, identifiers, quoted text, members of an enum."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from ferrule.models.offline.reading import Found
from ferrule.search.words import STOP_WORDS, fold, is_cjk, terms_of

_ENDS = r"[^\s\0<>\"'“”‘’「」，。；！？、（）\ue000\ue001\u4e00-\u9fff]"
_URL = re.compile(rf"\bhttps?://{_ENDS}+|\bwww\.{_ENDS}+", re.IGNORECASE)
_HOST = re.compile(
    r"(?<![@\w./-])(?:[a-z0-9-]+\.)+(?:com|org|net|io|dev|edu|gov|cn|de|uk|ai|app|info)\b(?:/[^\s\0]*)?", re.I
)
_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_PATH = re.compile(
    r"(?<![\w:/@.])(?:~|\.{1,2})?/[\w.@%+~-]+(?:/[\w.@%+~ -]*[\w.@%+~-])*/?(?![\w])"
    r"|\b[A-Za-z]:\\[^\s\0]+"
    r"|(?<![\w:/@.-])(?:[\w-]+/)+[\w.-]*\w/?"
    r"|(?<![\w:/@.-])[\w-]+(?:\.[\w-]+)*\.[A-Za-z][A-Za-z0-9]{0,4}\b(?![@/])"
    r"|(?<![\w:/@.])(?:~|\.{1,2}|/)/?(?=[\s\0?]|\Z)",
    re.ASCII,
)
_NEAR = 0.84
_SHORTEST_NEAR = 4


def urls_in(text: str) -> list[Found]:
    found = _all(_URL, text)
    found = [
        Found(one.value.rstrip(".,;:!?)]"), one.start, one.start + len(one.value.rstrip(".,;:!?)]"))) for one in found
    ]
    return [_as_url(one) for one in found or _all(_HOST, text)]


def emails_in(text: str) -> list[Found]:
    return _all(_EMAIL, text)


def paths_in(text: str) -> list[Found]:
    masked = _URL.sub(lambda m: "\0" * len(m.group()), _EMAIL.sub(lambda m: "\0" * len(m.group()), text))
    return [one for one in _all(_PATH, masked) if one.value not in ("e.g", "i.e", "a.m", "p.m")]


def matching(pattern: str, text: str) -> list[Found]:
    """Words that follow a pattern of JSON Schema as a whole."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return []
    found = []
    for match in re.finditer(r"[^\s\0,;，；。]+", text):
        word = match.group().rstrip(".?!:？！").strip("\"'`")
        if word and compiled.search(word) and word.lower() not in STOP_WORDS:
            start = text.index(word, match.start())
            found.append(Found(word, start, start + len(word)))
    return found


def members_in(text: str, members: list[Any]) -> list[Found]:
    """The members of an enum a text names: as they are, in other case, or nearly."""
    found: list[Found] = []
    for member in sorted(members, key=lambda m: -len(str(m))):
        place = _named(str(member), text) if isinstance(member, str | int) and not isinstance(member, bool) else None
        if place is not None and not any(one.start < place[1] and place[0] < one.end for one in found):
            found.append(Found(member, *place))
    return sorted(found, key=lambda one: one.start) or _nearly(text, members)


def _named(member: str, text: str) -> tuple[int, int] | None:
    words = [re.escape(word) for word in re.split(r"[\s_-]+", member) if word]
    if not words or (len(member) == 1 and member.isascii() and member.isalpha()):
        words = [re.escape(member)] if member.isupper() else []
    if not words:
        return None
    plain = r"[\s_-]*".join(words)
    edges = plain if is_cjk(member) else rf"(?<![A-Za-z0-9]){plain}(?:s|es)?(?![A-Za-z0-9])"
    match = re.search(edges, text, 0 if len(member) == 1 else re.IGNORECASE)
    return match.span() if match else None


def _nearly(text: str, members: list[Any]) -> list[Found]:
    by_folded = {
        fold(member): member for member in members if isinstance(member, str) and len(member) >= _SHORTEST_NEAR
    }
    by_stem = {terms[0]: member for member in by_folded.values() if len(terms := terms_of(member)) == 1}
    found = []
    for match in re.finditer(r"[A-Za-z]{4,}", text):
        word = fold(match.group())
        stems = terms_of(match.group())
        close = get_close_matches(word, by_folded, n=2, cutoff=_NEAR)
        if stems and stems[0] in by_stem:
            found.append(Found(by_stem[stems[0]], *match.span()))
        elif len(close) == 1:
            found.append(Found(by_folded[close[0]], *match.span()))
    return found


def _as_url(found: Found) -> Found:
    url = found.value if re.match(r"https?://", found.value, re.I) else f"https://{found.value}"
    return Found(url, found.start, found.end)


def _all(pattern: re.Pattern[str], text: str) -> list[Found]:
    return [Found(match.group(), match.start(), match.end()) for match in pattern.finditer(text)]
