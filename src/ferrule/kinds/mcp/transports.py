"""Connections to a server by stdio, streamable HTTP, SSE or WebSocket, each as the pair of streams a session needs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, SecurityError
from websockets.typing import Subprotocol

from ferrule.kinds.mcp.config import McpServerConfig, TransportKind
from ferrule.kinds.mcp.listing import extract_entries
from ferrule.kinds.mcp.relay import add_client_details_to_request, current_request
from ferrule.kinds.mcp.results import (
    CONNECTION_CLOSED,
    CONNECTION_LOST,
    describe_cause,
    read_json,
    read_message,
    replace_lone_surrogates,
)
from ferrule.kinds.mcp.stdio import (
    CloseableStream,
    ConnectionState,
    MessageReader,
    MessageWriter,
    Streams,
    open_stdio_streams,
)
from ferrule.texts.shorten import shorten, single_line

CONNECT_TIMEOUT: Final = 30.0
READ_TIMEOUT: Final = 300.0
"""Seconds a response may stay open without any data; the time of a call is limited by the engine."""
MAX_ANSWER_TEXT: Final = 500
"""Characters of an answer that is not a message of the protocol."""
KEEPALIVE_SECONDS: Final = 2.0
"""Less than uvicorn's: a request must not be sent on a connection that the other server is just closing."""
MIN_LISTEN_INTERVAL: Final = 0.5
"""Seconds between two requests that only listen: a server may ask for an immediate reconnect every time."""


class OutgoingCall:
    """One call that has been sent and not answered yet."""

    def __init__(self) -> None:
        self.error_status: int | None = None
        """The HTTP status of the answer, if it is an error."""
        self.error_text: str | None = None
        """What the answer says, if it is an error and no message of the protocol."""
        self.is_session_expired = False
        """The server does not know the session any more, as the protocol says it: the call was not executed."""
        self.is_session_doubtful = False
        """The server may not know the session any more, but does not say so as the protocol requires."""


current_call: ContextVar[OutgoingCall | None] = ContextVar("ferrule_mcp_call", default=None)
"""The call an HTTP request is made for: the SDK makes requests in the context of the task that calls."""


def open_streams(
    kind: TransportKind, config: McpServerConfig, state: ConnectionState
) -> AbstractAsyncContextManager[Streams]:
    """Connect to a server whose variables are filled in."""
    return {
        "stdio": open_stdio_streams,
        "ws": _open_websocket_streams,
        "http": _open_http_streams,
        "sse": _open_sse_streams,
    }[kind](config, state)


@asynccontextmanager
async def _open_http_streams(config: McpServerConfig, state: ConnectionState) -> AsyncIterator[Streams]:
    timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=max(READ_TIMEOUT, config.timeout or 0))
    async with (
        _make_http_client(dict(config.headers), timeout, state.auth, state=state) as client,
        streamable_http_client(
            config.url or "", http_client=client, max_sse_event_size=config.max_message_size
        ) as streams,
    ):
        read, write = streams
        yield ServerReadStream(read, state), ClientDetailsStream(write)


@asynccontextmanager
async def _open_sse_streams(config: McpServerConfig, state: ConnectionState) -> AsyncIterator[Streams]:
    def factory(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return _make_http_client(headers, timeout, auth or state.auth, state=state)

    async with sse_client(
        config.url or "",
        headers=dict(config.headers),
        timeout=CONNECT_TIMEOUT,
        sse_read_timeout=max(READ_TIMEOUT, config.timeout or 0),
        httpx_client_factory=factory,
    ) as (read, write):
        yield ServerReadStream(read, state), ClientDetailsStream(write)


class ServerReadStream(CloseableStream):
    """A read stream of the SDK that reports its end, whatever the reason."""

    def __init__(self, stream: Any, state: ConnectionState) -> None:
        self._stream, self._state = stream, state

    @property
    def last_context(self) -> Any:
        """Return the context of the request that the last message came in answer to."""
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            message = await self._stream.__anext__()
        except BaseException:
            self._state.ended.set()
            raise
        if not isinstance(message, Exception):  # which the SDK puts there for what it could not parse
            await extract_entries(message, self._state.config.max_actions)
        return message

    async def aclose(self) -> None:
        """Leave the stream open: the SDK's reader task logs an error when its stream is closed before it is stopped."""


class ClientDetailsStream(CloseableStream):
    """A write stream of the SDK whose requests say for which client they are made."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: SessionMessage, /) -> None:
        add_client_details_to_request(message)
        await self._stream.send(message)

    async def aclose(self) -> None:
        await self._stream.aclose()


# The HTTP client under the SDK's transports. It limits the size of responses and refuses compressed ones (a few
# kilobytes may expand to more than the memory), spaces out requests that only listen, and lets a call whose own
# connection breaks fail alone: the SDK would end the whole session and all its other calls.


def _make_http_client(
    headers: dict[str, str] | None, timeout: httpx2.Timeout | None, auth: httpx2.Auth | None, *, state: ConnectionState
) -> httpx2.AsyncClient:
    peer_transport = None
    if state.config.peer_socket is not None:  # another server of the store: each call is a connection, without a proxy
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE_SECONDS)
        peer_transport = httpx2.AsyncHTTPTransport(uds=state.config.peer_socket or None, limits=limits, trust_env=False)
    return _CallFailureClient(
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout,
        auth=auth,
        transport=peer_transport,
        event_hooks={
            "request": [_ListenThrottle().wait, *_pass_headers(state.config)],
            "response": [_ResponseChecker(state).check],
        },
    )


def _pass_headers(config: McpServerConfig) -> list[Callable[[httpx2.Request], Awaitable[None]]]:
    """Add the permitted headers of the client to requests that are made for it, to the server's own address only."""
    if not config.pass_headers:
        return []
    origin = urlsplit(config.url or "")[:2]

    async def add(request: httpx2.Request) -> None:
        client = current_request.get()
        if client is None or urlsplit(str(request.url))[:2] != origin:
            return
        headers = client.headers
        for name in config.pass_headers:
            if name.lower() in headers and name not in request.headers:
                request.headers[name] = headers[name.lower()]

    return [add]


class _ListenThrottle:
    """Keeps a minimum interval between requests that only listen."""

    def __init__(self) -> None:
        self._next = 0.0

    async def wait(self, request: httpx2.Request) -> None:
        if request.method == "GET":
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + MIN_LISTEN_INTERVAL
            await asyncio.sleep(start - now)


class _ResponseChecker:
    """Stores what the SDK does not pass on, and refuses responses that are too large."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state

    async def check(self, response: httpx2.Response) -> None:
        status = response.status_code
        self._state.error_status = status if status >= 400 else None
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the server compressed its response although it was asked not to")
        is_event_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        stream_class = _EventStream if is_event_stream else _SizeLimitedStream
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = stream_class(response.stream, self._state.config.max_message_size)
        call = current_call.get()
        if call is not None and status >= 400 and _is_tool_call(response.request):
            call.error_status, call.error_text = status, None
            if is_event_stream:  # it may have no end
                return
            body = await response.aread()
            try:
                read_message(read_json(body))
            except ValueError:  # not a message of the protocol: its beginning on one line
                text = body[: 4 * MAX_ANSWER_TEXT].decode("utf-8", "replace")
                call.error_text = shorten(single_line(text), MAX_ANSWER_TEXT)
            if "mcp-session-id" in response.request.headers:
                call.is_session_expired = status == 404
                call.is_session_doubtful = status == 400 and b"session" in body.lower()


_BROKEN_CONNECTION: Final = (
    *(httpx2.ReadError, httpx2.WriteError, httpx2.ReadTimeout, httpx2.WriteTimeout),
    httpx2.RemoteProtocolError,
)


class _CallFailureClient(httpx2.AsyncClient):
    """Turns a broken connection of one call into a JSON-RPC error for that call."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            return await super().send(request, **options)
        except _BROKEN_CONNECTION as error:
            if not _is_tool_call(request):
                raise
            failure = {"code": CONNECTION_CLOSED, "message": f"{CONNECTION_LOST}{describe_cause(error)}"}
            message = {"jsonrpc": "2.0", "id": json.loads(request.content).get("id"), "error": failure}
            return httpx2.Response(200, json=message, request=request)


class _SizeLimitedStream(httpx2.AsyncByteStream):
    """The body of a response that is read as a whole."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_size: int) -> None:
        self._stream, self._max_size = stream, max_size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        try:
            async for chunk in self._stream:
                body += chunk
                if len(body) > self._max_size:
                    raise httpx2.StreamError(f"a response of more than {self._max_size:,} bytes")
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"{CONNECTION_LOST}{describe_cause(error)}") from error
        yield replace_lone_surrogates(bytes(body))

    async def aclose(self) -> None:
        await self._stream.aclose()


class _EventStream(_SizeLimitedStream):
    """A body of events, line by line; the SDK limits their size."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line = bytearray()
        async for chunk in self._stream:
            end = chunk.rfind(b"\n") + 1
            is_too_long = len(line) + len(chunk) > self._max_size  # which the SDK reports
            if end or is_too_long:
                yield replace_lone_surrogates(bytes(line) + chunk[: None if is_too_long else end])
                line.clear()
            line += b"" if is_too_long else chunk[end:]
        if line:
            yield replace_lone_surrogates(bytes(line))


def _is_tool_call(request: httpx2.Request) -> bool:
    is_json = request.headers.get("content-type", "").startswith("application/json")  # which one for a token is not
    message = json.loads(request.content) if request.method == "POST" and is_json else None
    return isinstance(message, dict) and message.get("method") == "tools/call"


# WebSocket: each JSON-RPC message is one text frame, the subprotocol is `mcp`.


@asynccontextmanager
async def _open_websocket_streams(config: McpServerConfig, state: ConnectionState) -> AsyncIterator[Streams]:
    async with _ConnectWithinOrigin(
        config.url or "",
        subprotocols=[Subprotocol("mcp")],
        additional_headers=dict(config.headers),
        max_size=config.max_message_size,
        close_timeout=2,
    ) as connection:

        async def write(text: str, is_urgent: bool) -> None:
            try:
                await connection.send(text)
            except ConnectionClosed as error:
                raise BrokenPipeError(str(error)) from error

        can_read = asyncio.Event()
        can_read.set()
        reader = MessageReader(config.max_actions, lambda is_full: can_read.clear() if is_full else can_read.set())

        async def receive() -> None:
            try:
                async for frame in connection:
                    try:
                        reader.add(SessionMessage(read_message(read_json(frame))))
                    except ValueError:
                        state.log.message("warning", f"a frame that is not a protocol message: {frame[:200]!r}")
                        continue
                    await can_read.wait()
            except ConnectionClosed as error:
                state.end_reason = f"the connection was closed: {error}"
                state.log.message("warning", state.end_reason)
            finally:
                reader.end()
                state.ended.set()

        receiving = asyncio.create_task(receive())
        try:
            yield reader, MessageWriter(write)
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})


class _ConnectWithinOrigin(connect):
    """Follows redirects within the server's origin only: headers with secrets must not reach another server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        target = super().process_redirect(exc)
        if isinstance(target, str) and urlsplit(target)[:2] != urlsplit(self.uri)[:2]:
            address = urlsplit(target)._replace(query="", fragment="").geturl()
            return SecurityError(f"it redirects to {address}, which is not followed; use that address if it is right")
        return target
