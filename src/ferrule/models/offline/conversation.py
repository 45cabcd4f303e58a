"""What has been said so far: the question, and what the calls since then have given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.messages import Message, text_of_message
from ferrule.models.offline.steps import speaks_of_result, with_result

_FAILED = re.compile(
    r"\s*(?:\W{0,3}(?:error|failed|failure|known_failure|invalid|unable|cannot|could not|no such|timed out)\b"
    r"|\w+(?:Error|Exception):|Tool '[^']*' (?:did|is|was|failed)|The arguments of '|This call of '|There is no\b"
    r"|The user does not allow|错误|失败)"
    r"|.{0,200}\bdid you mean\b",
    re.IGNORECASE,
)
"""How answers begin that tell of a failure: a message has no other sign of it."""
_ANSWERED = re.compile(r"\A[\w.-]{1,60}[:：] (?=[^\n]*\Z)")
"""Our own answers say which tool they are from."""
_SHORT = 80
"""A longer answer is not what `it` stands for."""
_RESULT_NAMES = ("result", "answer", "output", "value", "text", "content", "message")
_MOST_FIELDS = 12
_NOTE = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A call that was made for the question, and its answer."""

    name: str
    arguments: dict[str, Any]
    answer: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    question: str
    done: list[Done]
    before: str
    """The question before this one; empty if there was none."""
    said: str
    """What was answered to it."""


def read(messages: Sequence[Message]) -> Conversation:
    """The question that is being worked on, and what happened since it was asked."""
    ends = [place for place, message in enumerate(messages) if _is_answer(message)]
    asked = _asked(messages, ends[-1] + 1 if ends else 0)
    # Between the calls an agent may remark on them; what comes first is the question.
    question = asked[:1] or _asked(messages, 0)[-1:]
    together = [place for n, place in enumerate(asked) if n and place == asked[0] + n]
    earlier = [place for place in _asked(messages, 0) if question and place < question[0]]
    said = [messages[place] for place in ends if question and place < question[0]]
    words = "\n".join(text_of_message(messages[place]) for place in (*question, *together)).strip()
    answered = _ANSWERED.sub("", text_of_message(said[-1])).strip() if said else ""
    if 0 < len(answered) <= _SHORT and "\n" not in answered and speaks_of_result(words):
        words = with_result(words, answered)  # `multiply it by 3`, after an answer
    return Conversation(
        question=words,
        done=_done(messages[question[0] + 1 :]) if question else [],
        before=text_of_message(messages[earlier[-1]]).strip() if earlier else "",
        said=text_of_message(said[-1]) if said else "",
    )


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant" and not message.get("tool_calls")


def _asked(messages: Sequence[Message], start: int) -> list[int]:
    """Where the user speaks; notes in brackets are an agent's."""
    return [
        place
        for place, message in enumerate(messages)
        if place >= start and message.get("role") == "user" and not _NOTE.fullmatch(text_of_message(message).strip())
    ]


def plain(answer: str) -> str:
    """What a tool answered, as a person would want to read it."""
    value = _json(answer)
    if isinstance(value, dict):
        named = next((value[name] for name in _RESULT_NAMES if name in value), None)
        if named is None and len(value) == 1:
            named = next(iter(value.values()))
        if named is not None and not isinstance(named, dict | list):
            return _shown(named)
        if len(value) <= _MOST_FIELDS and not any(isinstance(item, dict | list) for item in value.values()):
            return ", ".join(f"{name}: {_shown(item)}" for name, item in value.items())
    if isinstance(value, list) and value and not any(isinstance(item, dict | list) for item in value):
        return ", ".join(map(_shown, value))
    return _shown(value) if isinstance(value, str) else answer.strip()


def _done(messages: Sequence[Message]) -> list[Done]:
    answers = {m.get("tool_call_id"): text_of_message(m) for m in messages if m.get("role") == "tool"}
    done = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            answer = answers.get(call.get("id"))
            if answer is not None:
                arguments = _json(function.get("arguments") or "{}")
                done.append(
                    Done(
                        name=str(function.get("name")),
                        arguments=arguments if isinstance(arguments, dict) else {},
                        answer=answer,
                        failed=_is_failure(answer),
                    )
                )
    return done


def _is_failure(answer: str) -> bool:
    if _FAILED.match(answer):
        return True
    value = _json(answer) if answer.lstrip().startswith("{") else None
    return isinstance(value, Mapping) and bool(
        value.get("error") or value.get("success") is False or value.get("isError") is True
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
