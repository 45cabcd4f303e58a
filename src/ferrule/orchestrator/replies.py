"""What is answered to small talk: from the tools that are there, and from what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrule.describe.sentences import first_sentence, within
from ferrule.memory.conversation import Turn
from ferrule.orchestrator.small_talk import SmallTalk
from ferrule.registry import RegistrySnapshot
from ferrule.spec import ToolSpec
from ferrule.tools.conversation import HISTORY_TOOL

DESCRIBED: Final = 15
"""Up to so many tools are told with what they do; of more, only the names."""
NAMED: Final = 8
"""In each group."""
_QUESTIONS: Final = 20
_DESCRIPTION: Final = 100

_ENGLISH: Final = {
    "greeting": "Hello! I am Ferrule. I answer questions with {count}. Ask me something, or ask what I can do.",
    "count": "the help of {n} tools",
    "one": "the help of one tool",
    "none": "a language model alone, as there are no tools yet",
    "can": "I answer questions with these {n} tools:",
    "cannot": "There are no tools yet. Register some, or put tool files into a folder of ferrule.toml.",
    "more": "and {n} more",
    "other": "general",
    "last_question": "Your last question was: {text}",
    "questions": "So far you have asked:",
    "last_answer": "My last answer was: {text}",
    "no_question": "You have not asked anything yet in this conversation.",
    "no_answer": "I have not answered anything yet in this conversation.",
    "comma": ", ",
}
_CHINESE: Final = {
    "greeting": "你好！我是 Ferrule，可以{count}回答问题。请直接提问，或者问我能做什么。",
    "count": "借助 {n} 个工具",
    "one": "借助 1 个工具",
    "none": "用语言模型（目前还没有工具）",
    "can": "我可以用这 {n} 个工具回答问题：",
    "cannot": "目前还没有工具。请注册工具，或把工具文件放进 ferrule.toml 指定的文件夹。",
    "more": "等，另有 {n} 个",
    "other": "通用",
    "last_question": "你的上一个问题是：{text}",
    "questions": "到目前为止你问过：",
    "last_answer": "我上一次的回答是：{text}",
    "no_question": "在这次对话中你还没有问过问题。",
    "no_answer": "在这次对话中我还没有回答过问题。",
    "comma": "、",
}
_NO_SUBJECT: Final = frozenset({"custom", "general", ""})


def reply_to_greeting(tools: RegistrySnapshot, language: str) -> str:
    words, n = _words(language), len(_specs(tools))
    count = words["none"] if n == 0 else words["one"] if n == 1 else words["count"].format(n=n)
    return words["greeting"].format(count=count)


def reply_about_tools(tools: RegistrySnapshot, language: str) -> str:
    """The tools by their subjects."""
    words, specs = _words(language), _specs(tools)
    if not specs:
        return words["cannot"]
    groups: dict[str, list[ToolSpec]] = {}
    for spec in specs:
        groups.setdefault(_subject(spec) or words["other"], []).append(spec)
    ordered = sorted(groups.items(), key=lambda group: (group[0] == words["other"], group[0]))
    lines = [words["can"].format(n=len(specs))]
    for subject, members in ordered:
        lines += _described(subject, members) if len(specs) <= DESCRIBED else [_named(subject, members, words)]
    return "\n".join(lines)


def reply_about_history(asked: SmallTalk, turns: Sequence[Turn], language: str) -> str:
    words, questions = _words(language), [turn for turn in turns if turn.is_question]
    if not questions:
        return words["no_answer" if asked is SmallTalk.LAST_ANSWER else "no_question"]
    if asked is SmallTalk.QUESTIONS:
        shown = list(enumerate(questions, 1))[-_QUESTIONS:]
        return "\n".join([words["questions"], *(f"{number}. {turn.question}" for number, turn in shown)])
    if asked is SmallTalk.LAST_QUESTION:
        return words["last_question"].format(text=questions[-1].question)
    answered = [turn for turn in questions if turn.answer]
    return words["last_answer"].format(text=answered[-1].answer) if answered else words["no_answer"]


def _words(language: str) -> dict[str, str]:
    return _CHINESE if language == "zh" else _ENGLISH


def _specs(tools: RegistrySnapshot) -> list[ToolSpec]:
    """What can be called, without what only serves the conversation itself."""
    found = (tools.get(tool_id) for tool_id in tools.by_id if tool_id != HISTORY_TOOL)
    return [tool.spec for tool in found if tool is not None]


def _subject(spec: ToolSpec) -> str:
    category = str(spec.category)
    return "" if category in _NO_SUBJECT else category.replace("_", " ")


def _described(subject: str, specs: Sequence[ToolSpec]) -> list[str]:
    return [f"{subject}:", *(f"- {spec.name}: {within(_said(spec), _DESCRIPTION)}".rstrip(": ") for spec in specs)]


def _said(spec: ToolSpec) -> str:
    only = spec.capability()
    return first_sentence(spec.description or (only.description if only is not None else ""))


def _named(subject: str, specs: Sequence[ToolSpec], words: dict[str, str]) -> str:
    names = words["comma"].join(spec.name for spec in specs[:NAMED])
    more = f" {words['more'].format(n=len(specs) - NAMED)}" if len(specs) > NAMED else ""
    return f"- {subject}: {names}{more}"
