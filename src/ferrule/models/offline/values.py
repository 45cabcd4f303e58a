"""A sentence in which the words that were used are masked, and values that are recognized by their form:
addresses, paths, quoted texts and members of an enum. Other values are found by `ferrule.texts` and `expressions`.
"""

from __future__ import annotations

import re
from typing import Any

from ferrule.catalog.search.terms import STOP_WORDS, extract_terms, stem
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema_limits import BoundedValidator
from ferrule.errors import SpecError
from ferrule.texts.language import HAN, begins_with_cjk
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
DATE = lazy_pattern(r"(?<![\w-])(?:\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?|\d\d:\d\d(?::\d\d)?)(?![\w:-])")
"""Dates and times as 2026-12-25T14:30. Other notations are left to a language model."""
CODE = lazy_pattern(r"(?<![A-Za-z])[A-Z]{3}(?![A-Za-z])")
"""Codes of currencies: `100 USD`. Names of currencies and languages are left to a language model."""
EMAIL = lazy_pattern(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
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


def find_spans(pattern: re.Pattern[str], text: str) -> list[ValueSpan]:
    return [ValueSpan(match.group(), *match.span()) for match in pattern.finditer(text)]


def find_paths(text: str) -> list[ValueSpan]:
    for other in (EMAIL, _URL):
        text = other.sub(lambda match: MASK * len(match.group()), text)
    paths = find_spans(_PATH, text)
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


# Words of English and Chinese that belong to no particular tool: what a tool can do is read from its schema alone.

_GENERIC_WORDS = """
get fetch give show tell find do make run let put take retrieve return provide obtain perform execute invoke call
know see look want need help us hi hello hey thanks thank please ok okay sure kindly just now today currently current
right exactly quick quickly much many more most also too again first second third next last finally up out off over
something anything someone thing stuff way kind long far old big tool tools api function user me mine
between per each every within during since until s t m re ve d ll whats what's hows lets im like there get got go
set turn would could should shall might does did done being having one ones really actually maybe perhaps
difference well
"""
_GENERIC = frozenset(stem(word) for word in _GENERIC_WORDS.split()) | STOP_WORDS

_CHINESE_GENERIC_WORDS = """
请问 请你 请帮我 请帮 帮我 帮忙 麻烦你 麻烦 我想要 我想知道 我想 想知道 我要 我需要
你能 能不能 能否 可不可以 可以 告诉我 告诉 给我 一下 一个 怎么样 怎样 怎么 如何 是什么
是多少 什么 多少 几点 几号 几度 哪里 哪个 哪些 为什么 吗 呢 吧 啊 呀 了 的 是 现在
目前 当前 今天 查询 查看 查一下 查查 看看 那里 那儿 这里 里面 等于 得到 了解 知道
时差 相差 几个小时 几小时 差几个小时 差多少小时
显示 得出 等于几 是几 多少钱 要付 答案 结果 哪个 算一下 计算 请计算 帮我算
"""
CHINESE_GENERIC = "|".join(sorted(map(re.escape, _CHINESE_GENERIC_WORDS.split()), key=len, reverse=True))
# Single characters that are generic only at the beginning or end of a phrase: 上海 does not contain the word 上.
CHINESE_LEADING = "请把将用在和与帮查看从给对去先再发问"
CHINESE_TRAILING = "里上下中内去有会多成为给到用"
_CHINESE_GENERIC_PATTERN = lazy_pattern(CHINESE_GENERIC)
CHINESE_RUN = lazy_pattern(rf"[{HAN}]+")

_QUESTION_WORDS = {
    "几点钟": "的时间",
    "几点": "的时间",
    "星期几": "的日期",
    "几号": "的日期",
    "多少度": "的气温",
    "几度": "的气温",
}


def is_generic(term: str) -> bool:
    """Return whether a search term says nothing about which tool fits."""
    return term in _GENERIC


def significant_terms(text: str) -> list[str]:
    """Return the search terms of a text that are not generic."""
    return [term for term in extract_terms(text) if not is_generic(term)]


def remove_generic_chinese(run: str) -> list[str]:
    """Return the pieces of a run of Chinese characters that remain without generic words."""
    pieces = [piece.lstrip(CHINESE_LEADING).rstrip(CHINESE_TRAILING) for piece in _CHINESE_GENERIC_PATTERN.split(run)]
    return [piece for piece in pieces if piece]


def replace_question_words(text: str) -> str:
    """几点 asks for the time (时间), which is the word that tools use."""
    for word, noun in _QUESTION_WORDS.items():
        text = text.replace(word, noun)
    return text
