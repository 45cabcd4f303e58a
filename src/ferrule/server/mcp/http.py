"""MCP over HTTP: at `/mcp` for all tools, at `/mcp/NAME` for a selection of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from ferrule.core.permission import CallPolicy
from ferrule.library.library import UnifiedToolLibrary
from ferrule.server.asgi import mark_endless
from ferrule.server.authentication import Client
from ferrule.server.fleet import ServerFleet
from ferrule.server.mcp.direct_calls import DirectCalls, McpSessions
from ferrule.server.mcp.forwarding import RequestForwarder, SessionForwarder
from ferrule.server.mcp.server import McpServer

MAX_SESSIONS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualServer:
    """A selection of tools for one kind of client, and how they are shown."""

    tools: Collection[str] | None = None
    """Names and patterns; None = all."""
    search: bool = False
    """Clients are shown two tools, which find and call the others."""
    plain_names: bool = False
    """Actions and prompts of MCP servers have their own names, where these are unique."""

    @classmethod
    def of(cls, value: VirtualServer | Collection[str]) -> VirtualServer:
        return value if isinstance(value, VirtualServer) else cls(tools=value)


class McpHttpApp:
    """MCP for all clients, in the name of the token of each."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        virtual_server: VirtualServer,
        policy: CallPolicy | None,
        fleet: ServerFleet,
        forwarder: RequestForwarder,
    ) -> None:
        """Serve over HTTP; `forwarder` reaches the other servers, which have their own sessions."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

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
        self._forwarder = SessionForwarder(fleet, forwarder)
        self._server.paused_calls.make_token = self._forwarder.make_request_state

    @property
    def sessions(self) -> McpSessions:
        return self._server.sessions

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve until the block ends."""
        async with self._manager.run():
            try:
                yield
            finally:
                await self._server.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: Client = scope["state"]["client"]
        client.require("call")
        scope["user"] = _mcp_user(client)  # a session can only be used by the client that opened it
        if scope["method"] == "GET":  # the stream of a session, for messages that answer no request
            mark_endless(scope)
        own = self._forwarder.open_own_session(scope, send)
        if own is None:
            rest = await self._forwarder.forward(scope, receive, send)
            if rest is None:
                return
            receive, own = rest, (scope, send)  # the SDK says that there is no such session
        elif (rest := await self._forwarder.forward_answers(scope, receive, send)) is None:
            return
        else:
            receive = rest
        if scope["method"] == "DELETE":
            self._server.sessions.end(dict(own[0]["headers"]), client)
        await self._manager.handle_request(own[0], receive, own[1])

    async def answer_directly(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer a plain call. Returns None, or from where a request that is not answered here must be read."""
        own = self._forwarder.open_own_session(scope, send)
        return receive if own is None else await self._direct_calls.answer(own[0], receive, own[1])


def _mcp_user(client: Client) -> Any:
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    client_id = "local" if client.token is None else client.token.token_id
    return AuthenticatedUser(AccessToken(token="", client_id=client_id, scopes=[]))
