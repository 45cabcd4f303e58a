"""Answers in the wire formats of OpenAI and Anthropic, and servers of models and of model files that give them."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from hashlib import sha256
from importlib import import_module
from typing import Any

from tests.support.http_servers import (
    Answer,
    AnyAnswer,
    HttpServer,
    Request,
    answers_in_order,
    json_answer,
    serve_http,
)


def model_server(*answers: AnyAnswer, port: int = 0) -> AbstractAsyncContextManager[HttpServer]:
    """Serve the answers in order, and the last one to every further request."""
    # Importing the clients takes seconds on a busy machine: these do not belong to the time of a request.
    for client in ("openai.resources.chat.completions", "anthropic.resources.messages"):
        with suppress(ImportError):
            import_module(client)
    return serve_http(answers_in_order(*answers), port=port)


def failure(status: int, message: str, **headers: str) -> Answer:
    """An error as both APIs write it."""
    error = {"type": "error", "error": {"type": "some_error", "message": message}}
    return json_answer(error, status, **headers)


# OpenAI


def completion(text: str | None = None, calls: Sequence[dict[str, Any]] = (), **more: Any) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": text, **more.pop("message", {})}
    if calls:
        message["tool_calls"] = list(calls)
    choice = {"index": 0, "message": message, "finish_reason": more.pop("finish_reason", "stop")}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return json_answer({"id": "c1", "object": "chat.completion", "choices": [choice], "usage": usage, **more})


def call(name: str, arguments: Any, id: str | None = "call_1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if id is None else {"id": id})


def chunks(*deltas: dict[str, Any], finish: str | None = "stop", usage: dict[str, Any] | None = None) -> list[bytes]:
    """Events of a stream, up to `[DONE]`."""
    sent: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    if finish is not None:
        sent.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage is not None:
        sent.append({"choices": [], "usage": usage})
    return [f"data: {json.dumps({'id': 'c1', **chunk})}\n\n".encode() for chunk in sent] + [b"data: [DONE]\n\n"]


def call_delta(index: int | None, name: str | None, arguments: Any, id: str | None = None) -> dict[str, Any]:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    part = {k: v for k, v in (("index", index), ("id", id), ("function", function)) if v is not None}
    return {"tool_calls": [part]}


# Anthropic


def claude(
    *blocks: dict[str, Any], stop_reason: str | None = "end_turn", usage: dict[str, int] | None = None
) -> Answer:
    """A stream with these blocks; `pieces` of a block are its deltas."""
    used = usage or {"input_tokens": 12, "output_tokens": 3}
    message = {"id": "m1", "type": "message", "role": "assistant", "content": [], "usage": {**used, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        pieces = block.pop("pieces", ())
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    if stop_reason is not None:
        events.append({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": used})
        events.append({"type": "message_stop"})
    return Answer(events=[claude_event(event) for event in events])


def claude_event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def text_block(*pieces: str) -> dict[str, Any]:
    return {"type": "text", "text": "", "pieces": [{"type": "text_delta", "text": piece} for piece in pieces]}


def tool_use_block(name: str, *pieces: str, id: str = "toolu_1") -> dict[str, Any]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return {"type": "tool_use", "id": id, "name": name, "input": {}, "pieces": deltas}


def thinking_block(text: str, signature: str) -> dict[str, Any]:
    pieces = [{"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}]
    return {"type": "thinking", "thinking": "", "signature": "", "pieces": pieces}


# Servers


def answer_chat(text: str, request: Request) -> Answer:
    """A text, as a stream if the request wants one."""
    if request.json.get("stream"):
        return Answer(events=chunks({"role": "assistant", "content": text}))
    return completion(text)


def ollama_answers(*models: str, text: str = "Hello from Ollama.") -> Callable[[Request], Answer]:
    """Ollama's list of models and its chat API in OpenAI's form."""

    def answer(request: Request) -> Answer:
        if request.path == "/api/tags":
            return json_answer({"models": [_ollama_model(name) for name in models]})
        if request.path == "/v1/chat/completions":
            return answer_chat(text, request)
        return json_answer({"error": "not found"}, 404)

    return answer


def _ollama_model(name: str) -> dict[str, Any]:
    family = "nomic-bert" if "embed" in name else "qwen3"
    return {
        "name": name,
        "model": name,
        "modified_at": "2026-10-01T12:00:00Z",
        "size": 5_225_388_164,
        "digest": sha256(name.encode()).hexdigest(),
        "details": {"format": "gguf", "family": family, "parameter_size": "8.2B", "quantization_level": "Q4_K_M"},
    }


def openai_answers(
    owner: str, *models: str, text: str = "Hello.", key: str | None = None
) -> Callable[[Request], Answer]:
    """The list of models and the chat API of LM Studio, llama.cpp and vLLM."""

    def answer(request: Request) -> Answer:
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            return json_answer({"error": {"message": "invalid api key", "type": "invalid_request_error"}}, 401)
        if request.path == "/v1/models":
            data = [{"id": name, "object": "model", "created": 1, "owned_by": owner} for name in models]
            return json_answer({"object": "list", "data": data})
        if request.path == "/v1/chat/completions":
            return answer_chat(text, request)
        return json_answer({"error": "not found"}, 404)

    return answer
