"""Answers `tools/call` of the newer protocol over HTTP without the SDK, which takes several times as long.

Only plain requests are answered here, whose answer is one JSON document. A request that wants progress or log messages,
or whose headers or body are unusual, is left to the SDK, which also says what is wrong with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from ferrule.core.call import Progress
from ferrule.core.content import encode_json
from ferrule.core.patterns import lazy_pattern
from ferrule.core.permission import Principal
from ferrule.kinds.mcp.relay import CAPABILITIES_KEY, FIRST_MODERN_VERSION, LOG_LEVEL_KEY
from ferrule.server.access import Client
from ferrule.server.mcp.calls import IncomingRequest, decode_headers

if TYPE_CHECKING:
    from ferrule.server.mcp.server import McpServer

MAX_BODY_SIZE: Final = 1_000_000
"""Bytes; a longer request is left to the SDK."""
WATCH_DELAY: Final = 0.05
"""Seconds after which a disconnect of the client is watched for."""
PING_INTERVAL: Final = 15.0
"""Seconds after which a slow answer becomes a stream of events, so that no proxy ends the connection."""
LONG_NUMBER: Final = lazy_pattern(rb"\d{19}")
"""May be a whole number of more than 64 bits."""
_PLAIN_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_JSON_HEADERS: Final = [(b"content-type", b"application/json")]
_EVENT_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class PlainRequest(IncomingRequest):
    """A request whose client wants nothing but the result."""

    def __init__(
        self,
        principal: Principal,
        meta: Mapping[str, Any],
        scope: Scope,
        limit: Callable[[], AbstractAsyncContextManager[Any]],
        may_approve: bool,
    ) -> None:
        self.principal, self.limit, self.may_approve = principal, limit, may_approve
        self._meta, self._scope, self.capabilities = meta, scope, meta[CAPABILITIES_KEY]
        self.waits_for_answers = self.uses_older_protocol = False
        self.client_key = self

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._meta

    @property
    def headers(self) -> Mapping[str, str]:
        return decode_headers(self._scope)

    @property
    def log_level(self) -> str | None:
        return None

    async def send_log(self, params: Any) -> None:
        """It wants none."""

    async def send_progress(self, progress: Progress) -> None:
        """It wants none."""


class CallsWithoutSdk:
    """Answers plain calls; `answer` returns False for what the SDK must answer."""

    def __init__(self, mcp_server: McpServer, server_info: Mapping[str, Any]) -> None:
        self._mcp_server = mcp_server
        self._stamp = {"io.modelcontextprotocol/serverInfo": dict(server_info)}

    def is_candidate(self, scope: Scope) -> bool:
        """Whether the headers are those of a plain call."""
        headers = dict(scope["headers"])
        return (
            scope["method"] == "POST"
            and headers.get(b"mcp-method") == b"tools/call"
            and headers.get(b"mcp-protocol-version") == FIRST_MODERN_VERSION.encode()
            and len(headers.get(b"content-length", b"")) < len(str(MAX_BODY_SIZE))
            and b"content-length" in headers
            and b"application/json" in headers.get(b"accept", b"")
            and b"text/event-stream" in headers.get(b"accept", b"")
            and len(headers) == len(scope["headers"])  # none is there twice
        )

    async def answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> bool:
        message = _read_call(body, scope)
        if message is None:
            return False
        params, client = message["params"], scope["state"]["client"]
        schema = self._mcp_server.find_schema(params["name"], client.principal)
        if schema is None or "x-mcp-header" in str(schema):
            return False
        task = asyncio.ensure_future(self._call(params, client, scope))
        await asyncio.wait({task}, timeout=WATCH_DELAY)
        if task.done():
            await _send_json(send, *self._encode(message["id"], task))
        else:
            await self._wait_and_send(message["id"], task, receive, send)
        return True

    async def _call(self, params: dict[str, Any], client: Client, scope: Scope) -> Any:
        meta, principal = params["_meta"], self._mcp_server.restrict(client.principal)
        _continue_trace(meta)
        request = PlainRequest(principal, meta, scope, client.calls.slot, client.may("approve"))
        return await self._mcp_server.call(request, params["name"], params.get("arguments"))

    def _encode(self, request_id: Any, task: asyncio.Task[Any]) -> tuple[int, bytes]:
        """The status and the body of a response."""
        from mcp.server.runner import modern_error_data
        from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS

        error = task.exception()
        if error is not None:
            data = modern_error_data(error) if isinstance(error, Exception) else None
            if data is None:
                raise error
            status = ERROR_CODE_HTTP_STATUS.get(data.code, 200)
            content = {"error": data.model_dump(mode="json", by_alias=True, exclude_none=True)}
        else:
            status, result = 200, task.result().model_dump(mode="json", by_alias=True, exclude_none=True)
            result["_meta"] = {**result.get("_meta", {}), **self._stamp}
            result.setdefault("resultType", "complete")
            content = {"result": result}
        message = {"jsonrpc": "2.0", "id": request_id, **content}
        try:
            return status, orjson.dumps(message)
        except TypeError:  # a number of more than 64 bits
            return status, encode_json(message)

    async def _wait_and_send(self, request_id: Any, task: asyncio.Task[Any], receive: Receive, send: Send) -> None:
        """Wait for a call that takes long; a client that disconnects ends it."""
        watching = asyncio.ensure_future(_wait_for_disconnect(receive))
        is_stream = False
        try:
            while not task.done():
                await asyncio.wait({task, watching}, timeout=PING_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                if watching.done() and not task.done():
                    return
                if not task.done():
                    if not is_stream:
                        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
                        is_stream = True
                    await send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
            status, body = self._encode(request_id, task)
            if is_stream:
                event = b"event: message\r\ndata: " + body + b"\r\n\r\n"
                await send({"type": "http.response.body", "body": event})
            else:
                await _send_json(send, status, body)
        finally:
            watching.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


def _continue_trace(meta: Mapping[str, Any]) -> None:
    """Make this task part of the trace that the client names, as the SDK does for the requests that it answers."""
    carrier = {name: meta[name] for name in ("traceparent", "tracestate") if isinstance(meta.get(name), str)}
    if "traceparent" in carrier:
        from opentelemetry import context, propagate

        context.attach(propagate.extract(carrier))


def _read_call(body: bytes, scope: Scope) -> dict[str, Any] | None:
    """A plain call; None for anything that the SDK should look at."""
    from mcp.shared.inbound import InboundModernRoute, classify_inbound_request

    if LONG_NUMBER.search(body):  # orjson would make a float of it
        return None
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    params = message.get("params") if isinstance(message, dict) else None
    if not isinstance(params, dict) or not isinstance(meta := params.get("_meta"), dict):
        return None
    is_plain = (
        message.keys() == {"jsonrpc", "id", "method", "params"}
        and message["jsonrpc"] == "2.0"
        and isinstance(message["id"], int | str)
        and not isinstance(message["id"], bool)
        and params.keys() <= _PLAIN_PARAMS
        and isinstance(params.get("name"), str)
        and isinstance(params.get("arguments", {}), dict)
        and isinstance(meta.get(CAPABILITIES_KEY), dict)
        and "progressToken" not in meta
        and LOG_LEVEL_KEY not in meta
    )
    if not is_plain:
        return None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    route = classify_inbound_request(message, headers=headers)
    return message if isinstance(route, InboundModernRoute) else None


async def _send_json(send: Send, status: int, body: bytes) -> None:
    headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Receive) -> bytes:
    """The body of a request."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already, and then what follows."""
    is_given = False

    async def receive_again() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
