"""The `mcp` executor: runs the actions of tools that are MCP servers, each through its client."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from ferrule.core.aio import backoff_delay, cancel_all, finish_despite_cancellation
from ferrule.core.call import Invocation
from ferrule.core.content import Output
from ferrule.core.elicitation import OnElicit
from ferrule.core.secrets import Secrets
from ferrule.core.spec import MCPServerSpec, Tool, ToolCapability
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    PermissionDenied,
    SetupError,
    SpecError,
    StoreError,
    TimedOut,
    TransportFault,
)
from ferrule.kinds.mcp.config import (
    CREDENTIAL,
    LoginHandler,
    McpServerConfig,
    TransportKind,
    collect_secrets,
    config_of_spec,
)
from ferrule.kinds.mcp.listing import ServerListing, pinned_parts
from ferrule.kinds.mcp.relay import (
    FIRST_MODERN_VERSION,
    ClientRequest,
    ConnectOptions,
    OnChange,
    ProtocolMode,
    current_request,
)
from ferrule.kinds.mcp.results import SessionExpired, convert_result
from ferrule.store import ToolKnowledgeStore
from ferrule.store.credentials import LOCAL_ACCOUNT

if TYPE_CHECKING:
    from mcp.types import CallToolResult

    from ferrule.kinds.mcp.connection import Connection

T = TypeVar("T")

logger = logging.getLogger("ferrule.mcp")

REQUEST_TIMEOUT: Final = 60.0
"""Seconds a server has to list something."""
MAX_ACCOUNTS_PER_SERVER: Final = 100
"""Of one server that gets credentials of callers; each account has a connection, or a program."""
OnListing: TypeAlias = Callable[[str, ServerListing], Awaitable[None] | None]
"""Called with the id of a tool and what its server lists, whenever that may have changed."""
MIN_DELAY: Final = 0.5
MAX_DELAY: Final = 30.0
CREDENTIALS_INTERVAL: Final = 2.0
"""Seconds for which the credentials of an account are used without asking the store whether they were changed."""
PING_TIMEOUT: Final = 5.0
"""Seconds a server has to answer a ping after one of its calls was cancelled."""


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
        self._local_client: ClientRequest | None = None
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
        """Start a tool's server if it does not run, and return what it lists for the local account."""
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

        Raises MCPError as the server answers, and CallError if the server cannot answer.
        """
        client = await self._client_of(tool, account)
        try:
            with client.secrets.hide_in_errors():
                async with asyncio.timeout(timeout):
                    answer = await client.request(operation)
        except TimeoutError:
            message = f"The MCP server {tool.id!r} did not answer within {timeout:g} s."
            raise TimedOut(message, timeout=timeout) from None
        hidden: T = client.secrets.hide(answer)
        return hidden

    async def set_log_level(self, level: str) -> None:
        """Say which log messages are wanted from servers of the older protocol."""
        self._log_level = level
        tasks = [client.set_log_level(level) for client in self._clients.values()]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def use_roots_of(self, client: ClientRequest) -> None:
        """Let servers that ask outside a call get the folders of this client, and let them ask again now."""
        self._local_client = client
        await asyncio.gather(*(each.announce_roots() for each in self._clients.values()))

    async def ping(self, tool: Tool) -> float:
        """Return the seconds a tool's server takes to answer. The server is started if it does not run."""
        return await self._client(tool).ping()

    def is_connected(self, tool_id: str) -> bool:
        return any(client.is_connected for client in self._clients_of(tool_id))

    def describe_state(self, tool_id: str) -> McpServerState:
        """Return the state of a server. Of several connections to the server, one that runs is described."""
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
        """Return the client for an account. The client is replaced when the account's credentials were changed."""
        client = self._client(tool, account)
        if client.config.credential_names and await client.has_changed_credentials():
            if self._clients.get(client.key) is client:  # else another caller has just replaced it
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
        if mode == "legacy":  # the connection of the newer protocol may have been opened for the listing only
            listing_client = self._clients.get((tool.id, "auto", LOCAL_ACCOUNT))
            if listing_client is not None and not listing_client.was_used:
                self._close_later(listing_client)
        others = [client for client in self._clients_of(tool.id) if client.account != LOCAL_ACCOUNT]
        if config.credential_names and len(others) >= MAX_ACCOUNTS_PER_SERVER:
            self._close_later(min(others, key=lambda client: client.used_at))

        async def report_change(tool_id: str, kind: str, uri: str | None) -> None:
            for listener in self.change_listeners:
                await listener(tool_id, kind, uri)

        options = ConnectOptions(
            tool_id=tool.id,
            config=config,
            on_elicit=self.on_elicit,
            on_listing=lambda listing: self._report_listing(client, listing),
            on_change=report_change,
            relays=self.relays,
            find_local_client=lambda: self._local_client,
            log_level=self._log_level,
        )
        client = self._clients[key] = ServerClient(
            options, mode=mode, account=key[2], store=self._store, login_handler=self.login_handler
        )
        return client

    def _remove(self, client: ServerClient) -> None:
        if self._clients.get(client.key) is client:
            del self._clients[client.key]

    def _clients_of(self, tool_id: str) -> list[ServerClient]:
        return [client for client in self._clients.values() if client.tool_id == tool_id]

    async def _report_listing(self, client: ServerClient, listing: ServerListing) -> None:
        is_replaced = self._clients.get(client.key) is not client
        # What a server lists for one account says nothing about the others.
        if self.on_listing is None or is_replaced or client.account != LOCAL_ACCOUNT:
            return
        if client.mode == "legacy":  # the server knows the newer one too
            listing = replace(listing, protocol_version=FIRST_MODERN_VERSION)
        try:
            reported = self.on_listing(client.tool_id, listing)
            if reported is not None:
                await reported
        except Exception:
            logger.exception("tool=<%s> | the listing of its server could not be used", client.tool_id)

    def _close_later(self, client: ServerClient) -> None:
        """Let a client finish its calls and close. The next call gets a new client."""
        self._remove(client)
        task = asyncio.create_task(client.close_when_idle())
        self._closing[task] = client
        task.add_done_callback(self._closing.pop)


def _choose_mode(tool: Tool) -> ProtocolMode:
    """Choose the older protocol for an MCP client that speaks it, if the server knows both.

    A stateful server has one process for all clients; the older protocol lets it ask all of them, whatever they speak.
    """
    request = current_request.get()
    is_modern = str(tool.spec.metadata.get("protocol_version", "")) >= FIRST_MODERN_VERSION
    needs_older = config_of_tool(tool).is_stateful or (request is not None and request.uses_older_protocol)
    return "legacy" if needs_older and is_modern else "auto"


def config_of_tool(tool: Tool) -> McpServerConfig:
    """Return how to reach the server of a tool. Raises SpecError for another kind of tool."""
    if isinstance(tool.target, McpServerConfig):
        return tool.target
    if isinstance(tool.spec, MCPServerSpec):
        return config_of_spec(tool.spec)
    raise SpecError(f"tool {tool.id!r} is not an MCP server: it needs an MCPServerSpec")


# The client of one server


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerState:
    """How a server is doing."""

    state: Literal["running", "starting", "failed", "stopped"]
    """`stopped`: it has not been started yet, or has ended; its next call starts it."""
    error: str = ""
    log: tuple[str, ...] = ()
    """What it wrote last besides the protocol."""


class ServerClient:
    """The client of one server: connected when needed, reconnected after its end, with a growing delay."""

    def __init__(
        self,
        options: ConnectOptions,
        *,
        mode: ProtocolMode = "auto",
        account: str = LOCAL_ACCOUNT,
        store: ToolKnowledgeStore | None = None,
        login_handler: LoginHandler | None = None,
    ) -> None:
        """With the mode `legacy`, the older protocol is used with a server that knows both.

        The server gets the credentials of the `account`, and the tokens of logins, from the `store`.
        """
        self._options, self.mode, self.account = options, mode, account
        self.key = (options.tool_id, mode, account)
        self.tool_id, self.config = options.tool_id, options.config
        self._store, self._login_handler = store, login_handler
        self._credentials: dict[str, str] = {}
        self._credentials_checked_at = float("-inf")
        self.used_at = time.monotonic()
        self.was_used = False
        """Whether anything but the listing was asked for."""
        self._connection: Connection | None = None
        self._starting: asyncio.Task[Connection] | None = None
        self._last_success: tuple[TransportKind, ProtocolMode] | None = None
        """The transport and protocol mode of the last connection that succeeded."""
        self._failures = 0
        self._not_before = 0.0
        self._last_failure = ""
        self._last_log: tuple[str, ...] = ()
        """Of the connection before."""
        self.secrets = Secrets()
        """What results must not show; known once the server has been started."""
        self._probe: asyncio.Task[None] | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def has_changed_credentials(self) -> bool:
        """Return whether the account has stored other credentials. The store is asked every few seconds."""
        now = time.monotonic()
        if not self._credentials or now - self._credentials_checked_at < CREDENTIALS_INTERVAL:
            return False
        self._credentials_checked_at = now
        try:
            return await self._read_credentials() != self._credentials
        except SetupError:  # one was deleted, or cannot be read any more
            return True

    def describe_state(self) -> McpServerState:
        if self._connection is not None and self._connection.is_open:
            return McpServerState(state="running", log=self._connection.log_lines)
        log = self._last_log if self._connection is None else self._connection.log_lines
        if self._starting is not None and not self._starting.done():
            return McpServerState(state="starting", error=self._last_failure, log=log)
        return McpServerState(state="failed" if self._last_failure else "stopped", error=self._last_failure, log=log)

    async def call(self, invocation: Invocation) -> CallToolResult:
        self.used_at = time.monotonic()
        with self._mark_busy():
            # A server that was restarted rejects the call without executing it, so it can be repeated.
            for _ in range(2):
                with suppress(SessionExpired):
                    return await self._call_once(invocation)
        raise TransportFault(f"{self.tool_id!r} loses its sessions immediately after they are created")

    async def connect(self) -> Connection:
        """Return the open session, or open one. A caller that is cancelled does not stop the connecting for others."""
        while (connection := self._connection) is None or not connection.is_open:
            if connection is not None:
                await self._discard(connection)
                continue
            if self._starting is None or self._starting.done():
                if self._closed:
                    raise self._closed_failure()
                if (wait := self._not_before - time.monotonic()) > 0:
                    raise TransportFault(f"{self._last_failure} (next try in {wait:.1f} s)", retry_after=wait)
                self._starting = asyncio.create_task(self._start())
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            starting, task = self._starting, asyncio.current_task()
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:
                if starting.cancelled() and not (task is not None and task.cancelling()):
                    raise self._closed_failure() from None
                raise
        return connection

    async def request(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask the server for something else than a call. The server is connected if necessary."""
        with self._mark_busy():
            return await operation(await self.connect())

    @contextmanager
    def _mark_busy(self) -> Iterator[None]:
        self._calls += 1
        self.was_used = True
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def set_log_level(self, level: str) -> None:
        """Say which log messages are wanted, now and after a reconnect."""
        self._options = replace(self._options, log_level=level)
        if (connection := self._connection) is not None and connection.is_open:
            await connection.set_log_level(level)

    async def announce_roots(self) -> None:
        """Tell the server, if it runs, that the folders of the client are others now."""
        if (connection := self._connection) is not None and connection.is_open:
            await connection.announce_roots()

    async def ping(self) -> float:
        return await (await self.connect()).ping(PING_TIMEOUT)

    async def close_when_idle(self) -> None:
        """End the server after its running calls. A cancellation ends it at once."""
        try:
            await self._idle.wait()
        finally:  # `McpExecutor.aclose` cancels this task, also when it is ending the server already
            await finish_despite_cancellation(self.aclose())

    async def aclose(self) -> None:
        self._closed = True
        for task in (self._starting, self._probe):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})
        if self._connection is not None:
            await self._connection.aclose()  # if this is cancelled, the next `aclose` waits for it again
            self._connection = None

    async def _call_once(self, invocation: Invocation) -> CallToolResult:
        connection = await self.connect()
        _check_is_unchanged(invocation, connection.listing)
        effects = invocation.tool.spec.effects_of(invocation.capability)
        try:
            return await connection.call(invocation, repeatable=effects.repeatable)
        except SessionExpired:
            await connection.aclose()
            raise
        except asyncio.CancelledError:
            # End a server that does not answer at all, because its work must not go on. `aclose` ends it anyway.
            if not self._closed and (self._probe is None or self._probe.done()):
                self._probe = asyncio.create_task(self._end_unless_alive(connection))
            raise

    # Connecting

    async def _start(self) -> Connection:
        failure: CallError | None = None
        for attempt in range(self.config.attempts):
            if attempt:
                await asyncio.sleep(_reconnect_delay(attempt))
            try:
                self._connection = await self._open()
                self._last_failure = ""
                return self._connection
            except CallError as error:
                failure = error
                if not error.transient:
                    break
        assert failure is not None
        if not isinstance(failure.__cause__, SetupError):  # which a person may repair at any time
            self._record_failure(str(failure))
        raise failure

    async def _open(self) -> Connection:
        """Try the combinations in order: newest protocol first, both kinds of HTTP for an address without a type."""
        try:
            credentials = self._credentials = await self._read_credentials()
            self._credentials_checked_at = time.monotonic()
            config = self.config.expand(os.environ, credentials)
            self.secrets = collect_secrets(self.config, os.environ, credentials)
            # The SDK takes more than a second to import; in a thread it does not block other calls.
            await asyncio.to_thread(importlib.import_module, "ferrule.kinds.mcp.connection")
            from ferrule.kinds.mcp.connection import Connection
            from ferrule.kinds.mcp.oauth import make_auth

            auth = None
            if self._store is not None and config.url is not None:
                auth = make_auth(config, self.tool_id, self._store, self.secrets, self._login_handler)
        except (SetupError, StoreError) as error:
            raise ExecutionFailed(f"MCP server {self.tool_id!r} cannot be used: {error}") from error
        options = replace(self._options, config=config, location=self.config.location, secrets=self.secrets, auth=auth)
        combinations = [self._last_success] if self._last_success is not None else self._list_transports_and_modes()
        failures: list[CallError] = []
        for kind, protocol_mode in combinations:
            try:
                connection = await Connection.open(replace(options, kind=kind, protocol_mode=protocol_mode))
            except CallError as error:
                failures.append(error)
                if not error.transient or isinstance(error.__cause__, TimeoutError):
                    break
                continue
            self._last_success = (kind, connection.protocol_mode)
            return connection
        self._last_success = None
        raise failures[0]

    async def _read_credentials(self) -> dict[str, str]:
        """Read what the account has stored for this server. Raises SetupError when something is missing."""
        values: dict[str, str] = {}
        for name in self.config.credential_names:
            value = None if self._store is None else await self._store.credentials.get(self.account, name)
            if value is None:
                ways = (
                    f"`ferrule credentials set {name}`, or with PUT /v1/credentials/{name} of the server that you use"
                )
                raise SetupError(f"it needs your credential {name!r}. Store it with {ways}.")
            values[name] = value
        for header, text in self.config.headers.items():
            used = CREDENTIAL.findall(text)
            if not all(values[name].isascii() and values[name].isprintable() for name in used):
                raise SetupError(f"the credential in its header {header!r} has characters that a header cannot have.")
        return values

    def _list_transports_and_modes(self) -> list[tuple[TransportKind, ProtocolMode]]:
        combinations: list[tuple[TransportKind, ProtocolMode]] = []
        for kind in self.config.transport_kinds:
            combinations.append((kind, self.mode))
            # Some older servers exit when the first message is not the handshake they know.
            if kind in ("stdio", "ws") and self.mode == "auto":
                combinations.append((kind, "legacy"))
            if self.config.is_stateful and self.mode == "legacy":  # which it may not know
                combinations.append((kind, "auto"))
        return combinations

    def _closed_failure(self) -> TransportFault:
        return TransportFault(f"the connection to {self.tool_id!r} was closed")

    def _record_failure(self, message: str) -> None:
        self._failures += 1
        self._last_failure = message
        self._not_before = time.monotonic() + _reconnect_delay(self._failures)

    # Ending

    async def _discard(self, connection: Connection) -> None:
        await connection.aclose()
        if self._connection is not connection:
            return  # another caller has discarded it meanwhile
        self._connection, self._last_log = None, connection.log_lines
        if connection.has_succeeded:
            self._failures = 0
        elif self._failures:  # it starts, but ends during its first call, repeatedly
            self._record_failure(f"MCP server {self.tool_id!r} ended before it had answered a call")
        else:
            self._failures = 1

    async def _end_unless_alive(self, connection: Connection) -> None:
        try:
            await connection.ping(PING_TIMEOUT)
        except TransportFault:
            if not connection.may_be_busy:
                logger.warning("tool=<%s> | the server does not answer any more and is ended", self.tool_id)
                await connection.aclose()


def _reconnect_delay(failures: int) -> float:
    return backoff_delay(failures, first=MIN_DELAY, longest=MAX_DELAY)


def _check_is_unchanged(invocation: Invocation, listing: ServerListing) -> None:
    """Raise PermissionDenied for a model's call, or an approved call, of an action that the server has changed.

    The call was decided about with an earlier listing, perhaps one on disk, because the server was not connected yet.
    """
    context, decided, metadata = invocation.context, invocation.capability, invocation.tool.spec.metadata
    if not (context.is_approved or context.principal.kind == "agent") or not metadata.get("listed"):
        return
    current = next((each for each in listing.capabilities if each.name == decided.name), None)
    if current is not None and pinned_parts(current) != pinned_parts(decided.listed or decided):
        raise PermissionDenied(
            f"The MCP server {invocation.tool.id!r} has changed its action {decided.name!r} since this call was "
            "decided about. It was not executed: call it again, so that it is decided about as it is now."
        )
