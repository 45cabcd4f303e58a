"""How the server reads HTTP: the head of a request has a limited size and time, because nobody is authenticated yet."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ferrule.server.endless_responses import is_endless

MAX_HEAD_SIZE: Final = 64 * 1024
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn itself collects a request line and headers of any length, for any time."""

    head_timeout: ClassVar[float] = 30.0
    """Seconds from the connection, or from the first byte of a further request, to the end of the headers."""
    _head_size = 0
    _head_timer: asyncio.TimerHandle | None = None
    """Set while the head of a request is awaited."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
