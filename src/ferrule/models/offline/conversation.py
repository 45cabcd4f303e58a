"""Reads a conversation: the current question, and the calls that were made since it was asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.core.messages import Message, text_of_message
from ferrule.core.model import ModelRequest
from ferrule.core.patterns import lazy_pattern
from ferrule.texts.answers import parse_json

_FAILURE_BEGINNING = lazy_pattern(
    r"\s*(?:\W{0,3}(?:error|failed|failure|known_failure|invalid|unable|cannot|could not|no such|timed out)\b"
    r"|\w+(?:Error|Exception):|错误|失败|无法)|.{0,200}\bdid you mean\b",
    re.IGNORECASE,
)
"""How results begin that report a failure, for requests that do not say which calls failed."""
_AGENT_NOTE = lazy_pattern(r"\[[^\]]*\]")
"""A message of the user in brackets was written by the agent."""


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
    calls: list[CompletedCall]


def read_conversation(request: ModelRequest) -> ParsedConversation:
    """Return the question that is being worked on, and what happened since it was asked."""
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
    return ParsedConversation(
        question=question,
        calls=_read_completed_calls(messages[first + 1 :], request.failed_calls),
    )


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
