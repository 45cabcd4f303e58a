"""What needs no model: greetings, what can you do, what did I ask. In English and Chinese.

A text is small talk only as a whole: `hi` is, `hi, what is 2+2?` is not, and `this` has no `hi` in it.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from ferrule.orchestrator.wording import LONGEST, any_of, words_in


class SmallTalk(StrEnum):
    """What is meant."""

    GREETING = "greeting"
    CAPABILITIES = "capabilities"
    LAST_QUESTION = "last_question"
    QUESTIONS = "questions"
    LAST_ANSWER = "last_answer"


LONGEST_GREETING: Final = 40
ABOUT_HISTORY: Final = frozenset({SmallTalk.LAST_QUESTION, SmallTalk.QUESTIONS, SmallTalk.LAST_ANSWER})

_HELLO = any_of(
    "hi|hello|hey|hiya|heya|howdy|hullo|greetings|yo|morning|evening",
    "good (?:morning|afternoon|evening|day)",
    "how are you(?: doing)?|hows it going|how is it going|how do you do|whats up|nice to meet you",
    "(?:(?:你|您|你们|大家|各位)好|早上好|早安|上午好|中午好|下午好|晚上好|早|嗨|哈喽|哈啰|哈罗|嘿|喂|在吗|在不在|您早)+[啊呀哦哇吗呢吧嘛哈]*",
)
_COMPANY = any_of(
    "there|everyone|everybody|all|again|folks|friend|my friend|you|ferrule|today|and",
    "朋友|大家|各位|你们|[啊呀]",
)
_GREETING = re.compile(f"{_HELLO}(?: {any_of(_HELLO, _COMPANY)})*")

_BEFORE = (
    any_of(
        "hi|hello|hey|there|ok|okay|so|well|please|excuse me|sorry|ferrule",
        "tell me|(?:can|could) you (?:please )?(?:tell|show) me|do you (?:know|remember)|remind me|i forgot",
    )
    + " "
)
_BEFORE_CHINESE = (
    "(?:你好|您好|嗨|嘿|请问|请|麻烦|麻烦你|那|那么|好的|告诉我|跟我说说?|你?还?记得|你知道|我想知道|我忘了) ?"
)
_AFTER = " " + any_of(
    "please|exactly|for me|for us|here|again|now|so far|before|earlier|just now|previously",
    "last|last time|until now|today|you|then|ferrule|thanks|thank you",
)
_AFTER_CHINESE = " ?(?:呢|吗|啊|呀|吧|了|来着|谢谢|嘛)"

_CAPABILITIES = any_of(
    "what (?:all |else )?(?:can|could) you do(?: to help)?(?: for)?(?: me| us)?|what do you do",
    "what can you help(?: me| us)?(?: with)?|how (?:can|could) you help(?: me| us)?",
    "what (?:all )?are you (?:able to do|capable of(?: doing)?)",
    "(?:what|which)(?: are| is|s) your (?:capabilities|abilities|skills|features|tools|functions)",
    "(?:what|which) (?:tools|skills|capabilities|functions|abilities|features) "
    "(?:do you (?:have|know|offer)|have you(?: got)?|are (?:there|available)|can (?:you|i) use)",
    "(?:list|show|show me|give me|name)(?: all)?(?: of)?(?: your| the)?(?: available)? (?:tools|capabilities|skills)",
    "who are you|what are you|introduce yourself|help",
    "你?(?:都|还|究竟|到底)?(?:能|会|可以|能够)(?:帮我|为我|帮助我|帮忙|帮)?(?:干|做|完成|处理)[些点]?(?:什么|啥|哪些)(?:事情?|工作|任务)?",
    "你(?:能|可以)帮(?:我|助我)(?:什么|些什么|什么忙)",
    "你?都?有些?(?:什么|哪些|啥)(?:功能|能力|工具|技能|本领|本事)(?:可以用|可用|能用)?",
    "你?(?:能|可以|会)使?用(?:什么|哪些)工具",
    "你的(?:功能|能力|工具|技能)都?(?:是什么|有哪些|有什么)?",
    "(?:列出|显示|展示|介绍)(?:一下)?(?:你的?|所有的?|全部的?|可用的?)*(?:工具|功能|能力|自己)",
    "你是谁|你是什么|自我介绍(?:一下)?|帮助",
)
_LAST_QUESTION = any_of(
    "what did i (?:just |last )?(?:ask|say)|what have i just (?:asked|said)|what i (?:just )?asked",
    "(?:repeat |whats |what (?:was|is) )?(?:my|the) (?:last|previous|prior|latest) (?:question|message|request|query)"
    "(?: i (?:just )?asked)?",
    "what was the last thing i asked|which question did i (?:just )?ask",
    "(?:我的?)?(?:上一?个|上一?条|前一个|刚才的?|刚刚的?|最后一个|上次的?)(?:我?问的?)?(?:问题|提问)是?(?:什么|啥)?",
    "(?:刚刚|刚才|之前|上次|刚|方才)?我(?:刚刚|刚才|之前|上次|刚|前面|方才)?[问说提][了的]?你?的?(?:问题)?是?(?:什么|啥)(?:问题)?",
)
_QUESTIONS = any_of(
    "what have i asked|what all did i ask|(?:what|which) (?:questions|things) (?:did i ask|have i asked)",
    "(?:list|show|show me|give me|what (?:were|are))(?: all)?(?: of)? (?:my|the)(?: last| previous| earlier| past)? "
    "questions(?: (?:that )?i (?:have )?asked)?",
    "(?:show |show me )?(?:the |our |my )?(?:conversation|chat|question) history",
    "(?:刚刚|刚才|之前|以前|到现在|到目前为止)?我(?:刚刚|刚才|之前|以前|一共|都|总共)*问[过了]你?(?:哪些|些什么|些啥|多少)(?:问题)?",
    "我(?:之前|以前|都)*问过你?(?:什么|啥)(?:问题)?",
    "(?:列出|显示|展示)(?:一下)?我(?:的|之前|刚才|问过的?|提过的?|所有的?|全部的?)*(?:问题|提问)",
    "(?:问题|提问|对话|聊天|会话)(?:列表|历史|记录)(?:是什么|有哪些)?",
)
_LAST_ANSWER = any_of(
    "what did you (?:just )?(?:say|answer|reply|tell me)",
    "(?:repeat |whats |what (?:was|is) )?your (?:last|previous) (?:answer|reply|response)",
    "你(?:刚刚|刚才|之前|上次|刚)?(?:说|回答|答)[了的]?是?(?:什么|啥)",
    "你?的?(?:上一?个|上次的?|刚才的?|刚刚的?|之前的?)(?:回答|答案|回复)是?(?:什么|啥)?",
)
_KINDS: Final = {
    kind: re.compile(f"(?:{_BEFORE})*(?:{_BEFORE_CHINESE})*{said}(?:{_AFTER})*(?:{_AFTER_CHINESE})*")
    for kind, said in (
        (SmallTalk.CAPABILITIES, _CAPABILITIES),
        (SmallTalk.QUESTIONS, _QUESTIONS),
        (SmallTalk.LAST_QUESTION, _LAST_QUESTION),
        (SmallTalk.LAST_ANSWER, _LAST_ANSWER),
    )
}


def small_talk_in(text: str) -> SmallTalk | None:
    """What a text means if it is small talk and nothing else."""
    if len(text) > LONGEST:
        return None
    said = words_in(text)
    if len(text) <= LONGEST_GREETING and _GREETING.fullmatch(said):
        return SmallTalk.GREETING
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(said)), None)
