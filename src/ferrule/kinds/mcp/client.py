"""One server as its calls see it: connected when needed, reconnected after its end, with a growing delay."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from ferrule.core.aio import backoff_delay
from ferrule.core.call import Invocation
from ferrule.core.elicitation import OnElicit
from ferrule.core.secrets import Secrets
from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, SetupError, StoreError, TransportFault
from ferrule.kinds.mcp.changes import ConnectOptions, ProtocolMode
from ferrule.kinds.mcp.config import CREDENTIAL, LoginHandler, McpServerConfig, TransportKind, collect_secrets
from ferrule.kinds.mcp.connection import Connection, SessionExpired
from ferrule.kinds.mcp.listing import ServerListing, pinned_parts
from ferrule.kinds.mcp.relay import OnChange
from ferrule.store import ToolKnowledgeStore
from ferrule.store.credentials import LOCAL_ACCOUNT

if TYPE_CHECKING:
    from mcp.types import CallToolResult

T = TypeVar("T")

logger = logging.getLogger("ferrule.mcp")

MIN_DELAY: Final = 0.5
MAX_DELAY: Final = 30.0
CREDENTIALS_INTERVAL: Final = 2.0
"""Seconds for which the credentials of an account are used without asking the store whether they were changed."""
PING_TIMEOUT: Final = 5.0
"""Seconds a server has to answer a ping after one of its calls was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerState:
    """How a server is doing."""

    state: Literal["running", "starting", "failed", "stopped"]
    """`stopped`: it has not been started yet, or has ended; its next call starts it."""
    error: str = ""
    log: tuple[str, ...] = ()
    """What it wrote last besides the protocol."""


class ServerClient:
    """The client of one server."""

    def __init__(
        self,
        tool_id: str,
        config: McpServerConfig,
        *,
        on_elicit: OnElicit | None,
        on_listing: Callable[[ServerListing], Awaitable[None]],
        on_change: OnChange | None = None,
        relays: bool = False,
        log_level: str | None = None,
        mode: ProtocolMode = "auto",
        account: str = LOCAL_ACCOUNT,
        store: ToolKnowledgeStore | None = None,
        login_handler: LoginHandler | None = None,
    ) -> None:
        """With the mode `legacy`, the older protocol is used with a server that knows both.

        The server gets the credentials of the `account`, and the tokens of logins, from the `store`.
        """
        self.tool_id, self.config, self.account = tool_id, config, account
        self._store, self._login_handler = store, login_handler
        self._on_change, self._relays, self.mode = on_change, relays, mode
        self._credentials: dict[str, str] = {}
        self._credentials_checked_at = float("-inf")
        self.used_at = time.monotonic()
        self.was_used = False
        """Whether anything but its listing was asked for."""
        self._log_level = log_level
        self._on_elicit, self._on_listing = on_elicit, on_listing
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
        """What its results must not show; known once the server has been started."""
        self._probe: asyncio.Task[None] | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def has_changed_credentials(self) -> bool:
        """Whether the account has stored others since they were used. The store is asked every few seconds."""
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
        self._calls += 1
        self.was_used = True
        self._idle.clear()
        try:
            try:
                return await self._call_once(invocation)
            except SessionExpired:
                # The server was restarted and rejected the call without executing it, so it can be repeated.
                return await self._call_once(invocation)
        except SessionExpired:
            raise TransportFault(f"{self.tool_id!r} loses its sessions immediately after they are created") from None
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def connect(self) -> Connection:
        """The open session, or a new one. A caller that is cancelled does not stop the connecting for others."""
        while (connection := self._connection) is None or not connection.is_open:
            if connection is not None:
                await self._discard(connection)
                continue
            if self._starting is None or self._starting.done():
                self._check_may_start()
                self._starting = asyncio.create_task(self._start())
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            await self._wait_for(self._starting)
        return connection

    async def request(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask the server for something else than a call; it is connected if necessary."""
        self._calls += 1
        self.was_used = True
        self._idle.clear()
        try:
            return await operation(await self.connect())
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def set_log_level(self, level: str) -> None:
        """Which log messages are wanted, now and after a reconnect."""
        self._log_level = level
        if (connection := self._connection) is not None and connection.is_open:
            await connection.set_log_level(level)

    async def ping(self) -> float:
        return await (await self.connect()).ping(PING_TIMEOUT)

    async def wait_until_idle(self) -> None:
        await self._idle.wait()

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
            self._start_probe(connection)
            raise

    # Connecting

    async def _wait_for(self, starting: asyncio.Task[Connection]) -> None:
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if starting.cancelled() and not (task is not None and task.cancelling()):
                raise self._closed_failure() from None
            raise

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
        if not isinstance(failure.__cause__, SetupError):  # which somebody may repair at any time
            self._record_failure(str(failure))
        raise failure

    async def _open(self) -> Connection:
        """Try the combinations in order: newest protocol first, both kinds of HTTP for an address without a type."""
        try:
            credentials = self._credentials = await self._read_credentials()
            self._credentials_checked_at = time.monotonic()
            config = self.config.expand(os.environ, credentials)
            self.secrets = collect_secrets(self.config, os.environ, credentials)
            auth = self._make_auth(config)
        except (SetupError, StoreError) as error:
            raise ExecutionFailed(f"MCP server {self.tool_id!r} cannot be used: {error}") from error
        combinations = [self._last_success] if self._last_success is not None else self._list_transports_and_modes()
        failures: list[CallError] = []
        for kind, protocol_mode in combinations:
            options = ConnectOptions(
                tool_id=self.tool_id,
                config=config,
                location=self.config.location,
                secrets=self.secrets,
                kind=kind,
                protocol_mode=protocol_mode,
                on_elicit=self._on_elicit,
                on_listing=self._on_listing,
                on_change=self._on_change,
                relays=self._relays,
                log_level=self._log_level,
                auth=auth,
            )
            try:
                connection = await Connection.open(options)
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
        """What the account has stored for this server; SetupError when something is missing."""
        values: dict[str, str] = {}
        for name in self.config.credential_names:
            value = None if self._store is None else await self._store.credentials.get(self.account, name)
            if value is None:
                raise SetupError(
                    f"it needs your credential {name!r}. Store it with `ferrule credentials set {name}`, or with "
                    f"PUT /v1/credentials/{name} of the server that you use."
                )
            values[name] = value
        for header, text in self.config.headers.items():
            used = CREDENTIAL.findall(text)
            if not all(values[name].isascii() and values[name].isprintable() for name in used):
                raise SetupError(f"the credential in its header {header!r} has characters that a header cannot have.")
        return values

    def _make_auth(self, config: McpServerConfig) -> Any:
        if self._store is None or config.url is None:
            return None
        from ferrule.kinds.mcp.oauth import make_auth  # imports the SDK: only when a server is connected

        return make_auth(config, self.tool_id, self._store, self.secrets, self._login_handler)

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

    def _check_may_start(self) -> None:
        if self._closed:
            raise self._closed_failure()
        wait = self._not_before - time.monotonic()
        if wait > 0:
            raise TransportFault(f"{self._last_failure} (next try in {wait:.1f} s)", retry_after=wait)

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

    def _start_probe(self, connection: Connection) -> None:
        """After a call was cancelled: end a server that does not answer at all, because its work must not go on."""
        if not self._closed and (self._probe is None or self._probe.done()):  # `aclose` ends the server anyway
            self._probe = asyncio.create_task(self._end_unless_alive(connection))

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
    """PermissionDenied for a model's call, or an approved one, of an action that the server lists otherwise now.

    The call was decided about with an earlier listing, perhaps one on disk, because the server was not connected yet.
    """
    context, decided = invocation.context, invocation.capability
    if not (context.is_approved or context.principal.kind == "agent") or not invocation.tool.spec.metadata.get(
        "listed"
    ):
        return
    current = next((each for each in listing.capabilities if each.name == decided.name), None)
    if current is not None and pinned_parts(current) != pinned_parts(decided.listed or decided):
        raise PermissionDenied(
            f"The MCP server {invocation.tool.id!r} has changed its action {decided.name!r} since this call was "
            "decided about. It was not executed: call it again, so that it is decided about as it is now."
        )
