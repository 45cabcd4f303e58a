"""A server behind a WebSocket: each JSON-RPC message is one text frame, the subprotocol is `mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ferrule.errors import MissingExtra
from ferrule.executors.mcp.config import McpServerConfig
from ferrule.executors.mcp.stdio import LARGEST_MESSAGE
from ferrule.executors.mcp.streams import Inbox, Outbox, Signals, Streams

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


@asynccontextmanager
async def websocket_streams(config: McpServerConfig, signals: Signals) -> AsyncIterator[Streams]:
    """The server, connected."""
    try:
        from websockets.exceptions import ConnectionClosed
        from websockets.typing import Subprotocol
    except ImportError:
        raise MissingExtra("websockets", "mcp") from None
    async with _connector()(
        config.url or "",
        subprotocols=[Subprotocol("mcp")],
        additional_headers=dict(config.headers),
        max_size=LARGEST_MESSAGE,
        close_timeout=2,
    ) as connection:

        async def write(text: str, urgent: bool) -> None:
            try:
                await connection.send(text)
            except ConnectionClosed as error:
                raise BrokenPipeError(str(error)) from error

        room = asyncio.Event()
        room.set()
        inbox = Inbox(lambda crowded: room.clear() if crowded else room.set())
        reader = asyncio.create_task(_receive(connection, inbox, room, signals))
        try:
            yield inbox, Outbox(write)
        finally:
            reader.cancel()
            await asyncio.wait({reader})


@cache
def _connector() -> Any:
    from websockets.asyncio.client import connect
    from websockets.exceptions import SecurityError

    class ConnectToOrigin(connect):
        """A server may move within its origin; what we would tell another one is not meant for it."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            found = super().process_redirect(exc)
            if isinstance(found, str) and urlsplit(found)[:2] != urlsplit(self.uri)[:2]:
                address = urlsplit(found)._replace(query="", fragment="").geturl()
                return SecurityError(f"its redirect to {address} was not followed; write that address if it is meant")
            return found

    return ConnectToOrigin


async def _receive(connection: ClientConnection, inbox: Inbox, room: asyncio.Event, signals: Signals) -> None:
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter
    from websockets.exceptions import ConnectionClosed

    try:
        async for frame in connection:
            try:
                message = jsonrpc_message_adapter.validate_json(frame, by_name=False)
            except ValueError:
                signals.log.message("warning", f"a frame that is no message: {frame[:200]!r}")
                continue
            inbox.put(SessionMessage(message))
            await room.wait()
    except ConnectionClosed as error:
        signals.ending = f"the connection was closed: {error}"
        signals.log.message("warning", signals.ending)
    finally:
        inbox.end()
        signals.ended.set()
