"""Calls of stateful MCP servers, such as a browser: one server of the fleet has the process, and others forward to it.

The first server that gets such a call has the process from then on, until that server ends. A request is forwarded as a
whole, so only requests that name one tool are: single calls over HTTP, and `tools/call` of the newer protocol. Sessions
of the older protocol, and runs of agents, use the process of the server where they are.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.types import Receive, Scope, Send

from ferrule.errors import ToolNotFound
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.library.library import UnifiedToolLibrary
from ferrule.server.fleet import LOOK_INTERVAL, ServerFleet
from ferrule.server.mcp.forwarding import RequestForwarder
from ferrule.server.problems import Problem
from ferrule.store.servers import claim_mcp_server

OWNER_LIFETIME: Final = 2.0
"""Seconds for which it is remembered who has a process."""


class StatefulServers:
    """Where the processes of stateful MCP servers are."""

    def __init__(self, library: UnifiedToolLibrary, fleet: ServerFleet) -> None:
        self._engine, self._fleet = library.engine, fleet
        self._forwarder = RequestForwarder(fleet)
        self._ids: frozenset[str] = frozenset()
        self._version: object = None
        self._owners: dict[str, tuple[str, float]] = {}

    async def aclose(self) -> None:
        await self._forwarder.aclose()

    async def forward(self, name: str, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Let the server that has the process answer; None when that is done.

        Otherwise this server answers: returns from where the request is to be read.
        """
        if self._fleet.address is None or not self._list_ids() or self._forwarder.was_forwarded(scope):
            return receive
        tool_id = self._find_stateful(name)
        if tool_id is None:
            return receive
        owner = await self._find_owner(tool_id)
        if owner != self._fleet.server_id and await self._fleet.find_url(owner) is None:
            await asyncio.sleep(LOOK_INTERVAL)  # the fleet may have looked for servers just before this one was there
            owner = await self._claim(tool_id)
        if owner == self._fleet.server_id:
            return receive
        if await self._fleet.find_url(owner) is None:
            raise Problem(
                503,
                f"{tool_id!r} runs on a server that cannot be reached from here. Set internal_url on each server.",
                headers={"Retry-After": "1"},
            )
        rest = await self._forwarder.forward_to(owner, scope, receive, send)
        if rest is not None:  # it is gone, and its process with it
            await self._claim(tool_id, dead_server=owner)
        return rest

    def _list_ids(self) -> frozenset[str]:
        registry = self._engine.registry
        if self._version != registry.version:
            self._version = registry.version
            self._ids = frozenset(
                tool.id for tool in registry if isinstance(tool.target, McpServerConfig) and tool.target.is_stateful
            )
        return self._ids

    def _find_stateful(self, name: str) -> str | None:
        try:
            tool_id = self._engine.registry.find(name)[0].id
        except ToolNotFound:
            return None
        return tool_id if tool_id in self._ids else None

    async def _find_owner(self, tool_id: str) -> str:
        owner, valid_until = self._owners.get(tool_id, ("", 0.0))
        return owner if time.monotonic() < valid_until else await self._claim(tool_id)

    async def _claim(self, tool_id: str, dead_server: str = "") -> str:
        store, server_id = self._engine.store, self._fleet.server_id
        owner = await store.query_without_records(claim_mcp_server, tool_id, server_id, dead_server)
        self._owners[tool_id] = (owner, time.monotonic() + OWNER_LIFETIME)
        return owner
