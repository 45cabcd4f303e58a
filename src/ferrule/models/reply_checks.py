"""Checking what a model returned, where it enters: servers and models return anything, and a run must go on.

Fields of a wrong type count as missing. Usage that is missing or impossible is estimated from the texts, so that limits
on tokens and cost hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar, get_args

from ferrule.core.content import MAX_DEPTH, REDACTED, encode_json, is_nested_deeper, replace_surrogates
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.errors import ModelError
from ferrule.texts.shorten import estimate_tokens

MAX_TOKENS: Final = 10**12
"""No request uses more: a larger count is an error of the server."""
UNNAMED_CALL: Final = "unnamed"
V = TypeVar("V", ModelReply, ToolCall)
_FINISH_REASONS: Final = frozenset(get_args(FinishReason))
_MIN_KEY_LENGTH: Final = 8
"""A shorter key is a word like `none`, for servers that need no key."""


# Fields of a server's reply: objects of an SDK that did not check them, or dictionaries


def read_field(value: Any, name: str) -> Any:
    """The field of an SDK's object or of a dictionary; None if there is none."""
    if isinstance(value, Mapping):
        return value.get(name)
    return None if isinstance(value, (str, bytes, list, tuple)) else getattr(value, name, None)


def read_text(value: Any, name: str) -> str:
    """A field that is text; empty if it is anything else."""
    text = read_field(value, name)
    return replace_surrogates(text) if isinstance(text, str) else ""


def read_list(value: Any, name: str) -> list[Any]:
    """A field that is a list; empty if it is anything else."""
    items = read_field(value, name)
    return items if isinstance(items, list) else []


def read_count(value: Any, name: str) -> int | None:
    """A number of tokens; None if it is missing or impossible."""
    count = read_field(value, name)
    return count if _is_count(count) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS


class ApiKeyFilter:
    """Removes the API key from a reply: a server that repeats it must not get it into answers, entries and logs."""

    def __init__(self, key: str | None, on_text: TextSink | None) -> None:
        self._key = key if key is not None and len(key) >= _MIN_KEY_LENGTH else None
        self._on_text, self._held_text = on_text, ""
        self.on_text = on_text if on_text is None or self._key is None else self._send_redacted_text
        """Receives the text of the reply and passes it on without the key."""

    async def redact(self, reply: Awaitable[ModelReply]) -> ModelReply:
        """The reply, or the model error that is raised instead, without the key."""
        if self._key is None:
            return await reply
        try:
            redacted = self._redact_reply(await reply)
        except ModelError as error:
            if self._key in f"{error} {error.__cause__}":
                error.args = tuple(map(self._redact_text, map(str, error.args)))
                error.__cause__ = error.__context__ = None
            raise
        if self._on_text is not None and self._held_text:
            self._on_text(self._held_text)
        return redacted

    def _redact_reply(self, reply: ModelReply) -> ModelReply:
        calls = tuple(ToolCall(**self._redact_value(asdict(call))) for call in reply.tool_calls)
        text, reasoning = self._redact_text(reply.text), self._redact_text(reply.reasoning)
        return replace(reply, text=text, reasoning=reasoning, tool_calls=calls)

    def _redact_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact_text(value)
        if isinstance(value, dict):
            return {self._redact_value(name): self._redact_value(inner) for name, inner in value.items()}
        return [self._redact_value(inner) for inner in value] if isinstance(value, list) else value

    def _redact_text(self, text: str) -> str:
        return text.replace(self._key or "", REDACTED)

    def _send_redacted_text(self, text: str) -> None:
        """Pass text on, except an end that may be the start of the key."""
        assert self._key is not None and self._on_text is not None
        text = self._redact_text(self._held_text + text)
        lengths = range(min(len(text), len(self._key) - 1), 0, -1)
        end = len(text) - next((length for length in lengths if self._key.startswith(text[-length:])), 0)
        self._held_text = text[end:]
        if end > 0:
            self._on_text(text[:end])


# Whole replies


def complete_usage(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """The reply of a server, with an estimate for the counts it did not report. No request and no text has 0 tokens."""
    usage = reply.usage
    if usage.input_tokens and usage.output_tokens:
        return reply
    return replace(
        reply,
        usage=replace(
            usage,
            input_tokens=usage.input_tokens or _estimate_input(request),
            output_tokens=usage.output_tokens or _estimate_output(reply),
        ),
    )


def check_reply(reply: Any, request: ModelRequest, *, model: str) -> ModelReply:
    """The reply of any model, with fields of the types that a run relies on."""
    if not isinstance(reply, ModelReply):
        raise ModelError(f"the model {model!r} returned {type(reply).__name__}, which is not a ModelReply")
    calls = reply.tool_calls if isinstance(reply.tool_calls, (tuple, list)) else ()
    checked = _change(
        reply,
        text=read_text(reply, "text"),
        reasoning=read_text(reply, "reasoning"),
        tool_calls=tuple(_check_call(call) for call in calls if isinstance(call, ToolCall)),
        finish_reason=reply.finish_reason if reply.finish_reason in _FINISH_REASONS else "stop",
    )
    return _change(checked, usage=_check_usage(checked, request))


def _change(value: V, **fields: Any) -> V:
    """The value with other fields; the value itself if they are the same, as those of most replies are."""
    for name, new in fields.items():
        old = getattr(value, name)
        if type(old) is not type(new) or old != new:
            return replace(value, **fields)
    return value


def _check_call(call: ToolCall) -> ToolCall:
    name, id = read_text(call, "name"), read_text(call, "id")
    call = _change(call, name=name or UNNAMED_CALL, id=id)
    if call.error is not None:
        return replace(call, error=str(call.error), raw=read_text(call, "raw"), arguments={})
    if not name:
        return replace(call, error="This call names no tool. Send it again with the name of a tool.", arguments={})
    if not isinstance(call.arguments, dict):
        return replace(call, error=f"The arguments of {name!r} are not a JSON object.", arguments={})
    if is_nested_deeper(call.arguments, MAX_DEPTH):
        problem = f"The arguments of {name!r} are nested deeper than {MAX_DEPTH} levels. Send a flatter object."
        return replace(call, error=problem, arguments={})
    return call


def _check_usage(reply: ModelReply, request: ModelRequest) -> Usage:
    usage = reply.usage if isinstance(reply.usage, Usage) else Usage(requests=1, input_tokens=-1, output_tokens=-1)
    counts = (usage.requests, usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    if all(map(_is_count, counts)):
        return usage
    input_tokens = usage.input_tokens if _is_count(usage.input_tokens) else _estimate_input(request)
    return Usage(
        requests=usage.requests if _is_count(usage.requests) else 1,
        input_tokens=input_tokens,
        output_tokens=usage.output_tokens if _is_count(usage.output_tokens) else _estimate_output(reply),
        cached_tokens=min(usage.cached_tokens, input_tokens) if _is_count(usage.cached_tokens) else 0,
    )


def _estimate_input(request: ModelRequest) -> int:
    return estimate_tokens(encode_json([list(request.messages), list(request.tools)]).decode())


def _estimate_output(reply: ModelReply) -> int:
    calls = [[call.name, call.raw or call.arguments] for call in reply.tool_calls]
    return estimate_tokens(reply.text + reply.reasoning + (encode_json(calls).decode() if calls else ""))
