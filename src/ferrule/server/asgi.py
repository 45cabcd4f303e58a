"""Bodies of requests, and responses: JSON, server-sent events, and those that end only with their connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Send

from ferrule.core.aio import ProgressQueue
from ferrule.errors import FerruleError
from ferrule.server.problems import Problem, encode_body, problem_of_error


async def read_body(receive: Receive) -> bytes:
    """Read the whole body of a request. Raises Problem if the client disconnects before it has sent all of it."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        return body
    parts = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise Problem(400, "The client disconnected before it had sent the whole body.")


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Make a `receive` that returns a body that was read already, and then what follows."""
    is_given = False

    async def receive_again() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


_ENDLESS: Final = "ferrule.endless"


def mark_endless(scope: MutableMapping[str, Any]) -> None:
    """Mark a request whose response does not end by itself, so that a stopping server does not wait for it."""
    scope.setdefault("state", {})[_ENDLESS] = True


def is_endless(scope: Mapping[str, object]) -> bool:
    state = scope.get("state")
    return isinstance(state, dict) and state.get(_ENDLESS) is True


# Server-sent events

KEEPALIVE_INTERVAL: Final = 15.0
"""Seconds after which a comment is sent on a quiet stream, so that proxies do not close it."""
MAX_UNREAD_PROGRESS: Final = 1_000_000
"""Bytes of the progress of one stream that wait for its client."""


class SendEvent(Protocol):
    """Sends an event to a client. Progress that the client does not read is dropped, the oldest first."""

    def __call__(self, event: bytes, /, *, is_progress: bool = False) -> None: ...


def encode_event(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode_body(data) + b"\n\n"


def event_stream(events: AsyncIterator[bytes], request: Request) -> StreamingResponse:
    if "idempotency-key" in request.headers:  # to ignore it would execute a repeated request again
        raise Problem(400, "A streamed response is not stored: send the request without Idempotency-Key.")
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(_keep_alive(events), media_type="text/event-stream", headers=headers)


async def _keep_alive(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events, and a comment whenever there was no event for a while."""
    pending = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=KEEPALIVE_INTERVAL)
            if not done:
                yield b": keep-alive\n\n"
                continue
            event = pending.result()
            if event is None:
                return
            yield event
            pending = asyncio.ensure_future(anext(events, None))
    finally:
        pending.cancel()
        await asyncio.wait({pending})
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def encode_problem(problem: Problem) -> bytes:
    return encode_event("error", {"status": problem.status, "detail": problem.detail})


async def stream_of_task(
    work: Callable[[SendEvent], Coroutine[Any, Any, None]], encode_problem: Callable[[Problem], bytes] = encode_problem
) -> AsyncIterator[bytes]:
    """Yield the events that a task sends, and the problem that ends it. Closing the iterator ends the task."""
    queue = ProgressQueue[bytes | None](MAX_UNREAD_PROGRESS, lambda event: len(event or b""))

    async def run() -> None:
        try:
            await work(queue.add)
        except (Problem, FerruleError) as error:
            queue.add(encode_problem(problem_of_error(error)))

    task = asyncio.create_task(run())
    task.add_done_callback(lambda _: queue.add(None))
    try:
        while (event := await queue.get()) is not None:
            yield event
    finally:
        task.cancel()
        await asyncio.wait({task})
