"""Answers `tools/call`, `tools/list` and `ping` over HTTP without the SDK, which takes many times as long.

Only plain requests are answered here. A request that wants progress, or whose headers or body are unusual, is left to
the SDK, which also says what is wrong with it, and does everything else: it also opens and ends the sessions of the
older protocol. The answer is one JSON document, or a stream of events if something has to be sent before it: a question
or a log message of the tool, or a sign of life.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
from starlette.types import Receive, Scope, Send

from ferrule.core.call import Progress
from ferrule.core.content import LONG_NUMBER
from ferrule.core.permission import Principal
from ferrule.kinds.mcp.relay import CAPABILITIES_KEY, FIRST_MODERN_VERSION, LOG_LEVEL_KEY, is_logged
from ferrule.server.mcp.requests import LOG_LEVEL_STATE, IncomingRequest, client_reply_type, decode_headers
from ferrule.server.responses import encode_body, read_body, replay_body, send_json, wait_for_disconnect

if TYPE_CHECKING:
    from ferrule.server.authentication import Client
    from ferrule.server.mcp.server import McpServer

MAX_BODY_SIZE: Final = 1_000_000
"""Bytes; a longer request is left to the SDK."""
REQUEST_CANCELLED: Final = -32800
"""The error of a request that its client has cancelled, as the SDK answers it."""
MAX_DESCRIPTION_SIZE: Final = 5_000
"""Bytes of what a client says about itself; usually some hundred."""
_PLAIN_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_CLIENT_KEY: Final = "io.modelcontextprotocol/clientInfo"
_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"


class DirectCalls:
    """Answers plain calls and lists of the tools of an `McpServer`."""

    def __init__(self, mcp_server: McpServer, server_info: Mapping[str, Any]) -> None:
        self._mcp_server = mcp_server
        self._stamp = {"io.modelcontextprotocol/serverInfo": dict(server_info)}

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer a plain request. Returns None, or from where the SDK must read a request that is not answered here."""
        headers, client = dict(scope["headers"]), scope["state"]["client"]
        if not _is_candidate(scope, headers) or not client.may("call"):
            return receive
        session = None
        if headers.get(b"mcp-protocol-version") != FIRST_MODERN_VERSION.encode():
            session = self._mcp_server.sessions.find(headers, client)
            if session is None:
                return receive
        elif headers.get(b"mcp-method") not in (b"tools/call", b"tools/list"):
            return receive
        body = await read_body(receive)
        if (message := _parse(body)) is not None:
            if session is not None and await session.take_message(message, send):
                return None
            if self._is_plain(message, session, headers, client):
                await self._answer_request(message, session, scope, receive, send)
                return None
        return replay_body(body, receive)

    def _is_plain(
        self, message: dict[str, Any], session: McpSession | None, headers: Mapping[bytes, bytes], client: Client
    ) -> bool:
        """Return whether a request can be answered here. In a session, the SDK must get one from time to time."""
        if not _is_plain_request(message):
            return False
        if session is not None:
            return message["id"] not in session.running and not session.renew()
        return _is_plain_in_newer_protocol(message, headers) and (
            message["method"] == "tools/list"
            or self._mcp_server.names.is_plain(self._mcp_server.restrict(client.principal), message["params"]["name"])
        )

    async def _answer_request(
        self, message: dict[str, Any], session: McpSession | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        params, client, answer = message.get("params", {}), scope["state"]["client"], DirectAnswer(send)
        meta, principal = params.get("_meta") or {}, self._mcp_server.restrict(client.principal)
        work: Coroutine[Any, Any, Any]
        if message["method"] == "ping":
            await answer.finish(200, encode_body({"jsonrpc": "2.0", "id": message["id"], "result": {}}))
            return
        if message["method"] == "tools/list":
            version = FIRST_MODERN_VERSION if session is None else session.version
            work = self._mcp_server.describe_tools(principal, version)
        else:
            request = DirectRequest(principal, meta, scope, client, session, answer)
            work = self._mcp_server.call(request, params["name"], params.get("arguments"))
        running = {} if session is None else session.running
        running[message["id"]] = answer
        try:
            with _continue_trace(meta) if isinstance(meta.get("traceparent"), str) else nullcontext():
                outcome = await answer.wait_for(work, receive)
        finally:
            del running[message["id"]]
        if outcome is not None:
            status, content = self._describe(outcome) if session is None else _describe_older(outcome, session.version)
            await answer.finish(status, encode_body({"jsonrpc": "2.0", "id": message["id"], **content}))

    def _describe(self, outcome: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the content of a response of the newer protocol."""
        if isinstance(outcome, Exception):
            from mcp.server.runner import modern_error_data
            from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS

            data = modern_error_data(outcome)
            return ERROR_CODE_HTTP_STATUS.get(data.code, 200), {"error": _dump(data)}
        result = _dump(outcome)
        meta = {**result.get("_meta", {}), **self._stamp}
        return 200, {"result": {"resultType": "complete", **result, "_meta": meta}}


def _describe_older(outcome: Any, version: str) -> tuple[int, dict[str, Any]]:
    if isinstance(outcome, asyncio.CancelledError):
        return 200, {"error": {"code": REQUEST_CANCELLED, "message": "Request cancelled"}}
    if isinstance(outcome, Exception):
        from mcp.server.runner import modern_error_data

        return 200, {"error": _dump(modern_error_data(outcome))}
    if isinstance(outcome, dict):
        return 200, {"result": outcome}
    from mcp_types.methods import serialize_server_result

    return 200, {"result": serialize_server_result("tools/call", version, _dump(outcome))}  # a server's, perhaps newer


def _dump(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    described: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return described


@contextmanager
def _continue_trace(meta: Mapping[str, Any]) -> Iterator[None]:
    """Let the spans of the block continue the trace that the client names, as the SDK does for its requests."""
    from opentelemetry import context, propagate

    carrier = {name: meta[name] for name in ("traceparent", "tracestate") if isinstance(meta.get(name), str)}
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)


def _is_candidate(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a plain request may have these headers."""
    accept = headers.get(b"accept", b"")
    return (
        scope["method"] == "POST"
        and b"content-length" in headers
        and len(headers[b"content-length"]) < len(str(MAX_BODY_SIZE))
        and b"application/json" in accept
        and b"text/event-stream" in accept
        and len(headers) == len(scope["headers"])  # none is there twice
    )


def _parse(body: bytes) -> dict[str, Any] | None:
    if LONG_NUMBER.search(body):
        return None
    with suppress(orjson.JSONDecodeError):
        message = orjson.loads(body)
        return message if isinstance(message, dict) else None
    return None


def _is_plain_request(message: dict[str, Any]) -> bool:
    """Return whether a message is a call without progress, a request for the first page of the tools, or a ping."""
    params, method = message.get("params", {}), message.get("method")
    if message.keys() | {"params"} != {"jsonrpc", "id", "method", "params"} or not isinstance(params, dict):
        return False
    if method == "tools/call":
        is_usual = params.keys() <= _PLAIN_PARAMS and isinstance(params.get("name"), str)
        is_usual = is_usual and isinstance(params.get("arguments", {}), dict)
    else:
        is_usual = method in ("tools/list", "ping") and params.keys() <= {"_meta"}
    meta = params.get("_meta", {})
    has_usual_id = message["jsonrpc"] == "2.0" and type(message["id"]) in (int, str)
    return is_usual and has_usual_id and isinstance(meta, dict) and "progressToken" not in meta


def _is_plain_in_newer_protocol(message: dict[str, Any], headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a plain request says of its client, in headers and `_meta`, what the newer protocol wants."""
    params = message.get("params", {})
    meta, name = params.get("_meta", {}), headers.get(b"mcp-name")
    if not isinstance(meta.get(CAPABILITIES_KEY), dict):
        return False
    try:
        description = orjson.dumps([meta[CAPABILITIES_KEY], meta.get(_CLIENT_KEY)])
    except orjson.JSONEncodeError:  # nested too deep
        return False
    return (
        LOG_LEVEL_KEY not in meta
        and meta.get(_VERSION_KEY) == FIRST_MODERN_VERSION
        and headers[b"mcp-method"].decode("latin-1") == message["method"]
        and (None if name is None else name.decode("latin-1")) == params.get("name")
        and len(description) <= MAX_DESCRIPTION_SIZE
        and _is_valid_client(description)
    )


@lru_cache(1_000)
def _is_valid_client(description: bytes) -> bool:
    """Return whether the capabilities and the name of a client, as JSON, are valid by the protocol."""
    from mcp.types import ClientCapabilities, Implementation
    from pydantic import ValidationError

    capabilities, info = orjson.loads(description)
    try:
        ClientCapabilities.model_validate(capabilities, by_name=False)
        if info is not None:
            Implementation.model_validate(info, by_name=False)
    except ValidationError:
        return False
    return True


class DirectRequest(IncomingRequest):
    """A request over HTTP that wants no progress.

    In a session of the older protocol its client is asked while it waits, and gets log messages. Without a session the
    client wants nothing but the result, and is asked with it.
    """

    def __init__(
        self,
        principal: Principal,
        meta: Mapping[str, Any],
        scope: Scope,
        client: Client,
        session: McpSession | None,
        answer: DirectAnswer,
    ) -> None:
        self.principal, self.may_approve = principal, client.may("approve")
        self.limit = client.calls.slot if client.calls.is_limited else nullcontext
        self._meta, self._scope, self._session, self._answer = meta, scope, session, answer
        self.waits_for_answers = self.uses_older_protocol = session is not None
        self.capabilities = meta[CAPABILITIES_KEY] if session is None else session.capabilities
        self.client_key = self if session is None else session.connection

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._meta

    @property
    def headers(self) -> Mapping[str, str]:
        return decode_headers(self._scope)

    @property
    def log_level(self) -> str | None:
        level = self._meta.get(LOG_LEVEL_KEY)
        if level is None and self._session is not None:
            level = self._session.connection.state.get(LOG_LEVEL_STATE)
        return level if isinstance(level, str) else None

    async def send_request(self, request: Any) -> Any:
        assert self._session is not None, "without a session the client is asked with the result"
        return await self._session.ask(self._answer, request)

    async def send_log(self, params: Any) -> None:
        if self._session is not None and is_logged(params.level, self.log_level):
            message = {"jsonrpc": "2.0", "method": "notifications/message", "params": _dump(params)}
            await self._answer.send_message(message)

    async def send_progress(self, progress: Progress) -> None:
        """Send nothing: a plain request wants no messages."""


# Sessions of the older protocol


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

    async def take_message(self, message: Mapping[str, Any], send: Send) -> bool:
        """Take a reply or a cancellation. Returns False for another message, and if it is not about a request here."""
        if message.get("method") == "notifications/cancelled":
            params = message.get("params")
            key = params.get("requestId") if isinstance(params, dict) else None
            if type(key) not in (int, str) or key not in self.running or not self.running[key].cancel():
                return False
        else:
            key = message.get("id")
            if "method" in message or not isinstance(key, str) or key not in self._questions:
                return False
            request, future = self._questions[key]
            if not future.done():
                _settle(future, request, message)
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return True


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
        await self._send_event(b"event: message\r\ndata: " + encode_body(message) + b"\r\n\r\n")

    async def finish(self, status: int, body: bytes) -> None:
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
