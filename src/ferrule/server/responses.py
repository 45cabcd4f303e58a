"""Bodies of requests, and responses: JSON, problems (RFC 9457), server-sent events, and those without an end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match
from starlette.types import Receive, Send

from ferrule.core.aio import ProgressQueue
from ferrule.core.content import encode_json
from ferrule.errors import FerruleError, LockHeld, Rejected, RunInProgress, RunInterrupted, SetupError, StoreError

logger = logging.getLogger("ferrule.server")

OPENAI_PATHS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/models")
PROBLEM_TYPE: Final = "application/problem+json"
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.members = status, detail, headers, members

    def to_response(self, path: str = "") -> Response:
        """Make the response to a request for a path. Clients of OpenAI's API find the error in their format too."""
        title = HTTPStatus(self.status).phrase
        content = {**self.members, "type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        if path.startswith(OPENAI_PATHS):
            kind = "invalid_request_error" if self.status < 500 else "server_error"
            error = {"message": self.detail, "type": kind, "param": content.get("param")}
            content["error"] = {**error, "code": content.get("code")}
        return json_response(content, self.status, headers=self.headers, media_type=PROBLEM_TYPE)


def encode_body(content: Any) -> bytes:
    """Encode JSON. What orjson cannot encode, such as a number of more than 64 bits, is converted first."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return encode_json(content)


def json_response(
    content: Any, status: int = 200, *, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
) -> Response:
    return Response(
        encode_body(content), status, headers=None if headers is None else dict(headers), media_type=media_type
    )


def problem_of_error(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, RunInterrupted):  # calls were made: after a refusal, the request could be repeated
        return Problem(503, str(error))
    if isinstance(error, LockHeld | RunInProgress):
        return Problem(409, str(error))
    if isinstance(error, Rejected):
        return Problem(429, str(error), headers={"Retry-After": str(error.details.get("retry_after", 1))})
    if isinstance(error, StoreError):
        return Problem(503, f"The store is not available: {error}", headers={"Retry-After": "5"})
    if isinstance(error, SetupError | FerruleError):
        return Problem(400, str(error))
    return Problem(500, "The server failed to answer this request; its log says why.")


async def handle_error(request: Request, error: Exception) -> Response:
    """Answer an exception of a route."""
    problem = problem_of_error(error)
    if isinstance(error, HTTPException) and problem.detail in ("Not Found", "Method Not Allowed"):  # of the router
        problem = _describe_missing_route(request, problem.status)
    if problem.status == 500:
        logger.error("path=<%s> | the request failed", request.url.path, exc_info=error)
    return problem.to_response(request.url.path)


def _describe_missing_route(request: Request, status: int) -> Problem:
    path = request.url.path[:200]
    if status == 404:
        return Problem(404, f"There is nothing at {path!r}. /openapi.json lists the paths of this server.")
    routes = request.app.router.routes  # each route knows only its own methods
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    methods = ", ".join(n for n, scope in scopes.items() if any(r.matches(scope)[0] is Match.FULL for r in routes))
    return Problem(
        405, f"{path!r} cannot be used with {request.method}, only with {methods}.", headers={"Allow": methods}
    )


async def handle_invalid_request(request: Request, error: Any) -> Response:
    """Answer a validation error of FastAPI: which part of the request is wrong, without repeating its value."""
    errors = [{"at": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in error.errors()]
    detail = "; ".join(f"{each['at']}: {each['message']}" for each in errors[:5])
    return Problem(422, f"The request is not valid: {detail}.", errors=errors).to_response(request.url.path)


# Bodies


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
