"""Where the server listens and how it reads HTTP: the port of its clients, and an internal listener for each worker.

Workers share the port, so the system chooses which of them gets a connection. At its internal listener a worker gets
what the other workers and servers of the store send to it: at a private socket, in a folder that only the user of the
server may enter, and at a port of its own. The head of a request has a limited size and time, because the client is not
authenticated yet.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from ferrule.server.responses import is_endless

MAX_PORTS: Final = 100
"""How many ports are tried for the internal listeners of the workers."""
BACKLOG: Final = 2048
OnListening = Callable[[int], None]
"""Called with the port, once the server listens."""


class SingleServer(uvicorn.Server):
    """The server of one process."""

    def __init__(self, config: uvicorn.Config, on_listening: OnListening) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_listening(self.servers[0].sockets[0].getsockname()[1])


class Workers(Multiprocess):
    """Several processes that share a port."""

    def __init__(self, config: uvicorn.Config, on_listening: OnListening) -> None:
        self._listener = config.bind_socket()
        super().__init__(config, [self._listener])
        self._on_listening: OnListening | None = on_listening

    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        if self._on_listening is not None and any(each.is_ready() for each in self.processes):
            self._on_listening(self._listener.getsockname()[1])
            self._on_listening = None

    def terminate_all(self) -> None:
        for each in self.sockets:  # or else clients connect and wait, while the workers finish what they have begun
            each.close()
        super().terminate_all()


_INTERNAL: Final = "ferrule.internal"


def is_internal(scope: Scope) -> bool:
    """Return whether a request came in at the internal listener."""
    return scope.get(_INTERNAL) is True


class InternalListener:
    """An application that is also served to the other workers and servers, while it runs."""

    def __init__(
        self, app: ASGIApp, path: Path | None, internal_socket: socket.socket | None = None, *, grace_seconds: int
    ) -> None:
        """`path` is where a private socket is to be made; `internal_socket` is bound to a port already."""
        self._app, self._path, self._internal_socket = app, path, internal_socket
        self._sockets: list[socket.socket] = []

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, _INTERNAL: True}, receive, send)

        config = uvicorn.Config(
            answer,
            http=LimitedHttpProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        self._server = uvicorn.Server(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            private_socket = None if self._path is None else _bind(self._path)
        except OSError as error:
            await receive()
            reason = f"The socket {self._path} of a worker cannot be used: {error}. Set TMPDIR to another folder."
            await send({"type": "lifespan.startup.failed", "message": reason})
            return

        self._sockets = [each for each in (private_socket, self._internal_socket) if each is not None]

        async def receive_and_stop() -> Any:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._server.shutdown(self._sockets)
                if self._path is not None:
                    self._path.unlink(missing_ok=True)
            return message

        async def start_and_send(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                server, config = self._server, self._server.config
                config.load()
                server.lifespan = config.lifespan_class(config)
                await server.startup(self._sockets)
            await send(message)

        await self._app(scope, receive_and_stop, start_and_send)


def _bind(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):  # of an earlier process with the same number
        path.unlink()
    private_socket = socket.socket(socket.AF_UNIX)
    try:
        private_socket.bind(str(path))
    except OSError:
        private_socket.close()
        raise
    return private_socket


def bind_internal_port(host: str, port: int) -> socket.socket:
    """Bind a socket for the other servers. With a port, the next one that is free: each worker has its own."""
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    last = port + MAX_PORTS if port else 0
    while True:
        internal_socket = socket.socket(family)
        internal_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            internal_socket.bind((host, port))
            internal_socket.listen(BACKLOG)  # so that no other worker can bind it too
            return internal_socket
        except OSError:
            internal_socket.close()
            if port >= last:
                raise
            port += 1


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
        """Close streams without an end when the server stops. Requests in progress go on."""
        super().shutdown()
        if self.cycle is not None and not self.cycle.response_complete and is_endless(self.scope):
            self.transport.close()

    def _end_head(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
