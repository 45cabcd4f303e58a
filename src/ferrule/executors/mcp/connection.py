"""One session with a server, owned by one task.

The session's cancel scopes must be entered and left in the same task, so the owner opens everything, waits until
the session is to end or has ended, and closes everything. Calls are made from the tasks of their callers: a caller
that is cancelled makes the SDK tell the server (`notifications/cancelled`), and the session goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import time
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ferrule.call import Invocation, Progress
from ferrule.content import as_text
from ferrule.errors import CallError, ExecutionFailed, InvalidArguments, MissingExtra, SetupError, TransportFault
from ferrule.executors.mcp.elicitation import Elicitation, answering
from ferrule.executors.mcp.failures import (
    REQUEST_TIMEOUT,
    UNKNOWN_HERE,
    broken_call,
    is_cut_off,
    protocol_failure,
    reason_of,
    root_of,
    was_never_sent,
)
from ferrule.executors.mcp.listing import Listing
from ferrule.executors.mcp.relisting import Relisting
from ferrule.executors.mcp.server_log import ServerLog
from ferrule.executors.mcp.streams import Attempt, Signals, current_attempt
from ferrule.executors.mcp.transports import open_streams
from ferrule.executors.mcp.way import Era, Way

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

CLOSE_PATIENCE: Final = 10.0


class SessionForgotten(Exception):
    """The server does not know our session any more, and so has not done what was asked: ask again in a new one."""


class Connection:
    """A running session."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._signals = Signals(ServerLog(way.tool_id, way.secrets.hide))
        self._actions = Relisting(way)
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # In a context of its own: it outlives the call that happened to need it first.
        self._owner = asyncio.create_task(self._own(), name=f"ferrule-mcp-{way.tool_id}", context=contextvars.Context())
        self._cause: BaseException | None = None
        self._numbers = count()
        self._in_flight: dict[int, contextvars.Context] = {}
        """The contexts of the calls, by their numbers."""
        self._given_up = -1
        self.has_succeeded = False

    @classmethod
    async def open(cls, way: Way) -> Connection:
        """Connect and list the actions; TransportFault or ExecutionFailed says why that failed."""
        connection = cls(way)
        try:
            with way.secrets.hidden_in_errors():
                await connection._started()
        except asyncio.CancelledError:
            await connection.aclose()
            raise
        return connection

    async def _started(self) -> None:
        try:
            await asyncio.shield(self._ready)
        except Exception as error:
            raise self._start_failure(error) from error

    @property
    def is_open(self) -> bool:
        return not self._signals.ended.is_set()

    @property
    def listing(self) -> Listing:
        return self._actions.listing

    @property
    def era(self) -> Era:
        """How to greet this server the next time."""
        return "auto" if self._ready.result().session.initialize_result is None else "legacy"

    @property
    def may_be_busy(self) -> bool:
        """Whether a call is in flight that began before one that was given up: the server may be at work on it."""
        return bool(self._in_flight) and min(self._in_flight) < self._given_up

    async def call(self, invocation: Invocation, *, repeatable: bool) -> CallToolResult:
        """Call an action; what goes wrong is raised in our words."""
        number = next(self._numbers)
        self._in_flight[number] = contextvars.copy_context()
        try:
            with self._way.secrets.hidden_in_errors():
                return await self._call(invocation, repeatable=repeatable)
        except asyncio.CancelledError:
            self._given_up = max(self._given_up, number)
            raise
        finally:
            del self._in_flight[number]

    async def _call(self, invocation: Invocation, *, repeatable: bool) -> CallToolResult:
        from mcp.shared.exceptions import MCPError

        action = invocation.capability.name
        _check_arguments(action, invocation.params)
        client = self._ready.result()
        attempt = Attempt()
        token = current_attempt.set(attempt)
        try:
            result = await client.call_tool(action, invocation.params, progress_callback=self._reporter(invocation))
        except MCPError as error:
            if attempt.is_forgotten:
                raise SessionForgotten from error
            raise await self._failure(error, action, repeatable) from error
        except (RuntimeError, ValueError) as error:  # an answer that does not keep to the protocol or its own schema
            raise ExecutionFailed(f"{self._way.tool_id!r} gave an answer that cannot be used: {error}") from error
        finally:
            current_attempt.reset(token)
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
            # Any other error is an answer too.
            if error.code == REQUEST_TIMEOUT or is_cut_off(error.code, error.message):
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
                    self._actions.listing = await self._actions.ask(client)
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
            elicitation_callback=answering(way.tool_id, self._ask) if way.on_elicit is not None else None,
            logging_callback=self._log,
            message_handler=self._hear,
            cache=None,
        )

    async def _ask(self, question: Elicitation) -> dict[str, Any] | None:
        """Ask in the context of the call that asks. Older servers do not say which that is: only one can be."""
        contexts = list(self._in_flight.values())
        if Invocation.current.get() is not None or len(contexts) != 1:
            return await self._ask_here(question)
        return await asyncio.create_task(self._ask_here(question), context=contexts[0])

    async def _ask_here(self, question: Elicitation) -> dict[str, Any] | None:
        assert self._way.on_elicit is not None, "else the server is told that nobody can be asked"
        return await self._way.on_elicit(question)

    async def _until_ended(self, client: Client) -> None:
        keepers = [asyncio.create_task(self._actions.keep(client)), asyncio.create_task(self._actions.listen(client))]
        try:
            await self._signals.ended.wait()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)

    async def _hear(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._actions.doubt()

    def _reporter(self, invocation: Invocation) -> Any:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            fraction = min(progress / total, 1.0) if total else None
            invocation.report(Progress(fraction=fraction, message=self._way.secrets.hide(message or "")))

        return report

    async def _log(self, params: Any) -> None:
        self._signals.log.message(params.level, as_text(params.data))

    # What went wrong

    async def _failure(self, error: Any, action: str, repeatable: bool) -> CallError:
        name = self._way.tool_id
        if is_cut_off(error.code, error.message):
            if self.is_open:  # only this call's own stream broke
                return broken_call(name, action, error.message, repeatable=repeatable)
            was_alone = len(self._in_flight) == 1
            await asyncio.wait({self._owner}, timeout=CLOSE_PATIENCE)  # it knows why, when it has cleaned up
            if was_alone and was_never_sent(self._cause):
                return TransportFault(f"{name!r} cannot be reached, and the call was not made: {self._why()}")
            return broken_call(name, action, self._why(), repeatable=repeatable)
        if error.code in UNKNOWN_HERE:
            self._actions.doubt()
        return protocol_failure(name, error.code, error.message, error.data)

    def _start_failure(self, error: BaseException) -> CallError:
        name, where = self._way.tool_id, self._way.where
        is_final = isinstance(error, SetupError) or (isinstance(error, CallError) and not error.transient)
        kind = ExecutionFailed if is_final else TransportFault
        if isinstance(error, TimeoutError):
            seconds = self._way.config.start_timeout
            return TransportFault(f"MCP server {name!r} ({where}) did not start within {seconds:g} s{self._said()}")
        was_closed = bool(self._signals.ending) and str(error) == "Connection closed"
        reason = self._signals.ending if was_closed else reason_of(error)
        return kind(f"MCP server {name!r} ({where}) cannot be used: {reason}{self._said()}")

    def _why(self) -> str:
        if self._cause is None and self._signals.ending:
            return self._signals.ending + self._said()
        return reason_of(self._cause) + self._said()

    def _said(self) -> str:
        status = f" (HTTP {self._signals.status})" if self._signals.status is not None else ""
        hint = "; check its headers" if self._signals.status in (401, 403) else ""
        tail = self._signals.log.tail
        return status + hint + (f". It said last: {tail[-500:]}" if tail else "")


def _check_arguments(action: str, arguments: dict[str, Any]) -> None:
    """What cannot be written as JSON is refused here: the SDK would find out while it sends, and end the session."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False, default=str).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"the arguments of {action!r} cannot be sent: {error}") from None


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
