"""How people ask for arithmetic and for what the bundled tools do, in English and Chinese.

What a tool's answer looks like is in `ferrule.texts.answers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import SPACE_BESIDE_CHINESE
from ferrule.texts.numbers import NUMBER
from ferrule.texts.unit_conversion import UNIT

# Arithmetic: a pattern, the expression, and the subject of the answer. In a subject `*` stands for the words of the
# question, nothing for the expression itself; what is after `|` follows the number.

_N = rf"({NUMBER})"
_P = r"(\d+(?:\.\d+)?) ?(?:[%％]|per ?cent\b)"
_U = rf"({UNIT})"
_LIST = rf"({NUMBER}(?:\s*(?:,\s*and|,|、|and|和|与)\s*{NUMBER}){{1,30}})"
_TO_UNIT = r"(?:等于|是|合|相当于|有|换算成|换算为|转换成|转换为|换成|转成|为|=)?(?:多少|几)?个?"

ARITHMETIC_PHRASES: Final = (
    # Lists
    (rf"(?:the )?(?:sum of|total of|add(?: up| together)?) {_LIST}", "{sum}", "the sum of {0}"),
    (rf"(?:the )?product of {_LIST}", "{product}", "the product of {0}"),
    (rf"(?:the )?(?:average|mean) of {_LIST}", "mean({0})", "the average of {0}"),
    (rf"(?:the )?(?:largest|biggest|highest) (?:of|among) {_LIST}", "max({0})", "the largest of {0}"),
    (rf"(?:the )?(?:smallest|lowest) (?:of|among) {_LIST}", "min({0})", "the smallest of {0}"),
    (rf"{_LIST}的(?:总和|和)", "{sum}", "*"),
    (rf"{_LIST}的平均(?:数|值)?", "mean({0})", "*"),
    (rf"{_LIST}(?:里面?|中)?的?最[大高]的?", "max({0})", "{0}中最大的"),
    (rf"{_LIST}(?:里面?|中)?的?最[小低]的?", "min({0})", "{0}中最小的"),
    # Percentages and parts
    (rf"(?:what )?per ?cent(?:age)? of {_N} (?:is|are) {_N}", "{1} / {0} * 100", "{1}|% of {0}"),
    (rf"{_N} is what per ?cent(?:age)? of {_N}", "{0} / {1} * 100", "{0}|% of {1}"),
    (rf"{_N}(?:是|占)了?{_N}的(?:百分之几|百分之多少|多少百分比)", "{0} / {1} * 100", "{0}占{1}的比例|%"),
    (rf"{_N}的百分之{_N}", "{0} * {1}%", "*"),
    (rf"{_N}的{_P}", "{0} * {1}%", "*"),
    (rf"{_N}的{_N}分之{_N}", "{0} * {2} / {1}", "*"),
    (rf"(?:an? )?{_P} (?:tip|tax|vat|discount) (?:on|of) {_N}", "{1} * {0}%", "*"),
    (rf"{_P} off {_N}", "{1} * (1 - {0}%)", "*"),
    (rf"{_N} (?:and|with|at) {_P} (?:off|discount)", "{0} * (1 - {1}%)", "*"),
    (rf"{_N}元?打([1-9一二三四五六七八九])折", "{0} * {1} / 10", "*"),
    (rf"{_N} ?(?:\+|plus|increased by) ?{_P}(?: tax| vat)?", "{0} * (1 + {1}%)", "{0} plus {1}%"),
    (rf"{_N} ?(?:-|minus|less|reduced by|decreased by) ?{_P}", "{0} * (1 - {1}%)", "{0} minus {1}%"),
    (rf"{_N}再?(?:加上?|增加){_P}", "{0} * (1 + {1}%)", "*"),
    (rf"{_N}再?(?:减去?|减少){_P}", "{0} * (1 - {1}%)", "*"),
    (rf"(?<!\Ais ){_P} (?:more|greater|higher) than {_N}", "{1} * (1 + {0}%)", "*"),
    (rf"(?<!\Ais ){_P} (?:less|lower|cheaper) than {_N}", "{1} * (1 - {0}%)", "*"),
    # Units
    (rf"{_N} ?{_U},?(?: and)? {_N} ?{_U} (?:to|in|into|as) {_U}", "{0} {1} {2} {3} to {4}", "{0} {1} {2} {3}| {4}"),
    (rf"{_N}个?{_U}零?{_N}个?{_U}{_TO_UNIT}{_U}", "{0} {1} {2} {3} to {4}", "{0}{1}{2}{3}|{4}"),
    (rf"{_N} ?(?:degrees )?{_U} (?:weigh |is )?(?:to|in|into|as) (?:degrees )?{_U}", "{0} {1} to {2}", "{0} {1}| {2}"),
    (rf"how many {_U} (?:are |is )?(?:there )?(?:in|per|is) (?:an?|one) {_U}", "1 {1} to {0}", "1 {1}| {0}"),
    (rf"how many {_U} (?:are |is )?(?:there )?(?:in|per|is) {_N} ?{_U}", "{1} {2} to {0}", "{1} {2}| {0}"),
    (rf"{_N}个?{_U}{_TO_UNIT}{_U}", "{0} {1} to {2}", "{0}{1}|{2}"),
    (rf"([华摄]氏){_N}度{_TO_UNIT}([华摄]氏)(?:多少|几)?度", "{1} {0} to {2}", "{0}{1}度|{2}度"),
    # Single operations
    (rf"\badd {_N} (?:and|to) {_N}", "{1} + {0}", ""),
    (rf"\bsubtract {_N} from {_N}", "{1} - {0}", ""),
    (rf"\bmultiply {_N} (?:by|and|with) {_N}", "{0} * {1}", ""),
    (rf"\bdivide {_N} by {_N}", "{0} / {1}", ""),
    (rf"(?:the )?(?:square root|sqrt) of {_N}", "sqrt({0})", "the square root of {0}"),
    (rf"(?:the )?cube root of {_N}", "{0} ** (1/3)", "the cube root of {0}"),
    (
        rf"(?:the )?remainder (?:of|when) {_N} (?:is )?divided by {_N}",
        "{0} % {1}",
        "the remainder of {0} divided by {1}",
    ),
    (rf"(?:the )?factorial of {_N}", "factorial({0})", "the factorial of {0}"),
    (rf"{_N} to the (\d+)(?:st|nd|rd|th)(?: power)?", "{0} ** {1}", "*"),
    (rf"\b(?:double|twice) {_N}", "{0} * 2", "*"),
    (rf"\btriple {_N}", "{0} * 3", "*"),
    (rf"\b(?:halve|half(?: of)?) {_N}", "{0} / 2", "*"),
    (rf"\b(?:the )?square(?: of)? {_N}", "{0} ** 2", "*"),
    (rf"\b(?:the )?cube(?: of)? {_N}", "{0} ** 3", "*"),
    (rf"{_N}除以{_N}的余数", "{0} % {1}", "{0}除以{1}的余数"),
    (rf"{_N}的?(?:平方根|开方)", "sqrt({0})", "*"),
    (rf"(?:根号|√){_N}", "sqrt({0})", "*"),
    (rf"{_N}的?立方根", "{0} ** (1/3)", "*"),
    (rf"{_N}的{_N}次[方幂]", "{0} ** {1}", "*"),
    (rf"{_N}的?阶乘", "factorial({0})", "*"),
    (rf"{_N}(?:翻倍|的?两倍|加倍)", "{0} * 2", "*"),
    (rf"{_N}(?:减半|的一半)", "{0} / 2", "*"),
    (rf"{_N}的{_N}倍", "{0} * {1}", "*"),
)

# Requests for bundled tools: the action as models see it, after `:` the key of the answer in `ferrule.texts.answers` if
# it is not that of the action, and patterns for the whole request. The groups are the arguments.

_PATH = r"(?P<path>(?:[\w.@%+~-]*/)*[\w@%+~-][\w.@%+~-]*\.[A-Za-z][A-Za-z0-9_]{0,9})"
_URL = r"(?P<url>(?:https?://|www\.)[^\s\"'“”，。；]+)"
_THE_FILE = r"(?:(?:the |my |a )?(?:text )?(?:file |contents? of ))*"
_PLACE = r"(?=\S)[^\d,?]+?"
_CLOCK = r"\d{1,2}(?::\d\d)? ?[ap]\.?m\.?|\d{1,2}:\d\d|noon|midnight"
_CHINESE_PLACE = r"[\u4e00-\u9fff]{2,7}?"
_CHINESE_CLOCK = r"(?:上午|下午|早上|晚上|凌晨|中午)?[\d一二三四五六七八九十]{1,3}(?:点半?|[:：]\d\d)"
_TODAY = r"(?: (?:today|now|right now))?"
_HERE = r"(?: (?:are )?(?:there|here|in (?:this|the current) (?:folder|directory|project)))?"
_FIND = r"(?:(?:find|list|show|get|search for)(?: me)?|what|which|how many)(?: (?:all|every|the|my))*"
_QUERY = r"[\"'“]?(?P<query>[^\"'”]+)[\"'”]?"
_EXTENSIONS: Final = {"python": "py", "markdown": "md", "yaml": "{yaml,yml}", "text": "txt", "文本": "txt"}
"""Names of kinds of files that are not the ending of their names."""

TOOL_PHRASES: Final[dict[str, tuple[str, ...]]] = {
    "get_time:date": (
        rf"(?:what|which)(?:'s|s| is)? (?:the |today'?s )?(?:current )?(?:date|day|month|year)(?: of the week)?"
        rf"(?: is (?:it|today|this))?{_TODAY}",
        r"(?:今天|今年|现在)?是?(?:几月)?(?:几号|几日|星期几|周几|礼拜几|哪一?年|几月)",
        r"(?:今天的?|当前的?)?日期(?:是什么|是多少)?",
    ),
    "get_time:clock": (
        rf"what(?:'s| is)? (?:the )?(?:current )?time(?: is it)?{_TODAY}",
        r"(?:现在)?是?(?:几点钟?|什么时间)了?",
    ),
    "get_time:until": (
        r"how (?:many (?:days|weeks|hours)|long)(?: is it| are (?:there|left)| left)? (?:until|till|to)"
        r" (?:(?:my|our|the) \D+ on )?(?P<until>.+)",
        r"(?:现在|今天)?(?:距离?|离|到)(?P<until>.+?)(?:还有|还剩下?|有)(?:多少|几)(?:天|周|星期)",
    ),
    "get_time": (
        r"how (?:many days (?:has it been |is it )?since|long ago was) (?P<when>.+)",
        r"how many days(?: is it| are there)? (?:between|from) (?P<when>.+) (?:and|to) (?P<until>.+)",
        r"what time (?:will it be|was it) (?P<when>.+)",
        r"(?P<when>.+(?:小时|分钟)(?:之|以)?[后前])是?几点",
        rf"(?:what(?:'s| is) )?(?:the )?time difference between (?P<timezone>{_PLACE}) and (?P<other_place>{_PLACE})",
        rf"(?:if|when) it(?:'s| is) (?P<when>{_CLOCK}) in (?P<timezone>{_PLACE}),? what time is it"
        rf" in (?P<other_place>{_PLACE})",
        rf"(?P<timezone>{_CHINESE_PLACE})(?:和|与|跟)(?P<other_place>{_CHINESE_PLACE})(?:之间)?的?"
        r"(?:时差|时间差|相差|差)(?:是|有)?(?:(?:多少|几)个?(?:小时)?)?",
        rf"(?P<timezone>{_CHINESE_PLACE})(?:时间)?是?(?P<when>{_CHINESE_CLOCK})的?时?候?[，,]?是?"
        rf"(?P<other_place>{_CHINESE_PLACE})(?:时间)?是?几点",
        r"(?:what|which) (?:date|day|weekday|year)(?: of the week)?(?: (?:is|was|will)(?: it| be| it be)?)?"
        r" (?P<when>.*\d.*|tomorrow|yesterday|(?:next|last) \w+)",
        r"(?P<when>.*(?:\d.*?|[后前]|下.+|上.+))是?(?:几月几[号日]|几[号日]|星期几|周几|哪一?天)",
        r"(?:(?:what|when)(?:'s| is| was) )?(?P<when>\w+ (?:days?|weeks?|months?|years?)"
        r" (?:from (?:now|today)|ago))",
    ),
    "file_processor__info:lines": (
        rf"how many lines (?:does|do|has|have|are(?: there)? in|in) {_THE_FILE}{_PATH}(?: have| has| contain)?",
        rf"(?:文件)?{_PATH}(?:文件|里|中|里面)*(?:一共|总共|共)?有?(?:多少|几)行",
    ),
    "file_processor__info:size": (
        rf"(?:how (?:big|large) is|what(?:'s| is) the size of) {_THE_FILE}{_PATH}",
        rf"(?:文件)?{_PATH}(?:文件)?(?:有多大|多大|的?大小(?:是多少)?)",
    ),
    "file_processor__read": (
        rf"(?:read|show|print)(?: me)? (?:the )?(?P<order>first|last) (?P<lines>\d+) lines (?:of|in|from)"
        rf" {_THE_FILE}{_PATH}",
        rf"(?:读取?|看看?|显示|打开|查看)(?:文件)?{_PATH}(?:文件)?的?(?P<order>前|最后|后)(?P<lines>\d+)行",
        rf"(?:read|show|open|print|cat|display|what(?:'s| is) in|what does)(?: me)?(?: what's in)? {_THE_FILE}{_PATH}"
        r"(?: say| contain)?",
        rf"(?:文件)?{_PATH}(?:文件)?(?:里面?|中|的)?(?:写了|有|是|内容是)些?什么(?:内容)?",
        rf"(?:读取?一?下?|看看?一?下?|显示|打开|查看)(?:文件)?{_PATH}(?:文件)?(?:的内容)?",
    ),
    "search_files:names": (
        rf"{_FIND} (?P<extension>(?!(?:files|all|every|the|my)\b)[A-Za-z0-9]{{1,10}}) files?{_HERE}",
        rf"{_FIND} (?:files? )?\*\.(?P<extension>[A-Za-z0-9]{{1,10}})(?: files?)?{_HERE}",
        r"(?:找出|查找|找到?|列出|搜索|有哪些)(?:所有|全部)?的?\.?(?P<extension>[A-Za-z0-9]{1,10}|文本)文件",
        r"(?:find|where is|is there)(?: the| a)?(?: files?)?(?: named| called)? (?P<files>[\w.*?-]+\.[\w*]+)",
    ),
    "search_files:matches": (
        rf"does {_PATH.replace('path', 'files')} (?:mention|contain|include)(?: the)?(?: word| text)? {_QUERY}",
        r"(?:which|what|does any|find|list|show)(?: me)?(?: all)?(?: the| my)? files? (?:that |which )?"
        rf"(?:(?:mention|contain)(?:s|ing)?|with)(?: the)?(?: word| text)? {_QUERY}",
        rf"(?:search|grep)(?: in| through)?(?: all| the| my)* files for {_QUERY}",
        r"(?:查找|搜索|找出?|列出)(?:所有)?(?:包含|提到|含有)了?[“\"]?(?P<query>[^”\"]+?)[”\"]?的文件",
        r"哪些文件(?:里|中|里面)?(?:包含|提到|含有|有)了?[“\"]?(?P<query>[^”\"]+)[”\"]?",
    ),
    "list_workspace_files": (
        rf"(?:(?:list|show)(?: me)?(?: all)?(?: the| my)? (?:files|folders)|(?:what|which|how many) files"
        rf" (?:are|do i have)|ls|what(?:'s| is) in this folder){_HERE}",
        r"(?:列出|显示|查看|看看)(?:一下)?(?:所有|全部|这个?|这里|当前|文件夹|目录|[下中里的])*(?:文件|目录)(?:列表)?"
        r"|(?:这里|(?:这个|当前)(?:文件夹|目录)里?面?下?)?都?有(?:哪些|什么)文件",
    ),
    "file_processor__write": (
        rf"(?:create|make|write)(?: an?)?(?: new)?(?: text)? file(?: called| named)? {_PATH}"
        r" (?:with|containing|that says)(?: the)?(?: text| content)?:? [\"'“]?(?P<content>.+?)[\"'”]?",
        rf"(?:write|save|put) [\"'“]?(?P<content>(?!the result|it |this |that ).+?)[\"'”]? (?:to|into|in)"
        rf"(?: the| a)?(?: new)?(?: file)? {_PATH}",
        rf"[把将][“\"]?(?P<content>.+?)[”\"]?(?:写入|写到|写进|保存到|存到)(?:文件)? ?{_PATH}(?:中|里)?",
        rf"(?:create|make)(?: an?)?(?: new)?(?: empty)? file(?: called| named)? {_PATH}(?P<content>)",
        rf"(?:创建|新建)(?:一个)?文件 ?{_PATH}[，,]?(?:内容(?:是|为))[：:]?[“\"]?(?P<content>.+?)[”\"]?",
    ),
    "file_processor__append": (
        rf"(?:append|add) [\"'“]?(?P<line>.+?)[\"'”]? to (?:the end of )?(?:the )?(?:file )?{_PATH}",
    ),
    "file_processor__move": (rf"[把将](?:文件)? ?{_PATH} ?(?:改名|重命名)(?:为|成|到) ?{_PATH.replace('path', 'to')}",),
    "web_scraper": (
        rf"(?:fetch|get|open|read|visit|show|download|what(?:'s| is)(?: on| at)?|what does)(?: me)?(?: the)?"
        rf"(?: web ?page| page| site| contents? of| text of)*(?: at| from| of)? {_URL}(?: say)?",
        rf"(?:抓取|获取|打开|读取|访问|查看)(?:一下)?(?:网页|网址|页面)? ?{_URL}(?: ?的?内容)?",
    ),
    "summarize": (
        r"(?:summari[sz]e|sum up)(?: this| the following)?(?: text)?(?:[:：]\s*|\s*\n+)(?P<text>(?s:.+))",
        r"(?:总结|概括|摘要)(?:一下|下面|以下|这段|文字|文本|内容|的)*(?:[:：]\s*|\s*\n+)(?P<text>(?s:.+))",
    ),
}
_TOOL_PHRASES = [
    (name, lazy_pattern(phrase, re.IGNORECASE)) for name, phrases in TOOL_PHRASES.items() for phrase in phrases
]


def find_tool_phrases(text: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the phrases that a text consists of: the action, the key of the answer, and the arguments."""
    request = POLITE.sub("", text.replace("’", "'").strip())
    for words in dict.fromkeys((request, SPACE_BESIDE_CHINESE.sub("", request))):
        for name, pattern in _TOOL_PHRASES:
            if match := pattern.fullmatch(words):
                action, _, key = name.partition(":")
                yield action, key, _read_groups(match)


def _read_groups(match: re.Match[str]) -> dict[str, Any]:
    """Return the arguments that the groups of a phrase stand for."""
    groups: dict[str, Any] = match.groupdict(default="")
    if "lines" in groups:
        groups["lines"] = int(groups["lines"])
        groups |= {"start_line": -groups["lines"]} if groups.pop("order") in ("last", "后", "最后") else {}
    if "extension" in groups:
        extension = groups.pop("extension")
        groups["files"] = f"*.{_EXTENSIONS.get(extension.lower(), extension)}"
    if "files" in groups:
        groups["files"] = f"**/{groups['files']}"
    if "line" in groups:
        groups |= {"content": groups.pop("line"), "as_line": True}
    return groups


DATA_FILE: Final = lazy_pattern(r"[\w-]\.(csv|tsv|parquet|jsonl|xlsx|xls)\b", re.IGNORECASE | re.ASCII)
"""The name of a file with a table, and its ending."""
_SOURCE = rf"(?P<source>{_PATH}|{_URL})"
REWRITES: Final = (
    (rf"(?:please )?(?:summari[sz]e|sum up)(?: the (?:file|page))? {_SOURCE}[.?!]?", "read {source} ; summarize: it"),
    (rf"(?:请|帮我)*(?:总结|概括)(?:一下)?(?:文件|网页)? ?{_SOURCE}(?:的内容)?。?", "读取 {source} ；总结：它"),
)
"""Requests that take two steps."""
POLITE: Final = lazy_pattern(
    r"\A(?:(?:please|can you|could you|would you|tell me|do you know|i want to know|hey|ok|so|and|now|then"
    r"|请问?|帮我|麻烦你?|告诉我|我想知道|你?能不能)[,，\s]*)+(?=\S)"
    r"|[\s,，]*(?:please|for me|thanks|thank you|吗|呢|啊)?[\s?？.。!！]*\Z",
    re.IGNORECASE,
)
"""Words at both ends of a request that ask for nothing."""
TEXT_TASK: Final = lazy_pattern(
    r"\s*(?:please\s+|(?:can|could)\s+you\s+|请|帮我)*(?:rewrite|rephrase|paraphrase|proofread|summari[sz]e|translate"
    r"|explain|echo|改写|润色|总结|概括|翻译|解释|说明)[^:：\n.!?。！？]*[:：\n]",
    re.IGNORECASE,
)
"""The sentences of the text in `translate: …` ask for nothing."""
