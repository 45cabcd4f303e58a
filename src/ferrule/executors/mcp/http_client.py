"""The HTTP client under the SDK's transports: it adds the measure, and the facts, that they do not have.

An answer is never larger than a message may be, nor packed: unpacked, a few kilobytes may be more than there is memory.
A server that wants to be listened to again at once is listened to after a pause. A call whose own connection breaks
fails alone; the SDK would end the whole session, and all its other calls with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ferrule.executors.mcp.failures import CONNECTION_CLOSED, CUT_OFF, reason_of
from ferrule.executors.mcp.stdio import LARGEST_MESSAGE
from ferrule.executors.mcp.streams import Signals, current_attempt

if TYPE_CHECKING:
    import httpx2

LISTEN_AT_MOST_EVERY: Final = 0.5
"""Seconds between two requests that only listen: a server may say how soon to come back, and mean at once."""


def http_client(
    headers: dict[str, str] | None, timeout: httpx2.Timeout | None, auth: httpx2.Auth | None, *, signals: Signals
) -> httpx2.AsyncClient:
    """A client for one server."""
    client: httpx2.AsyncClient = _classes()[0](
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout,
        auth=auth,
        event_hooks={"request": [_Pace().wait], "response": [_Look(signals).look]},
    )
    return client


class _Pace:
    """Lets requests that only listen go one after the other."""

    def __init__(self) -> None:
        self._next = 0.0

    async def wait(self, request: httpx2.Request) -> None:
        if request.method == "GET":
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + LISTEN_AT_MOST_EVERY
            await asyncio.sleep(turn - now)


class _Look:
    """Notes what the SDK does not hand on, and refuses what is too much."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    async def look(self, response: httpx2.Response) -> None:
        import httpx2

        status = response.status_code
        self._signals.status = status if status >= 400 else None
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the server packed its answer although it was asked not to")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _classes()[1](response.stream)
        attempt = current_attempt.get()
        if attempt is not None and status in (400, 404) and "mcp-session-id" in response.request.headers:
            # Only 404 says so for certain; many servers answer 400 and say in words that they have no such session.
            attempt.is_forgotten = status == 404 or b"session" in (await response.aread()).lower()


@cache
def _classes() -> tuple[Any, Any]:
    import httpx2

    class Client(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            try:
                return await super().send(request, **options)
            except (httpx2.ReadError, httpx2.WriteError, httpx2.ReadTimeout, httpx2.WriteTimeout) as error:
                return _broken(request, error)
            except httpx2.RemoteProtocolError as error:
                return _broken(request, error)

    class Limited(httpx2.AsyncByteStream):
        """An answer that is read whole."""

        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            try:
                async for piece in self._stream:
                    size += len(piece)
                    if size > LARGEST_MESSAGE:
                        raise httpx2.StreamError(f"an answer of more than {LARGEST_MESSAGE:,} bytes")
                    yield piece
            except httpx2.TransportError as error:
                raise httpx2.StreamError(f"{CUT_OFF}{reason_of(error)}") from error

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Client, Limited


def _broken(request: httpx2.Request, error: httpx2.TransportError) -> httpx2.Response:
    """What the server would say of a call if it could; any other request fails as it is."""
    import httpx2

    said = json.loads(request.content) if request.method == "POST" else None
    if not isinstance(said, dict) or said.get("method") != "tools/call":
        raise error
    failure = {"code": CONNECTION_CLOSED, "message": f"{CUT_OFF}{reason_of(error)}"}
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": said.get("id"), "error": failure}, request=request)
