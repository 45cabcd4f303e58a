"""Stateful MCP servers, such as a browser: one server of the fleet has the process, and makes the calls of all.

The first server that gets such a call has the process from then on, until its lease ends: nothing else decides that it
is dead. Wherever a call comes from (HTTP, MCP, an agent), the server that got it applies its policy and limits and
records it; only what the executor does is done by the server that has the process.
"""

from __future__ import annotations

import time
from typing import Final

from ferrule.core.call import Invocation, ToolExecutor
from ferrule.core.content import Output
from ferrule.core.spec import Tool
from ferrule.engine import ToolEngine
from ferrule.errors import Rejected, StoreError
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import HANDLER
from ferrule.server.fleet import ServerFleet
from ferrule.server.mcp.resources_and_prompts import REQUEST_HANDLER, RequestExecutor
from ferrule.server.peer_calls import CallForwarder, NotOwner
from ferrule.server.peer_connections import ServerConnections, ServerGone, ServerOutOfReach
from ferrule.store.servers import claim_process

OWNER_LIFETIME: Final = 2.0
"""Seconds for which the owner of a process is remembered."""
MAX_TRIES: Final = 5
"""How many servers in a row may turn out to be gone, or to have lost the process to another."""
UNREACHABLE: Final = "server_unreachable"
"""The reason of calls that were not made, because the server with the process cannot be reached."""


class ProcessOwners:
    """The servers that have the processes of stateful MCP servers."""

    def __init__(self, engine: ToolEngine, fleet: ServerFleet) -> None:
        self._store, self._fleet = engine.store, fleet
        self._owners: dict[str, tuple[str, float]] = {}

    async def find(self, tool_id: str) -> str:
        """Return the server that has the process; this one if no server has it."""
        owner, valid_until = self._owners.get(tool_id, ("", 0.0))
        return owner if time.monotonic() < valid_until else await self.claim(tool_id)

    async def claim(self, tool_id: str) -> str:
        """Ask the store which server has the process, and take it if no server has it."""
        owner = await self._store.query_leases(claim_process, tool_id, self._fleet.server_id)
        self._owners[tool_id] = (owner, time.monotonic() + OWNER_LIFETIME)
        return owner

    async def take_over(self, tool_id: str, silent_owner: str) -> str:
        """Return the server that has the process now. Raises ServerOutOfReach if the silent owner still has it."""
        owner = await self.claim(tool_id)
        if owner == silent_owner:
            raise ServerOutOfReach("nobody listens at its address, but its lease has not ended")
        return owner

    def is_own(self, owner: str) -> bool:
        return owner == self._fleet.server_id


class StatefulExecutor:
    """An executor that runs calls of stateful servers where their process is, and other calls here."""

    def __init__(self, name: str, executor: ToolExecutor, owners: ProcessOwners, forwarder: CallForwarder) -> None:
        self._name, self._executor, self._owners, self._forwarder = name, executor, owners, forwarder
        self.prepare = getattr(executor, "prepare", None)
        self.validates_itself = getattr(executor, "validates_itself", None)
        self.ping = getattr(executor, "ping", None)

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
                except ServerGone:
                    owner = await self._owners.take_over(tool_id, owner)
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
    """Run the calls of an engine where the processes are; return the executors for calls of other servers."""
    owners, forwarder = ProcessOwners(engine, fleet), CallForwarder(engine, fleet, connections)
    executors: dict[str, ToolExecutor] = {HANDLER: engine.mcp, REQUEST_HANDLER: RequestExecutor(engine.mcp)}
    for name, executor in executors.items():
        engine.register_executor(name, StatefulExecutor(name, executor, owners, forwarder))
    return owners, executors
