"""Stateful MCP servers, such as a browser: one server of the fleet has the process, and makes the calls of all.

The first server that gets such a call has the process from then on, until that server ends. Wherever a call comes from
(HTTP, MCP, an agent), its policy, limits and records are those of the server that got it; only what the executor does
is done by the server that has the process.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

from ferrule.core.call import Invocation, ToolExecutor
from ferrule.core.content import Output
from ferrule.core.spec import Tool
from ferrule.engine import ToolEngine
from ferrule.errors import Rejected, StoreError
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import HANDLER
from ferrule.server.fleet import SERVER_LIFETIME, WATCH_INTERVAL, ServerFleet
from ferrule.server.mcp.resources_and_prompts import REQUEST_HANDLER, RequestExecutor
from ferrule.server.peer_calls import CallForwarder, NotOwner
from ferrule.server.peer_connections import ServerConnections, ServerGone, ServerOutOfReach
from ferrule.store.servers import claim_mcp_server

OWNER_LIFETIME: Final = 2.0
"""Seconds for which it is remembered who has a process."""
MAX_TRIES: Final = 5
"""How many servers in a row may turn out to be gone, or to have lost the process to another."""
MIN_SILENCE: Final = 2 * WATCH_INTERVAL
"""Seconds since a server last said that it lives, until it is taken for dead because nobody listens at its address."""
UNREACHABLE: Final = "server_unreachable"
"""The reason of calls that were not made because the server with the process cannot be reached."""


class ProcessOwners:
    """Which server has the process of each stateful MCP server."""

    def __init__(self, engine: ToolEngine, fleet: ServerFleet) -> None:
        self._store, self._fleet = engine.store, fleet
        self._owners: dict[str, tuple[str, float]] = {}

    async def find(self, tool_id: str) -> str:
        """The server that has the process; this one if there is none."""
        owner, valid_until = self._owners.get(tool_id, ("", 0.0))
        return owner if time.monotonic() < valid_until else await self.claim(tool_id)

    async def claim(self, tool_id: str) -> str:
        """The same, as the store says it now."""
        return await self._claim(tool_id, self._fleet.server_id)

    async def take_over(self, tool_id: str, owner: str, *, is_proven: bool) -> str:
        """The server that has the process now, after its owner was found to be gone.

        Unless that is proven, it must also have been silent: nobody listens at a wrong address either.
        """
        seconds_left = math.inf if is_proven else SERVER_LIFETIME - MIN_SILENCE
        new_owner = await self._claim(tool_id, self._fleet.server_id, owner, seconds_left)
        if new_owner == owner:
            raise ServerOutOfReach("nobody listens at its address, but it was there a moment ago")
        return new_owner

    async def _claim(self, tool_id: str, *arguments: Any) -> str:
        owner = await self._store.query_without_records(claim_mcp_server, tool_id, *arguments)
        self._owners[tool_id] = (owner, time.monotonic() + OWNER_LIFETIME)
        return owner

    def is_own(self, owner: str) -> bool:
        return owner == self._fleet.server_id


class StatefulExecutor:
    """Runs calls as another executor does; those of stateful servers where their process is."""

    def __init__(self, name: str, executor: ToolExecutor, owners: ProcessOwners, forwarder: CallForwarder) -> None:
        self._name, self._executor, self._owners, self._forwarder = name, executor, owners, forwarder

    async def execute(self, invocation: Invocation, /) -> Output:
        if not is_stateful(invocation.tool):
            return await self._executor.execute(invocation)  # type: ignore[no-any-return]
        tool_id = invocation.tool.id
        try:
            owner = await self._owners.find(tool_id)
            for _ in range(MAX_TRIES):
                if self._owners.is_own(owner):
                    return await self._executor.execute(invocation)  # type: ignore[no-any-return]
                try:
                    return await self._forwarder.execute(owner, self._name, invocation)
                except ServerGone as error:
                    owner = await self._owners.take_over(tool_id, owner, is_proven=error.is_proven)
                except NotOwner:
                    owner = await self._owners.claim(tool_id)
            raise ServerOutOfReach("the servers that had it are gone")
        except ServerOutOfReach as error:
            raise Rejected(
                f"{tool_id!r} runs on a server that cannot be reached from here ({error}), so the call was not made. "
                "Set internal_url on each server.",
                reason=UNREACHABLE,
            ) from error
        except StoreError as error:
            raise Rejected(
                f"The call of {tool_id!r} was not made: the store does not say where it runs: {error}",
                reason=UNREACHABLE,
            ) from error

    async def aclose(self) -> None:
        if isinstance(self._executor, McpExecutor):
            await self._executor.aclose()


def is_stateful(tool: Tool) -> bool:
    return isinstance(tool.target, McpServerConfig) and tool.target.is_stateful


def share_stateful_servers(
    engine: ToolEngine, fleet: ServerFleet, connections: ServerConnections
) -> tuple[ProcessOwners, dict[str, ToolExecutor]]:
    """Let the calls of an engine be made where the processes are; returns what makes those of other servers here."""
    owners, forwarder = ProcessOwners(engine, fleet), CallForwarder(engine, fleet, connections)
    executors: dict[str, ToolExecutor] = {HANDLER: engine.mcp, REQUEST_HANDLER: RequestExecutor(engine.mcp)}
    for name, executor in executors.items():
        engine.register_executor(name, StatefulExecutor(name, executor, owners, forwarder))
    return owners, executors
