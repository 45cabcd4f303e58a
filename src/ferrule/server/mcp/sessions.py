"""Responses that are written without the SDK, and the sessions of the older protocol that such requests belong to.

The SDK opens and ends the sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from starlette.types import Receive, Send

from ferrule.server.asgi import send_json, wait_for_disconnect
from ferrule.server.mcp.requests import LOG_LEVEL_STATE, client_reply_type
from ferrule.server.problems import encode_body

if TYPE_CHECKING:
    from ferrule.server.authentication import Client

VERSIONS: Final = frozenset({"2025-06-18", "2025-11-25"})
"""Those in which results have the form that they have now."""
RENEWAL_INTERVAL: Final = 60.0
"""Seconds after which a call goes to the SDK again, which ends sessions of which it hears nothing for long."""


class McpSession:
    """One session: what its requests share."""

    def __init__(self, connection: Any, owner: Client) -> None:
        """Take the SDK's `connection`; only requests of the `owner` belong to the session."""
        self.connection, self.owner = connection, owner
        self.running: dict[int | str, DirectAnswer] = {}
        """The requests that are being answered, by their ids."""
        self._questions: dict[str, tuple[Any, asyncio.Future[Any]]] = {}
        self._renewed_at = time.monotonic()

    def renew(self) -> bool:
        """Return whether the SDK should get this request, so that it does not end the session as idle."""
        now = time.monotonic()
        is_due = now - self._renewed_at >= RENEWAL_INTERVAL
        if is_due:
            self._renewed_at = now
        return is_due

    @property
    def is_open(self) -> bool:
        """Return whether the handshake has ended: from then on the client's version and capabilities are known."""
        return bool(self.connection.initialized.is_set())

    @cached_property
    def version(self) -> str:
        version: str = self.connection.protocol_version
        return version

    @cached_property
    def capabilities(self) -> Mapping[str, Any]:
        declared = self.connection.client_capabilities
        return {} if declared is None else _dump(declared)

    @property
    def log_level(self) -> str | None:
        level = self.connection.state.get(LOG_LEVEL_STATE)
        return level if isinstance(level, str) else None

    async def ask(self, answer: DirectAnswer, request: Any) -> Any:
        """Ask the client on the stream of a response; its reply comes with another request."""
        key = f"ferrule-{uuid4().hex}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[key] = (request, future)
        try:
            params = None if request.params is None else _dump(request.params)
            message = {"jsonrpc": "2.0", "id": key, "method": request.method}
            await answer.send_message(message if params is None else {**message, "params": params})
            return await future
        finally:
            del self._questions[key]

    def take_reply(self, message: Mapping[str, Any]) -> bool:
        """Deliver a reply of the client. Returns False if the session has no such question."""
        key = message.get("id")
        if not isinstance(key, str) or key not in self._questions:
            return False
        request, future = self._questions[key]
        if not future.done():
            _settle(future, request, message)
        return True

    def cancel(self, message: Mapping[str, Any]) -> bool:
        """End a request that the client has cancelled. Returns False if the request is not answered here."""
        params = message.get("params")
        key = params.get("requestId") if isinstance(params, dict) else None
        return type(key) in (int, str) and key in self.running and self.running[key].cancel()


class McpSessions:
    """The open sessions, by their ids as the SDK knows them."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, McpSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, connection: Any, owner: Client) -> None:
        """Add a session that the SDK has opened. The session is removed with the connection."""
        if connection.session_id is None:
            return
        key = connection.session_id.encode()
        self._sessions[key] = McpSession(connection, owner)
        connection.exit_stack.callback(self._sessions.pop, key, None)

    def find(self, headers: Mapping[bytes, bytes], client: Client) -> McpSession | None:
        """Find the session of a request; None if the SDK must read the request."""
        session = self._sessions.get(headers.get(b"mcp-session-id", b""))
        if session is None or session.owner.identity != client.identity or not session.is_open:
            return None
        if session.version not in VERSIONS or headers.get(b"mcp-protocol-version") != session.version.encode():
            return None
        return session

    def end(self, headers: Mapping[bytes, bytes], client: Client) -> None:
        """End a session and its calls, because the client has ended it."""
        key = headers.get(b"mcp-session-id", b"")
        session = self._sessions.get(key)
        if session is not None and session.owner.identity == client.identity:
            del self._sessions[key]
            for answer in list(session.running.values()):
                answer.cancel()


def _settle(future: asyncio.Future[Any], request: Any, message: Mapping[str, Any]) -> None:
    from mcp.shared.exceptions import MCPError
    from mcp.types import INVALID_PARAMS
    from pydantic import ValidationError

    error = message.get("error")
    if isinstance(error, dict):
        code, text = error.get("code"), error.get("message")
        code = code if isinstance(code, int) else INVALID_PARAMS
        future.set_exception(MCPError(code=code, message=str(text or ""), data=error.get("data")))
        return
    try:
        future.set_result(client_reply_type(request).model_validate(message.get("result"), by_name=False))
    except ValidationError:
        future.set_exception(MCPError(code=INVALID_PARAMS, message="The client's reply is not valid."))


def _dump(value: Any) -> dict[str, Any]:
    described: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return described


WATCH_DELAY: Final = 0.05
"""Seconds after which a disconnect of the client is watched for."""
PING_INTERVAL: Final = 15.0
"""Seconds after which a slow answer becomes a stream of events, so that no proxy ends the connection."""
_EVENT_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class DirectAnswer:
    """One response. What is sent before the result makes it a stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock: asyncio.Lock | None = None
        """Of the stream; None while there is none."""
        self._task: asyncio.Task[Any] | None = None
        """The task of the request, while the result is awaited."""
        self._has_disconnected = self._is_cancelled = False

    async def wait_for(self, work: Coroutine[Any, Any, Any], receive: Receive) -> Any:
        """Return the result or the error of some work; None if the client has disconnected, which ends the work.

        CancelledError is returned when `cancel` has ended it.
        """
        task = self._task = asyncio.current_task()
        assert task is not None
        watching: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(
            WATCH_DELAY, lambda: watching.append(asyncio.ensure_future(self._watch(receive)))
        )
        try:
            return await work
        except asyncio.CancelledError as error:
            if not (self._has_disconnected or self._is_cancelled):
                raise
            task.uncancel()
            return None if self._has_disconnected else error
        except Exception as error:
            return error
        finally:
            self._task = None
            timer.cancel()
            for each in watching:
                each.cancel()

    def cancel(self) -> bool:
        """End the work, because the client has cancelled the request; False if it has ended already."""
        if self._task is None:
            return False
        self._is_cancelled = True
        return self._task.cancel()

    async def send_message(self, message: dict[str, Any]) -> None:
        """Send a message of JSON-RPC before the result."""
        await self._send_event(b"event: message\r\ndata: " + encode_body(message) + b"\r\n\r\n")

    async def finish(self, status: int, body: bytes) -> None:
        """Send the result."""
        if self._lock is None:
            await send_json(self._send, status, body)
        else:
            event = b"event: message\r\ndata: " + body + b"\r\n\r\n"
            async with self._lock:
                await self._send({"type": "http.response.body", "body": event})

    async def _send_event(self, event: bytes) -> None:
        is_first = self._lock is None
        lock = self._lock = self._lock or asyncio.Lock()
        async with lock:
            if is_first:
                await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def _watch(self, receive: Receive) -> None:
        """End the work when the client disconnects, and show it signs of life until then."""
        disconnecting = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            while not disconnecting.done():
                await asyncio.wait({disconnecting}, timeout=PING_INTERVAL)
                if not disconnecting.done():
                    await self._send_event(b": ping\r\n\r\n")
        finally:
            disconnecting.cancel()
        if self._task is not None:
            self._has_disconnected = True
            self._task.cancel()
