"""The `mcp` executor: runs the actions of tools that are MCP servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from ferrule.core.aio import cancel_all, finish_despite_cancellation
from ferrule.core.call import Invocation
from ferrule.core.content import Output
from ferrule.core.elicitation import OnElicit
from ferrule.core.spec import MCPServerSpec, Tool, ToolCapability
from ferrule.errors import ExecutionFailed, SpecError, TimedOut
from ferrule.kinds.mcp.changes import ProtocolMode
from ferrule.kinds.mcp.client import McpServerState, ServerClient
from ferrule.kinds.mcp.config import LoginHandler, McpServerConfig, config_of_spec
from ferrule.kinds.mcp.connection import Connection
from ferrule.kinds.mcp.listing import ServerListing
from ferrule.kinds.mcp.relay import FIRST_MODERN_VERSION, OnChange, current_request
from ferrule.kinds.mcp.results import convert_result
from ferrule.store import ToolKnowledgeStore
from ferrule.store.credentials import LOCAL_ACCOUNT

T = TypeVar("T")

logger = logging.getLogger("ferrule.mcp")

REQUEST_TIMEOUT: Final = 60.0
"""Seconds a server has to list something."""
MAX_ACCOUNTS_PER_SERVER: Final = 100
"""Of one server that gets credentials of callers; each has a connection, or a program, of its own."""
OnListing: TypeAlias = Callable[[str, ServerListing], Awaitable[None] | None]
"""Called with the id of a tool and what its server lists, whenever that may have changed."""


class McpExecutor:
    """Runs the actions of MCP servers. A server is started by its first call and runs until `aclose`."""

    def __init__(
        self,
        *,
        on_elicit: OnElicit | None = None,
        on_listing: OnListing | None = None,
        store: ToolKnowledgeStore | None = None,
    ) -> None:
        """`store` has the credentials of callers and the logins at servers elsewhere."""
        self._store = store
        self.login_handler: LoginHandler | None = None
        """Lets a person log in at a server that asks for it; without it, such a server cannot be used."""
        self.on_elicit = on_elicit
        """Asks the user on behalf of a server; without it servers are told that users cannot be asked."""
        self.on_listing = on_listing
        self.check_changed_tool: Callable[[Tool], Awaitable[Tool] | None] = lambda tool: None
        """Compare a tool that has changed with what the user accepted; None if that was done."""
        self.change_listeners: list[OnChange] = []
        """Called when a server announces that it offers something else."""
        self.relays = False
        """Whether what servers ask is passed on to the MCP clients for which they are called."""
        self._log_level: str | None = None
        self._clients: dict[tuple[str, ProtocolMode, str], ServerClient] = {}
        """By the id of the tool. A server that knows both protocols may have two: each MCP client is served with its
        own protocol, because what a server asks for during a call depends on it. One that gets credentials of callers
        has one for each account."""
        self._closing: dict[asyncio.Task[None], ServerClient] = {}

    def prepare(self, tool: Tool, capability: ToolCapability) -> Awaitable[Tool] | None:
        """Wait until it is known whether the user has accepted a changed action."""
        return self.check_changed_tool(tool) if capability.changes else None

    def validates_itself(self, capability: ToolCapability) -> bool:
        """Return True for an action as the server lists it: a changed one is called by its accepted schema."""
        return not capability.changes

    async def execute(self, invocation: Invocation, /) -> Output:
        client = await self._client_of(invocation.tool, invocation.context.principal.account)
        result = await client.call(invocation)
        try:
            with client.secrets.hide_in_errors():
                output = convert_result(result)
        except ExecutionFailed as error:
            if result.is_error:
                error.original = client.secrets.hide(result)
            raise
        return Output(
            data=client.secrets.hide(output.data),
            parts=client.secrets.hide(output.parts),
            original=client.secrets.hide(result),
        )

    async def connect(self, tool: Tool) -> ServerListing:
        """Start a tool's server if it does not run, and return what it lists to whoever runs this process."""
        return (await self._client(tool).connect()).listing

    async def request(
        self,
        tool: Tool,
        operation: Callable[[Connection], Awaitable[T]],
        account: str,
        *,
        timeout: float = REQUEST_TIMEOUT,
    ) -> T:
        """Ask a tool's server for something else than a call, in the name of an account.

        MCPError as the server answers, CallError if it cannot.
        """
        client = await self._client_of(tool, account)
        with client.secrets.hide_in_errors():
            answer = await _await_answer(client.request(operation), tool, timeout)
        hidden: T = client.secrets.hide(answer)
        return hidden

    async def set_log_level(self, level: str) -> None:
        """Which log messages are wanted from servers of the older protocol."""
        self._log_level = level
        await asyncio.gather(
            *(client.set_log_level(level) for client in self._clients.values()), return_exceptions=True
        )

    async def ping(self, tool: Tool) -> float:
        """Seconds a tool's server takes to answer; it is started if it does not run."""
        return await self._client(tool).ping()

    def is_connected(self, tool_id: str) -> bool:
        return any(client.is_connected for client in self._clients_of(tool_id))

    def describe_state(self, tool_id: str) -> McpServerState:
        """How a server is doing; of several connections to it, one that runs."""
        states = [client.describe_state() for client in self._clients_of(tool_id)]
        running = (state for state in states if state.state == "running")
        return next(running, states[0] if states else McpServerState(state="stopped"))

    async def disconnect(self, tool_id: str) -> None:
        """End a server; its next call starts it again."""
        for client in self._clients_of(tool_id):
            self._remove(client)
            await client.aclose()

    def end_if_changed(self, tool: Tool) -> None:
        """End the server of a tool that was disabled or has another entry now. Running calls may finish."""
        for client in self._clients_of(tool.id):
            if not (tool.spec.enabled and client.config == config_of_tool(tool)):
                self._remove(client)
                self._close_later(client)

    async def aclose(self) -> None:
        """End all servers; when this returns none of them runs any more."""
        while self._clients:  # calls that arrive meanwhile may add some
            clients = [*self._clients.values()]
            self._clients.clear()
            await asyncio.gather(*(client.aclose() for client in clients))
        ending = [*self._closing.values()]
        await cancel_all(self._closing)
        # A task that was cancelled before its first step has ended nothing.
        await asyncio.gather(*(client.aclose() for client in ending))

    async def _client_of(self, tool: Tool, account: str) -> ServerClient:
        """The client for an account; another one when the account's credentials were changed, on any server."""
        client = self._client(tool, account)
        if client.config.credential_names and await client.has_changed_credentials():
            if self._clients.get(_key_of(client)) is client:  # else another caller has just replaced it
                self._remove(client)
                self._close_later(client)
            client = self._client(tool, account)
        return client

    def _client(self, tool: Tool, account: str = LOCAL_ACCOUNT) -> ServerClient:
        config, mode = config_of_tool(tool), _choose_mode(tool)
        key = (tool.id, mode, account if config.credential_names else LOCAL_ACCOUNT)
        current = self._clients.get(key)
        if current is not None and (current.config is config or current.config == config):
            return current
        if current is not None:  # its entry was changed: running calls finish on the server they started on
            self._close_later(current)
        if mode == "legacy":
            self._end_unused(tool.id)
        if config.credential_names:
            self._limit_accounts(tool.id)
        client = self._clients[key] = ServerClient(
            tool.id,
            config,
            on_elicit=self.on_elicit,
            on_listing=lambda listing: self._report_listing(client, listing),
            on_change=self._report_change,
            relays=self.relays,
            log_level=self._log_level,
            mode=mode,
            account=key[2],
            store=self._store,
            login_handler=self.login_handler,
        )
        return client

    def _remove(self, client: ServerClient) -> None:
        if self._clients.get(_key_of(client)) is client:
            del self._clients[_key_of(client)]

    def _limit_accounts(self, tool_id: str) -> None:
        """End the connection of an account that has used a server least recently, if there are too many."""
        clients = [client for client in self._clients_of(tool_id) if client.account != LOCAL_ACCOUNT]
        if len(clients) >= MAX_ACCOUNTS_PER_SERVER:
            oldest = min(clients, key=lambda client: client.used_at)
            self._remove(oldest)
            self._close_later(oldest)

    def _clients_of(self, tool_id: str) -> list[ServerClient]:
        return [client for client in self._clients.values() if client.tool_id == tool_id]

    def _end_unused(self, tool_id: str) -> None:
        """End a connection of the newer protocol that was opened for the listing only."""
        client = self._clients.get((tool_id, "auto", LOCAL_ACCOUNT))
        if client is not None and not client.was_used:
            self._remove(client)
            self._close_later(client)

    async def _report_change(self, tool_id: str, kind: str, uri: str | None) -> None:
        for listener in self.change_listeners:
            await listener(tool_id, kind, uri)

    async def _report_listing(self, client: ServerClient, listing: ServerListing) -> None:
        if self.on_listing is None or self._clients.get(_key_of(client)) is not client:
            return  # replaced meanwhile
        if client.account != LOCAL_ACCOUNT:
            return  # what a server lists for one account says nothing about the others
        if client.mode == "legacy":  # the server knows the newer one too
            listing = replace(listing, protocol_version=FIRST_MODERN_VERSION)
        try:
            reported = self.on_listing(client.tool_id, listing)
            if reported is not None:
                await reported
        except Exception:
            logger.exception("tool=<%s> | the listing of its server could not be used", client.tool_id)

    def _close_later(self, client: ServerClient) -> None:
        task = asyncio.create_task(_close_when_idle(client))
        self._closing[task] = client
        task.add_done_callback(self._closing.pop)


def _key_of(client: ServerClient) -> tuple[str, ProtocolMode, str]:
    return client.tool_id, client.mode, client.account


def _choose_mode(tool: Tool) -> ProtocolMode:
    """The older protocol for an MCP client that speaks it, if the server knows both.

    A stateful server has one process for all clients; the older protocol lets it ask all of them, whatever they speak.
    """
    request = current_request.get()
    is_modern = str(tool.spec.metadata.get("protocol_version", "")) >= FIRST_MODERN_VERSION
    needs_older = config_of_tool(tool).is_stateful or (request is not None and request.uses_older_protocol)
    return "legacy" if needs_older and is_modern else "auto"


def config_of_tool(tool: Tool) -> McpServerConfig:
    """How to reach the server of a tool."""
    if isinstance(tool.target, McpServerConfig):
        return tool.target
    if isinstance(tool.spec, MCPServerSpec):
        return config_of_spec(tool.spec)
    raise SpecError(f"tool {tool.id!r} is not an MCP server: it needs an MCPServerSpec")


async def _await_answer(operation: Awaitable[T], tool: Tool, seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await operation
    except TimeoutError:
        raise TimedOut(f"The MCP server {tool.id!r} did not answer within {seconds:g} s.", timeout=seconds) from None


async def _close_when_idle(client: ServerClient) -> None:
    try:
        await client.wait_until_idle()
    finally:  # `McpExecutor.aclose` cancels this task, also when it is ending the server already
        await finish_despite_cancellation(client.aclose())
