"""What a transport gives to a session: a stream to read, a stream to write, and the state of the connection.

The SDK's own transports use memory streams with a task at each end. Here the transport puts a message straight into
the reader's queue, and what the session sends is written directly: two task switches less for each message.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from ferrule.core.patterns import lazy_pattern
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.listing_checks import extract_entries
from ferrule.kinds.mcp.relay import add_client_details_to_request

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCMessage

_ESCAPE: Final = lazy_pattern(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape of JSON: two halves of a character, a half alone, or any other."""
MAX_QUEUED_MESSAGES: Final = 256
"""Messages in the queue before reading from the server is paused."""

Streams: TypeAlias = "tuple[Any, Any]"
"""What a transport gives to a session: a read stream and a write stream."""


class ConnectionState:
    """What is known about a connection besides its messages."""

    def __init__(self, log: ServerLog, config: McpServerConfig, auth: Any = None) -> None:
        self.log, self.config, self.auth = log, config, auth
        self.ended = asyncio.Event()
        """No more messages can be exchanged, or the session is to be closed."""
        self.end_reason = ""
        """How the connection ended, if the transport knows."""
        self.error_status: int | None = None
        """The last HTTP status that was an error."""
        self.serve_calls: Callable[[ClientSession], None] = lambda session: None
        """Lets a transport send the calls of a session itself."""


class OutgoingCall:
    """One call that has been sent and not answered yet."""

    def __init__(self) -> None:
        self.error_status: int | None = None
        """The HTTP status of the answer, if it is an error."""
        self.error_text: str | None = None
        """What the answer says, if it is an error and no message of the protocol."""
        self.is_session_expired = False
        """The server does not know our session any more, as the protocol says it: the call was not executed."""
        self.is_session_doubtful = False
        """The server may not know our session any more, but does not say so as the protocol requires."""


current_call: ContextVar[OutgoingCall | None] = ContextVar("ferrule_mcp_call", default=None)
"""The call an HTTP request is made for: the SDK makes requests in the context of the task that calls."""


def read_json(data: bytes | str) -> Any:
    """What a server has sent; ValueError for anything but JSON."""
    data = replace_lone_surrogates(data if isinstance(data, bytes) else data.encode("utf-8", "replace"))
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_message(value: Any) -> JSONRPCMessage:
    """A message of the protocol; ValueError for anything else.

    Pydantic does not read the JSON itself: it would do that once for each kind of message.
    """
    from mcp.types import jsonrpc_message_adapter

    return jsonrpc_message_adapter.validate_python(value, by_name=False)


def replace_lone_surrogates(data: bytes) -> bytes:
    """JSON in which every text is valid.

    JavaScript writes half of a character that was cut as an escape, which pydantic refuses: with it the whole message
    would be lost, and the call that it answers would wait for ever.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPE.sub(lambda match: b"\\ufffd" if match["lone"] else match[0], data)


class _CloseableStream:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        raise NotImplementedError


class MessageReader(_CloseableStream):
    """Messages from a server, until it ends. `on_full` tells the transport when to pause reading (True) and resume."""

    def __init__(
        self,
        max_actions: int,
        on_full: Callable[[bool], None] = lambda is_full: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue: deque[SessionMessage | Callable[[], None]] = deque()
        self._wakeup: asyncio.Future[None] | None = None
        self._ended = False
        self._is_full = False
        self._max_actions, self._on_full, self._on_end = max_actions, on_full, on_end

    def add(self, message: SessionMessage) -> None:
        self._append(message)

    def run_in_order(self, delivery: Callable[[], None]) -> None:
        """Deliver a message in another way, when the session has taken all earlier ones."""
        if self._queue or self._wakeup is None or self._wakeup.done():
            self._append(delivery)
        else:
            delivery()

    def end(self) -> None:
        """No more messages will come."""
        self._ended = True
        self._wake_reader()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        while True:
            while not self._queue:
                if self._ended:
                    self._on_end()
                    raise StopAsyncIteration
                self._wakeup = asyncio.get_running_loop().create_future()
                await self._wakeup
            if self._is_full and len(self._queue) < MAX_QUEUED_MESSAGES // 2:
                self._is_full = False
                self._on_full(False)
            message = self._queue.popleft()
            if not callable(message):
                await extract_entries(message, self._max_actions)
                return message
            message()

    async def receive(self) -> SessionMessage:
        try:
            return await anext(self)
        except StopAsyncIteration:
            from anyio import EndOfStream

            raise EndOfStream from None

    async def aclose(self) -> None:
        self._queue.clear()
        self.end()
        self._on_end()

    def _append(self, message: SessionMessage | Callable[[], None]) -> None:
        self._queue.append(message)
        if len(self._queue) > MAX_QUEUED_MESSAGES and not self._is_full:
            self._is_full = True
            self._on_full(True)
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class MessageWriter(_CloseableStream):
    """Messages to a server. `write(text, is_urgent)` raises ConnectionError when the server cannot be reached.

    A cancellation is urgent: it is written without waiting for a server that does not read its input.
    """

    def __init__(self, write: Callable[[str, bool], Awaitable[None]]) -> None:
        self._write = write
        self._closed = False

    async def send(self, message: SessionMessage, /) -> None:
        from anyio import BrokenResourceError, ClosedResourceError

        if self._closed:
            raise ClosedResourceError
        try:
            add_client_details_to_request(message)
            is_urgent = getattr(message.message, "method", None) == "notifications/cancelled"
            await self._write(message.message.model_dump_json(by_alias=True, exclude_unset=True), is_urgent)
        except ConnectionError as error:
            raise BrokenResourceError from error

    async def aclose(self) -> None:
        self._closed = True


class ServerReadStream(_CloseableStream):
    """A read stream of the SDK that reports its end, whatever the reason."""

    def __init__(self, stream: Any, state: ConnectionState) -> None:
        self._stream, self._state = stream, state

    @property
    def last_context(self) -> Any:
        """The context of the request that the last message came in answer to."""
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            message = await self._stream.__anext__()
        except BaseException:
            self._state.ended.set()
            raise
        return await self._extract_entries(message)

    async def receive(self) -> Any:
        return await self._extract_entries(await self._stream.receive())

    async def _extract_entries(self, message: Any) -> Any:
        if not isinstance(message, Exception):  # which the SDK puts there for what it could not parse
            await extract_entries(message, self._state.config.max_actions)
        return message

    async def aclose(self) -> None:
        """Not closed here: the SDK's reader task logs an error when its stream is closed before it is stopped."""


# The server's log

MAX_LINES_PER_SECOND: Final = 100
MAX_LINE_LENGTH: Final = 2_000
TAIL_LENGTH: Final = 2_000
MAX_RECENT_LINES: Final = 200

_LOG_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}
# Characters that would start a new line in the log, or move the cursor of a terminal that shows it.
_CONTROL_CHARACTERS = lazy_pattern(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class ServerLog:
    """What a server writes besides the protocol, logged under `ferrule.mcp.<name>` after `hide` has removed secrets.

    A server may write any amount. All of it is read, so that the server never blocks; a limited number of lines per
    second is logged and the rest is counted; the end is kept for messages about why the server ended.
    """

    def __init__(self, name: str, hide: Callable[[str], str] = str) -> None:
        self._logger = logging.getLogger(f"ferrule.mcp.{name}")
        self._hide = hide
        self._partial_line = b""
        self._tail = b""
        self.recent_lines: deque[str] = deque(maxlen=MAX_RECENT_LINES)
        """What was logged last, without secrets."""
        self._window_start = 0.0
        self._lines_allowed = MAX_LINES_PER_SECOND
        self._dropped_lines = 0

    @property
    def tail(self) -> str:
        """The end of its standard error."""
        return self._hide(self._tail.decode("utf-8", "replace").strip())

    def feed(self, data: bytes) -> None:
        """Take in a piece of its standard error."""
        self._tail = (self._tail + data[-TAIL_LENGTH:])[-TAIL_LENGTH:]
        self._start_window()
        if self._lines_allowed <= 0:  # splitting into lines is what takes time
            self._dropped_lines += data.count(b"\n")
            self._partial_line = b""
            return
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines[: self._lines_allowed]:
            self._write(logging.INFO, "stderr", line.decode("utf-8", "replace"))
        self._dropped_lines += max(0, len(lines) - self._lines_allowed)
        self._lines_allowed -= len(lines)
        self._partial_line = self._partial_line[:MAX_LINE_LENGTH]

    def end(self) -> None:
        """Its standard error was closed."""
        if self._partial_line:
            self._write(logging.INFO, "stderr", self._partial_line.decode("utf-8", "replace"))
            self._partial_line = b""
        self._report_dropped_lines()

    def message(self, level: str, text: str) -> None:
        """Log a message that the server sent through the protocol, or one about what it sent."""
        self._start_window()
        if self._lines_allowed <= 0:
            self._dropped_lines += 1
            return
        self._lines_allowed -= 1
        self._write(_LOG_LEVELS.get(level, logging.INFO), "log", text)

    def _start_window(self) -> None:
        now = time.monotonic()
        if now - self._window_start >= 1:
            self._window_start, self._lines_allowed = now, MAX_LINES_PER_SECOND
            self._report_dropped_lines()

    def _report_dropped_lines(self) -> None:
        if self._dropped_lines:
            self._logger.info("lines=<%d> | not logged: the server writes too much", self._dropped_lines)
            self._dropped_lines = 0

    def _write(self, level: int, kind: str, text: str) -> None:
        if text.strip():
            line = _CONTROL_CHARACTERS.sub(_escape_characters, self._hide(text.rstrip())[:MAX_LINE_LENGTH])
            self._logger.log(level, "%s: %s", kind, line)
            self.recent_lines.append(f"{kind}: {line}")


def _escape_characters(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
