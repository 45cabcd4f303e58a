"""Stateful MCP servers, such as a browser: one server of the fleet has the process, and makes the calls of all.

The first server that gets such a call has the process from then on, until its lease ends: nothing else decides that it
is dead. Wherever a call comes from (HTTP, MCP, an agent), the server that got it applies its policy and limits and
records it; only what the executor does is done by the server that has the process. To the others, that server's
internal endpoint is a remote MCP server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.core.call import Invocation, ToolExecutor
from ferrule.core.content import Output
from ferrule.core.spec import Tool
from ferrule.engine import ToolEngine
from ferrule.errors import CallCancelled, CallError, Rejected, StoreError
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import HANDLER
from ferrule.kinds.mcp.relay import FIRST_MODERN_VERSION, ClientRequest, current_request
from ferrule.kinds.mcp.results import CallNotSent, CallRefused
from ferrule.server.fleet import PeerRoute, ServerFleet, ServerGone, ServerOutOfReach
from ferrule.server.internal_mcp import (
    CALL_KEY,
    INTERNAL_PATH,
    MAX_MESSAGE_SIZE,
    InternalEndpoint,
    NotOwner,
    describe_call,
    is_stateful,
    read_failure,
)
from ferrule.server.mcp.resources_and_prompts import REQUEST_HANDLER, RequestExecutor
from ferrule.store.servers import PROCESS_PREFIX, claim_process

OWNER_LIFETIME: Final = 2.0
"""Seconds for which the owner of a process is remembered."""
CONNECT_TIMEOUT: Final = 10.0
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
        is_known = time.monotonic() < valid_until and (not self.is_own(owner) or self.has_process(tool_id))
        return owner if is_known else await self.claim(tool_id)

    async def claim(self, tool_id: str) -> str:
        """Ask the store which server has the process, and take it if no server has it."""
        owner = await self._store.query_leases(claim_process, tool_id, self._fleet.server_id)
        self._owners[tool_id] = (owner, time.monotonic() + OWNER_LIFETIME)
        return owner

    async def take_over(self, tool_id: str, silent_owner: str, reason: str) -> str:
        """Return the server that has the process now. Raises ServerOutOfReach if the silent owner still has it."""
        owner = await self.claim(tool_id)
        if owner == silent_owner:
            raise ServerOutOfReach(reason)
        return owner

    def is_own(self, owner: str) -> bool:
        return owner == self._fleet.server_id

    def has_process(self, tool_id: str) -> bool:
        """Return whether this server has the process, by a lease that no other server can have taken meanwhile."""
        return self._store.leases.is_confirmed(PROCESS_PREFIX + tool_id)


class StatefulExecutor:
    """An executor that runs calls of stateful servers where their process is, and other calls here."""

    def __init__(self, executor: ToolExecutor, owners: ProcessOwners, peers: PeerExecutor) -> None:
        self._executor, self._owners, self._peers = executor, owners, peers
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
                    return await self._peers.execute(owner, invocation)
                except ServerGone as error:
                    owner = await self._owners.take_over(tool_id, owner, str(error))
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


class PeerExecutor:
    """Runs calls on other servers: the internal endpoint of each is a remote MCP server."""

    def __init__(self, engine: ToolEngine, fleet: ServerFleet) -> None:
        self._fleet = fleet
        self._mcp = McpExecutor(on_elicit=engine.on_elicit)
        self._mcp.relays = True
        self._requests = RequestExecutor(self._mcp)

    async def execute(self, server_id: str, invocation: Invocation) -> Output:
        """Let a server make a call. Raises ServerGone, NotOwner or ServerOutOfReach if it was not made."""
        route = await self._fleet.find_route(server_id)
        tool = _make_remote_tool(invocation.tool, route)
        try:
            await self._mcp.connect(tool)
        except CallError as error:
            await self._forget(server_id, tool)
            raise ServerGone(str(error)) from error
        client = current_request.get()
        call = describe_call(invocation, client, self._fleet.server_id)
        executor = self._requests if invocation.tool.handler == REQUEST_HANDLER else self._mcp
        token = current_request.set(RequestForPeer(client, call))
        try:
            return await executor.execute(replace(invocation, tool=tool))
        except CallNotSent as error:
            await self._forget(server_id, tool)
            raise ServerGone(str(error)) from error
        except CallRefused as error:  # what is there has another secret; calls that it has begun go on
            self._fleet.forget(server_id)
            raise ServerGone(str(error)) from error
        except CallError as error:
            raise read_failure(error) or error from None
        finally:
            current_request.reset(token)

    async def aclose(self) -> None:
        await self._mcp.aclose()

    async def _forget(self, server_id: str, tool: Tool) -> None:
        """Let the next call look for the server again, and connect without a delay."""
        self._fleet.forget(server_id)
        await self._mcp.disconnect(tool.id)


def _make_remote_tool(tool: Tool, route: PeerRoute) -> Tool:
    """Return a tool whose MCP server is the internal endpoint of another server."""
    config = McpServerConfig(
        url=f"{route.url}{INTERNAL_PATH}{tool.id}",
        kind="http",
        headers={"Authorization": f"Bearer {route.secret}"},
        peer_socket=route.socket,
        start_timeout=CONNECT_TIMEOUT,
        max_message_size=MAX_MESSAGE_SIZE,
        is_stateful=True,
    )
    metadata = {**tool.spec.metadata, "protocol_version": FIRST_MODERN_VERSION}
    return replace(tool, spec=replace(tool.spec, metadata=metadata), target=config)


class RequestForPeer:
    """The request of a client, if there is one, as another server gets it: with the call that it is made for."""

    uses_older_protocol = True

    def __init__(self, client: ClientRequest | None, call: Mapping[str, Any]) -> None:
        self._client = client
        self.client_key: object = self if client is None else client.client_key
        self.capabilities: Mapping[str, Any] = {} if client is None else client.capabilities
        self.meta: Mapping[str, Any] = {**({} if client is None else client.meta), CALL_KEY: call}
        self.headers: Mapping[str, str] = {}
        self.log_level = None if client is None else client.log_level

    async def ask(self, key: str, request: Any) -> Any:
        if self._client is None:
            raise CallCancelled("There is no client that could answer.")
        return await self._client.ask(key, request)

    async def send_log(self, params: Any) -> None:
        if self._client is not None:
            await self._client.send_log(params)


class SharedServers:
    """What lets the servers of a fleet use each other's stateful MCP servers."""

    def __init__(self, engine: ToolEngine, fleet: ServerFleet) -> None:
        owners, self._peers = ProcessOwners(engine, fleet), PeerExecutor(engine, fleet)
        executors: dict[str, ToolExecutor] = {HANDLER: engine.mcp, REQUEST_HANDLER: RequestExecutor(engine.mcp)}
        for name, executor in executors.items():
            engine.register_executor(name, StatefulExecutor(executor, owners, self._peers))
        self.endpoint = InternalEndpoint(engine, executors, owners.has_process)

    async def aclose(self) -> None:
        await self._peers.aclose()
