"""One question to a model, and an answer or the reason why there is none."""

from __future__ import annotations

from typing import Any

from ferrule.errors import (
    CallError,
    ExecutionFailed,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    RequestTooLong,
    Retry,
    Transient,
)
from ferrule.messages import Usage, system_message, user_message
from ferrule.models import Model, ModelReply, ModelRequest
from ferrule.models.model import can_think
from ferrule.tools.ai.models import NO_MODEL


async def ask(model: Model, prompt: str, *, system: str = "", max_tokens: int | None = None) -> ModelReply:
    """What a model answers; `ModelError` when it does not."""
    if not can_think(model):
        raise ModelRefused(f"The model {model.name!r} can only use tools, and not answer. Set up {NO_MODEL}.")
    messages = [system_message(system)] if system else []
    request = ModelRequest(messages=[*messages, user_message(prompt)], max_tokens=max_tokens)
    reply = await model.generate(request)
    if not reply.text.strip():
        raise ModelRefused(f"The model {model.name!r} {_why_nothing(reply)}")
    if reply.finish_reason == "refused":
        raise ModelRefused(f"The model {model.name!r} declines to answer: {reply.text.strip()[:500]}")
    return reply


def failure_of(error: ModelError) -> CallError:
    """What it means for the call that a model gave no answer."""
    if isinstance(error, ModelUnavailable):
        wait = {} if error.retry_after is None else {"retry_after": error.retry_after}
        return Transient(str(error), **wait)
    if isinstance(error, RequestTooLong):
        return Retry(f"{error} Send a shorter prompt.")
    return ExecutionFailed(str(error))


def told_usage(usage: Usage) -> dict[str, Any]:
    """What answers have cost, for whoever reads the result."""
    told = {"requests": usage.requests, "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return {**told, "cached_tokens": usage.cached_tokens} if usage.cached_tokens else told


def _why_nothing(reply: ModelReply) -> str:
    if reply.tool_calls:
        return f"asks for the tool {reply.tool_calls[0].name!r} instead of answering, and has none here. Ask otherwise."
    if reply.finish_reason == "length":
        return "came to no answer within max_tokens. Ask for less, or allow more in the configuration."
    return "gave an empty answer. Ask otherwise." if reply.finish_reason != "refused" else "declines to answer."
