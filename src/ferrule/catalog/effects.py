"""What a call does, as far as its tool declares it or its name says it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ferrule.core.spec import ToolCapability, ToolSpec

_READING_VERBS: Final = frozenset(
    "analyze ask browse calculate check compare compute count describe detect diff download estimate evaluate examine "
    "explain explore extract fetch filter find get grep has inspect is list load look lookup measure parse ping "
    "predict preview query read recommend retrieve scan scrape search select show stat status suggest summarize test "
    "translate validate verify view watch".split()
)
_COMPUTING_NOUNS: Final = frozenset("calculator clock converter dictionary now translator weather".split())
_READING_WORDS: Final = "查询 查找 查看 搜索 检索 获取 读取 列出 计算 分析 统计 检查 翻译 总结 抓取 浏览".split()
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


@lru_cache(maxsize=4096)
def split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: `sendEmail`, `send_email` and `send-email` are the same."""
    return tuple(word.lower() for word in _WORD.findall(name))


def only_reads(spec: ToolSpec, capability: ToolCapability) -> bool:
    """Return whether a call of an action changes nothing: by its declared effects, or else by the verb of its name."""
    effects = spec.effects_of(capability)
    if effects.read_only or effects.polling or effects.cacheable:
        return True
    return not effects.destructive and _has_reading_name(capability.name or spec.tool_id)


@lru_cache(maxsize=4096)
def _has_reading_name(name: str) -> bool:
    words = split_name(name)
    is_reading = bool(words) and (words[0] in _READING_VERBS or words[0].startswith(tuple(_READING_WORDS)))
    return is_reading or (bool(words) and words[-1] in _COMPUTING_NOUNS)
