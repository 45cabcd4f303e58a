"""Words of English and Chinese that the offline model knows: none of them belongs to a particular tool.

What a tool can do is read from its schema alone.
"""

from __future__ import annotations

import re

from ferrule.catalog.search.terms import STOP_WORDS, extract_terms, stem
from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import HAN

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
_CHINESE_RUN = lazy_pattern(rf"[{HAN}]+")

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


def find_chinese_runs(text: str) -> list[str]:
    return _CHINESE_RUN.findall(text)


def remove_generic_chinese(run: str) -> list[str]:
    """Return the pieces of a run of Chinese characters that remain without generic words."""
    pieces = [piece.lstrip(CHINESE_LEADING).rstrip(CHINESE_TRAILING) for piece in _CHINESE_GENERIC_PATTERN.split(run)]
    return [piece for piece in pieces if piece]


def replace_question_words(text: str) -> str:
    """几点 asks for the time (时间), which is the word that tools use."""
    for word, noun in _QUESTION_WORDS.items():
        text = text.replace(word, noun)
    return text
