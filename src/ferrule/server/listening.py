"""Where the server listens: the port of its clients, and for each of several workers a socket of its own.

Workers share the port, so the system chooses which of them gets a connection. By its private socket, in a folder that
only the user of the server may enter, a worker gets what the others forward to it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.supervisors import Multiprocess

from ferrule.server.protocol import LimitedHttpProtocol

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


class PrivatelyServedApp:
    """An application that is also served at a private socket, while it runs."""

    def __init__(self, app: ASGIApp, path: Path, *, grace_seconds: int) -> None:
        self._app, self._path = app, path
        config = uvicorn.Config(
            app,
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
            private_socket = self._bind()
        except OSError as error:
            await receive()
            reason = f"The socket {self._path} of a worker cannot be used: {error}. Set TMPDIR to another folder."
            await send({"type": "lifespan.startup.failed", "message": reason})
            return

        async def receive_and_stop() -> Any:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._stop(private_socket)
            return message

        async def start_and_send(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._start(private_socket)
            await send(message)

        await self._app(scope, receive_and_stop, start_and_send)

    def _bind(self) -> socket.socket:
        with suppress(FileNotFoundError):  # of an earlier process with the same number
            self._path.unlink()
        private_socket = socket.socket(socket.AF_UNIX)
        try:
            private_socket.bind(str(self._path))
        except OSError:
            private_socket.close()
            raise
        return private_socket

    async def _start(self, private_socket: socket.socket) -> None:
        server, config = self._server, self._server.config
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup([private_socket])

    async def _stop(self, private_socket: socket.socket) -> None:
        await self._server.shutdown([private_socket])
        self._path.unlink(missing_ok=True)
