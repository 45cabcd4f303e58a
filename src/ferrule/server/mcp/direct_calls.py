"""Answers `tools/call`, `tools/list` and `ping` over HTTP without the SDK, which takes many times as long.

Only plain requests are answered here. A request that wants progress, or whose headers or body are unusual, is left to
the SDK, which also says what is wrong with it, and does everything else. The answer is one JSON document, or a stream
of events if something has to be sent before it: a question or a log message of the tool, or a sign of life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from ferrule.core.call import Progress
from ferrule.core.content import LONG_NUMBER
from ferrule.core.permission import Principal
from ferrule.kinds.mcp.relay import CAPABILITIES_KEY, FIRST_MODERN_VERSION, LOG_LEVEL_KEY, is_logged
from ferrule.server.asgi import read_body, replay_body, send_json
from ferrule.server.authentication import Client
from ferrule.server.mcp.requests import IncomingRequest, decode_headers
from ferrule.server.mcp.sessions import DirectAnswer, McpSession, McpSessions
from ferrule.server.problems import encode_body

if TYPE_CHECKING:
    from ferrule.server.mcp.server import McpServer

MAX_BODY_SIZE: Final = 1_000_000
"""Bytes; a longer request is left to the SDK."""
REQUEST_CANCELLED: Final = -32800
"""The error of a request that its client has cancelled, as the SDK answers it."""
MAX_DESCRIPTION_SIZE: Final = 5_000
"""Bytes of what a client says about itself; usually some hundred."""
_NEWER_VERSION: Final = FIRST_MODERN_VERSION.encode()
_PLAIN_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_CLIENT_KEY: Final = "io.modelcontextprotocol/clientInfo"
_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"


class DirectCalls:
    """Answers plain calls and lists of the tools of an `McpServer`."""

    def __init__(self, mcp_server: McpServer, sessions: McpSessions, server_info: Mapping[str, Any]) -> None:
        self._mcp_server, self._sessions = mcp_server, sessions
        self._stamp = {"io.modelcontextprotocol/serverInfo": dict(server_info)}

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer a plain request. Returns None, or from where the SDK must read a request that is not answered here."""
        headers, client = dict(scope["headers"]), scope["state"]["client"]
        if not _is_candidate(scope, headers) or not client.may("call"):
            return receive
        session = None
        if headers.get(b"mcp-protocol-version") != _NEWER_VERSION:
            session = self._sessions.find(headers, client)
            if session is None:
                return receive
        elif headers.get(b"mcp-method") not in (b"tools/call", b"tools/list"):
            return receive
        body = await read_body(receive)
        if session is None:
            message = _read_newer_request(body, headers)
            is_answered = message is not None and await self._answer_newer(message, client, scope, receive, send)
        else:
            is_answered = await self._answer_older(body, session, scope, receive, send)
        return None if is_answered else replay_body(body, receive)

    async def _answer_newer(
        self, message: dict[str, Any], client: Client, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        params, principal = message["params"], self._mcp_server.restrict(client.principal)
        work: Coroutine[Any, Any, Any]
        if message["method"] == "tools/list":
            work = self._mcp_server.describe_tools(principal, FIRST_MODERN_VERSION)
        elif self._mcp_server.is_plain(params["name"], principal):
            request = NewerRequest(principal, params["_meta"], scope, client)
            work = self._mcp_server.call(request, params["name"], params.get("arguments"))
        else:
            return False
        answer = DirectAnswer(send)
        with _TraceContinuation(params["_meta"]):
            outcome = await answer.wait_for(work, receive)
        if outcome is not None:
            status, content = self._describe_newer(outcome)
            await answer.finish(status, encode_body({"jsonrpc": "2.0", "id": message["id"], **content}))
        return True

    def _describe_newer(self, outcome: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the content of a response."""
        if isinstance(outcome, Exception):
            from mcp.server.runner import modern_error_data
            from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS

            data = modern_error_data(outcome)
            return ERROR_CODE_HTTP_STATUS.get(data.code, 200), {"error": _dump(data)}
        result = _dump(outcome)
        meta = {**result.get("_meta", {}), **self._stamp}
        return 200, {"result": {"resultType": "complete", **result, "_meta": meta}}

    # Sessions of the older protocol

    async def _answer_older(self, body: bytes, session: McpSession, scope: Scope, receive: Receive, send: Send) -> bool:
        message = _parse(body)
        if message is None:
            return False
        if "method" not in message or message["method"] == "notifications/cancelled":
            is_ours = session.take_reply(message) if "method" not in message else session.cancel(message)
            if is_ours:
                await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
                await send({"type": "http.response.body", "body": b""})
            return is_ours
        if not _is_plain(message) or message["id"] in session.running or session.renew():
            return False
        if message["method"] == "ping":
            await send_json(send, 200, encode_body({"jsonrpc": "2.0", "id": message["id"], "result": {}}))
            return True
        await self._answer_request(message, session, scope, receive, send)
        return True

    async def _answer_request(
        self, message: dict[str, Any], session: McpSession, scope: Scope, receive: Receive, send: Send
    ) -> None:
        params, client, answer = message.get("params", {}), scope["state"]["client"], DirectAnswer(send)
        meta, principal = params.get("_meta") or {}, self._mcp_server.restrict(client.principal)
        work: Coroutine[Any, Any, Any]
        if message["method"] == "tools/list":
            work = self._mcp_server.describe_tools(principal, session.version)
        else:
            request = OlderRequest(principal, meta, scope, client, session=session, answer=answer)
            work = self._mcp_server.call(request, params["name"], params.get("arguments"))
        session.running[message["id"]] = answer
        try:
            with _TraceContinuation(meta):
                outcome = await answer.wait_for(work, receive)
        finally:
            del session.running[message["id"]]
        if outcome is not None:
            content = _describe_older(outcome, session.version)
            await answer.finish(200, encode_body({"jsonrpc": "2.0", "id": message["id"], **content}))


def _describe_older(outcome: Any, version: str) -> dict[str, Any]:
    if isinstance(outcome, asyncio.CancelledError):
        return {"error": {"code": REQUEST_CANCELLED, "message": "Request cancelled"}}
    if isinstance(outcome, Exception):
        from mcp.server.runner import modern_error_data

        return {"error": _dump(modern_error_data(outcome))}
    if isinstance(outcome, dict):
        return {"result": outcome}
    from mcp_types.methods import serialize_server_result

    return {"result": serialize_server_result("tools/call", version, _dump(outcome))}  # a server's, perhaps newer


def _dump(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    described: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return described


class _TraceContinuation:
    """A block whose spans continue the trace that the client names, as the SDK does for its requests."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._carrier = meta if isinstance(meta.get("traceparent"), str) else None
        self._detach: Callable[[], object] | None = None

    def __enter__(self) -> None:
        if self._carrier is not None:
            from opentelemetry import context, propagate

            names = ("traceparent", "tracestate")
            carrier = {name: self._carrier[name] for name in names if isinstance(self._carrier.get(name), str)}
            token = context.attach(propagate.extract(carrier))
            self._detach = lambda: context.detach(token)

    def __exit__(self, *error: object) -> None:
        if self._detach is not None:
            self._detach()


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


def _is_plain(message: dict[str, Any]) -> bool:
    """Return whether a message is a call without progress, a request for the first page of the tools, or a ping.

    The newer protocol has no pings.
    """
    params = message.get("params", {})
    if not isinstance(params, dict):
        return False
    meta = params.get("_meta", {})
    return (
        message.keys() | {"params"} == {"jsonrpc", "id", "method", "params"}
        and message["jsonrpc"] == "2.0"
        and type(message["id"]) in (int, str)
        and (_is_plain_call(params) if message["method"] == "tools/call" else params.keys() <= {"_meta"})
        and message["method"] in ("tools/call", "tools/list", "ping")
        and isinstance(meta, dict)
        and "progressToken" not in meta
    )


def _is_plain_call(params: dict[str, Any]) -> bool:
    return (
        params.keys() <= _PLAIN_PARAMS
        and isinstance(params.get("name"), str)
        and isinstance(params.get("arguments", {}), dict)
    )


def _read_newer_request(body: bytes, headers: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    """Parse a plain request of the newer protocol; None for a request that the SDK must read."""
    message = _parse(body)
    if message is None or not _is_plain(message):
        return None
    params = message.get("params", {})
    meta, name = params.get("_meta", {}), headers.get(b"mcp-name")
    is_consistent = (
        isinstance(meta.get(CAPABILITIES_KEY), dict)
        and LOG_LEVEL_KEY not in meta
        and meta.get(_VERSION_KEY) == FIRST_MODERN_VERSION
        and headers[b"mcp-method"].decode("latin-1") == message["method"]
        and (None if name is None else name.decode("latin-1")) == params.get("name")
        and _is_valid_client(orjson.dumps([meta[CAPABILITIES_KEY], meta.get(_CLIENT_KEY)]))
    )
    return message if is_consistent else None


def _is_valid_client(description: bytes) -> bool:
    """Return whether the capabilities and the name of a client, as JSON, are valid by the protocol."""
    return len(description) <= MAX_DESCRIPTION_SIZE and _validate_client(description)


@lru_cache(1_000)
def _validate_client(description: bytes) -> bool:
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


# Requests, as what answers them sees them


class DirectRequest(IncomingRequest):
    """A request over HTTP that wants no progress."""

    def __init__(self, principal: Principal, meta: Mapping[str, Any], scope: Scope, client: Client) -> None:
        self.principal, self.may_approve = principal, client.may("approve")
        self.limit = client.calls.slot if client.calls.is_limited else nullcontext
        self._meta, self._scope = meta, scope

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._meta

    @property
    def headers(self) -> Mapping[str, str]:
        return decode_headers(self._scope)

    async def send_progress(self, progress: Progress) -> None:
        """Send nothing: a plain request wants no messages."""


class NewerRequest(DirectRequest):
    """A request of the newer protocol, whose client wants nothing but the result, and is asked with it."""

    def __init__(self, principal: Principal, meta: Mapping[str, Any], scope: Scope, client: Client) -> None:
        super().__init__(principal, meta, scope, client)
        self.capabilities = meta[CAPABILITIES_KEY]
        self.waits_for_answers = self.uses_older_protocol = False
        self.client_key = self

    @property
    def log_level(self) -> str | None:
        return None

    async def send_log(self, params: Any) -> None:
        """Send nothing: a plain request wants no messages."""


class OlderRequest(DirectRequest):
    """A request in a session of the older protocol, whose client is asked while it waits."""

    def __init__(
        self,
        principal: Principal,
        meta: Mapping[str, Any],
        scope: Scope,
        client: Client,
        *,
        session: McpSession,
        answer: DirectAnswer,
    ) -> None:
        super().__init__(principal, meta, scope, client)
        self._session, self._answer, self.capabilities = session, answer, session.capabilities
        self.waits_for_answers = self.uses_older_protocol = True
        self.client_key = session.connection

    @property
    def log_level(self) -> str | None:
        level = self._meta.get(LOG_LEVEL_KEY)
        return level if isinstance(level, str) else self._session.log_level

    async def send_request(self, request: Any) -> Any:
        return await self._session.ask(self._answer, request)

    async def send_log(self, params: Any) -> None:
        if is_logged(params.level, self.log_level):
            described = params.model_dump(mode="json", by_alias=True, exclude_none=True)
            message = {"jsonrpc": "2.0", "method": "notifications/message", "params": described}
            await self._answer.send_message(message)
