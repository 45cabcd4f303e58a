"""A real HTTP server on this machine that speaks the wire formats of OpenAI and Anthropic."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal


@dataclass(kw_only=True)
class Answer:
    """What the server sends: a body, or the events of a stream; and what it does then."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    events: Sequence[bytes] | None = None
    then: Literal["finish", "cut", "hang"] = "finish"


HANG = Answer(then="hang")


@dataclass
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class ModelServer:
    port: int
    requests: list[ReceivedRequest] = field(default_factory=list)
    client_left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai(self) -> str:
        return f"{self.url}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]


@asynccontextmanager
async def model_server(*answers: Answer, port: int = 0) -> AsyncIterator[ModelServer]:
    """Gives its answers in order; the last one again and again."""
    # Importing the clients takes seconds on a busy machine: these do not belong to the time of a request.
    for client in ("openai.resources.chat.completions", "anthropic.resources.messages"):
        with suppress(ImportError):
            import_module(client)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            if await _converse(reader, writer, server, answers):
                server.client_left.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            server.client_left.set()
        except asyncio.CancelledError:
            pass
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", port)
    server = ModelServer(port=listening.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: ModelServer, answers: Sequence[Answer]
) -> bool:
    """Whether it was the client that ended it."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        server.requests.append(ReceivedRequest(first.split(" ")[1], headers, json.loads(body)))
        answer = answers[min(len(server.requests), len(answers)) - 1]
        if answer.then != "hang" or answer.events is not None:
            await _send(answer, writer)
        if answer.then == "cut":
            return False
        if answer.then == "hang":
            await reader.read()  # until the client goes away
            return True


async def _send(answer: Answer, writer: asyncio.StreamWriter) -> None:
    kind = "application/json" if answer.events is None else "text/event-stream"
    length = {"Content-Length": str(len(answer.body))} if answer.events is None else {"Transfer-Encoding": "chunked"}
    lines = [f"{name}: {value}" for name, value in {"Content-Type": kind, **length, **answer.headers}.items()]
    writer.write("\r\n".join([f"HTTP/1.1 {answer.status} Said", *lines, "", ""]).encode() + answer.body)
    for event in answer.events or ():
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        await writer.drain()
    if answer.events is not None and answer.then == "finish":
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(status=status, headers=sent, body=json.dumps(value).encode())


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
