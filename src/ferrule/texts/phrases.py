"""How people ask for arithmetic and for what the bundled tools do, in English and Chinese.

What a tool's answer looks like is in `ferrule.texts.answers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.texts.holidays import HOLIDAY
from ferrule.texts.numbers import NUMBER
from ferrule.texts.unit_conversion import UNIT

# Arithmetic: a pattern, the expression, and the subject of the answer. In a subject `*` stands for the words of the
# question, nothing for the expression itself; what is after `|` follows the number. Of three parts between `‖` one is
# the answer, by the sign of the number.

_N = rf"({NUMBER})"
_I = r"(-?\d+)(?![\d.%])"
_P = r"(\d+(?:\.\d+)?) ?(?:[%％]|per ?cent\b)"
_U = rf"({UNIT})"
_E = r"((?:the |a )?\S(?:[^,;?!]*?\S)??)"
"""A number or a piece of arithmetic, as one side of a comparison."""
_CHINESE_SIDE = r"((?:根号|√)?[-\d.(（一二三四五六七八九十百千][^，,。？?；;保四取精到]*?)[，,]?(?:的?结果)?"
_GREATER = r"(?:bigger|larger|greater|more|higher)"
_LESS = r"(?:smaller|less|lower|fewer)"
_IS = r"(?<!\bwhat )(?<!\bmuch )(?<!\bmany )\bis"
_LEAP_YEAR = "{0} % (4 + 12 * (gcd({0}, 25) // 25)) == 0"
_ITEMS = r"(?: (?:all|the|these|my|numbers?|values?|scores?|grades?|prices?):?)*"
_LIST = rf"({NUMBER}(?:\s*(?:,\s*and|,|、|and|和|与)\s*{NUMBER}){{1,30}})"

_NOT_WORDS: Final = (_LIST, NUMBER, _P, _E)
_WORD_OR_CHINESE = lazy_pattern(r"\\u\w{4}|\\.|<\w+>|(?P<word>[a-z]{2,})|(?P<chinese>[\u4e00-\u9fff])")


def is_chinese_phrase(pattern: str) -> bool:
    """Whether a phrase has Chinese words and no English ones, so that no ASCII text can match it. Compiling the phrases
    of the other language would take half the time of `ferrule ask` without an API key."""
    for part in _NOT_WORDS:
        pattern = pattern.replace(part, "<n>")
    kinds = {match.lastgroup for match in _WORD_OR_CHINESE.finditer(pattern)}
    return "chinese" in kinds and "word" not in kinds


ARITHMETIC_PHRASES: Final = (
    (rf"(?:the )?(?:sum(?: of| up)?|total(?: of)?|add(?: up| together)?){_ITEMS} {_LIST}", "{sum}", "the sum of {0}"),
    (rf"(?:the )?product of{_ITEMS} {_LIST}", "{product}", "the product of {0}"),
    (rf"(?:the )?(?:average|mean) of{_ITEMS} {_LIST}", "mean({0})", "the average of {0}"),
    (
        rf"(?:the )?(?:maximum|max|largest|biggest|highest){_ITEMS} (?:of|among) {_LIST}",
        "max({0})",
        "the largest of {0}",
    ),
    (rf"(?:the )?(?:minimum|min|smallest|lowest){_ITEMS} (?:of|among) {_LIST}", "min({0})", "the smallest of {0}"),
    (rf"{_LIST}的(?:总和|和)", "{sum}", "*"),
    (rf"{_LIST}的平均(?:数|值)?", "mean({0})", "*"),
    (rf"{_LIST}(?:里面?|中|当中)?的?最[大高]的?", "max({0})", "{0}中最大的"),
    (rf"{_LIST}(?:里面?|中|当中)?的?最[小低]的?", "min({0})", "{0}中最小的"),
    # Sums of ranges
    (
        r"(?:(?:sum|total)(?: of)?|add(?:ing)? up|add(?:ing)?(?= all| every| each| the| whole| numbers))"
        rf"(?: (?:all|every|each|of|the))*(?: whole| natural)?(?: numbers?| integers?)?(?: from| between)?"
        rf" {_I}(?: to | through | and |\s?-\s?|\.\.+|…){_I}",
        "({0} + {1}) * (abs({1} - {0}) + 1) / 2",
        "the sum of the numbers from {0} to {1}",
    ),
    (
        rf"从?{_I}一?直?(?:加到|到|至){_I}(?:所有|全部)?(?:整数|自然数|数)?(?:的?(?:总?和|累加)|相加|加起来)",
        "({0} + {1}) * (abs({1} - {0}) + 1) / 2",
        "从{0}加到{1}",
    ),
    (rf"从?{_I}一?直?加到{_I}", "({0} + {1}) * (abs({1} - {0}) + 1) / 2", "从{0}加到{1}"),
    # Percentages and parts
    (rf"per ?cent(?:age)? of {_N} (?:is|are|does) {_N}", "{1} / {0} * 100", "{1}|% of {0}"),
    (rf"{_N}(?:是|占)了?{_N}的(?:百分之几|百分之多少|多少百分比)", "{0} / {1} * 100", "{0}占{1}的比例|%"),
    (rf"{_N}的百分之{_N}", "{0} * {1}%", "*"),
    (rf"{_N}的{_P}", "{0} * {1}%", "*"),
    (rf"{_N}的{_N}分之{_N}", "{0} * {2} / {1}", "*"),
    (rf"{_N} ?(?:\+|plus|increased by) ?{_P}", "{0} * (1 + {1}%)", "{0} plus {1}%"),
    (rf"{_N} ?(?:-|minus|less|reduced by|decreased by) ?{_P}", "{0} * (1 - {1}%)", "{0} minus {1}%"),
    (rf"{_N}再?加上?{_P}", "{0} * (1 + {1}%)", "*"),
    (rf"{_N}再?减去?{_P}", "{0} * (1 - {1}%)", "*"),
    (rf"{_P} (?:more|greater|higher|bigger|larger) than {_N}", "{1} * (1 + {0}%)", "*"),
    (rf"{_P} (?:less|lower|smaller|cheaper) than {_N}", "{1} * (1 - {0}%)", "*"),
    # Rounding
    (
        rf"round(?:ed)? (?:off )?{_E} to {_N} (?:decimals?|digits|places)(?: places?)?",
        "{decimals}",
        "{0} rounded to {1} decimals",
    ),
    (
        rf"(?:\A(?!what|how|please|can|tell|calc|comp)|\b(?:is|calculate|compute) |'s ){_E},?"
        rf" (?:rounded )?(?:to|with) {_N} (?:decimals?|decimal places?)\b",
        "{decimals}",
        "{0} rounded to {1} decimals",
    ),
    (
        rf"round(?:ed)? (?:off )?{_N}(?: to (?:the )?(?:nearest )?(?:whole number|whole|integer|one|unit)s?)?\Z",
        "floor({0} + 0.5)",
        "{0} rounded to a whole number",
    ),
    (
        rf"round(?:ed)? (?:off )?{_N} to the nearest (10+|ten|hundred|thousand)\b",
        "floor({0} / {1} + 0.5) * {1}",
        "{0} rounded to the nearest {1}",
    ),
    (
        rf"{_CHINESE_SIDE}(?:四舍五入)?(?:到|保留|取|精确到)+(?:小数点后)?{_N}位(?:小数)?",
        "{decimals}",
        "{0}四舍五入到{1}位小数",
    ),
    (rf"{_N}四舍五入(?:到|取|为)?(?:整数|个位)?", "floor({0} + 0.5)", "{0}四舍五入"),
    # Comparisons
    (rf"{_IS} {_E} {_GREATER} than {_E}\s*\Z", "{0} > {1}", "{0} is {{not}}greater than {1}"),
    (rf"{_IS} {_E} {_LESS} than {_E}\s*\Z", "{0} < {1}", "{0} is {{not}}less than {1}"),
    (rf"{_IS} {_E} (?:equal to|the same as|equals) {_E}\s*\Z", "{0} == {1}", "{0} is {{not}}equal to {1}"),
    (rf"{_IS} (?:the year )?{_I} a leap year", _LEAP_YEAR, "{0} is {{not}}a leap year"),
    (rf"{_I}年?(?:是不是|是否是?|是)(?:一个)?闰年", _LEAP_YEAR, "{0}年{{not}}是闰年"),
    (rf"{_E}(?:比|是不是大于|是否大于|大于){_E}大?(?:吗)?\s*\Z", "{0} > {1}", "{0}{{not}}大于{1}"),
    (rf"{_E}(?:是不是小于|是否小于|小于){_E}(?:吗)?\s*\Z", "{0} < {1}", "{0}{{not}}小于{1}"),
    (
        rf"(?:which|what)(?: one| number| of these)?(?: is|'s) {_GREATER}[,:]? {_E},? (?:or|and) {_E}\s*\Z",
        "({0}) - ({1})",
        "{0} is larger than {1}‖{0} and {1} are equal‖{1} is larger than {0}",
    ),
    (
        rf"(?:which|what)(?: one| number| of these)?(?: is|'s) {_LESS}[,:]? {_E},? (?:or|and) {_E}\s*\Z",
        "({0}) - ({1})",
        "{1} is smaller than {0}‖{0} and {1} are equal‖{0} is smaller than {1}",
    ),
    (rf"{_E}(?:和|与|跟){_E}(?:哪个|谁)(?:更|比较)?大", "({0}) - ({1})", "{0}比{1}大‖{0}和{1}相等‖{1}比{0}大"),
    (rf"{_E}(?:和|与|跟){_E}(?:哪个|谁)(?:更|比较)?小", "({0}) - ({1})", "{1}比{0}小‖{0}和{1}相等‖{0}比{1}小"),
    # Units
    (
        rf"{_I}['′’] ?{_N}(?:\"|″|''|”)? (?:to|in|into|as) {_U}",
        "{0} feet {1} inches to {2}",
        "{0} feet {1} inches| {2}",
    ),
    (
        rf"{_N} ?{_U},?(?: and)? {_N} ?{_U} (?:to|in|into|as) {_U}",
        "{0} {1} {2} {3} to {4}",
        "{0} {1} {2} {3}| {4}",
    ),
    (
        rf"{_N}个?{_U}零?{_N}个?{_U}(?:等于|是|合|有|换算成|换算为|=)?(?:多少|几)?个?{_U}",
        "{0} {1} {2} {3} to {4}",
        "{0}{1}{2}{3}|{4}",
    ),
    (rf"{_N} ?(?:degrees )?{_U} (?:weigh |is )?(?:to|in|into|as) (?:degrees )?{_U}", "{0} {1} to {2}", "{0} {1}| {2}"),
    (
        rf"how many {_U} (?:are |is )?(?:there )?(?:in|per|make|is)?(?: up)? ?(?:an?|one) {_U}",
        "1 {1} to {0}",
        "1 {1}| {0}",
    ),
    (
        rf"how many {_U} (?:are |is )?(?:there )?(?:in|per|make|is)?(?: up)? ?{_N} ?{_U}",
        "{1} {2} to {0}",
        "{1} {2}| {0}",
    ),
    (
        rf"{_N}个?{_U}(?:等于|是|合|相当于|有|换算成|换算为|转换成|转换为|换成|转成|为|=)?(?:多少|几)?个?{_U}",
        "{0} {1} to {2}",
        "{0}{1}|{2}",
    ),
    (
        rf"([华摄]氏){_N}度(?:等于|是|合|相当于)?(?:多少|几)?([华摄]氏)(?:多少|几)?度",
        "{1} {0} to {2}",
        "{0}{1}度|{2}度",
    ),
    (rf"{_N} ?([华摄]氏)度(?:等于|是|合|相当于)?([华摄]氏)(?:多少|几)度", "{0} {1} to {2}", "{0}{1}度|{2}度"),
    # Single operations
    (rf"\badd(?:ing)? {_N}(?: and|, ?) ?{_N}", "{0} + {1}", ""),
    (rf"\badd(?:ing)? {_N} to {_N}", "{1} + {0}", ""),
    (rf"\bsubtract(?:ing)? {_N} from {_N}", "{1} - {0}", ""),
    (rf"\bmultipl(?:y|ying) {_N} (?:by|and|with) {_N}", "{0} * {1}", ""),
    (rf"\bdivid(?:e|ing) {_N} by {_N}", "{0} / {1}", ""),
    (rf"(?:the )?(?:square root|sqrt) of {_N}", "sqrt({0})", "the square root of {0}"),
    (rf"(?:the )?cube root of {_N}", "round({0} ** (1/3), 9)", "the cube root of {0}"),
    (
        rf"(?:the )?remainder (?:when|if|of|after)(?: dividing)? {_N} (?:is )?(?:divided )?(?:by|/) {_N}",
        "{0} % {1}",
        "the remainder of {0} divided by {1}",
    ),
    (rf"{_N}除以{_N}的?余数?", "{0} % {1}", "{0}除以{1}的余数"),
    (rf"(?:the )?log(?:arithm)?(?: to)?(?: the)? base {_N} of {_N}", "round(log({1}, {0}), 9)", "*"),
    *(
        (rf"(?:the )?{words} (?:of )?{_N} ?(?:degrees|°)", f"round({name}({{0}} * pi / 180), 9)", "*")
        for name, words in (("sin", "sine?"), ("cos", "cos(?:ine)?"), ("tan", "tan(?:gent)?"))
    ),
    (rf"(?:the )?factorial of {_N}", "factorial({0})", "the factorial of {0}"),
    (rf"{_N} to the (\d+)(?:st|nd|rd|th)(?: power)?", "{0} ** {1}", "*"),
    (rf"\b(?:double|twice) (?:of )?{_N}", "{0} * 2", "*"),
    (rf"\btriple (?:of )?{_N}", "{0} * 3", "*"),
    (rf"\b(?:halve|half(?: of)?) {_N}", "{0} / 2", "*"),
    (rf"\b(?:the )?square(?: of)? {_N}", "{0} ** 2", "*"),
    (rf"{_I} choose {_I}", "comb({0}, {1})", "*"),
    (rf"\b(?:the )?cube(?: of)? {_N}", "{0} ** 3", "*"),
    (rf"{_N}的?(?:平方根|开方)", "sqrt({0})", "*"),
    (rf"(?:根号|√){_N}", "sqrt({0})", "*"),
    (rf"{_N}的?(?:立方根|开立方)", "round({0} ** (1/3), 9)", "*"),
    (rf"{_N}的?平方(?![根米公英厘千])", "{0} ** 2", "*"),
    (rf"{_N}的?立方(?![根米厘千])", "{0} ** 3", "*"),
    (rf"{_N}的{_N}次[方幂]", "{0} ** {1}", "*"),
    (rf"{_N}的?阶乘", "factorial({0})", "*"),
    (rf"{_N}(?:翻倍|的?两倍|的?二倍|加倍)", "{0} * 2", "*"),
    (rf"{_N}(?:减半|的一半)", "{0} / 2", "*"),
    (rf"{_N}的{_N}倍", "{0} * {1}", "*"),
)

# Word problems: words of the question, the expression, and the subject of the answer. In the words `#` stands for any
# number, `%` for any percentage and `&` for 八折; {0} and {1} are the percentages of the question, then its other
# numbers. A question with more or fewer numbers is another problem.

_PEOPLE = r" ?(?:people|persons?|friends|ways|of us|kids|children|guests|parts)"
_TOTAL = r"(?=.*\b(?:total|altogether|including|in all)\b)"
WORD_PROBLEMS: Final = (
    (rf"{_TOTAL}.*\b(?:tip|gratuity)", "round({1} * (1 + {0}%), 2)", "{1} with a {0}% tip"),
    (r"\b(?:tip|gratuity|service charge)\b", "round({1} * {0}%, 2)", "a {0}% tip on {1}"),
    (
        r"\b(?:leave|pay|give)\b.*% (?:on|of|for)\b.*\b(?:bill|check|meal|dinner|lunch)\b",
        "round({1} * {0}%, 2)",
        "{0}% of {1}",
    ),
    (r"\b(?:cashback|commission|deposit|down payment|fee|refund)\b", "round({1} * {0}%, 2)", "{0}% of {1}"),
    (r"(?=.*(?:共|合计|总计|总额)).*(?:小费|服务费)", "round({1} * (1 + {0}%), 2)", "{1}加{0}%小费"),
    (r"小费|服务费", "round({1} * {0}%, 2)", "{1}的{0}%"),
    (r"\b(?:sav(?:e|ing)s?\b.*%|%.*\bsav(?:e|ings?)\b)", "round({1} * {0}%, 2)", "the saving at {0}% off {1}"),
    (
        r"% ?(?:off|discount|cheaper|reduction|less|sale)\b|\b(?:discount(?:ed)?|marked down|drops?|falls?)\b.*%",
        "round({1} * (1 - {0}%), 2)",
        "{1} with {0}% off",
    ),
    (r"&", "round({1} * {0} * 10%, 2)", "{1}打{0}折"),
    (r"(?:降价?|减少|便宜|优惠|下降)了?%|%的?折扣", "round({1} * (1 - {0}%), 2)", "{1}减少{0}%"),
    (r"(?:涨价?|增加|提高|上涨|增长)了?%", "round({1} * (1 + {0}%), 2)", "{1}增加{0}%"),
    (r"\b(?:increase[ds]?|raise[ds]?|rises?|grows?|goes up)\b.*%", "{1} * (1 + {0}%)", "{1} increased by {0}%"),
    (r"\b(?:decrease[ds]?|reduce[ds]?|lower(?:ed)?)\b.*%", "{1} * (1 - {0}%)", "{1} reduced by {0}%"),
    (r"%.*\b(?:tax|vat|gst)\b.*\b(?:on|of|for) #", "round({1} * {0}%, 2)", "{0}% tax on {1}"),
    (r"\b(?:tax|vat|gst)\b", "round({1} * (1 + {0}%), 2)", "{1} plus {0}% tax"),
    (r"\badd(?:ing)? %", "round({1} * (1 + {0}%), 2)", "{1} plus {0}%"),
    (
        r"per ?cent.*\bfrom # to #|\bfrom # to #.*per ?cent",
        "({1} - {0}) / {0} * 100",
        "the change from {0} to {1}|%",
    ),
    (r"从#[^#]*(?:到|变成|变为)#.*百分之(?:几|多少)", "({1} - {0}) / {0} * 100", "从{0}到{1}的变化|%"),
    (
        r"per ?cent.*# (?:of|out of|from) #|# is what per ?cent|# (?:out )?of #.*per ?cent|# as an? per ?cent",
        "{0} / {1} * 100",
        "{0}|% of {1}",
    ),
    (r"#(?: ?个?[人位份])[^#]*(?:平分|均分|分)[^#]*#", "round({1} / {0}, 2)", "{1}平均分成{0}份，每份"),
    (r"(?:平分|均分|分给|分成 ?#|AA)", "round({0} / {1}, 2)", "{0}平均分成{1}份，每份"),
    (
        rf"(?:split|shar|divid)[^#]*#[^#]*#(?:{_PEOPLE})?\b|#[^#]*(?:split|shar|divid)[^#]*#(?:{_PEOPLE})\b",
        "round({0} / {1}, 2)",
        "{0} split {1} ways",
    ),
    (r"# for # [a-z]+\b[^#]*how much\b[^#]*\b(?:each|apiece)\b", "round({0} / {1}, 2)", "{0} split {1} ways"),
    (r"#[个件份本张瓶][^#]*#[^#]*每[个件份本张瓶]", "round({1} / {0}, 2)", "{1}平均分成{0}份，每份"),
    (rf"#{_PEOPLE}[^#]*(?:split|shar|divid)[^#]*#", "round({1} / {0}, 2)", "{1} split {0} ways"),
    (
        r"# [a-z]+ (?:at|for|cost(?:ing)?) # (?:each|apiece|per)\b|each [a-z]+ (?:costs?|is|weighs) #.*#",
        "round({0} * {1}, 2)",
        "{0} times {1}",
    ),
    (r"每.{0,2}#.*#.{0,3}(?:多少钱|一共|总共)", "round({0} * {1}, 2)", "{0}乘以{1}"),
)
NO_WORD_PROBLEM: Final = lazy_pattern(
    r"\b(?:original(?:ly)?|before|left|remain\w*|much change|interest|compound\w*|twice|every|again|then|more than|"
    r"how many (?!per)|per (?!cent)(?:year|month|week|day|hour)|years?|months?|weeks?|was it|what was)\b"
    r"|原来|原价(?:是|为)?多少|折前|税前|剩|找零|能买|可以买|利息|年|每(?:天|月|周)|几[个件]",
    re.IGNORECASE,
)
"""Words of problems that take more than one operation."""

# Requests for bundled tools: the action as models see it, after `:` the key of the answer in `ferrule.texts.answers` if
# it is not that of the action, and patterns for the whole request. The groups are the arguments.

_PATH = r"(?P<path>(?:[\w.@%+~-]*/)*[\w@%+~-][\w.@%+~-]*\.[A-Za-z][A-Za-z0-9_]{0,9})"
_FOLDER = r"(?P<path>[\w.@%+~-]+(?:/[\w.@%+~-]+)*)/?"
_URL = r"(?P<url>(?:https?://|www\.)[^\s\"'“”，。；]+)"
_THE_FILE = r"(?:(?:the |my |a )?(?:text )?(?:file |contents? of |content of ))*"
_HOLIDAY = rf"(?:(?:\d{{4}}|[今明去])年的?)?(?:{HOLIDAY})(?: \d{{4}}| (?:this|next|last) year)?"
_WHEN = rf"(?P<when>.*\d.*|{_HOLIDAY}|tomorrow|yesterday|(?:next|last|this) \w+)"
_PLACE = r"(?=\S)[^\d,?]+?"
_CLOCK = r"\d{1,2}(?::\d\d)? ?[ap]\.?m\.?|\d{1,2}:\d\d|noon|midnight"
_CHINESE_PLACE = r"[\u4e00-\u9fff]{2,7}?"
_CHINESE_CLOCK = (
    r"(?:上午|下午|早上|晚上|凌晨|中午)?[\d一二三四五六七八九十]{1,3}(?:点[\d半一二三四五十]*分?|[:：]\d\d)"
)
_CONVERT_TO = r"what(?:'s| is)?(?: the)? time(?: is it| would it be| will it be)?"
_TODAY = r"(?: (?:today|now|right now|currently|at the moment))?"
EXTENSIONS: Final = {
    "python": "py",
    "markdown": "{md,markdown}",
    "yaml": "{yaml,yml}",
    "yml": "{yaml,yml}",
    "text": "txt",
    "文本": "txt",
    "javascript": "js",
    "typescript": "ts",
    "excel": "{xlsx,xls}",
    "html": "{html,htm}",
    "image": "{png,jpg,jpeg,gif,webp}",
    "jpeg": "{jpg,jpeg}",
    "jpg": "{jpg,jpeg}",
}
"""The pattern of names for a kind of file."""
_FIND = (
    r"(?:(?:find|list|show|search(?: for)?|look for|get|give|display|locate)(?: me)?"
    r"|what are|which are|are there(?: any)?)"
)
_ALL = r"(?: (?:all|every|each|any|of|the|my))*"
_HERE = r"(?: (?:are )?(?:there|here|in (?:here|(?:this|the|my)(?: current)? (?:folder|directory|workspace|project))))?"
_EXT = (
    r"(?P<extension>(?!(?:the|my|all|any|every|each|your|these|those|new|old|other|big|large|recent|hidden|here|there)\b)"
    r"[A-Za-z0-9]{1,10})"
)

TOOL_PHRASES: Final[dict[str, tuple[str, ...]]] = {
    "get_time:year": (
        rf"(?:what|which)(?:'s| is)?(?: the| the current| current)? year(?: is (?:it|this))?{_TODAY}",
        r"(?:今年|现在|当前)?是?(?:公元)?(?:哪一?年|几几年|什么年份|多少年)",
    ),
    "get_time:month": (
        rf"(?:what|which)(?:'s| is)?(?: the| the current| current)? month(?: is (?:it|this))?{_TODAY}",
        r"(?:现在|本月|这个月|今天)?是?(?:几月|什么月份)",
    ),
    "get_time:week": (
        rf"(?:what|which)(?:'s| is)?(?: the)?(?: current| calendar)? week(?: number)?(?: is (?:it|this))?"
        rf"(?: of the year)?{_TODAY}",
        r"(?:今天|现在|本周|这周)?是?(?:今年的?)?第几[周个]星?期?",
    ),
    "get_time:date": (
        r"(?:what(?:'s|s| is)? )?(?:the |today'?s )?(?:current )?(?:date|day)(?: is it| is today)?(?: of"
        r" (?:today|the week))?"
        rf"(?: is it)?{_TODAY}",
        r"what day of the week is (?:it|today)(?: today)?",
        r"(?:今天|今日|现在)?是?(?:几月)?(?:几号|几日|星期几|周几|礼拜几|什么日子|什么日期)",
        r"(?:今天的?|当前的?)?日期(?:是什么|是多少)?",
    ),
    "get_time:clock": (
        rf"what(?:'s| is)? (?:the )?(?:current )?time(?: is it)?{_TODAY}|what(?:'s| is) the time",
        r"(?:请问)?(?:现在)?(?:是)?(?:几点钟?|什么时间|什么时候)了?",
    ),
    "get_time:until": (
        r"(?:how (?:many (?:days|weeks|hours|minutes)|long|much (?:longer|time))(?: is it|"
        r" are (?:there|left)| is there| remain(?:ing)?)?(?: left)?|(?:the )?number of days|days|countdown)"
        r" (?:until|till|before|to) (?:(?:my|our|the) \D+ on )?(?P<until>.+)",
        r"还有(?:多少|几)天(?:到|是|就是|过)(?P<until>.+)",
        r"how many days (?:are |do we have )?(?:left|remaining|remain)(?: in)?(?: the| this)? (?P<end>year|month)",
        r"(?:现在|今天)?(?:距离?|离|到)(?P<until>.+?)(?:还有|还剩下?|有)(?:多少|几)(?:个)?(?:天|周|星期|日子)",
    ),
    "get_time:then": (
        r"what(?:'s| is)? (?:the )?time (?:will it be|was it|is it|would it be|will be)? ?"
        r"(?P<when>in [\w. ]+ (?:hours?|minutes?|mins?|seconds?|days?)(?: from now)?|.+ (?:ago|from now|later))",
        r"(?P<when>.+(?:小时|分钟|钟头|秒)(?:之|以)?[后前])是?(?:几点钟?|什么时间)",
    ),
    "get_time": (
        r"how old (?:is|am|are|would|will) .*?\bborn (?:on|in) (?P<when>.*\d.*)",
        rf"how many days (?:have passed |has it been |is it |are there )?since (?P<last>{_HOLIDAY})",
        r"how many days (?:have passed |has it been |is it |are there )?since (?P<when>.+)",
        rf"how (?:long|many (?:days|weeks|years)) ago (?:was|is) (?P<last>{_HOLIDAY})",
        r"how (?:long|many (?:days|weeks|years)) ago (?:was|is) (?P<when>.+)",
        rf"(?:when|(?:what|which) (?:date|day)(?: of the week)?) (?:is|will) (?P<next>{_HOLIDAY})(?: be)?",
        rf"(?P<next>{_HOLIDAY})(?:是|在)?(?:哪一?天|几月几[号日]|几[号日]|什么时候|星期几|周几)",
        rf"(?:what(?:'s| is) )?(?:the )?(?:time|hours?)(?:[ -]zone)? difference (?:between|from) (?P<timezone>{_PLACE})"
        rf" (?:and|to) (?P<other_place>{_PLACE})",
        rf"how (?:many hours|far)(?: (?:ahead|behind))? is (?P<timezone>{_PLACE})"
        rf" (?:ahead of|behind|before|after|from) (?P<other_place>{_PLACE})",
        rf"how (?:many hours|far) (?:ahead|behind)(?: of)? (?P<other_place>{_PLACE}) is (?P<timezone>{_PLACE})",
        rf"(?:if|when) it(?:'s| is) (?P<when>{_CLOCK}) in (?P<timezone>{_PLACE}),?(?: then)? {_CONVERT_TO}"
        rf" in (?P<other_place>{_PLACE})",
        rf"{_CONVERT_TO} in (?P<other_place>{_PLACE}),? (?:if|when) it(?:'s| is) (?P<when>{_CLOCK})"
        rf" in (?P<timezone>{_PLACE})",
        rf"(?:what(?:'s| is) |convert )?(?P<when>{_CLOCK}) (?:in |from )?(?P<timezone>{_PLACE})(?: time)?"
        rf" (?:to|in|into) (?P<other_place>{_PLACE})(?: time)?",
        rf"(?P<timezone>{_CHINESE_PLACE})(?:和|与|跟)(?P<other_place>{_CHINESE_PLACE})(?:之间)?的?"
        r"(?:时差|时间差|相差|差)(?:是|有)?(?:(?:多少|几)个?(?:小时|钟头)?|多大)?",
        rf"(?P<timezone>{_CHINESE_PLACE})比(?P<other_place>{_CHINESE_PLACE})[早晚快慢](?:多少|几)个?小时",
        rf"(?:如果|当)?(?P<timezone>{_CHINESE_PLACE})(?:时间)?是?(?P<when>{_CHINESE_CLOCK})(?:的?时候?)?[，,]?是?"
        rf"(?P<other_place>{_CHINESE_PLACE})(?:时间)?是?(?:几点钟?|什么时间)",
        r"(?:what|which) (?:date|day|month|year|weekday)(?: of the week)?"
        rf" (?:(?:is it|was it|will it be|is|was|will be) )?{_WHEN}",
        r"(?P<when>.+(?:[后前]|下.+|上.+))是?(?:几月几[号日]|几[号日]|星期几|周几|哪一?天|哪一?年|什么日子)",
        rf"what (?:is|was|will be) the date {_WHEN}",
        r"(?:(?:what|when)(?:'s| is| was) )?(?P<when>(?:\d+|an?|one|two|three|four|five|six|ten)"
        r" (?:days?|weeks?|months?|years?) (?:from (?:now|today|tomorrow)|ago))",
        r"what(?:'s| is| was) (?P<when>the day after tomorrow|the day before yesterday)",
    ),
    "file_processor__info:lines": (
        rf"how many lines (?:does|do|has|have|are(?: there)? in|is in|in|of) {_THE_FILE}{_PATH}(?: have|"
        rf" has| contain)?",
        rf"(?:count|number of)(?: the| all)?(?: number of)? lines (?:in|of) {_THE_FILE}{_PATH}",
        rf"(?:文件)?{_PATH}(?:文件|里|中|里面)*(?:一共|总共|共)?有?(?:多少|几)行",
    ),
    "file_processor__info:words": (
        rf"how many words (?:does|do|has|have|are(?: there)? in|is in|in|of) {_THE_FILE}{_PATH}"
        r"(?: have| has| contain)?",
        rf"(?:count|number of)(?: the| all)?(?: number of)? words (?:in|of) {_THE_FILE}{_PATH}",
        rf"(?:文件)?{_PATH}(?:文件|里|中|里面)*(?:一共|总共|共)?有?(?:多少|几)个?(?:单词|词)",
    ),
    "file_processor__info:size": (
        rf"how (?:big|large|long) is {_THE_FILE}{_PATH}",
        rf"(?:what is the |what's the )?(?:file )?size of {_THE_FILE}{_PATH}",
        rf"(?:文件)?{_PATH}(?:文件)?(?:有多大|多大|的?大小(?:是多少)?)",
    ),
    "file_processor__info:modified": (rf"when was {_THE_FILE}{_PATH} (?:last )?(?:modified|changed|edited|updated)",),
    "file_processor__read": (
        rf"(?:read|show|print|display|give)(?: me)? (?:the )?(?P<order>first|last) (?P<lines>\d+) lines (?:of|in|from)"
        rf" {_THE_FILE}{_PATH}",
        rf"(?:读取?|看看?|显示|打开|查看)(?:文件)?{_PATH}(?:文件)?的?(?P<order>前|最后|后)(?P<lines>\d+)行",
        rf"(?:(?:read|show|open|print|cat|display|view|see|output)(?: me)?|(?:show me )?what(?:'s| is| does)(?: in|"
        rf" inside)?|give me) {_THE_FILE}{_PATH}"
        r"(?: say| contain)?",
        rf"(?:文件)?{_PATH}(?:文件)?(?:里面?|中)?(?:写了|有|是)些?(?:什么|啥)(?:内容)?",
        rf"(?:读取?一?下?|看看?一?下?|显示|打开|查看)(?:文件)?{_PATH}(?:文件)?(?:的内容)?",
    ),
    "search_files:names": (
        rf"(?:{_FIND}|what|which|how many){_ALL} {_EXT} files?(?: do i have)?{_HERE}",
        rf"(?:{_FIND}|what|which){_ALL} files?{_HERE} (?:that |which )?(?:ending|end"
        rf"|are|have)(?: in| with| the (?:extension|ending))? [*.]*{_EXT}",
        rf"(?:{_FIND}|what|which){_ALL} (?:files? )?\*\.{_EXT}(?: files?)?{_HERE}",
        r"(?:找出|查找|找到?|列出|搜索|寻找|有哪些|显示)(?:一下)?(?:所有"
        r"|全部)?的?\.?(?P<extension>[A-Za-z0-9]{1,10}|文本)(?:格式)?的?文件",
        rf"(?:{_FIND}|is there|do i have|where is) (?:the |an? )?(?:files? )?(?:named |called )?"
        r"(?P<files>[\w.*?-]+\.[\w*]+)(?: here)?",
        r"does (?:the file )?(?P<files>[\w.*?-]+\.[\w*]+) exist",
    ),
    "search_files:matches": (
        rf"(?:does|do) {_PATH.replace('path', 'files')} (?:mention|contain|include|have|say)"
        r"(?: the)?(?: word| text)? [\"'“]?(?P<query>[^\"'”]+)[\"'”]?",
        r"(?:(?:which|what|find|list|show|search)(?: me)?(?: all)?(?: the| my)?"
        r"|(?:does|do|is there|are there)(?: any| a)?) files?(?: that| which)?"
        r" (?:(?:mention|contain|include|have)(?:s|ing)?(?: the)?(?: word| text| string)?"
        r"|with the (?:word|text|string)) [\"'“]?(?P<query>[^\"'”]+)[\"'”]?",
        r"(?:search|grep|look)(?: in| through)?(?: all| the| my)* files for [\"'“]?(?P<query>[^\"'”]+)[\"'”]?",
        r"(?:查找|搜索|寻找|找出?|列出)(?:所有|全部)?(?:包含|提到|含有)了?[“\"]?(?P<query>[^”\"]+?)[”\"]?的(?:所有)?文件",
        r"哪些文件(?:里|中|里面)?(?:包含|提到|含有|出现|有)了?[“\"]?(?P<query>[^”\"]+)[”\"]?",
    ),
    "list_workspace_files": (
        r"(?:(?:list|show)(?: me)?(?: all)?(?: of)?(?: the| my)? (?:files|folders|files and folders"
        r"|directory|folder)|(?:what|which) files (?:are there|are here|do i have|do we have)|ls|dir|what(?:'s| is)"
        r" (?:in )?(?:this folder|this directory|here)|how many files are(?: there| here)?|how many files do i have)"
        r"(?: (?:here|in here|there|in (?:this|the current) (?:folder|directory|project)|of (?:this|the)"
        r" (?:folder|project)))?",
        r"(?:列出|显示|查看|看看)(?:一下)?(?:所有|全部|这里|当前|这个|文件夹|目录|里面?|[下中的])*(?:文件|目录)(?:列表)?|(?:这里"
        r"|当前目录)?有(?:哪些|什么)文件",
        rf"(?:(?:list|show)(?: me)?(?: all)?(?: the)? files|(?:what|which) files are(?: there)?|what(?:'s|"
        rf" is)) in (?:the )?(?:folder |directory ){_FOLDER}",
        rf"(?:(?:list|show)(?: me)?(?: all)?(?: the)? files|(?:what|which) files are(?: there)?|what(?:'s|"
        rf" is)) in (?:the )?(?!this |current ){_FOLDER} (?:folder|directory)",
        rf"(?:列出|显示|查看)?(?!当前|这个){_FOLDER}(?:文件夹|目录)(?:里|中|下|里面)?(?:有哪些|有什么|的)文件",
    ),
    "file_processor__write": (
        rf"(?:create|make|write)(?: me)?(?: an?)?(?: new)?(?: text)? file(?: called| named)? {_PATH}"
        rf" (?:with|containing|that (?:says|contains))(?: the)?"
        r"(?: text| content| contents| words?)?:? [\"'“]?(?P<content>.+?)[\"'”]?",
        rf"(?:write|save|put|store) [\"'“]?(?P<content>(?!the result|it |this |that ).+?)[\"'”]? (?:to"
        rf"|into|in|as)(?: the| a)?(?: new)?(?: file)?(?: called| named)? {_PATH}",
        rf"[把将][“\"]?(?P<content>.+?)[”\"]?(?:写入|写到|写进|保存到|存到|存入)(?:文件)?{_PATH}(?:中|里)?",
        rf"(?:create|make)(?: me)?(?: an?)?(?: new)?(?: empty| blank)?(?: text)? file(?: called| named)? {_PATH}"
        r"(?P<content>)",
        rf"(?:创建|新建)(?:一个)?空?白?文件 ?{_PATH}(?P<content>)",
        rf"(?:创建|新建)(?:一个)?文件 ?{_PATH}[，,]?(?:内容(?:是|为)|写入|包含)[：:]?[“\"]?(?P<content>.+?)[”\"]?",
    ),
    "file_processor__append": (
        rf"(?:append|add) [\"'“]?(?P<line>.+?)[\"'”]? (?:to|at) (?:the end of )?(?:the )?(?:file )?{_PATH}",
    ),
    "file_processor__move": (
        rf"[把将](?:文件)? ?{_PATH} ?(?:改名|重命名|更名)(?:为|成|到) ?{_PATH.replace('path', 'to')}",
    ),
    "data_analyzer__describe": (
        r"(?:describe|analy[sz]e|what columns (?:does|has|are in)|what is in|profile)(?: the)?(?: data| file)* "
        r"(?P<file>[\w./-]+\.(?:csv|tsv|parquet|xlsx|jsonl))(?: have)?",
    ),
    "web_scraper": (
        rf"(?:(?:fetch|get|open|read|load|visit|scrape|show|download|view)(?: me)?|what(?:'s| is)(?: on|"
        rf" at)?|what does)(?: the)?(?: web ?page| page| site| url| contents? of| content of| text of)*(?:"
        rf" at| from| of)? {_URL}(?: say| page)?",
        rf"(?:抓取|获取|打开|读取|访问|查看|看看)(?:一下)?(?:网页|网址|页面|链接)? ?{_URL}(?: ?的?内容)?",
    ),
    "summarize": (
        r"(?:summari[sz]e|sum up|give me a summary of|shorten)(?: this| the following)?(?: text| article|"
        r" paragraph)?(?:[:：]\s*|\s*\n+)(?P<text>(?s:.+))",
        r"(?:总结|概括|摘要)(?:一下|下面|以下|这段|文字|文本|内容|的)*(?:[:：]\s*|\s*\n+)(?P<text>(?s:.+))",
    ),
}


_TOOL_PHRASES = [
    (name, lazy_pattern(phrase, re.IGNORECASE), is_chinese_phrase(phrase))
    for name, phrases in TOOL_PHRASES.items()
    for phrase in phrases
]


def find_tool_phrases(text: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The phrases that a text consists of: the action, the key of the answer, and the arguments."""
    request = POLITE.sub("", text.replace("’", "'").strip())
    is_ascii = request.isascii()
    for name, pattern, is_chinese in _TOOL_PHRASES:
        match = None if is_chinese and is_ascii else pattern.fullmatch(request)
        if match is not None:
            action, _, key = name.partition(":")
            yield action, key, _read_groups(match)


def _read_groups(match: re.Match[str]) -> dict[str, Any]:
    """The arguments that the groups of a phrase stand for."""
    groups: dict[str, Any] = match.groupdict(default="")
    if "lines" in groups:
        groups["lines"] = int(groups["lines"])
        groups |= {"start_line": -groups["lines"]} if groups.pop("order") in ("last", "后", "最后") else {}
    for order in groups.keys() & {"next", "last"}:  # a holiday without a year
        groups["when"] = f"{order} {groups.pop(order)}"
    if "end" in groups:
        groups["until"] = f"end of this {groups.pop('end')}"
    if "extension" in groups:
        extension = groups.pop("extension")
        groups["files"] = f"*.{EXTENSIONS.get(extension.lower().removesuffix('s'), extension)}"
    if "files" in groups:
        groups["files"] = f"**/{groups['files']}"
    if "line" in groups:
        groups |= {"content": groups.pop("line"), "as_line": True}
    return groups


REWRITES: Final = (
    (
        rf"(?:please )?(?:summari[sz]e|sum up|give me a summary of) {_THE_FILE}{_PATH}[.?!]?",
        "read {path}; summarize: it",
    ),
    (rf"(?:please )?(?:summari[sz]e|sum up|give me a summary of)(?: the page)? {_URL}", "read {url} ; summarize: it"),
    (rf"(?:请|帮我)*(?:总结|概括)(?:一下)?(?:文件)?{_PATH}(?:的内容)?。?", "读取{path}；总结：它"),
    (rf"(?:请|帮我)*(?:总结|概括)(?:一下)?(?:网页|页面)? ?{_URL}", "读取 {url} ；总结：它"),
    (
        rf"(?:请|帮我)*(?:打开|访问|读取?|查看) ?{_URL} ?[，,]?(?:并|再|然后)?(?:总结|概括)(?:一下)?(?:它|内容)?。?",
        "读取 {url} ；总结：它",
    ),
)
"""Requests that take two steps."""
POLITE: Final = lazy_pattern(
    r"\A(?:(?:please|can you|could you|would you|tell me|do you know|i want to know|hey|ok|so|and|now|then"
    r"|请问?|帮我|麻烦你?|告诉我|我想知道|你?能不能)[,，\s]*)+(?=\S)"
    r"|[\s,，]*(?:please|for me|thanks|thank you|吗|呢|啊)?[\s?？.。!！]*\Z",
    re.IGNORECASE,
)
"""Words at both ends of a request that ask for nothing."""
FOLLOW_UP: Final = lazy_pattern(
    r"\s*(?:(?:and|what about|how about|and what about|or|but|also)\b|那么?|还有|再|(?=.{1,20}呢[?？]?\s*\Z))"
    r"[\s,，]*(?P<rest>.+)",
    re.IGNORECASE | re.DOTALL,
)
"""A question that changes one value of the previous one: `and in Paris?`, 巴黎呢？"""
TEXT_TASK: Final = lazy_pattern(
    r"\s*(?:please\s+|(?:can|could)\s+you\s+|请|帮我)*(?:rewrite|rephrase|paraphrase|proofread|summari[sz]e|translate"
    r"|explain|echo|改写|润色|总结|概括|翻译|解释|说明)[^:：\n.!?。！？]*[:：\n]",
    re.IGNORECASE,
)
"""The sentences of the text in `translate: …` ask for nothing."""
