"""Tags for tools that have none, read from their names and descriptions.

A table says which word stands for which tags: 搜索 or `search` for search, web and research. Words of alphabets must
stand alone, in any of their forms (`Searches` is `search`, `profile` is not `file`); Chinese ones may stand anywhere.
Where two words of the table overlap, the longer one counts: 计算机 (a computer) is not 计算 (to calculate), and has no
tags. Tags help to find tools and to see which ones can do the same; nobody is made to use one by them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from ferrule.search.words import is_cjk, terms_of
from ferrule.spec import Tool

_Form: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class TagTable:
    """Which words stand for which tags."""

    words: Mapping[str, Sequence[str]]
    """A word, or several in a row, to its tags; no tags at all keep a shorter word in it from counting."""

    def extended(self, words: Mapping[str, Sequence[str]]) -> TagTable:
        """This table with more words; a word that is there already gets the new tags instead."""
        return TagTable(words={**self.words, **words})

    def tags_in(self, texts: Iterable[str]) -> list[str]:
        """The tags of the words in the texts, in the order of the texts, each once."""
        found: dict[str, None] = {}
        for text in texts:
            for form, (pattern, tags) in self._by_form.items():
                for word in pattern.findall(form(text)):
                    found.update(dict.fromkeys(tags[word]))
        return list(found)

    @cached_property
    def _by_form(self) -> dict[_Form, tuple[re.Pattern[str], dict[str, Sequence[str]]]]:
        """The words that are looked for in each form of a text, the longest first, and their tags."""
        found: dict[_Form, dict[str, Sequence[str]]] = {_cjk_form: {}, _terms_form: {}}
        for word, tags in self.words.items():
            form = _cjk_form if any(map(is_cjk, _cjk_form(word))) else _terms_form
            if written := form(word):
                found[form][written] = tags
        return {form: (_any_of(words), words) for form, words in found.items()}


def extract_tags(name: str, description: str, table: TagTable | None = None) -> list[str]:
    """The tags that a name and a description speak of."""
    return (table or DEFAULT_TABLE).tags_in((name, description))


def with_tags(tool: Tool, table: TagTable | None = None) -> Tool:
    """The tool with tags from its name and description, or the tool itself if it has tags or nothing is found."""
    spec = tool.spec
    if spec.tags:
        return tool
    # Not the actions of a tool that has several: what one of them can do is not what the tool is for.
    only = spec.capability()
    tags = (table or DEFAULT_TABLE).tags_in(
        (spec.tool_id, spec.name, spec.description or (only.description if only is not None else ""))
    )
    return replace(tool, spec=replace(spec, tags=tags)) if tags else tool


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))) or r"(?!)")


def _cjk_form(text: str) -> str:
    return "" if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _terms_form(text: str) -> str:
    return "".join(f" {term} " for term in terms_of(text) if not is_cjk(term))


_SEARCH = ("search", "web", "research")
_CALCULATE = ("calculate",)
_TIME = ("time",)
_WEATHER = ("weather",)
_TRANSLATE = ("translate", "language")
_FILE = ("file",)
_DATABASE = ("database",)
_HTTP = ("http", "web")
_IMAGE = ("image",)
_EMAIL = ("email", "notify")
_NOTIFY = ("notify",)
_CODE = ("code",)
_BROWSER = ("browser", "web")
_EXTRACT = ("extract",)
_SUMMARIZE = ("summarize",)
_MAP = ("map",)
_AUDIO = ("audio",)
_VIDEO = ("video",)

DEFAULT_TABLE = TagTable(
    words={
        **dict.fromkeys(("search", "look up", "搜索", "检索", "搜寻", "查找", "web search", "网络搜索"), _SEARCH),
        **dict.fromkeys(("file search", "search file", "搜索文件", "查找文件"), ("search", "file")),
        **dict.fromkeys(("calculate", "compute", "calculator", "arithmetic", "计算", "算术", "计算器"), _CALCULATE),
        **dict.fromkeys(("计算机", "计算资源", "云计算"), ()),
        **dict.fromkeys(("time", "clock", "timezone", "time zone", "时间", "时区", "日期"), _TIME),
        **dict.fromkeys(("real time", "time out", "time series", "one time"), ()),
        **dict.fromkeys(("weather", "forecast", "天气", "气温", "气象"), _WEATHER),
        **dict.fromkeys(("translate", "translation", "翻译"), _TRANSLATE),
        **dict.fromkeys(("file", "directory", "folder", "文件", "文件夹", "目录"), _FILE),
        **dict.fromkeys(("database", "sql", "数据库"), _DATABASE),
        **dict.fromkeys(("http", "rest api", "http request", "网络请求"), _HTTP),
        **dict.fromkeys(("image", "picture", "photo", "图片", "图像", "照片"), _IMAGE),
        **dict.fromkeys(("email", "e mail", "mail", "邮件", "邮箱"), _EMAIL),
        **dict.fromkeys(("notify", "notification", "alert", "通知", "提醒", "告警"), _NOTIFY),
        **dict.fromkeys(("code", "python", "javascript", "代码", "编程"), _CODE),
        **dict.fromkeys(("status code", "country code", "zip code", "postal code", "qr code"), ()),
        **dict.fromkeys(("browser", "web page", "webpage", "浏览器", "网页"), _BROWSER),
        **dict.fromkeys(("extract", "scrape", "scraper", "crawl", "提取", "抓取", "爬取"), _EXTRACT),
        **dict.fromkeys(("summarize", "summary", "摘要", "总结"), _SUMMARIZE),
        **dict.fromkeys(("map", "geocode", "route", "地图", "路线"), _MAP),
        **dict.fromkeys(("audio", "speech", "voice", "音频", "语音"), _AUDIO),
        **dict.fromkeys(("video", "视频"), _VIDEO),
    }
)
"""The words tools are usually described with, in English and Chinese."""
