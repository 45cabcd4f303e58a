"""Reads a conversation: the current question, and the calls that were made since it was asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ferrule.core.messages import Message, text_of_message
from ferrule.core.model import ModelRequest
from ferrule.core.patterns import lazy_pattern
from ferrule.models.offline.steps import insert_result, refers_to_result
from ferrule.models.offline.values import find_paths, find_urls
from ferrule.texts.answers import parse_json
from ferrule.texts.language import contains_chinese
from ferrule.texts.numbers import ValueSpan, find_numbers
from ferrule.texts.phrases import FOLLOW_UP
from ferrule.texts.time_zones import find_time_zones_in_text

_FAILURE_BEGINNING = lazy_pattern(
    r"\s*(?:\W{0,3}(?:error|failed|failure|known_failure|invalid|unable|cannot|could not|no such|timed out)\b"
    r"|\w+(?:Error|Exception):|错误|失败|无法)|.{0,200}\bdid you mean\b",
    re.IGNORECASE,
)
"""How results begin that report a failure, for requests that do not say which calls failed."""
_LAST_NUMBER = lazy_pattern(r"(?:\bis(?: about)?|[=≈是约:：]) ?(-?[\d.]*\d)\D{0,40}\Z")
"""The number that an answer ends with: `15% of 80 is 12.`"""
_AGENT_NOTE = lazy_pattern(r"\[[^\]]*\]")
"""A message of the user in brackets was written by the agent."""
_MAX_REFERENCE_LENGTH = 80
"""`it` does not refer to an answer that is longer."""
_MAX_FOLLOW_UPS = 5


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A call that was made for the question, and its result."""

    name: str
    arguments: dict[str, Any]
    result: str
    is_failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConversation:
    question: str
    """With what a reference or a follow-up leaves out."""
    original: str
    """As the user wrote it."""
    calls: list[CompletedCall]
    previous_question: str
    """Empty if there was none."""
    previous_answer: str


def read_conversation(request: ModelRequest) -> ParsedConversation:
    """The question that is being worked on, and what happened since it was asked."""
    messages = request.messages
    answers = [i for i, m in enumerate(messages) if m.get("role") == "assistant" and not m.get("tool_calls")]
    user_messages = [
        i
        for i, message in enumerate(messages)
        if message.get("role") == "user" and not _AGENT_NOTE.fullmatch(text_of_message(message).strip())
    ]
    new = [i for i in user_messages if not answers or i > answers[-1]]
    # Between the calls an agent may comment on them: the first message, and those directly after it, are the question.
    first = next(iter(new or user_messages[-1:]), len(messages))
    parts = [i for n, i in enumerate(new or [first]) if i == first + n and i < len(messages)]
    question = "\n".join(text_of_message(messages[i]) for i in parts).strip()
    earlier = [i for i in user_messages if i < first]
    answer = next((text_of_message(messages[i]) for i in reversed(answers) if i < first), "")
    earlier_questions = [text_of_message(messages[i]).strip() for i in earlier[-_MAX_FOLLOW_UPS:]]
    previous = reduce(lambda before, text: _complete_follow_up(text, before), earlier_questions, "")
    number = _LAST_NUMBER.search(answer)
    paths = find_paths(answer.rstrip(" .。")) if "\n" not in answer else []
    reference = number[1] if number else paths[0].value if len(paths) == 1 else answer.strip()
    original = question
    if 0 < len(reference) <= _MAX_REFERENCE_LENGTH and "\n" not in reference and refers_to_result(question):
        question = insert_result(question, reference)  # `multiply it by 3`, after an answer
    else:
        question = _complete_follow_up(question, previous)
    return ParsedConversation(
        question=question,
        original=original,
        calls=_read_completed_calls(messages[first + 1 :], request.failed_calls),
        previous_question=previous,
        previous_answer=answer,
    )


_ASKS_FOR_TIME = lazy_pattern(r"what(?:'s| is)?(?: the)? time(?: is it)?\W*|(?:现在)?几点了?\W*", re.IGNORECASE)
_ONLY_PREPOSITIONS = lazy_pattern(
    r"(?:\W|(?:in|for|of|at|to|on|with|from|the|by|about|is|now|file|page|people|days|percent)\b|[在从到用的是现年月日元])*",
    re.I,
)
_NAME = lazy_pattern(r"[A-ZÀ-Þ][\w'’.-]*(?: [A-ZÀ-Þ][\w'’.-]*)*")


def _complete_follow_up(question: str, previous: str) -> str:
    """The previous question with the value that a follow-up names: `and in Paris?`, 巴黎呢？; else the question."""
    follow_up = FOLLOW_UP.fullmatch(question)
    if follow_up is None or not previous or len(question) > _MAX_REFERENCE_LENGTH:
        return question
    rest = follow_up["rest"].rstrip(" ?？呢.!")
    for find in (find_urls, find_paths, find_time_zones_in_text, find_numbers, _find_names):
        new, old = find(rest), find(previous)
        if len(new) == 1 and find is find_time_zones_in_text and _ASKS_FOR_TIME.fullmatch(previous):
            return f"{rest}{previous}" if contains_chinese(previous) else f"{previous.rstrip(' ?')} {rest}"
        if len(new) == 1 and old and _has_only_words_of(previous, rest[: new[0].start] + rest[new[0].end :]):
            unit = rest[new[0].end :].strip()  # `and 20%?` after `15% of 80` is another percentage
            same_unit = [value for value in old if unit and previous[value.end :].lstrip().startswith(unit)]
            place = (same_unit or old)[-1]
            return previous[: place.start] + rest[new[0].start : new[0].end] + previous[place.end :]
    return question


def _has_only_words_of(previous: str, words: str) -> bool:
    """Whether a follow-up has no other words than these: `and show me b.txt` is a request of its own."""
    return bool(_ONLY_PREPOSITIONS.fullmatch(re.sub(r"[^\W\d_]+", lambda m: m[0] * (m[0] not in previous), words)))


def _find_names(text: str) -> list[ValueSpan]:
    """Words in upper case, except the first word of a question."""
    return [
        ValueSpan(match[0], *match.span())
        for match in _NAME.finditer(text)
        if match.start() or match.end() == len(text)
    ]


def _read_completed_calls(messages: Sequence[Message], failed: frozenset[str] | None) -> list[CompletedCall]:
    results = {m.get("tool_call_id"): text_of_message(m) for m in messages if m.get("role") == "tool"}
    completed = []
    for call in (call for message in messages for call in message.get("tool_calls") or ()):
        function, result = call.get("function") or {}, results.get(call.get("id"))
        if result is not None:
            arguments = parse_json(function.get("arguments") or "{}")
            arguments = arguments if isinstance(arguments, dict) else {}
            is_failed = call.get("id") in failed if failed is not None else bool(_FAILURE_BEGINNING.match(result))
            is_failed = is_failed or _reports_failure(parse_json(result))
            completed.append(CompletedCall(str(function.get("name")), arguments, result, is_failed))
    return completed


def _reports_failure(value: Any) -> bool:
    return isinstance(value, dict) and bool(
        value.get("error") or value.get("success") is False or value.get("isError") is True
    )
