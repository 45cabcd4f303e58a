"""What passes between an agent and a model: messages, the calls a model asks for, and what it cost.

Messages are plain dictionaries in OpenAI's chat format: that is what is stored, what every model's API is close to,
and what people already have. The functions here build them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrule.content import encode_json

Message: TypeAlias = dict[str, Any]
"""`{"role": "system" | "user" | "assistant" | "tool", "content": …}`, with `tool_calls` or `tool_call_id`."""
Schema: TypeAlias = dict[str, Any]
"""A function schema: `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call a model asks for."""

    name: str
    """As the schema names it: `tool_id`, or `tool_id__action`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    """Empty until somebody gives it one; the answer carries the same."""
    error: str | None = None
    """Why it cannot be made as it was written, said to the model; such a call is answered, never executed."""
    raw: str = ""
    """What the model wrote, where it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What answers have cost so far."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input, those a prompt cache had."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
        )


def system_message(text: str) -> Message:
    return {"role": "system", "content": text}


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant_message(text: str = "", calls: Iterable[ToolCall] = ()) -> Message:
    """What a model said, and the calls it asked for."""
    asked = [_asked(call) for call in calls]
    message: Message = {"role": "assistant", "content": text or (None if asked else "")}
    if asked:
        message["tool_calls"] = asked
    return message


def tool_message(call: ToolCall, text: str) -> Message:
    """The answer to a call."""
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}


def text_of_message(message: Mapping[str, Any]) -> str:
    """The words of a message, whether its content is a text or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def _asked(call: ToolCall) -> dict[str, Any]:
    arguments = call.raw if call.error is not None and call.raw else encode_json(call.arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
