"""A server that is a program started here: JSON-RPC, one message per line, on its standard input and output.

When the connection is closed, the program and everything it started have ended: first its input is closed, as the
protocol asks, then the process group is ended by signals.

The SDK's own transports use memory streams with a task at each end. Here the transport puts a message straight into
the reader's queue, and what the session sends is written directly: two task switches less for each message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

from anyio import BrokenResourceError, ClosedResourceError
from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData
from opentelemetry.context import get_current
from pydantic_core import to_json

from ferrule.core.aio import finish_despite_cancellation, wait_at_most
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import ExecutionFailed, TransportFault
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.listing import extract_entries
from ferrule.kinds.mcp.relay import add_client_details, add_client_details_to_request
from ferrule.kinds.mcp.results import CONNECTION_CLOSED, read_json, read_message
from ferrule.process.groups import (
    KILL_TIMEOUT,
    LineReader,
    WatchedProcess,
    end_process_tree,
    find_process_tree,
    mark_environment,
)

logger = logging.getLogger("ferrule.mcp")

EXIT_TIMEOUT: Final = 1.0
"""Seconds a server has to exit by itself once its input is closed."""
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


# The server's log

MAX_LINES_PER_SECOND: Final = 100
MAX_LINE_LENGTH: Final = 2_000
TAIL_LENGTH: Final = 2_000
MAX_RECENT_LINES: Final = 200

_LOG_LEVELS: Final = {
    "debug": logging.DEBUG,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    **dict.fromkeys(("critical", "alert", "emergency"), logging.CRITICAL),
}
"""The levels of the protocol. Other messages have the level `INFO`."""
# Characters that would start a new line in the log, or move the cursor of a terminal that shows it.
_CONTROL_CHARACTERS = lazy_pattern(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class ServerLog:
    """What a server writes besides the protocol, logged under `ferrule.mcp.<name>` after `hide` has removed secrets.

    A server may write any amount. All of it is read, so that the server never blocks. A limited number of lines per
    second is logged and the rest is counted. The end is kept for messages about why the server ended.
    """

    def __init__(self, name: str, hide: Callable[[str], str] = str) -> None:
        self._logger = logging.getLogger(f"ferrule.mcp.{name}")
        self._hide = hide
        self._stderr = LineReader(lambda line: self._write(logging.INFO, "stderr", line))
        self._tail = b""
        self.recent_lines: deque[str] = deque(maxlen=MAX_RECENT_LINES)
        """What was logged last, without secrets."""
        self._window_start = 0.0
        self._lines_allowed = MAX_LINES_PER_SECOND
        self._dropped_lines = 0

    @property
    def tail(self) -> str:
        return self._hide(self._tail.decode("utf-8", "replace").strip())

    def feed(self, data: bytes) -> None:
        self._tail = (self._tail + data[-TAIL_LENGTH:])[-TAIL_LENGTH:]
        self._stderr.feed(data)

    def end(self) -> None:
        """Log the rest after the server's standard error was closed."""
        self._stderr.end()
        self._report_dropped_lines()

    def message(self, level: str, text: str) -> None:
        """Log a message that the server sent through the protocol, or a message about what the server sent."""
        self._write(_LOG_LEVELS.get(level, logging.INFO), "log", text)

    def _write(self, level: int, kind: str, text: str) -> None:
        now = time.monotonic()
        if now - self._window_start >= 1:
            self._window_start, self._lines_allowed = now, MAX_LINES_PER_SECOND
            self._report_dropped_lines()
        if self._lines_allowed <= 0:
            self._dropped_lines += 1
            return
        self._lines_allowed -= 1
        if text.strip():
            text = self._hide(text.rstrip())[:MAX_LINE_LENGTH]
            line = _CONTROL_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
            self._logger.log(level, "%s: %s", kind, line)
            self.recent_lines.append(f"{kind}: {line}")

    def _report_dropped_lines(self) -> None:
        if self._dropped_lines:
            self._logger.info("lines=<%d> | not logged: the server writes too much", self._dropped_lines)
            self._dropped_lines = 0


# Messages


class CloseableStream:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        raise NotImplementedError


class MessageReader(CloseableStream):
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

    def run_in_order(self, delivery: Callable[[], None]) -> None:
        """Deliver a message in another way, when the session has taken all earlier ones."""
        if self._queue or self._wakeup is None or self._wakeup.done():
            self.add(delivery)
        else:
            delivery()

    def end(self) -> None:
        """End the stream: no more messages will come."""
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

    async def aclose(self) -> None:
        self._queue.clear()
        self.end()
        self._on_end()

    def add(self, message: SessionMessage | Callable[[], None]) -> None:
        self._queue.append(message)
        if len(self._queue) > MAX_QUEUED_MESSAGES and not self._is_full:
            self._is_full = True
            self._on_full(True)
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class MessageWriter(CloseableStream):
    """Messages to a server. `write(text, is_urgent)` raises ConnectionError when the server cannot be reached.

    A cancellation is urgent: it is written without waiting for a server that does not read its input.
    """

    def __init__(self, write: Callable[[str, bool], Awaitable[None]]) -> None:
        self._write = write
        self._closed = False

    async def send(self, message: SessionMessage, /) -> None:
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


# The process


class ServerProcess(WatchedProcess):
    """A running server, whose lines are messages."""

    def __init__(self, state: ConnectionState) -> None:
        super().__init__({})
        self._state = state
        self._line = bytearray()
        self._pause_reasons: set[str] = set()
        """Why reading is paused; empty while it is not."""
        self._writers = 0
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._write_lock = asyncio.Lock()
        self._stdin: asyncio.WriteTransport | None = None
        self._max_message_size = state.config.max_message_size
        self._calls = LineCalls(self._write)
        state.serve_calls = self._calls.serve
        self.reader = MessageReader(
            state.config.max_actions,
            lambda is_full: self._set_pause_reason("queue is full", is_full),
            self._calls.end,
        )
        self.writer = MessageWriter(self._write)
        self.mark = ""
        """In the environment of the server, and of all processes that it starts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._stdin = cast(asyncio.WriteTransport, cast(asyncio.SubprocessTransport, transport).get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._state.log.feed(data)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._line:
                line = bytes(self._line + line)
                self._line.clear()
            self._receive_line(line)
        self._line += rest
        if len(self._line) > self._max_message_size:
            self._state.end_reason = f"it sent a message of more than {self._max_message_size:,} bytes"
            self._line.clear()
            self._set_pause_reason("message too large", True)
            self._end()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            self._state.log.end()
            return
        super().pipe_connection_lost(fd, exc)
        self._end()  # a session needs both input and output

    def process_exited(self) -> None:
        super().process_exited()
        code = self.exit_code
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code} ({signal.strsignal(-code)})"
        self._state.end_reason = self._state.end_reason or f"its program ended {how}"

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def _receive_line(self, line: bytes) -> None:
        try:
            value = read_json(line)
            if (delivery := self._calls.find_delivery(value)) is not None:
                self.reader.run_in_order(delivery)
                return
            message = read_message(value)
        except ValueError:
            if line.strip():
                start = line[:200].decode("utf-8", "replace")
                self._state.log.message("warning", f"not a protocol message, on standard output: {start}")
            return
        self.reader.add(SessionMessage(message))

    async def _write(self, text: str, is_urgent: bool) -> None:
        if is_urgent or (not self._writers and self._can_write.is_set()):
            self._send(text)
            return
        # Wait until the server reads its input, behind earlier messages. Reading from a server pauses while it sends
        # requests but never reads the responses: otherwise the responses that wait to be written would fill the memory.
        self._writers += 1
        self._set_pause_reason("responses are not read", self._writers > MAX_QUEUED_MESSAGES)
        try:
            async with self._write_lock:
                await self._can_write.wait()
                self._send(text)
        finally:
            self._writers -= 1
            self._set_pause_reason("responses are not read", self._writers > MAX_QUEUED_MESSAGES)

    def _send(self, text: str) -> None:
        if self._stdin is None or self._stdin.is_closing():
            raise BrokenPipeError("the server has closed its input")
        self._stdin.write(text.encode() + b"\n")

    def _set_pause_reason(self, reason: str, applies: bool) -> None:
        was_paused = bool(self._pause_reasons)
        self._pause_reasons.add(reason) if applies else self._pause_reasons.discard(reason)
        assert self.transport is not None, "messages are exchanged only with a program that was started"
        stdout = cast("asyncio.ReadTransport | None", self.transport.get_pipe_transport(1))
        is_changed = bool(self._pause_reasons) != was_paused
        if is_changed and stdout is not None and not stdout.is_closing():
            stdout.pause_reading() if self._pause_reasons else stdout.resume_reading()

    def _end(self) -> None:
        self._can_write.set()
        self.reader.end()
        self._state.ended.set()


@asynccontextmanager
async def open_stdio_streams(config: McpServerConfig, state: ConnectionState) -> AsyncIterator[Streams]:
    """Start the server; leaving the block ends it."""
    process = ServerProcess(state)
    try:
        await finish_despite_cancellation(_start_server(config, process))
        yield process.reader, process.writer
    finally:
        if process.transport is not None:  # it may have started although the wait for it was cancelled
            await finish_despite_cancellation(_end_server(process, process.transport))


async def _start_server(config: McpServerConfig, process: ServerProcess) -> None:
    pipe: Any = asyncio.subprocess.PIPE
    assert config.command is not None
    directory = config.directory
    environment, process.mark = mark_environment(config.environment(os.environ))
    try:
        await asyncio.get_running_loop().subprocess_exec(
            lambda: process,
            os.path.expanduser(config.command),
            *config.args,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        if directory is not None and error.filename == directory:
            raise ExecutionFailed(f"the directory {directory!r} to start it in does not exist") from error
        message = f"the program {config.command!r} was not found: install it, or write its full path"
        raise ExecutionFailed(message) from error
    except (PermissionError, ValueError) as error:
        raise ExecutionFailed(f"the program {config.command!r} cannot be run: {error}") from error
    except OSError as error:
        raise TransportFault(f"the program {config.command!r} could not be started: {error}") from error


async def _end_server(process: ServerProcess, transport: asyncio.SubprocessTransport) -> None:
    stdin = transport.get_pipe_transport(0)
    try:
        # Some processes in other sessions can be found only while their parent runs.
        earlier_tree = await asyncio.to_thread(find_process_tree, transport.get_pid(), process.mark)
        if stdin is not None:
            stdin.close()
        await wait_at_most(process.exited, EXIT_TIMEOUT)
        # Also when the server has exited by itself: processes that it started (browsers, daemons) may still run.
        await end_process_tree(transport.get_pid(), process.mark, earlier_tree=earlier_tree)
        await wait_at_most(process.exited, KILL_TIMEOUT)
    finally:  # also when the event loop is being closed
        if stdin is not None and process.reads_stdin:
            cast(asyncio.WriteTransport, stdin).abort()  # close() alone would wait until buffered data has been read
        transport.close()
    await wait_at_most(process.closed, KILL_TIMEOUT)


# Calls, without the SDK's dispatcher. For each request the dispatcher makes memory streams, a cancel scope, a tracing
# span and several models. A call needs one line and one future: what the session sends as `tools/call` is written here,
# and its progress and its answer are taken out of the server's lines. Every other message goes to the dispatcher, and
# so does a call that is part of a trace, because the dispatcher passes the trace on.

FIRST_ID: Final = 1_000_000_000
"""The dispatcher counts its own requests from 1."""


class SentCall:
    """A call that is not answered yet."""

    def __init__(self, on_progress: Callable[..., Awaitable[None]] | None) -> None:
        self.on_progress = on_progress
        self.answer: asyncio.Future[dict[str, Any] | ErrorData] = asyncio.get_running_loop().create_future()

    def set_answer(self, answer: dict[str, Any] | ErrorData) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class LineCalls:
    """The calls of one session. `write(text, is_urgent)` raises ConnectionError when the server cannot be reached."""

    def __init__(self, write: Callable[[str, bool], Awaitable[None]]) -> None:
        self._write = write
        self._ids = count(FIRST_ID)
        self._calls: dict[int, SentCall] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._has_ended = False

    def serve(self, session: ClientSession) -> None:
        """Send the calls of a session from now on."""
        dispatcher: Any = getattr(session, "_dispatcher", None)
        if not hasattr(dispatcher, "send_raw_request"):
            logger.info("this version of the MCP SDK sends the calls itself, which takes longer")
            return
        send_by_dispatcher: Callable[..., Awaitable[dict[str, Any]]] = dispatcher.send_raw_request

        async def send_raw_request(
            method: str, params: Mapping[str, Any] | None, opts: Any = None, **details: Any
        ) -> dict[str, Any]:
            if method == "tools/call" and params is not None and not get_current() and not opts.get("timeout"):
                return await self._send(dict(params), opts.get("on_progress"))
            return await send_by_dispatcher(method, params, opts, **details)

        dispatcher.send_raw_request = send_raw_request

    async def _send(self, params: dict[str, Any], on_progress: Callable[..., Awaitable[None]] | None) -> dict[str, Any]:
        """Send a call and return its result. Raises MCPError as the server answers, or when the connection ended."""
        request_id = next(self._ids)
        if on_progress is not None:
            params["_meta"] = {**params.get("_meta", {}), "progressToken": request_id}
        add_client_details(params)
        request = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        call = self._calls[request_id] = SentCall(on_progress)
        try:
            if self._has_ended:
                raise ConnectionError
            await self._write(to_json(request).decode(), False)
            answer = await call.answer
        except ConnectionError:
            raise MCPError(code=CONNECTION_CLOSED, message="Connection closed") from None
        except asyncio.CancelledError:
            details = {"requestId": request_id, "reason": "caller cancelled"}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": details}
            with suppress(ConnectionError):
                await self._write(to_json(message).decode(), True)
            raise
        finally:
            del self._calls[request_id]
        if isinstance(answer, dict):
            return answer
        raise MCPError(code=answer.code, message=answer.message, data=answer.data)

    def find_delivery(self, message: Any) -> Callable[[], None] | None:
        """Return what to do with a message that answers a call or reports its progress; None for other messages."""
        if not self._calls or not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return None
        if "method" not in message:
            return self._find_answer(message)
        params = message.get("params")
        if message["method"] != "notifications/progress" or not isinstance(params, dict):
            return None
        call = self._find(params.get("progressToken"))
        if call is None or call.on_progress is None or not _is_number(params.get("progress")):
            return None
        return partial(self._report, call, params)

    def end(self) -> None:
        self._has_ended = True
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(ConnectionError())

    def _find_answer(self, message: dict[str, Any]) -> Callable[[], None] | None:
        call, result = self._find(message.get("id")), message.get("result")
        if call is None:
            return None
        if isinstance(result, dict):
            return partial(call.set_answer, result)
        try:
            return partial(call.set_answer, ErrorData.model_validate(message.get("error"), by_name=False))
        except ValueError:  # it has neither a result nor an error
            return None

    def _find(self, request_id: Any) -> SentCall | None:
        if isinstance(request_id, str) and request_id.isdecimal():  # some servers answer with a text
            request_id = int(request_id[:20])
        return self._calls.get(request_id) if isinstance(request_id, int) else None

    def _report(self, call: SentCall, params: dict[str, Any]) -> None:
        assert call.on_progress is not None
        total, text = params.get("total", ""), params.get("message")
        report = call.on_progress(
            float(params["progress"]),
            float(total) if _is_number(total) else None,
            text if isinstance(text, str) else None,
        )
        task = asyncio.ensure_future(report)
        self._reports.add(task)
        task.add_done_callback(self._forget_report)

    def _forget_report(self, task: asyncio.Task[None]) -> None:
        self._reports.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a progress report could not be passed on", exc_info=error)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
