"""Tags for tools that have none, taken from their names and descriptions.

A table maps words to tags: 搜索 or `search` to search, web and research. Words of alphabets must be whole words, in
any form (`Searches` is `search`, `profile` is not `file`); Chinese ones may occur anywhere. Where two words of the
table overlap, the longer one counts: 计算机 (computer) is not 计算 (calculate), and has no tags. Tags help to find
tools and to see which ones can do the same job.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Literal, TypeAlias

from ferrule.catalog.search.terms import extract_terms
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Tool, ToolCapability, ToolSpec, ToolType
from ferrule.texts.language import begins_with_cjk

_TextForm: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class TagTable:
    """Which words mean which tags."""

    words: Mapping[str, Sequence[str]]
    """A word or phrase and its tags; a phrase without tags prevents a shorter word in it from counting."""

    def with_words(self, words: Mapping[str, Sequence[str]]) -> TagTable:
        """Return this table with more words; the tags of a known word are replaced."""
        return TagTable(words={**self.words, **words})

    def tags_in(self, texts: Iterable[str]) -> list[str]:
        """Return the tags of the words in the texts, in the order of the texts, each once."""
        result: dict[str, None] = {}
        for text in texts:
            for form, (pattern, tags) in self._by_form.items():
                for word in pattern.findall(form(text)):
                    result.update(dict.fromkeys(tags[word]))
        return list(result)

    @cached_property
    def _by_form(self) -> dict[_TextForm, tuple[re.Pattern[str], dict[str, Sequence[str]]]]:
        """Return a pattern for the words of each form of a text, longest first, and their tags."""
        by_form: dict[_TextForm, dict[str, Sequence[str]]] = {_to_cjk_form: {}, _to_terms_form: {}}
        for word, tags in self.words.items():
            form = _to_cjk_form if any(map(begins_with_cjk, _to_cjk_form(word))) else _to_terms_form
            if formatted := form(word):
                by_form[form][formatted] = tags
        patterns = {
            form: "|".join(map(re.escape, sorted(words, key=len, reverse=True))) for form, words in by_form.items()
        }
        return {form: (re.compile(patterns[form] or r"(?!)"), words) for form, words in by_form.items()}


def extract_tags(name: str, description: str, table: TagTable | None = None) -> list[str]:
    """Return the tags of the words in a name and a description."""
    return (table or DEFAULT_TABLE).tags_in((name, description))


def add_missing_tags(tool: Tool, table: TagTable | None = None) -> Tool:
    """Return the tool with tags from its name and description; unchanged if it has tags already or none are found.

    The actions of MCP servers and web APIs get tags of their own.
    """
    table, spec = table or DEFAULT_TABLE, tool.spec
    tags, capabilities = spec.tags, spec.capabilities
    if not tags:
        # Not the descriptions of several actions: what one of them can do is not the purpose of the tool.
        only = spec.capability()
        tags = table.tags_in((spec.tool_id, spec.name, spec.description or (only.description if only else "")))
    if spec.tool_type in _TYPES_WITH_TAGGED_ACTIONS:
        capabilities = [
            each if each.tags else replace(each, tags=table.tags_in((each.name, each.description)))
            for each in capabilities
        ]
    if tags == spec.tags and capabilities == spec.capabilities:
        return tool
    return replace(tool, spec=replace(spec, tags=tags, capabilities=capabilities))


_TYPES_WITH_TAGGED_ACTIONS = (ToolType.MCP_SERVER, ToolType.HTTP)
"""Their actions are tools in their own right, put together only because one server offers them."""


def _to_cjk_form(text: str) -> str:
    return "" if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _to_terms_form(text: str) -> str:
    return "".join(f" {term} " for term in extract_terms(text) if not begins_with_cjk(term))


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


# What an action does that declares no effects: it reads, computes, or changes something, by its name and tags

ActionKind: TypeAlias = Literal["reads", "computes", "changes"]

_CHANGING: Final = frozenset(
    "accept add allocate append apply approve archive assign book buy cancel claim clear click close commit "
    "consume create decrement delete deploy dequeue disable dispatch draw drop edit enable enqueue exec execute "
    "fill flush forward grant import increment insert install invite kill lock log mark merge modify move mute "
    "next notify open order patch pay pop post press publish purchase push put register reject release remove "
    "rename replace reply reserve reset restart restore revoke run save schedule send set share shift sign start "
    "stop submit subscribe swap sync toggle transfer trigger unlock unsubscribe update upload upsert vote "
    "withdraw write".split()
)
"""Words that change something wherever they stand in a name: `read_and_archive`, `get_next_ticket`."""
_CHANGING_FIRST: Final = frozenset(
    "adjust announce bid broadcast call change charge checkout deposit destroy dm donate email "
    "follow fork join mail message phone purge "
    "reboot refund revert scale shutdown text terminate truncate turn tweet unfollow wipe wire".split()
)
"""Words that change something as the first word of a name: `email_news`, but not `search_email`."""
_READING_LAST: Final = frozenset(
    "browse fetch find forecast get inspect list lookup news query read retrieve search".split()
)
_CHANGING_CHINESE: Final = lazy_pattern(
    r"[发寄]送|发[布帖信]|写|删|改|更新|创建|新[建增]|添加|增加|插入|保存|上传|提交|支付|付款|转账|购买|下单|预[订约定]|取消|标记|归档|移动|"
    r"清[空除]|设置|启动|停止|关闭|执行|运行|安装|注册|回复|领取|下一|出队|撤销|审批|批准|拒绝"
)
_COMPUTING: Final = frozenset("calc calculate calculator calculation clock compute date evaluate math now time".split())
_COMPUTING_CHINESE: Final = lazy_pattern(r"计算|算术|时间|日期|几点")
_READING: Final = frozenset(
    "browse check count crawl describe extract fetch find forecast get inspect list lookup news query read research "
    "retrieve scan scrape search show status view weather web".split()
)
_READING_CHINESE: Final = lazy_pattern(r"搜|查|检索|读|获取|列出|提取|查看|天气|新闻|浏览")
_NAME_WORD = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


@lru_cache(maxsize=4096)
def split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: `sendEmail`, `send_email` and `send-email` are the same."""
    return tuple(word.lower() for word in _NAME_WORD.findall(name))


@lru_cache(maxsize=4096)
def _kind_of_name(name: str) -> ActionKind | None:
    words = split_name(name)
    if words == ("add",):  # of two numbers, unless the name says of what
        return None
    is_check_in = "check" in words and not {"in", "out"}.isdisjoint(words)
    if is_check_in or not _CHANGING.isdisjoint(words) or _CHANGING_CHINESE.search(name):
        return "changes"
    if _COMPUTING_CHINESE.search(name):
        return "computes"
    if _READING_CHINESE.search(name):
        return "reads"
    kinds = {_kind_of_part(part.split()) for part in re.split(r" (?:and|then) ", " ".join(words))}
    if "changes" in kinds:
        return "changes"
    return None if None in kinds else "reads" if "reads" in kinds else "computes"


def _kind_of_part(words: Sequence[str]) -> ActionKind | None:
    """Return what a name without conjunctions says: by its verb, which comes first or last."""
    first, last = (words[0], words[-1]) if words else ("", "")
    if first in _COMPUTING or (last in _COMPUTING and first not in _CHANGING_FIRST):
        return "computes"
    if first in _READING or last in _READING_LAST:
        return "reads"
    return "changes" if first in _CHANGING_FIRST else None


def infer_kind(names: Collection[str], tags: Collection[str]) -> ActionKind | None:
    """Return what an action does, or None if neither its names nor its tags say it. One changing word decides.

    The words of a description do not count: it also says what a tool is not for.
    """
    by_name, by_tag = {_kind_of_name(name) for name in names}, {_kind_of_name(tag) for tag in tags}
    if "changes" in by_name | by_tag:
        return "changes"
    kinds = by_name - {None} or by_tag
    return "computes" if "computes" in kinds else "reads" if "reads" in kinds else None


def begins_with_reading(name: str) -> bool:
    return (*split_name(name), "")[0] in _READING


def only_reads(spec: ToolSpec, capability: ToolCapability) -> bool:
    """Return whether a call of an action changes nothing: by its declared effects, or else by the verb of its name."""
    effects = spec.effects_of(capability)
    if effects.read_only or effects.polling or effects.cacheable:
        return True
    return not effects.destructive and infer_kind((spec.tool_id, capability.name), ()) in ("reads", "computes")


def changes(spec: ToolSpec, capability: ToolCapability) -> bool:
    """Return whether an action is known to change something. Of many, neither this nor `only_reads` is known."""
    return spec.effects_of(capability).destructive or infer_kind((spec.tool_id, capability.name), ()) == "changes"
