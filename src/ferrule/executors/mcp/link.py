"""One server as its calls see it: connected when needed, and again after its end, but not again and again at once."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ferrule.call import Invocation
from ferrule.errors import CallError, ExecutionFailed, SetupError, TransportFault
from ferrule.executors.mcp.config import Kind, McpServerConfig
from ferrule.executors.mcp.connection import Connection, SessionForgotten
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.executors.mcp.listing import Listing
from ferrule.executors.mcp.secrets import secrets_of
from ferrule.executors.mcp.way import Era, Way
from ferrule.executors.secrets import Secrets

if TYPE_CHECKING:
    from mcp.types import CallToolResult

logger = logging.getLogger("ferrule.mcp")

FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 30.0
PROBE_PATIENCE: Final = 5.0
"""Seconds a server has to show that it still lives after a call was given up."""


class Link:
    """The way to one server."""

    def __init__(
        self,
        tool_id: str,
        config: McpServerConfig,
        *,
        on_elicit: OnElicit | None,
        on_listing: Callable[[Listing], None],
    ) -> None:
        self.tool_id, self.config = tool_id, config
        self._on_elicit, self._on_listing = on_elicit, on_listing
        self._connection: Connection | None = None
        self._starting: asyncio.Task[Connection] | None = None
        self._way: tuple[Kind, Era] | None = None
        """What worked last time."""
        self._failures = 0
        self._not_before = 0.0
        self._last_failure = ""
        self.secrets = Secrets()
        """What its server was told in confidence, once it has been started."""
        self._probe: asyncio.Task[None] | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def call(self, invocation: Invocation) -> CallToolResult:
        self._calls += 1
        self._idle.clear()
        try:
            try:
                return await self._call_once(invocation)
            except SessionForgotten:
                # The server was restarted. It refused the call unseen, so asking again cannot do it twice.
                return await self._call_once(invocation)
        except SessionForgotten:
            raise TransportFault(f"{self.tool_id!r} forgets its sessions as soon as they are made") from None
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def connect(self) -> Connection:
        """The session there is, or a new one. A caller that goes away does not stop it from being made."""
        while (connection := self._connection) is None or not connection.is_open:
            if connection is not None:
                await self._bury(connection)
                continue
            if self._starting is None or self._starting.done():
                self._refuse_too_early()
                self._starting = asyncio.create_task(self._start())
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            await self._started(self._starting)
        return connection

    async def ping(self) -> float:
        return await (await self.connect()).ping(PROBE_PATIENCE)

    async def when_idle(self) -> None:
        await self._idle.wait()

    async def aclose(self) -> None:
        self._closed = True
        for task in (self._starting, self._probe):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _call_once(self, invocation: Invocation) -> CallToolResult:
        connection = await self.connect()
        effects = invocation.tool.spec.effects_of(invocation.capability)
        try:
            return await connection.call(invocation, repeatable=effects.repeatable)
        except SessionForgotten:
            await connection.aclose()
            raise
        except asyncio.CancelledError:
            self._suspect(connection)
            raise

    # Starting

    async def _started(self, starting: asyncio.Task[Connection]) -> None:
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled() and not _is_cancelled():
                raise self._is_closed() from None
            raise

    async def _start(self) -> Connection:
        failure: CallError | None = None
        for attempt in range(self.config.attempts):
            if attempt:
                await asyncio.sleep(self._delay(attempt))
            try:
                self._connection = await self._open()
                return self._connection
            except CallError as error:
                failure = error
                if not error.transient:
                    break
        assert failure is not None
        self._note_failure(str(failure))
        raise failure

    async def _open(self) -> Connection:
        """Try what may work: the newest protocol first, and for an address that does not say, both kinds of HTTP."""
        try:
            config, self.secrets = self.config.expanded(os.environ), secrets_of(self.config, os.environ)
        except SetupError as error:
            raise ExecutionFailed(f"MCP server {self.tool_id!r} cannot be used: {error}") from error
        ways = [self._way] if self._way is not None else _ways(self.config)
        failures: list[CallError] = []
        for kind, era in ways:
            way = Way(
                tool_id=self.tool_id,
                config=config,
                where=self.config.where,
                secrets=self.secrets,
                kind=kind,
                era=era,
                on_elicit=self._on_elicit,
                on_listing=self._on_listing,
            )
            try:
                connection = await Connection.open(way)
            except CallError as error:
                failures.append(error)
                if not error.transient or isinstance(error.__cause__, TimeoutError):
                    break
                continue
            self._way = (kind, connection.era)
            return connection
        self._way = None
        raise failures[0]

    def _refuse_too_early(self) -> None:
        if self._closed:
            raise self._is_closed()
        wait = self._not_before - time.monotonic()
        if wait > 0:
            raise TransportFault(f"{self._last_failure} (next try in {wait:.1f} s)", retry_after=wait)

    def _is_closed(self) -> TransportFault:
        return TransportFault(f"the connection to {self.tool_id!r} was closed")

    def _note_failure(self, message: str) -> None:
        self._failures += 1
        self._last_failure = message
        self._not_before = time.monotonic() + self._delay(self._failures)

    def _delay(self, failures: int) -> float:
        return min(FIRST_DELAY * 2.0 ** (failures - 1), LONGEST_DELAY) * (0.5 + random.random() / 2)

    # Ending

    async def _bury(self, connection: Connection) -> None:
        await connection.aclose()
        if self._connection is not connection:
            return  # another caller was here first
        self._connection = None
        if connection.has_succeeded:
            self._failures = 0
        elif self._failures:  # it starts, and falls over its first call, again and again
            self._note_failure(f"MCP server {self.tool_id!r} ended before it had answered a call")
        else:
            self._failures = 1

    def _suspect(self, connection: Connection) -> None:
        """A call was given up. A server that does not answer at all any more is ended: its work must not go on."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._end_unless_alive(connection))

    async def _end_unless_alive(self, connection: Connection) -> None:
        try:
            await connection.ping(PROBE_PATIENCE)
        except TransportFault:
            if not connection.may_be_busy:
                logger.warning("tool=<%s> | it does not answer any more and is ended", self.tool_id)
                await connection.aclose()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _ways(config: McpServerConfig) -> list[tuple[Kind, Era]]:
    # Some older servers end when the first message is not the greeting they know.
    return [(kind, era) for kind in config.kinds for era in _eras(kind)]


def _eras(kind: Kind) -> tuple[Era, ...]:
    return ("auto", "legacy") if kind in ("stdio", "ws") else ("auto",)
