"""MCP over HTTP: at `/mcp` for all tools, at `/mcp/NAME` for a selection of them.

Sessions of the older protocol, and calls of the newer one that wait for answers, belong to one server; the other
servers forward requests to it. The id of a session ends with the id of its server, and so does what a client sends back
with its answers to a call. So a server knows from the request alone where it belongs. The request is sent on with
everything that the client sent, its token too: the other server checks it itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import httpx
import orjson
from starlette.types import Message, Receive, Scope, Send

from ferrule.core.aio import cancel_all
from ferrule.core.patterns import lazy_pattern
from ferrule.core.permission import CallPolicy
from ferrule.library.library import UnifiedToolLibrary
from ferrule.server.authentication import Client
from ferrule.server.fleet import ServerFleet, ServerGone, ServerOutOfReach
from ferrule.server.mcp.direct_calls import DirectCalls, McpSessions
from ferrule.server.mcp.requests import CLIENT_HEADERS
from ferrule.server.mcp.server import McpServer
from ferrule.server.responses import Problem, mark_endless, read_body, replay_body, wait_for_disconnect

logger = logging.getLogger("ferrule.server")

MAX_SESSIONS: Final = 2_000
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualServer:
    """A selection of tools for one kind of client, and how they are shown."""

    tools: Collection[str] | None = None
    """Names and patterns; None = all."""
    search: bool = False
    """Clients are shown two tools, which find and call the others."""
    plain_names: bool = False
    """Actions and prompts of MCP servers have their own names, where these are unique."""


class McpHttpApp:
    """MCP for all clients, in the name of the token of each."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        selection: VirtualServer | Collection[str],
        policy: CallPolicy | None,
        forwarder: RequestForwarder,
    ) -> None:
        """Serve over HTTP; `forwarder` reaches the other servers, which have their own sessions."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        virtual_server = selection if isinstance(selection, VirtualServer) else VirtualServer(tools=selection)
        self._server = McpServer(
            library,
            policy=policy,
            tools=virtual_server.tools,
            search=virtual_server.search,
            plain_names=virtual_server.plain_names,
        )
        server = self._server.server()
        self._manager = StreamableHTTPSessionManager(server, max_sessions=MAX_SESSIONS)
        self._direct_calls = DirectCalls(self._server, server.server_info_stamp)
        self._forwarder = forwarder
        self._server.paused_calls.make_token = forwarder.make_request_state

    @property
    def sessions(self) -> McpSessions:
        return self._server.sessions

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with self._manager.run():
            try:
                yield
            finally:
                await self._server.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        client: Client = scope["state"]["client"]
        client.require("call")
        # A session can only be used by the client that opened it.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=client.identity or "local", scopes=[]))
        if scope["method"] == "GET":  # the stream of a session, for messages that answer no request
            mark_endless(scope)
        own = self._forwarder.open_own_session(scope, send)
        forward = self._forwarder.forward_session if own is None else self._forwarder.forward_answers
        rest = await forward(scope, receive, send)
        if rest is None:
            return
        scope, send = own or (scope, send)  # of a session that no server has, the SDK says so
        if scope["method"] == "DELETE":
            self._server.sessions.end(dict(scope["headers"]), client)
        await self._manager.handle_request(scope, rest, send)

    async def answer_directly(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer a plain call. Returns None, or from where a request that is not answered here must be read."""
        own = self._forwarder.open_own_session(scope, send)
        return receive if own is None else await self._direct_calls.answer(own[0], receive, own[1])


class RequestForwarder:
    """Finds the server that a request belongs to, and sends requests on to the internal listeners of other servers."""

    def __init__(self, fleet: ServerFleet) -> None:
        self._fleet = fleet
        self._clients: dict[str, httpx.AsyncClient] = {}
        """By the path of the socket, which is empty for the network."""

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    def open_own_session(self, scope: Scope, send: Send) -> tuple[Scope, Send] | None:
        """Return a request of this server with its session's id as the SDK knows it, and where to send the answer.

        Return None for a request of a session of another server.
        """
        if not self._fleet.is_available or not _uses_sessions(scope):
            return scope, send
        suffix = b"-" + self._fleet.server_id.encode()
        session_id = _find_header(scope["headers"], SESSION_HEADER)
        if session_id is not None and session_id.endswith(suffix):
            own_id = session_id.removesuffix(suffix)
            headers = [(name, own_id if name == SESSION_HEADER else value) for name, value in scope["headers"]]
            scope = {**scope, "headers": headers}
        elif session_id is not None and b"-" in session_id:
            return None
        if not self._fleet.is_reachable:  # other servers cannot forward to this server
            return scope, send
        return scope, _add_suffix_to_session_id(send, suffix)

    async def forward_session(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Let the server of the session answer; None when that is done.

        Otherwise no server has the session any more: returns from where the request must be read.
        """
        session_id = _find_header(scope["headers"], SESSION_HEADER) or b""
        server_id = session_id.rpartition(b"-")[2].decode("latin-1")
        if not _SERVER_ID.fullmatch(server_id):
            return receive
        return await self._forward(server_id, scope, receive, send)

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
        body, server_id = await read_body(receive), ""
        receive = replay_body(body, receive)
        if b'"requestState"' in body:
            with suppress(orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
                server_id = orjson.loads(body)["params"]["requestState"].rpartition("-")[2]
        if server_id == self._fleet.server_id or not _SERVER_ID.fullmatch(server_id):
            return receive
        return await self._forward(server_id, scope, receive, send)

    async def _forward(self, server_id: str, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Let a server answer; None when that is done, else from where the request is to be read: it is gone."""
        body = await read_body(receive)
        sending = asyncio.ensure_future(self._send_on(server_id, scope, body, send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except ServerGone:
            logger.info("server=<%s> | the server that a request belongs to is gone", server_id)
            return replay_body(body, receive)
        except ServerOutOfReach as error:
            logger.warning("server=<%s>, error=<%s> | a request could not be forwarded", server_id, error)
            detail = "The server that this request belongs to did not answer."
            raise Problem(503, detail, headers={"Retry-After": "1"}) from None
        finally:
            await cancel_all([sending, leaving])
        return None

    async def _send_on(self, server_id: str, scope: Scope, body: bytes, send: Send) -> None:
        """Send a request on, and its answer back. Raises ServerGone if the other server does not exist any more."""
        client_headers = scope["state"][CLIENT_HEADERS]
        if _find_header(client_headers, FORWARDED_HEADER) is not None:  # this is where the other one should be
            raise ServerGone
        headers = [(name, value) for name, value in client_headers if name.lower() not in _NOT_FORWARDED]
        query = scope.get("query_string", b"").decode("latin-1")
        route = await self._fleet.find_route(server_id)
        client, url = self._client(route.socket), f"{route.url}{scope['path']}{'?' if query else ''}{query}"
        fields = [*headers, (FORWARDED_HEADER, b"1")]
        try:
            response = await client.send(
                client.build_request(scope["method"], url, headers=fields, content=body), stream=True
            )
        except httpx.TransportError as error:
            if not (isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and _is_refused(error)):
                raise ServerOutOfReach(str(error)) from error
            self._fleet.forget(server_id)
            raise ServerGone from error
        try:
            names = {name.lower(): value for name, value in response.headers.raw if name.lower() not in _NOT_FORWARDED}
            await send({"type": "http.response.start", "status": response.status_code, "headers": list(names.items())})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

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


def _is_refused(error: BaseException | None) -> bool:
    """Return whether a connection failed because nobody listens there, on any of the addresses that were tried."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_refused, error.exceptions))
    if error is None or isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return error is not None
    return _is_refused(error.__cause__ or error.__context__)


def _uses_sessions(scope: Scope) -> bool:
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    version = _find_header(scope["headers"], VERSION_HEADER)
    return version is None or version.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS


def _find_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for each, value in headers if each == name), None)


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
