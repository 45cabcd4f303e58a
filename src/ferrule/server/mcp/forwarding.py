"""MCP sessions of the older protocol belong to the server that opened them; other servers of the store forward to it.

The id of a session ends with the id of its server, so a server knows from the id alone where a request belongs. The
request is sent on with everything that the client sent, its token too: the server of the session checks it itself. A
request that was forwarded once is never forwarded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import httpx
from starlette.types import Message, Receive, Scope, Send

from ferrule.core.aio import cancel_all
from ferrule.server.fleet import ServerFleet
from ferrule.server.mcp.calls import CLIENT_HEADERS
from ferrule.server.messages import read_body, replay_body
from ferrule.server.problems import Problem

logger = logging.getLogger("ferrule.server")

SESSION_HEADER: Final = b"mcp-session-id"
VERSION_HEADER: Final = b"mcp-protocol-version"
FORWARDED_HEADER: Final = b"ferrule-forwarded-by"
CONNECT_TIMEOUT: Final = 5.0
WRITE_TIMEOUT: Final = 30.0
_NOT_FORWARDED: Final = frozenset(
    b"connection content-length keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade "
    b"expect".split()
)
"""Headers that are about one connection, and the length, which is computed again."""


class RequestForwarder:
    """Lets another server answer a request."""

    def __init__(self, fleet: ServerFleet) -> None:
        self._fleet = fleet
        self._client: httpx.AsyncClient | None = None

    def was_forwarded(self, scope: Scope) -> bool:
        return _find_header(_client_headers(scope), FORWARDED_HEADER) is not None

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def forward_to(self, server_id: str, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Let a server answer; None when that is done, else from where the request is to be read: it is gone."""
        url = await self._fleet.find_url(server_id)
        if url is None:
            return receive
        body = await read_body(receive)
        sending = asyncio.ensure_future(self._send_on(url, scope, body, send))
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.result() is False:
                self._fleet.forget(server_id)
                return replay_body(body, receive)
        finally:
            await cancel_all([sending, leaving])
        return None

    async def _send_on(self, url: str, scope: Scope, body: bytes, send: Send) -> bool:
        """Whether the other server answered; False when it does not exist any more."""
        headers = [(name, value) for name, value in _client_headers(scope) if name.lower() not in _NOT_FORWARDED]
        headers.append((FORWARDED_HEADER, self._fleet.server_id.encode()))
        query = scope.get("query_string", b"").decode("latin-1")
        target = f"{url}{scope['path']}{'?' if query else ''}{query}"
        client = self._client = self._client or _make_client()
        try:
            request = client.build_request(scope["method"], target, headers=headers, content=body)
            response = await client.send(request, stream=True)
        except httpx.ConnectError as error:
            logger.info("server=<%s>, error=<%s> | the server that a request belongs to is gone", url, error)
            return False
        except httpx.TransportError as error:
            logger.warning("server=<%s>, error=<%s> | a request could not be forwarded", url, error)
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


class SessionForwarder(RequestForwarder):
    """Finds out where the requests of sessions belong, and forwards those of others."""

    def open_own_session(self, scope: Scope, send: Send) -> tuple[Scope, Send] | None:
        """A request that this server answers, with its session's id as the SDK knows it, and where to send the answer.

        None for a request of a session of another server.
        """
        if not self._fleet.is_available or not _uses_sessions(scope):
            return scope, send
        suffix = b"-" + self._fleet.server_id.encode()
        session_id = _find_header(scope["headers"], SESSION_HEADER)
        if session_id is not None and session_id.endswith(suffix):
            scope = {**scope, "headers": _replace_header(scope["headers"], session_id.removesuffix(suffix))}
        elif session_id is not None and b"-" in session_id and not self.was_forwarded(scope):
            return None
        if self._fleet.address is None:  # nobody could forward to this server
            return scope, send
        return scope, _add_suffix_to_session_id(send, suffix)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Let the server of the session answer; None when that is done.

        Otherwise nobody has the session any more: returns from where the request is to be read.
        """
        session_id = _find_header(scope["headers"], SESSION_HEADER) or b""
        server_id = session_id.rpartition(b"-")[2].decode("latin-1")
        return await self.forward_to(server_id, scope, receive, send)


def _make_client() -> httpx.AsyncClient:
    """Without limits: every stream of a session of another server is a connection."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, write=WRITE_TIMEOUT),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        trust_env=False,
    )


def find_called_tool(scope: Scope) -> str | None:
    """The tool that a request of the newer protocol calls, by its headers."""
    headers = dict(scope["headers"])
    if headers.get(b"mcp-method") != b"tools/call" or SESSION_HEADER in headers:
        return None
    return headers.get(b"mcp-name", b"").decode("latin-1") or None


def _uses_sessions(scope: Scope) -> bool:
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    version = _find_header(scope["headers"], VERSION_HEADER)
    return version is None or version.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS


def _client_headers(scope: Scope) -> Iterable[tuple[bytes, bytes]]:
    """All that the client sent, also what routes do not see."""
    headers: Iterable[tuple[bytes, bytes]] = scope["state"][CLIENT_HEADERS]
    return headers


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


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _never_receive() -> Message:
    return {"type": "http.disconnect"}
