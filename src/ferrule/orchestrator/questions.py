"""Analyzing a question without a model: its normal form, and whether its answer depends on time or on earlier turns.

A false match only means that an answer is not cached; a missed match would give a wrong answer.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from ferrule.core.patterns import lazy_pattern

MAX_SMALL_TALK_LENGTH: Final = 120
"""Longer texts are never small talk."""

_APOSTROPHES = str.maketrans("", "", "'’`´")
_SCRIPT_BORDER = lazy_pattern(r"(?<=[a-z0-9])(?=[\u4e00-\u9fff])|(?<=[\u4e00-\u9fff])(?=[a-z0-9])")


def normalize_words(text: str) -> str:
    """Convert to lower case and single spaces, without punctuation and emoji. Arithmetic signs stay."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    spaced = "".join(" " if _is_decoration(char) else char for char in folded)
    return " ".join(_SCRIPT_BORDER.sub(" ", spaced).split())


def _is_decoration(char: str) -> bool:
    category = unicodedata.category(char)
    return (category[0] in "PZC" and char not in "%*/\\#&@-") or category in ("So", "Sk", "Mn") or char == "~"


def any_pattern(*patterns: str) -> str:
    """A pattern that matches if any of the patterns matches."""
    return f"(?:{'|'.join(patterns)})"


_TIME = any_pattern(
    "now|nowadays|moment|current|currently|latest|newest|recent|recently|upcoming|up to date|as of",
    "today|todays|tonight|tomorrow|tomorrows|yesterday|yesterdays|ago|so far",
    "time|date|oclock|what day|which day|how old|(?:how long|days?|weeks?) (?:until|till|since)",
    r"(?:this|next|last|past|coming) (?:minute|hour|day|night|morning|afternoon|evening|week|weekend|month|\d+)",
    "(?:this|next|last|past|coming) (?:quarter|year|season|spring|summer|autumn|fall|winter|[a-z]+day)",
)
_TIME_CHINESE = any_pattern(
    "现在|此刻|当前|目前|如今|实时|最新|最近|近期|刚刚|刚才|到目前|今后",
    "今天|明天|昨天|前天|后天|今晚|今早|今日|明日|昨日|今年|明年|去年",
    "几点|时间|日期|几号|星期几|周几|多久|[这本上下]周|这个?月|本月|[上下]个?月",
)
_CHANCE = "random|randomly|roll|dice|coin|shuffle|surprise|another"
_CHANCE_CHINESE = "随机|掷|抽签|换一个|另"
_TIME_DEPENDENT = lazy_pattern(rf"\b{any_pattern(_TIME, _CHANCE)}\b|{_TIME_CHINESE}|{_CHANCE_CHINESE}")

_EARLIER = any_pattern(
    "just now|earlier|before|previous|previously|again|above|same|so far|remember|go on|continue",
    "last (?:question|answer|message|result|reply|one|time|thing)",
    "(?:you|i|we) (?:just |already )?(?:said|told|answered|mentioned|asked|wrote|talked|discussed|spoke)",
    "did (?:i|you|we) (?:just )?(?:ask|say|tell|mention|talk|discuss)",
    "(?:have|had) (?:i|you|we) (?:just )?(?:asked|said|told)|(?:our|this|the) (?:conversation|chat)",
)
_EARLIER_CHINESE = any_pattern(
    "刚刚|刚才|之前|先前|前面|方才|以前|上一个|上一次|上次|上面|前一个|再次|继续|接着说|同样|一样的",
    "你说|你刚|我问|我说|我刚|我们聊|我们谈|对话|聊天记录|记得",
)
_REFERS_TO_EARLIER = lazy_pattern(rf"\b{_EARLIER}\b|{_EARLIER_CHINESE}")
_CONTINUES = lazy_pattern(
    r"(?:and|but|or|also|then|so|what about|how about|what if|why(?! (?:is|are|do|does|did|was|were)\b)|really)\b"
    r"|(?:plus|minus|times|divided by|multiplied by) \S+$|.{1,20}呢$|那|还有|再|换成|为什么$|怎么会"
)
_POINTS_BACK = lazy_pattern(
    r"\b(?:it|its|them|they|their|those|these|he|him|his|she|her)\b"
    r"|\b(?:that|this)\b(?=$| (?:is|was|to|by|in|into|one|result|answer|number|right|true|correct|wrong)\b)"
    r"|它|他|她|这个|那个|这些|那些|结果"
)
_MAX_EXAMINED: Final = 2_000
"""How many characters at the start and at the end of a very long question are examined."""
_FIRST_PART = lazy_pattern(r"(?:(?! and | then |然后|接着|再)[^,;.，；。\n?？])+")


def depends_on_time(question: str) -> bool:
    """Whether the correct answer depends on when the question is asked, or on chance."""
    return _TIME_DEPENDENT.search(normalize_words(_cut_middle(question))) is not None


def refers_to_history(question: str) -> bool:
    """Whether the question refers to earlier turns or continues them: `and in Berlin?`, `double it`."""
    question = _cut_middle(question)
    words = normalize_words(question)
    if _REFERS_TO_EARLIER.search(words) or _CONTINUES.match(words):
        return True
    # `add 1 and 2, then double it`: `it` refers to a part of the question itself.
    first = _FIRST_PART.match(question.strip())
    return first is not None and _POINTS_BACK.search(normalize_words(first.group())) is not None


def _cut_middle(question: str) -> str:
    if len(question) <= 2 * _MAX_EXAMINED:
        return question
    return f"{question[:_MAX_EXAMINED]} {question[-_MAX_EXAMINED:]}"


# Questions that differ only in white space outside of quoted text get the same form. Nothing else is changed: "1 Mb" is
# not "1 MB", and `Report.txt` is not `report.txt`.

_QUOTED = lazy_pattern(r"(\"[^\"\n]*\"|“[^”\n]*”|‘[^’\n]*’|「[^」\n]*」|『[^』\n]*』|`[^`\n]*`|(?<!\w)'[^'\n]*'(?!\w))")
_WHITE_SPACE = lazy_pattern(r"\s+")


def normalize_question(question: str) -> str:
    """The normal form of a question."""
    pieces = _QUOTED.split(question)
    # Every other piece is quoted.
    return "".join(piece if at % 2 else _WHITE_SPACE.sub(" ", piece) for at, piece in enumerate(pieces)).strip()
