"""OpenAI's APIs for the agent: chat completions, responses and models, for every client that speaks them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from ferrule.agent import AgentAnswer
from ferrule.agent.answer import AgentState, CallEnded, CallStarted, TextPiece, TurnStarted
from ferrule.core.content import encode_json
from ferrule.core.messages import Message, text_of_message
from ferrule.orchestrator.orchestrator import StrategyChosen
from ferrule.server.authentication import Client
from ferrule.server.question_routes import MAX_QUESTION_LENGTH, describe_event
from ferrule.server.responses import Problem, encode_event, event_stream, json_response, stream_of_task
from ferrule.server.services import CallingClient, ReadingClient, Services, ServicesOfApp

router = APIRouter(prefix="/v1", tags=["openai"])

MODEL: Final = "ferrule"
STRATEGY_MODELS: Final = {
    MODEL: None,
    f"{MODEL}:loop": "loop",
    f"{MODEL}:plan": "plan",
    f"{MODEL}:direct": "direct",
}
"""The names of models that clients can choose, and the strategies they stand for."""
MAX_MESSAGES: Final = 1_000
_RESPONSE_PREFIX: Final = "resp_"


_TEXT: Final = {"type": "string", "pattern": r"\S"}
_PARTS: Final = {"type": "array", "items": {"type": "object", "required": ["text"], "properties": {"text": _TEXT}}}
_CONTENT: Final = {"anyOf": [{"type": "string"}, _PARTS, {"type": "null"}]}
_QUESTION: Final = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"const": "user"}, "content": {"anyOf": [_TEXT, {**_PARTS, "minItems": 1}]}},
}
_INPUT: Final = {
    "anyOf": [
        _TEXT,
        {
            "type": "array",
            "items": {"type": "object", "properties": {"role": {"type": "string"}, "content": _CONTENT}},
            "contains": _QUESTION,
        },
    ]
}
"""What the OpenAPI document says: content is text, and at least one message is a user's with some."""


class ChatMessage(BaseModel):
    """A message; members that are not used here are accepted."""

    model_config = ConfigDict(extra="allow")
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | list[dict[str, Any]] | None, WithJsonSchema(_CONTENT)] = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")
    include_usage: StrictBool = False


def _refuse_unsupported(request: BaseModel, **supported: Sequence[Any]) -> None:
    """Raise Problem for a parameter that would change the answer and is not built, unless it has a supported value."""
    for name, values in supported.items():
        value = (request.model_extra or {}).get(name)
        if value and value not in values:
            raise Problem(
                400,
                f"The parameter {name!r} is not supported here. The agent uses its own tools and gives one answer as "
                "text: leave it out.",
                code="unsupported_parameter",
                param=name,
            )


_PLAIN_TEXT: Final = {"type": "text"}


class ChatCompletionRequest(BaseModel):
    """OpenAI's request. Sampling parameters are accepted and not used; what would change the answer is refused."""

    model_config = ConfigDict(extra="allow")
    model: str = MODEL
    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, json_schema_extra={"contains": _QUESTION})
    ]
    stream: StrictBool = False
    stream_options: StreamOptions | None = None


class ResponseRequest(BaseModel):
    """A request of OpenAI's newer API."""

    model_config = ConfigDict(extra="allow")
    model: str = MODEL
    input: Annotated[str | list[dict[str, Any]], WithJsonSchema(_INPUT)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(pattern=r"^resp_[0-9a-f]{32}_[0-9a-f]{8}$")] | None = None
    stream: StrictBool = False


@router.get("/models")
async def list_models(client: ReadingClient) -> Response:
    """Return the names that `model` may have."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "ferrule"} for name in STRATEGY_MODELS]
    return json_response({"object": "list", "data": models})


@router.get("/models/{name}")
async def show_model(name: str, client: ReadingClient) -> Response:
    _find_strategy(name)
    return json_response({"id": name, "object": "model", "created": 0, "owned_by": "ferrule"})


@router.post("/chat/completions")
async def complete_chat(
    request: Request, chat: ChatCompletionRequest, services: ServicesOfApp, client: CallingClient
) -> Response:
    """Answer the last message of the user, with the agent and its tools."""
    _refuse_unsupported(chat, tools=(), functions=(), n=(1,), response_format=(_PLAIN_TEXT,), logprobs=(), audio=())
    question = _read_messages([message.model_dump() for message in chat.messages])
    return await _respond(request, chat, services, client, question, uuid4().hex, _ChatReply(chat))


@router.post("/responses")
async def create_response(
    request: Request, body: ResponseRequest, services: ServicesOfApp, client: CallingClient
) -> Response:
    """Answer the input, with the agent and its tools; `previous_response_id` continues a conversation."""
    _refuse_unsupported(body, tools=(), text=({"format": _PLAIN_TEXT},), background=(), prompt=(), conversation=())
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    question = _read_messages(items)
    if body.instructions:
        question.instructions = body.instructions
    conversation_id = uuid4().hex
    if body.previous_response_id is not None:
        conversation_id = body.previous_response_id.removeprefix(_RESPONSE_PREFIX).partition("_")[0]
        for turn in reversed(await services.read_conversation(conversation_id, client)):
            if turn.answer:
                question.messages.insert(0, {"role": "assistant", "content": turn.answer})
                question.messages.insert(0, {"role": "user", "content": turn.question})
    reply = _ResponseReply(body.model, conversation_id)
    return await _respond(request, body, services, client, question, conversation_id, reply)


async def _respond(
    request: Request,
    body: ChatCompletionRequest | ResponseRequest,
    services: Services,
    client: Client,
    question: _ChatQuestion,
    conversation_id: str,
    reply: _ChatReply | _ResponseReply,
) -> Response:
    strategy = _find_strategy(body.model)

    async def answer(listener: Callable[[Any], None] | None) -> AgentAnswer:
        async with client.calls.slot():
            result = await services.orchestrator(client).process_task(
                question.text,
                {"instructions": question.instructions} if question.instructions else None,
                strategy=strategy,
                conversation_id=client.add_tenant(conversation_id),
                history=question.messages,
                on_event=listener,
            )
        if result.has_model_failed:
            raise Problem(502, f"The model gave no answer: {result.reason}", run_id=result.run_id)
        return result

    async def stream(send: Callable[[bytes], None]) -> None:
        text = _TextStream()

        def forward(event: Any) -> None:
            if delta := text.add(event):
                send(reply.describe_text(delta))
            elif (described := reply.describe_event(event)) is not None:
                send(described)

        for each in reply.start():
            send(each)
        result = await answer(forward)
        if rest := text.finish(_answer_text(result)):
            send(reply.describe_text(rest))
        for each in reply.end(result):
            send(each)

    if body.stream:
        return event_stream(stream_of_task(stream, reply.describe_problem), request)

    async def respond() -> Response:
        return json_response(reply.complete(await answer(None)))

    return await services.idempotent_requests.respond(request, client, body.model_dump(), respond)


class _ChatQuestion:
    """The last message of a user, and what else was said."""

    def __init__(self, text: str, messages: list[Message], instructions: str) -> None:
        self.text, self.messages, self.instructions = text, messages, instructions


def _read_messages(items: Sequence[dict[str, Any]]) -> _ChatQuestion:
    """Split a conversation of OpenAI's format. Raises Problem for parts other than text."""
    messages: list[Message] = []
    instructions: list[str] = []
    for item in items:
        text = _read_text(item)
        if item.get("role") in ("system", "developer"):
            instructions.append(text)
        elif item.get("role") in ("user", "assistant") and text.strip():
            messages.append({"role": item["role"], "content": text})
    number = next((n for n in reversed(range(len(messages))) if messages[n]["role"] == "user"), None)
    if number is None:
        raise Problem(400, "There is no message of the user: send one with text.")
    text = str(messages.pop(number)["content"])  # what follows it, such as the start of an answer, is context
    if len(text) > MAX_QUESTION_LENGTH:
        raise Problem(413, f"A question may have {MAX_QUESTION_LENGTH:,} characters.")
    return _ChatQuestion(text, messages, "\n\n".join(filter(None, instructions)))


def _read_text(item: dict[str, Any]) -> str:
    content = item.get("content")
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Problem(400, f"Content of type {kind!r} is not supported. Send text.")
    return text_of_message(item)


def _find_strategy(model: str) -> str | None:
    if model not in STRATEGY_MODELS:
        names = ", ".join(STRATEGY_MODELS)
        raise Problem(404, f"There is no model {model!r}; use one of: {names}.", code="model_not_found")
    return STRATEGY_MODELS[model]


def _answer_text(result: AgentAnswer) -> str:
    """Return the answer, or what the run waits for."""
    if result.state is not AgentState.WAITING:
        return result.answer
    lines = [question.text for question in result.questions]
    lines += [f"{each.tool_id} needs approval ({each.approval_id}): {each.reason}" for each in result.approvals]
    return "\n".join(lines)


def _describe_run(result: AgentAnswer) -> dict[str, Any]:
    """Return what OpenAI's format has no place for."""
    return {
        "run_id": result.run_id,
        "state": result.state.value,
        "strategy": result.strategy,
        "cached": result.cached,
        "approvals": [request.approval_id for request in result.approvals],
        "tool_usage_summary": result.tool_usage_summary,
    }


class _TextStream:
    """The text of an answer as it arrives: each turn of the model on its own lines, the final answer at the end."""

    def __init__(self) -> None:
        self._sent = ""
        self._turn = ""

    def add(self, event: Any) -> str:
        """Return the text to send for an event of the run."""
        if isinstance(event, TurnStarted):
            pause = "\n\n" if self._turn.strip() else ""
            self._turn = ""
            return self._send(pause)
        if isinstance(event, TextPiece):
            self._turn += event.text
            return self._send(event.text)
        return ""

    def finish(self, answer: str) -> str:
        """Return the part of the answer that was not sent yet."""
        if self._turn.strip() == answer.strip():
            return ""
        return self._send(("\n\n" if self._sent.strip() else "") + answer)

    def _send(self, text: str) -> str:
        self._sent += text
        return text


class _ChatReply:
    """A chat completion, as one object or as chunks."""

    def __init__(self, chat: ChatCompletionRequest) -> None:
        self._id, self._created, self._model = f"chatcmpl-{uuid4().hex}", int(time.time()), chat.model
        self._wants_usage = chat.stream_options is not None and chat.stream_options.include_usage

    def complete(self, result: AgentAnswer) -> dict[str, Any]:
        message = {"role": "assistant", "content": _answer_text(result), "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        head = self._head("chat.completion")
        return {**head, "choices": [choice], "usage": _chat_usage(result), "ferrule": _describe_run(result)}

    def start(self) -> Iterable[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def describe_text(self, delta: str) -> bytes:
        return self._chunk({"content": delta})

    def describe_event(self, event: Any) -> bytes | None:
        if not isinstance(event, (StrategyChosen, CallStarted, CallEnded)):
            return None
        name, data = describe_event(event) or ("", {})
        return self._chunk({}, ferrule={"event": name, **data})

    def describe_problem(self, problem: Problem) -> bytes:
        return _encode_data({"error": {"message": problem.detail, "code": problem.status}})

    def end(self, result: AgentAnswer) -> Iterable[bytes]:
        yield self._chunk({}, finish_reason="stop", ferrule=_describe_run(result))
        if self._wants_usage:
            head = self._head("chat.completion.chunk")
            yield _encode_data({**head, "choices": [], "usage": _chat_usage(result)})
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **members: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _encode_data({**self._head("chat.completion.chunk"), "choices": [choice], **members})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def _encode_data(content: dict[str, Any]) -> bytes:
    return b"data: " + encode_json(content) + b"\n\n"


def _chat_usage(result: AgentAnswer) -> dict[str, int]:
    usage = result.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }


class _ResponseReply:
    """A response of OpenAI's newer API, as one object or as events."""

    def __init__(self, model: str, conversation_id: str) -> None:
        self._id = f"{_RESPONSE_PREFIX}{conversation_id}_{uuid4().hex[:8]}"
        self._item_id, self._created, self._model = f"msg_{uuid4().hex}", int(time.time()), model
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._number = 0

    def complete(self, result: AgentAnswer) -> dict[str, Any]:
        usage = {
            "input_tokens": result.usage.input_tokens,
            "input_tokens_details": {"cached_tokens": result.usage.cached_tokens},
            "output_tokens": result.usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": result.usage.total_tokens,
        }
        item = self._item("completed", [_text_part(_answer_text(result))])
        return {**self._response("completed", [item]), "usage": usage, "metadata": {"run_id": result.run_id}}

    def start(self) -> Iterable[bytes]:
        yield self._event("response.created", response=self._response("in_progress", []))
        yield self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
        yield self._event("response.content_part.added", part=_text_part(""), **self._place)

    def describe_text(self, delta: str) -> bytes:
        return self._event("response.output_text.delta", delta=delta, logprobs=[], **self._place)

    def describe_event(self, event: Any) -> bytes | None:
        """Return None: the format has no place for events that are not text."""
        return None

    def describe_problem(self, problem: Problem) -> bytes:
        return self._event("error", message=problem.detail, code=str(problem.status), param=None)

    def end(self, result: AgentAnswer) -> Iterable[bytes]:
        completed = self.complete(result)
        item = completed["output"][0]
        part = item["content"][0]
        yield self._event("response.output_text.done", text=part["text"], logprobs=[], **self._place)
        yield self._event("response.content_part.done", part=part, **self._place)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event("response.completed", response=completed)

    def _event(self, kind: str, **members: Any) -> bytes:
        self._number += 1
        return encode_event(kind, {"type": kind, "sequence_number": self._number - 1, **members})

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": status,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "top_p": None,
            "tool_choice": "auto",
            "tools": [],
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
