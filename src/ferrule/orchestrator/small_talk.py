"""Answering small talk without a model: greetings, `what can you do`, `what did I ask`, in English and Chinese.

Only the whole text counts as small talk: `hi` does, `hi, what is 2+2?` and `this` do not.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from ferrule.agent.control_tools import HISTORY_TOOL
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Tool, ToolSpec
from ferrule.memory.conversation import Turn
from ferrule.texts.fixed_replies import CHINESE_ABILITIES, EXAMPLE_QUESTIONS, SMALL_TALK
from ferrule.texts.shorten import first_sentence, shorten

# Analyzing a question without a model: its normal form, and whether its answer depends on time or on earlier turns. A
# false match only means that an answer is not cached; a missed match would give a wrong answer.

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
    """Return a pattern that matches if any of the patterns matches."""
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
    """Return whether the correct answer depends on when the question is asked, or on chance."""
    return _TIME_DEPENDENT.search(normalize_words(_cut_middle(question))) is not None


def refers_to_history(question: str) -> bool:
    """Return whether the question refers to earlier turns or continues them: `and in Berlin?`, `double it`."""
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
    """Return the normal form of a question."""
    pieces = _QUOTED.split(question)
    # Every other piece is quoted.
    return "".join(piece if at % 2 else _WHITE_SPACE.sub(" ", piece) for at, piece in enumerate(pieces)).strip()


# Small talk


class SmallTalk(StrEnum):
    """The kinds of small talk."""

    GREETING = "greeting"
    THANKS = "thanks"
    GOODBYE = "goodbye"
    ACKNOWLEDGEMENT = "acknowledgement"
    IDENTITY = "identity"
    CAPABILITIES = "capabilities"
    LAST_QUESTION = "last_question"
    QUESTIONS = "questions"
    LAST_ANSWER = "last_answer"


MAX_GREETING_LENGTH: Final = 40
NON_QUESTIONS: Final = frozenset({SmallTalk.GREETING, SmallTalk.THANKS, SmallTalk.GOODBYE, SmallTalk.ACKNOWLEDGEMENT})
ABOUT_HISTORY: Final = frozenset({SmallTalk.LAST_QUESTION, SmallTalk.QUESTIONS, SmallTalk.LAST_ANSWER})

_HELLO = any_pattern(
    "hi|hello|hey|hiya|heya|howdy|hullo|greetings|yo|morning|evening",
    "good (?:morning|afternoon|evening|day)",
    "how are you(?: doing)?|hows it going|how is it going|how do you do|whats up|nice to meet you",
    "(?:(?:你|您|你们|大家|各位)好|早上好|早安|上午好|中午好|下午好|晚上好|早|嗨|哈喽|哈啰|哈罗|嘿|喂|在吗|在不在|您早)+[啊呀哦哇吗呢吧嘛哈]*",
)
_ADDRESSEE = any_pattern(
    "there|everyone|everybody|all|again|folks|friend|my friend|mate|buddy|pal|man|dude|guys|you|ferrule|today|and",
    "朋友|大家|各位|你们|[啊呀]",
)
_GREETING = lazy_pattern(f"{_HELLO}(?: {any_pattern(_HELLO, _ADDRESSEE)})*")

_THANKS = any_pattern(
    "thanks|thx|ty|cheers|thank you|much appreciated|great|perfect|awesome|nice|good job|well done",
    "谢谢|谢啦|多谢|感谢|太好了|辛苦了|非常感谢|太感谢了",
)
_AFTER_THANKS = any_pattern(
    "a lot|so much|very much|a bunch|a million|again|thanks|thank you|ferrule|mate|buddy|pal|man|dude",
    "that (?:helped|helps|was helpful)",
    "for (?:your|the) help|for that",
    "你|您|啦|了|啊|你的帮助|您的帮助",
)
_GOODBYE = any_pattern(
    "(?:good )?bye(?: bye)?|goodbye|see you(?: later| soon| tomorrow)?|good night|farewell|cya", "再见|拜拜|晚安|回头见"
)
_ACKNOWLEDGEMENT = any_pattern(
    "ok|okay|k|cool|got it|i see|alright|all right|right|sure|fine|sorry|never ?mind|no worries|no problem|wow",
    "haha|lol|good|understood|good to know|interesting|that is all|thats all|nothing|my bad|oops",
    "好|好的|好吧|嗯+|哦+|知道了|明白了?|了解|没事|没关系|算了|对不起|抱歉|不好意思|哈+|行|可以",
)
_CLOSINGS: Final = {
    "acknowledgement": lazy_pattern(f"{_ACKNOWLEDGEMENT}(?: {_ACKNOWLEDGEMENT})*"),
    "thanks": lazy_pattern(f"(?:{_ACKNOWLEDGEMENT} ?)*{_THANKS}(?: ?{any_pattern(_THANKS, _AFTER_THANKS)})*"),
    "goodbye": lazy_pattern(f"(?:ok |okay |{_THANKS} )*{_GOODBYE}(?: {_ADDRESSEE})*"),
}

_BEFORE = (
    any_pattern(
        "hi|hello|hey|there|ok|okay|so|well|please|excuse me|sorry|ferrule",
        "tell me|(?:can|could) you (?:please )?(?:tell|show) me|do you (?:know|remember)|remind me|i forgot",
    )
    + " "
)
_BEFORE_CHINESE = (
    "(?:你好|您好|嗨|嘿|请问|请|麻烦|麻烦你|那|那么|好的|告诉我|跟我说说?|你?还?记得|你知道|我想知道|我忘了) ?"
)
_AFTER = " " + any_pattern(
    "please|exactly|for me|for us|here|again|now|so far|before|earlier|just now|previously",
    "last|last time|until now|today|you|then|ferrule|thanks|thank you",
)
_AFTER_CHINESE = " ?(?:呢|吗|啊|呀|吧|了|来着|谢谢|嘛)"

_CAPABILITIES = any_pattern(
    "what (?:all |else )?(?:can|could) you do(?: to help)?(?: for)?(?: me| us)?|what do you do",
    "(?:can|could) you help(?: me| us)?(?: out)?",
    "what can you help(?: me| us)?(?: with)?|how (?:can|could) you help(?: me| us)?",
    "what (?:all )?are you (?:able to do|capable of(?: doing)?)",
    "(?:what|which)(?: are| is|s) your (?:capabilities|abilities|skills|features|tools|functions)",
    "(?:what|which) (?:tools|skills|capabilities|functions|abilities|features) "
    "(?:do you (?:have|know|offer)|have you(?: got)?|are (?:there|available)|can (?:you|i) use)",
    "(?:list|show|show me|give me|name)(?: all)?(?: of)?(?: your| the)?(?: available)? (?:tools|capabilities|skills)",
    "help",
    "你?(?:都|还|究竟|到底)?(?:能|会|可以|能够)(?:帮我|为我|帮助我|帮忙|帮)?(?:干|做|完成|处理)[些点]?(?:什么|啥|哪些)(?:事情?|工作|任务)?",
    "你(?:能|可以)帮(?:我|助我)(?:什么|些什么|什么忙)",
    "你?都?有些?(?:什么|哪些|啥)(?:功能|能力|工具|技能|本领|本事)(?:可以用|可用|能用)?",
    "你?(?:能|可以|会)使?用(?:什么|哪些)工具",
    "你的(?:功能|能力|工具|技能)都?(?:是什么|有哪些|有什么)?",
    "(?:列出|显示|展示|介绍)(?:一下)?(?:你的?|所有的?|全部的?|可用的?)*(?:工具|功能|能力|自己)",
    "帮助",
)
_IDENTITY = any_pattern(
    "who are you|what are you|introduce yourself|(?:whats|what is) your name|do you have a name|who (?:made|built) you",
    "are you (?:an? )?(?:ai|bot|robot|chatbot|human|person|real|machine|computer|chatgpt|claude|language model)",
    "你是谁|你是什么|自我介绍(?:一下)?|你叫什么(?:名字)?|你的名字是什么|你是(?:机器人|人工智能|真人|人|ai)",
)
_LAST_QUESTION = any_pattern(
    "what did i (?:just |last )?(?:ask|say)|what have i just (?:asked|said)|what i (?:just )?asked",
    "(?:repeat |whats |what (?:was|is) )?(?:my|the) (?:last|previous|prior|latest) (?:question|message|request|query)"
    "(?: i (?:just )?asked)?",
    "what was the last thing i asked|which question did i (?:just )?ask",
    "(?:我的?)?(?:上一?个|上一?条|前一个|刚才的?|刚刚的?|最后一个|上次的?)(?:我?问的?)?(?:问题|提问)是?(?:什么|啥)?",
    "(?:刚刚|刚才|之前|上次|刚|方才)?我(?:刚刚|刚才|之前|上次|刚|前面|方才)?[问说提][了的]?你?的?(?:问题)?是?(?:什么|啥)(?:问题)?",
)
_QUESTIONS = any_pattern(
    "what have i asked|what all did i ask|(?:what|which) (?:questions|things) (?:did i ask|have i asked)",
    "(?:list|show|show me|give me|what (?:were|are))(?: all)?(?: of)? (?:my|the)(?: last| previous| earlier| past)? "
    "questions(?: (?:that )?i (?:have )?asked)?",
    "(?:show |show me )?(?:the |our |my )?(?:conversation|chat|question) history",
    "(?:刚刚|刚才|之前|以前|到现在|到目前为止)?我(?:刚刚|刚才|之前|以前|一共|都|总共)*问[过了]你?(?:哪些|些什么|些啥|多少)(?:问题)?",
    "我(?:之前|以前|都)*问过你?(?:什么|啥)(?:问题)?",
    "(?:列出|显示|展示)(?:一下)?我(?:的|之前|刚才|问过的?|提过的?|所有的?|全部的?)*(?:问题|提问)",
    "(?:问题|提问|对话|聊天|会话)(?:列表|历史|记录)(?:是什么|有哪些)?",
)
_LAST_ANSWER = any_pattern(
    "what did you (?:just )?(?:say|answer|reply|tell me)",
    "(?:repeat |whats |what (?:was|is) )?your (?:last|previous) (?:answer|reply|response)",
    "你(?:刚刚|刚才|之前|上次|刚)?(?:说|回答|答)[了的]?是?(?:什么|啥)",
    "你?的?(?:上一?个|上次的?|刚才的?|刚刚的?|之前的?)(?:回答|答案|回复)是?(?:什么|啥)?",
)
_KINDS: Final = {
    kind: lazy_pattern(f"(?:{_BEFORE})*(?:{_BEFORE_CHINESE})*{pattern}(?:{_AFTER})*(?:{_AFTER_CHINESE})*")
    for kind, pattern in (
        (SmallTalk.CAPABILITIES, _CAPABILITIES),
        (SmallTalk.IDENTITY, _IDENTITY),
        (SmallTalk.QUESTIONS, _QUESTIONS),
        (SmallTalk.LAST_QUESTION, _LAST_QUESTION),
        (SmallTalk.LAST_ANSWER, _LAST_ANSWER),
    )
}


def detect_small_talk(text: str, *, has_language_model: bool = True) -> SmallTalk | None:
    """Return the kind of small talk, if the whole text is small talk. To a language model, `ok` may be an answer."""
    if len(text) > MAX_SMALL_TALK_LENGTH:
        return None
    words = normalize_words(text)
    if len(text) <= MAX_GREETING_LENGTH and _GREETING.fullmatch(words):
        return SmallTalk.GREETING
    if len(text) <= MAX_GREETING_LENGTH:
        for kind, pattern in _CLOSINGS.items():
            if pattern.fullmatch(words) and not (kind == SmallTalk.ACKNOWLEDGEMENT and has_language_model):
                return SmallTalk(kind)
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(words)), None)


# The replies: from the registered tools, and from the conversation

MAX_DESCRIBED_TOOLS: Final = 15
"""If there are more tools than this, only their names are listed, without descriptions."""
MAX_NAMED_TOOLS: Final = 8
"""How many names are listed for each group."""
_MAX_QUESTIONS: Final = 20
_MAX_DESCRIPTION: Final = 100

_NO_SUBJECT: Final = frozenset({"custom", "general", ""})
_CHINESE_SENTENCE = lazy_pattern(r"[^\s.。][^.。\n]*[\u4e00-\u9fff][^。\n]*。")


def reply_to_small_talk(kind: SmallTalk, tools: Iterable[Tool], turns: Sequence[Turn], language: str) -> str:
    if kind in (SmallTalk.GREETING, SmallTalk.IDENTITY):
        return reply_to_greeting(tools, language, kind)
    if kind in NON_QUESTIONS:
        return SMALL_TALK[language][kind.value]
    if kind is SmallTalk.CAPABILITIES:
        return reply_about_tools(tools, language)
    return reply_about_history(kind, turns, language)


def reply_to_greeting(tools: Iterable[Tool], language: str, kind: SmallTalk = SmallTalk.GREETING) -> str:
    texts, n = SMALL_TALK[language], len(_list_specs(tools))
    count = texts["none"] if n == 0 else texts["one"] if n == 1 else texts["count"].format(n=n)
    return texts[kind.value].format(count=count)


def reply_about_tools(tools: Iterable[Tool], language: str) -> str:
    """List the tools by subject."""
    texts, specs = SMALL_TALK[language], _list_specs(tools)
    if not specs:
        return texts["cannot"]
    groups: dict[str, list[ToolSpec]] = {}
    for spec in specs:
        category = str(spec.category)
        subject = texts["other"] if category in _NO_SUBJECT else category.replace("_", " ")
        groups.setdefault(subject, []).append(spec)
    ordered = sorted(groups.items(), key=lambda group: (group[0] == texts["other"], group[0]))
    lines = [texts["can"].format(n=len(specs))]
    if len(specs) <= MAX_DESCRIBED_TOOLS:
        described = ((spec.name, _short_description(spec, language)) for _, group in ordered for spec in group)
        lines += [f"- {name}: {description}".rstrip(": ") for name, description in described]
    else:
        for subject, group in ordered:
            names = texts["comma"].join(spec.name for spec in group[:MAX_NAMED_TOOLS])
            more = f" {texts['more'].format(n=len(group) - MAX_NAMED_TOOLS)}" if len(group) > MAX_NAMED_TOOLS else ""
            lines.append(f"- {subject}: {names}{more}")
    examples = [EXAMPLE_QUESTIONS[language][spec.tool_id] for spec in specs if spec.tool_id in EXAMPLE_QUESTIONS["en"]]
    return "\n".join([*lines, *([texts["example"] + texts["comma"].join(examples)] if examples else [])])


def reply_about_history(kind: SmallTalk, turns: Sequence[Turn], language: str) -> str:
    texts, questions = SMALL_TALK[language], [turn for turn in turns if turn.is_question]
    if not questions:
        return texts["no_answer" if kind is SmallTalk.LAST_ANSWER else "no_question"]
    if kind is SmallTalk.QUESTIONS:
        last = list(enumerate(questions, 1))[-_MAX_QUESTIONS:]
        return "\n".join([texts["questions"], *(f"{number}. {turn.question}" for number, turn in last)])
    if kind is SmallTalk.LAST_QUESTION:
        return texts["last_question"].format(text=questions[-1].question)
    answered = [turn for turn in questions if turn.answer]
    return texts["last_answer"].format(text=answered[-1].answer) if answered else texts["no_answer"]


def _list_specs(tools: Iterable[Tool]) -> list[ToolSpec]:
    """Return the specs of the tools, except those that are for models alone."""
    return [tool.spec for tool in tools if tool.id != HISTORY_TOOL and "control" not in tool.spec.tags]


def _short_description(spec: ToolSpec, language: str) -> str:
    """Return the first sentence in the language if there is one, or as much of it as fits, up to a comma."""
    only = spec.capability()
    text = spec.description or (only.description if only is not None else "")
    if language == "zh" and (chinese := _CHINESE_SENTENCE.search(text)) is not None:
        return shorten(chinese.group(), _MAX_DESCRIPTION)
    if language == "zh" and spec.tool_id in CHINESE_ABILITIES:
        return CHINESE_ABILITIES[spec.tool_id]
    text = first_sentence(text)
    beginning = text[:_MAX_DESCRIPTION].rpartition(",")[0] if len(text) > _MAX_DESCRIPTION else ""
    return f"{beginning}." if beginning else shorten(text, _MAX_DESCRIPTION)
