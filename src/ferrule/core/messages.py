"""Messages between an agent and a model, the tool calls in them, and token usage.

Messages are plain dictionaries in OpenAI's chat format: they are stored that way, every model's API is close to it,
and people already have them. The functions here build them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ferrule.core.content import Image, encode_json

Message: TypeAlias = dict[str, Any]
"""`{"role": "system" | "user" | "assistant" | "tool", "content": …}`, with `tool_calls` or `tool_call_id`."""
NOTE: Final = "[note] "
"""How a message begins that has the role of the user, and is not from the user."""
TOKENS_OF_IMAGE = 1_000
"""What an image counts as in estimates."""
Schema: TypeAlias = dict[str, Any]
"""A function schema: `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call a model requests."""

    name: str
    """The name in the schema: `tool_id`, or `tool_id__action`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    """Empty until the agent assigns one; the message with the result has the same id."""
    error: str | None = None
    """Why the call cannot be made, written for the model. Such a call gets a tool message and is never executed."""
    raw: str = ""
    """The text the model wrote, where it could not be parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Requests and tokens used so far."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that came from a prompt cache."""

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


def note_message(text: str) -> Message:
    """Return a message to the model that is not from the user."""
    return user_message(f"{NOTE}{text}")


def is_note(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str) and content.startswith(NOTE)


def image_message(images: Iterable[Image]) -> Message:
    """Return the user's images as one message, before the message with the text about them."""
    urls = (f"data:{image.mime_type};base64,{b64encode(image.data).decode()}" for image in images)
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}


def count_images(message: Message) -> int:
    content = message.get("content")
    return sum(isinstance(part, dict) and "image_url" in part for part in content) if isinstance(content, list) else 0


def assistant_message(text: str = "", calls: Iterable[ToolCall] = ()) -> Message:
    """Return a model's text and the calls it requests."""
    tool_calls: list[dict[str, Any]] = []
    for call in calls:
        # With lone surrogates: a run that waits continues from this JSON with exactly the same arguments.
        exact = encode_json(call.arguments, escape_surrogates=True).decode()
        arguments = call.raw if call.error is not None and call.raw else exact
        function = {"name": call.name, "arguments": arguments}
        tool_calls.append({"id": call.id, "type": "function", "function": function})
    message: Message = {"role": "assistant", "content": text or (None if tool_calls else "")}
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def tool_message(call: ToolCall, text: str) -> Message:
    """Return the result of a call, for the model."""
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}


def text_of_message(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whether its content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


# The arguments of calls as model APIs send them: a JSON text, which may be invalid.

UNREADABLE_KEY = "unreadable_arguments"
"""The key under which invalid arguments are sent back to servers that accept only JSON objects."""


def decode_tool_call(name: str, arguments: Any, *, id: str = "", is_cut_off: bool = False) -> ToolCall:
    """Decode a call. A call whose arguments are invalid has `error` set, and never empty arguments instead.

    `is_cut_off`: the model ran out of tokens while it wrote this call, so that even empty arguments are incomplete.
    """
    if isinstance(arguments, dict):
        return ToolCall(name=name, arguments=arguments, id=id)
    text = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
    if text.strip() in ("", "null") and not is_cut_off:
        return ToolCall(name=name, id=id)
    try:
        return ToolCall(name=name, arguments=_decode_object(text), id=id)
    except RecursionError:
        reason = "they are nested too deep"
    except ValueError as error:
        reason = "they were cut off because the answer became too long" if is_cut_off else str(error)
    problem = f"The arguments of {name!r} cannot be read: {reason}. Send them again as one JSON object."
    return ToolCall(name=name, id=id, error=problem, raw=text)


def arguments_to_send(arguments: Any) -> dict[str, Any]:
    """Return the arguments of an earlier call, as an object: many servers refuse a history with invalid ones."""
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str) or not arguments.strip():
        return {}
    try:
        return _decode_object(arguments)
    except (ValueError, RecursionError):
        return {UNREADABLE_KEY: arguments}


def _decode_object(text: str) -> dict[str, Any]:
    # Not orjson: it reads integers beyond 64 bits as floats.
    value = json.loads(text)
    if isinstance(value, str):  # some servers encode twice
        value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, not {type(value).__name__}")
    return value
