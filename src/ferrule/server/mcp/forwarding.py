"""Sessions of the older MCP, and calls of the newer that wait for answers, belong to one server; others forward to it.

The id of a session ends with the id of its server, and so does what a client sends back with its answers to a call. So
a server knows from the request alone where it belongs. The request is sent on with everything that the client sent, its
token too: the other server checks it itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import httpx
import orjson
from starlette.types import Message, Receive, Scope, Send

from ferrule.core.aio import cancel_all
from ferrule.core.patterns import lazy_pattern
from ferrule.server.asgi import read_body, replay_body, wait_for_disconnect
from ferrule.server.fleet import ServerFleet, ServerGone, ServerOutOfReach
from ferrule.server.mcp.requests import CLIENT_HEADERS
from ferrule.server.problems import Problem

logger = logging.getLogger("ferrule.server")

FORWARDED_HEADER: Final = b"ferrule-forwarded"
"""Of a request that was forwarded, and so is not forwarded again."""
CONNECT_TIMEOUT: Final = 5.0
WRITE_TIMEOUT: Final = 30.0
KEEPALIVE_SECONDS: Final = 2.0
"""Less than uvicorn's: a request must not be sent on a connection that the other server is just closing."""
SESSION_HEADER: Final = b"mcp-session-id"
VERSION_HEADER: Final = b"mcp-protocol-version"
_NOT_FORWARDED: Final = frozenset(
    b"connection content-length keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade "
    b"expect".split()
) | {FORWARDED_HEADER}
"""Headers that are about one connection, and the length, which is computed again."""
_SERVER_ID = lazy_pattern(r"[0-9a-f]{12}")


class RequestForwarder:
    """Sends requests of clients on to the internal listeners of the other servers."""

    def __init__(self, fleet: ServerFleet) -> None:
        self._fleet = fleet
        self._clients: dict[str, httpx.AsyncClient] = {}
        """By the path of the socket, which is empty for the network."""

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    async def forward_to(
        self, server_id: str, headers: Iterable[tuple[bytes, bytes]], scope: Scope, receive: Receive, send: Send
    ) -> Receive | None:
        """Let a server answer; None when that is done, else from where the request is to be read: it is gone.

        `headers` are all that the client sent.
        """
        body = await read_body(receive)
        sending = asyncio.ensure_future(self._send_on(server_id, list(headers), scope, body, send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.result() is False:
                return replay_body(body, receive)
        finally:
            await cancel_all([sending, leaving])
        return None

    async def _send_on(
        self, server_id: str, client_headers: list[tuple[bytes, bytes]], scope: Scope, body: bytes, send: Send
    ) -> bool:
        """Return whether the request was answered; False when the other server does not exist any more."""
        headers = [(name, value) for name, value in client_headers if name.lower() not in _NOT_FORWARDED]
        query = scope.get("query_string", b"").decode("latin-1")
        path = f"{scope['path']}{'?' if query else ''}{query}"
        try:
            if _find_header(client_headers, FORWARDED_HEADER) is not None:  # this is where the other one should be
                raise ServerGone
            route = await self._fleet.find_route(server_id)
            client = self._client(route.socket)
            fields = [*headers, (FORWARDED_HEADER, b"1")]
            request = client.build_request(scope["method"], route.url + path, headers=fields, content=body)
            try:
                response = await client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if not is_refused(error):
                    raise
                self._fleet.forget(server_id)
                raise ServerGone from error
        except ServerGone:
            logger.info("server=<%s> | the server that a request belongs to is gone", server_id)
            return False
        except (ServerOutOfReach, httpx.TransportError) as error:
            logger.warning("server=<%s>, error=<%s> | a request could not be forwarded", server_id, error)
            problem = Problem(
                503, "The server that this request belongs to did not answer.", headers={"Retry-After": "1"}
            )
            await problem.to_response()(scope, replay_body(body, _never_receive), send)
            return True
        try:
            names = {name.lower(): value for name, value in response.headers.raw if name.lower() not in _NOT_FORWARDED}
            await send({"type": "http.response.start", "status": response.status_code, "headers": list(names.items())})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()
        return True

    def _client(self, path: str) -> httpx.AsyncClient:
        """Return a client without limits: every stream of a session of another server is a connection."""
        if path not in self._clients:
            limits = httpx.Limits(
                max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE_SECONDS
            )
            self._clients[path] = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=path or None, limits=limits, trust_env=False),
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, write=WRITE_TIMEOUT),
                trust_env=False,
            )
        return self._clients[path]


def is_refused(error: BaseException | None) -> bool:
    """Return whether a connection failed because nobody listens there, on any of the addresses that were tried."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_refused, error.exceptions))
    if error is None or isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return error is not None
    return is_refused(error.__cause__ or error.__context__)


class SessionForwarder:
    """Finds the server of a session, and forwards requests that belong to other servers."""

    def __init__(self, fleet: ServerFleet, forwarder: RequestForwarder) -> None:
        self._fleet, self._forwarder = fleet, forwarder

    def open_own_session(self, scope: Scope, send: Send) -> tuple[Scope, Send] | None:
        """Return a request of this server with its session's id as the SDK knows it, and where to send the answer.

        Return None for a request of a session of another server.
        """
        if not self._fleet.is_available or not _uses_sessions(scope):
            return scope, send
        suffix = b"-" + self._fleet.server_id.encode()
        session_id = _find_header(scope["headers"], SESSION_HEADER)
        if session_id is not None and session_id.endswith(suffix):
            scope = {**scope, "headers": _replace_header(scope["headers"], session_id.removesuffix(suffix))}
        elif session_id is not None and b"-" in session_id:
            return None
        if not self._fleet.is_reachable:  # other servers cannot forward to this server
            return scope, send
        return scope, _add_suffix_to_session_id(send, suffix)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Let the server of the session answer; None when that is done.

        Otherwise no server has the session any more: returns from where the request must be read.
        """
        session_id = _find_header(scope["headers"], SESSION_HEADER) or b""
        server_id = session_id.rpartition(b"-")[2].decode("latin-1")
        if not _SERVER_ID.fullmatch(server_id):
            return receive
        return await self._forwarder.forward_to(server_id, scope["state"][CLIENT_HEADERS], scope, receive, send)

    def make_request_state(self) -> str:
        """Return what a client sends back with its answers to a call that waits on this server."""
        token = secrets.token_hex(24)
        return f"{token}-{self._fleet.server_id}" if self._fleet.is_reachable else token

    async def forward_answers(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Let the server on which a call waits have the client's answers; None when that is done.

        Otherwise it is another request, or the call waits here or nowhere: returns from where it is to be read.
        """
        if not self._fleet.is_available or scope["method"] != "POST" or _uses_sessions(scope):
            return receive
        body = await read_body(receive)
        receive = replay_body(body, receive)
        server_id = _find_server_of_answers(body)
        if server_id in (None, self._fleet.server_id):
            return receive
        return await self._forwarder.forward_to(server_id, scope["state"][CLIENT_HEADERS], scope, receive, send)


def _find_server_of_answers(body: bytes) -> str | None:
    """Return the id of the server on which a call waits for what a request contains; None for other requests."""
    if b'"requestState"' not in body:
        return None
    with suppress(orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        server_id: str = orjson.loads(body)["params"]["requestState"].rpartition("-")[2]
        return server_id if _SERVER_ID.fullmatch(server_id) else None
    return None


def _uses_sessions(scope: Scope) -> bool:
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    version = _find_header(scope["headers"], VERSION_HEADER)
    return version is None or version.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS


def _find_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for each, value in headers if each == name), None)


def _replace_header(headers: Iterable[tuple[bytes, bytes]], session_id: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, session_id if name == SESSION_HEADER else value) for name, value in headers]


def _add_suffix_to_session_id(send: Send, suffix: bytes) -> Send:
    async def send_with_suffix(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, value + suffix if name.lower() == SESSION_HEADER else value)
                for name, value in message["headers"]
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_suffix


async def _never_receive() -> Message:
    return {"type": "http.disconnect"}
