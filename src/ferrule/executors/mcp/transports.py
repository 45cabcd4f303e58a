"""The ways to reach a server, each as the pair of streams a session wants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final

from ferrule.executors.mcp.config import Kind, McpServerConfig
from ferrule.executors.mcp.http_client import http_client
from ferrule.executors.mcp.stdio import LARGEST_MESSAGE, stdio_streams
from ferrule.executors.mcp.streams import Signals, Streams, Watched
from ferrule.executors.mcp.websocket import websocket_streams

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT: Final = 30.0
SILENCE: Final = 300.0
"""Seconds a server may keep a response open without a word; the time of a call is limited elsewhere."""


def open_streams(kind: Kind, config: McpServerConfig, signals: Signals) -> AbstractAsyncContextManager[Streams]:
    """A connection to a server whose variables are filled in."""
    return {"stdio": stdio_streams, "ws": websocket_streams, "http": _http_streams, "sse": _sse_streams}[kind](
        config, signals
    )


@asynccontextmanager
async def _http_streams(config: McpServerConfig, signals: Signals) -> AsyncIterator[Streams]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=max(SILENCE, config.timeout or 0))
    async with (
        http_client(dict(config.headers), timeout, None, signals=signals) as client,
        streamable_http_client(config.url or "", http_client=client, max_sse_event_size=LARGEST_MESSAGE) as streams,
    ):
        read, write = streams
        yield Watched(read, signals.ended.set), write


@asynccontextmanager
async def _sse_streams(config: McpServerConfig, signals: Signals) -> AsyncIterator[Streams]:
    from mcp.client.sse import sse_client

    def factory(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return http_client(headers, timeout, auth, signals=signals)

    async with sse_client(
        config.url or "",
        headers=dict(config.headers),
        timeout=CONNECT_TIMEOUT,
        sse_read_timeout=max(SILENCE, config.timeout or 0),
        httpx_client_factory=factory,
    ) as (read, write):
        yield Watched(read, signals.ended.set), write
