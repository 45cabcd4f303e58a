"""The two ends of a connection that a session reads from and writes to.

The SDK's own transports use memory streams with a task at each end. Here whoever receives something puts it into
the inbox, and the session takes it out; what the session sends is written at once. That saves each message two
changes of task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ferrule.executors.mcp.server_log import ServerLog

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

MANY = 256
"""Messages waiting before reading from the server is paused."""

Streams: TypeAlias = "tuple[Any, Any]"
"""What a transport gives to a session: a read stream and a write stream."""


class Signals:
    """What is known of a connection beside its messages."""

    def __init__(self, log: ServerLog) -> None:
        self.log = log
        self.ended = asyncio.Event()
        """The server can no longer be talked to, or need not be."""
        self.ending = ""
        """How it ended, where that is known."""
        self.status: int | None = None
        """The last HTTP status that was an error."""


class Attempt:
    """One call on its way."""

    def __init__(self) -> None:
        self.is_forgotten = False
        """The server refused it unseen, because it does not know our session any more."""


current_attempt: ContextVar[Attempt | None] = ContextVar("ferrule_mcp_attempt", default=None)
"""The call a request is made for: the SDK makes requests in the context of whoever calls."""


class _Closable:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        raise NotImplementedError


class Inbox(_Closable):
    """Messages from a server, until it ends."""

    def __init__(self, on_crowded: Callable[[bool], None] = lambda crowded: None) -> None:
        self._waiting: deque[SessionMessage] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._ended = False
        self._crowded = False
        self._on_crowded = on_crowded

    def put(self, message: SessionMessage) -> None:
        self._waiting.append(message)
        if len(self._waiting) > MANY and not self._crowded:
            self._crowded = True
            self._on_crowded(True)
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._crowded and len(self._waiting) < MANY // 2:
            self._crowded = False
            self._on_crowded(False)
        return self._waiting.popleft()

    async def receive(self) -> SessionMessage:
        try:
            return await anext(self)
        except StopAsyncIteration:
            from anyio import EndOfStream

            raise EndOfStream from None

    async def aclose(self) -> None:
        self._waiting.clear()
        self.end()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Outbox(_Closable):
    """Messages to a server. `write` raises ConnectionError when it cannot be reached any more.

    Whether a message is urgent is its second argument: nobody waits for a server to read that a call was given up.
    """

    def __init__(self, write: Callable[[str, bool], Awaitable[None]]) -> None:
        self._write = write
        self._closed = False

    async def send(self, message: SessionMessage, /) -> None:
        from anyio import BrokenResourceError, ClosedResourceError

        if self._closed:
            raise ClosedResourceError
        try:
            urgent = getattr(message.message, "method", None) == "notifications/cancelled"
            await self._write(message.message.model_dump_json(by_alias=True, exclude_unset=True), urgent)
        except ConnectionError as error:
            raise BrokenResourceError from error

    async def aclose(self) -> None:
        self._closed = True


class Watched(_Closable):
    """A read stream of the SDK that tells when it has ended, for whatever reason."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream, self._on_end = stream, on_end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        """Left to the transport: its reader would complain about a stream that was closed before it was stopped."""
