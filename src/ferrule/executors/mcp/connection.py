"""One session with a server, owned by one task.

The session's cancel scopes must be entered and left in the same task, so the owner opens everything, waits until
the session is to end or has ended, and closes everything. Calls are made from the tasks of their callers: a caller
that is cancelled makes the SDK tell the server (`notifications/cancelled`), and the session goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ferrule.call import Invocation, Progress
from ferrule.content import as_text
from ferrule.errors import CallError, ExecutionFailed, MissingExtra, SetupError, TransportFault
from ferrule.executors.mcp.config import Kind, McpServerConfig
from ferrule.executors.mcp.elicitation import OnElicit, answering
from ferrule.executors.mcp.failures import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    NO_ANSWER,
    UNKNOWN_HERE,
    broken_call,
    protocol_failure,
    reason_of,
    root_of,
    was_never_sent,
)
from ferrule.executors.mcp.listing import Listing, list_actions
from ferrule.executors.mcp.server_log import ServerLog
from ferrule.executors.mcp.streams import Signals
from ferrule.executors.mcp.transports import open_streams

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

logger = logging.getLogger("ferrule.mcp")

Era = Literal["auto", "legacy"]
"""`auto` asks a server for the newest protocol first; `legacy` greets it as before 2026."""

CLOSE_PATIENCE: Final = 10.0
RELIST_AFTER: Final = 300.0
"""Seconds after which the actions are listed again, unless the server says how long they hold."""
SHORTEST_TTL: Final = 5.0
RELIST_AT_MOST_EVERY: Final = 0.2


class SessionForgotten(Exception):
    """The server does not know our session any more, and so has not done what was asked: ask again in a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Which server, and how to talk to it."""

    tool_id: str
    config: McpServerConfig
    """With its variables filled in."""
    kind: Kind
    era: Era
    on_elicit: OnElicit | None
    on_listing: Callable[[Listing], None]


class Connection:
    """A running session."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._signals = Signals(ServerLog(way.tool_id))
        self._stale = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # In a context of its own: it outlives the call that happened to need it first.
        self._owner = asyncio.create_task(self._own(), name=f"ferrule-mcp-{way.tool_id}", context=contextvars.Context())
        self._cause: BaseException | None = None
        self.listing = Listing()
        self.in_flight = 0
        self.has_succeeded = False

    @classmethod
    async def open(cls, way: Way) -> Connection:
        """Connect and list the actions; TransportFault or ExecutionFailed says why that failed."""
        connection = cls(way)
        try:
            await asyncio.shield(connection._ready)
        except asyncio.CancelledError:
            await connection.aclose()
            raise
        except Exception as error:
            raise connection._start_failure(error) from error
        return connection

    @property
    def is_open(self) -> bool:
        return not self._signals.ended.is_set()

    async def call(self, invocation: Invocation, *, repeatable: bool) -> CallToolResult:
        """Call an action; what goes wrong is raised in our words."""
        from mcp.shared.exceptions import MCPError

        action = invocation.capability.name
        client = self._ready.result()
        not_found = self._signals.not_found
        self.in_flight += 1
        try:
            result = await client.call_tool(action, invocation.params, progress_callback=_reporter(invocation))
        except MCPError as error:
            raise await self._failure(error, action, repeatable, not_found) from error
        except (RuntimeError, ValueError) as error:  # an answer that does not keep to the protocol or its own schema
            raise ExecutionFailed(f"{self._way.tool_id!r} gave an answer that cannot be used: {error}") from error
        finally:
            self.in_flight -= 1
        self.has_succeeded = True
        return result

    async def ping(self, patience: float) -> float:
        """Seconds the server takes to answer; TransportFault when it does not."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import EmptyResult, PingRequest

        session = self._ready.result().session
        started = time.perf_counter()
        try:
            async with asyncio.timeout(patience):
                if session.initialize_result is None:
                    await session.send_discover(session.protocol_version or "")
                else:
                    await session.send_request(PingRequest(), EmptyResult)
        except TimeoutError:
            raise TransportFault(f"{self._way.tool_id!r} has not answered for {patience:g} s") from None
        except MCPError as error:
            if error.code in NO_ANSWER:  # any other error is an answer too
                raise TransportFault(f"{self._way.tool_id!r} does not answer: {self._why()}") from error
        return time.perf_counter() - started

    async def aclose(self) -> None:
        """End the session; when this returns, nothing of it is left."""
        self._signals.ended.set()
        if not self._ready.done():
            self._owner.cancel()
        done, _ = await asyncio.wait({self._owner}, timeout=CLOSE_PATIENCE)
        if not done:
            self._owner.cancel()
            await asyncio.wait({self._owner})

    # The owner

    async def _own(self) -> None:
        try:
            await asyncio.to_thread(_import_sdk)
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._way.config.start_timeout):
                    client = await stack.enter_async_context(self._client())
                    self.listing = await list_actions(client.session)
                self._way.on_listing(self.listing)
                self._ready.set_result(client)
                await self._until_ended(client)
        except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
            self._cause = error
            if not self._ready.done():
                self._ready.set_exception(_plain(error))
                self._ready.exception()  # seen: whoever waited may have gone
        finally:
            self._signals.ended.set()

    def _client(self) -> Client:
        from mcp import Client
        from mcp.types import Implementation

        way = self._way
        return Client(
            open_streams(way.kind, way.config, self._signals),
            mode=way.era,
            client_info=Implementation(name="ferrule", version=_version()),
            elicitation_callback=answering(way.tool_id, way.on_elicit) if way.on_elicit is not None else None,
            logging_callback=self._log,
            message_handler=self._hear,
            cache=None,
        )

    async def _until_ended(self, client: Client) -> None:
        keepers = [asyncio.create_task(self._keep_listing(client)), asyncio.create_task(self._listen(client))]
        try:
            await self._signals.ended.wait()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)

    async def _keep_listing(self, client: Client) -> None:
        """List the actions again when the server says they changed, and from time to time."""
        from mcp.shared.exceptions import MCPError

        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self.listing.ttl or RELIST_AFTER, SHORTEST_TTL)):
                    await self._stale.wait()
            self._stale.clear()
            try:
                listing = await list_actions(client.session)
            except (MCPError, RuntimeError, ValueError) as error:
                logger.warning("tool=<%s> | its actions could not be listed again: %s", self._way.tool_id, error)
            else:
                changed, self.listing = listing.capabilities != self.listing.capabilities, listing
                if changed:
                    self._way.on_listing(listing)
            await asyncio.sleep(RELIST_AT_MOST_EVERY)

    async def _listen(self, client: Client) -> None:
        """Since 2026 servers tell about changes only those who ask for it; before, `_hear` hears of them anyway."""
        tools = client.server_capabilities.tools
        if client.session.initialize_result is not None or tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._stale.set()
        except Exception as error:
            logger.info("tool=<%s> | it does not tell about changes: %s", self._way.tool_id, reason_of(error))

    async def _hear(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._stale.set()

    async def _log(self, params: Any) -> None:
        self._signals.log.message(params.level, as_text(params.data))

    # What went wrong

    async def _failure(self, error: Any, action: str, repeatable: bool, not_found: int) -> Exception:
        name = self._way.tool_id
        if error.code == CONNECTION_CLOSED:
            if self.is_open:  # only this call's own stream broke
                return broken_call(name, action, error.message, repeatable=repeatable)
            was_alone = self.in_flight == 1
            await asyncio.wait({self._owner}, timeout=CLOSE_PATIENCE)  # it knows why, when it has cleaned up
            if was_alone and was_never_sent(self._cause):
                return TransportFault(f"{name!r} cannot be reached, and the call was not made: {self._why()}")
            return broken_call(name, action, self._why(), repeatable=repeatable)
        if error.code == INVALID_REQUEST and self._signals.not_found > not_found:
            return SessionForgotten()
        if error.code in UNKNOWN_HERE:
            self._stale.set()
        return protocol_failure(name, error.code, error.message, error.data)

    def _start_failure(self, error: BaseException) -> CallError:
        name, where = self._way.tool_id, self._way.config.where
        is_final = isinstance(error, SetupError) or (isinstance(error, CallError) and not error.transient)
        kind = ExecutionFailed if is_final else TransportFault
        if isinstance(error, TimeoutError):
            seconds = self._way.config.start_timeout
            return TransportFault(f"MCP server {name!r} ({where}) did not start within {seconds:g} s{self._said()}")
        return kind(f"MCP server {name!r} ({where}) cannot be used: {reason_of(error)}{self._said()}")

    def _why(self) -> str:
        if self._cause is None and self._signals.ending:
            return self._signals.ending + self._said()
        return reason_of(self._cause) + self._said()

    def _said(self) -> str:
        status = f" (HTTP {self._signals.status})" if self._signals.status is not None else ""
        hint = "; check its headers" if self._signals.status in (401, 403) else ""
        tail = self._signals.log.tail
        return status + hint + (f". It said last: {tail[-500:]}" if tail else "")


def _reporter(invocation: Invocation) -> Any:
    async def report(progress: float, total: float | None, message: str | None) -> None:
        fraction = min(progress / total, 1.0) if total else None
        invocation.report(Progress(fraction=fraction, message=message or ""))

    return report


def _import_sdk() -> None:
    # It takes more than a second, which nobody else should have to wait.
    try:
        importlib.import_module("mcp")
    except ImportError:
        raise MissingExtra("mcp", "mcp") from None


def _plain(error: BaseException) -> Exception:
    """An exception a future may carry."""
    cause = root_of(error)
    return cause if isinstance(cause, Exception) else TransportFault("it was stopped while it started")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ferrule")
    except PackageNotFoundError:
        return "0"
