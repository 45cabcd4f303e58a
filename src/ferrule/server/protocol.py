"""How the server reads and writes HTTP.

The head of a request has a limited size and time, because nobody is authenticated yet. The head of a response is sent
together with its body: each system call takes longer than many a call of a tool.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ferrule.server.endless_responses import is_endless

MAX_HEAD_SIZE: Final = 64 * 1024
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class JoiningTransport:
    """A transport that holds the head of a response until what follows is written, at most until the loop goes on."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        self._flushing: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing, data, self._head = None, self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head, self._flushing = data, self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            data, self._flushing, self._head = self._head, None, b""
            self._transport.write(data)


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn itself collects a request line and headers of any length, for any time."""

    head_timeout: ClassVar[float] = 30.0
    """Seconds from the connection, or from the first byte of a further request, to the end of the headers."""
    _head_size = 0
    _head_timer: asyncio.TimerHandle | None = None
    """Set while the head of a request is awaited."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]
        self._head_timer = self.loop.call_later(self.head_timeout, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is None or self.transport.is_closing():
            return
        self._head_size += len(data)
        if self._head_size > MAX_HEAD_SIZE:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout, self.transport.close)

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: requests in progress go on, but streams without an end are closed."""
        super().shutdown()
        if self.cycle is not None and not self.cycle.response_complete and is_endless(self.scope):
            self.transport.close()

    def _end_head(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
