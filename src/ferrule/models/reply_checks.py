"""Checking what a model returned, where it enters: servers and models return anything, and a run must go on.

Fields of a wrong type count as missing. Usage that is missing or impossible is estimated from the texts, so that limits
on tokens and cost hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar, get_args

from ferrule.core.content import MAX_DEPTH, encode_json, is_nested_deeper, replace_surrogates
from ferrule.core.messages import TOKENS_OF_IMAGE, ToolCall, Usage, count_images, text_of_message
from ferrule.core.model import FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.core.secrets import Secrets, StreamFilter, select_likely
from ferrule.errors import ModelError
from ferrule.texts.shorten import estimate_tokens

MAX_TOKENS: Final = 10**12
"""No request uses more: a larger count is an error of the server."""
UNNAMED_CALL: Final = "unnamed"
V = TypeVar("V", ModelReply, ToolCall)
_FINISH_REASONS: Final = frozenset(get_args(FinishReason))


# Fields of a server's reply: objects of an SDK that did not check them, or dictionaries


def read_field(value: Any, name: str) -> Any:
    """Return the field of an SDK's object or of a dictionary; None if there is none."""
    if isinstance(value, Mapping):
        return value.get(name)
    return None if isinstance(value, (str, bytes, list, tuple)) else getattr(value, name, None)


def read_text(value: Any, name: str) -> str:
    """Return a field that is text; empty if it is anything else."""
    text = read_field(value, name)
    return replace_surrogates(text) if isinstance(text, str) else ""


def read_list(value: Any, name: str) -> list[Any]:
    """Return a field that is a list; empty if it is anything else."""
    items = read_field(value, name)
    return items if isinstance(items, list) else []


def read_count(value: Any, name: str) -> int | None:
    """Return a number of tokens; None if it is missing or impossible."""
    count = read_field(value, name)
    return count if _is_count(count) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS


async def hide_key(
    key: str | None, on_text: TextSink | None, generate: Callable[[TextSink | None], Awaitable[ModelReply]]
) -> ModelReply:
    """Return the reply, or the model error that is raised instead, without the API key, which a server may repeat."""
    secrets = Secrets(select_likely([key or ""]))
    stream = None if on_text is None else StreamFilter(secrets, on_text)
    with secrets.hide_in_errors():
        reply: ModelReply = secrets.hide(await generate(None if stream is None else stream.write))
    if stream is not None:
        stream.flush()
    return reply


# Whole replies


def complete_usage(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """Return the reply of a server, with estimates for counts it did not report. Requests and texts have tokens."""
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
    """Return the reply of any model, with fields of the types that a run relies on."""
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
    """Replace fields of a value. Returns the same object if nothing changes, as for most replies."""
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
    images = sum(map(count_images, request.messages))
    messages = [{**m, "content": text_of_message(m)} if count_images(m) else m for m in request.messages]
    return estimate_tokens(encode_json([messages, list(request.tools)]).decode()) + images * TOKENS_OF_IMAGE


def _estimate_output(reply: ModelReply) -> int:
    calls = [[call.name, call.raw or call.arguments] for call in reply.tool_calls]
    return estimate_tokens(reply.text + reply.reasoning + (encode_json(calls).decode() if calls else ""))
