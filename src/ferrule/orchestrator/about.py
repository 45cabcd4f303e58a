"""What a question is about, as far as its words tell: the moment it is asked, chance, what was said before.

To see more in a question than there is costs a cached answer; to see less would give a wrong one.
"""

from __future__ import annotations

import re
from typing import Final

from ferrule.orchestrator.wording import any_of, words_in

_MOMENT = any_of(
    "now|nowadays|moment|current|currently|latest|newest|recent|recently|upcoming|up to date|as of",
    "today|todays|tonight|tomorrow|tomorrows|yesterday|yesterdays|ago|so far",
    "time|date|oclock|what day|which day|how old|(?:how long|days?|weeks?) (?:until|till|since)",
    r"(?:this|next|last|past|coming) (?:minute|hour|day|night|morning|afternoon|evening|week|weekend|month|\d+)",
    "(?:this|next|last|past|coming) (?:quarter|year|season|spring|summer|autumn|fall|winter|[a-z]+day)",
)
_MOMENT_CHINESE = any_of(
    "现在|此刻|当前|目前|如今|实时|最新|最近|近期|刚刚|刚才|到目前|今后",
    "今天|明天|昨天|前天|后天|今晚|今早|今日|明日|昨日|今年|明年|去年",
    "几点|时间|日期|几号|星期几|周几|多久|[这本上下]周|这个?月|本月|[上下]个?月",
)
_CHANCE = "random|randomly|roll|dice|coin|shuffle|surprise|another"
_CHANCE_CHINESE = "随机|掷|抽签|换一个|另"
_OF_THE_MOMENT = re.compile(rf"\b{any_of(_MOMENT, _CHANCE)}\b|{_MOMENT_CHINESE}|{_CHANCE_CHINESE}")

_EARLIER = any_of(
    "just now|earlier|before|previous|previously|again|above|same|so far|remember|go on|continue",
    "last (?:question|answer|message|result|reply|one|time|thing)",
    "(?:you|i|we) (?:just |already )?(?:said|told|answered|mentioned|asked|wrote|talked|discussed|spoke)",
    "did (?:i|you|we) (?:just )?(?:ask|say|tell|mention|talk|discuss)",
    "(?:have|had) (?:i|you|we) (?:just )?(?:asked|said|told)|(?:our|this|the) (?:conversation|chat)",
)
_EARLIER_CHINESE = any_of(
    "刚刚|刚才|之前|先前|前面|方才|以前|上一个|上一次|上次|上面|前一个|再次|继续|接着说|同样|一样的",
    "你说|你刚|我问|我说|我刚|我们聊|我们谈|对话|聊天记录|记得",
)
_SPEAKS_OF_EARLIER = re.compile(rf"\b{_EARLIER}\b|{_EARLIER_CHINESE}")
_GOES_ON = re.compile(
    r"(?:and|but|or|also|then|so|what about|how about|what if|why(?! (?:is|are|do|does|did|was|were)\b)|really)\b"
    r"|那|还有|再|换成|为什么$|怎么会"
)
_POINTS_BACK = re.compile(
    r"\b(?:it|its|them|they|their|those|these|he|him|his|she|her)\b"
    r"|\b(?:that|this)\b(?=$| (?:is|was|to|by|in|into|one|result|answer|number|right|true|correct|wrong)\b)"
    r"|它|他|她|这个|那个|这些|那些|结果"
)
_LOOKED_AT: Final = 2_000
"""Of a very long question, so many characters at its beginning and at its end."""
_FIRST_PART = re.compile(r"(?:(?! and | then |然后|接着|再)[^,;.，；。\n?？])+")


def is_about_the_moment(question: str) -> bool:
    """Whether the right answer changes with the time it is asked at, or with chance."""
    return _OF_THE_MOMENT.search(words_in(_shortened(question))) is not None


def is_about_history(question: str) -> bool:
    """Whether it speaks of what was said before, or goes on from it: `and in Berlin?`, `double it`."""
    question = _shortened(question)
    said = words_in(question)
    if _SPEAKS_OF_EARLIER.search(said) or _GOES_ON.match(said):
        return True
    # `add 1 and 2, then double it`: what it points back to is in the question itself.
    first = _FIRST_PART.match(question.strip())
    return first is not None and _POINTS_BACK.search(words_in(first.group())) is not None


def _shortened(question: str) -> str:
    if len(question) <= 2 * _LOOKED_AT:
        return question
    return f"{question[:_LOOKED_AT]} {question[-_LOOKED_AT:]}"
