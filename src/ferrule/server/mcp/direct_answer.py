"""The response to a request that is answered without the SDK: a JSON document, or a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from starlette.types import Receive, Send

from ferrule.server.messages import encode_answer, send_json, wait_for_disconnect

WATCH_DELAY: Final = 0.05
"""Seconds after which a disconnect of the client is watched for."""
PING_INTERVAL: Final = 15.0
"""Seconds after which a slow answer becomes a stream of events, so that no proxy ends the connection."""
_EVENT_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class DirectAnswer:
    """One response. What is sent before the result makes it a stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock: asyncio.Lock | None = None
        """Of the stream; None while there is none."""
        self._task: asyncio.Task[Any] | None = None
        """The task of the request, while the result is awaited."""
        self._has_disconnected = self._is_cancelled = False

    async def wait_for(self, work: Coroutine[Any, Any, Any], receive: Receive) -> Any:
        """The result or the error of some work; None if the client has disconnected, which ends the work.

        CancelledError is returned when `cancel` has ended it.
        """
        task = self._task = asyncio.current_task()
        assert task is not None
        watching: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(WATCH_DELAY, self._start_to_watch, receive, watching)
        try:
            return await work
        except asyncio.CancelledError as error:
            if not (self._has_disconnected or self._is_cancelled):
                raise
            task.uncancel()
            return None if self._has_disconnected else error
        except Exception as error:
            return error
        finally:
            self._task = None
            timer.cancel()
            for each in watching:
                each.cancel()

    def cancel(self) -> bool:
        """End the work, because the client has cancelled the request; False if it has ended already."""
        if self._task is None:
            return False
        self._is_cancelled = True
        return self._task.cancel()

    async def send_message(self, message: dict[str, Any]) -> None:
        """Send a message of JSON-RPC before the result."""
        await self._send_event(b"event: message\r\ndata: " + encode_answer(message) + b"\r\n\r\n")

    async def finish(self, status: int, body: bytes) -> None:
        """Send the result."""
        if self._lock is None:
            await send_json(self._send, status, body)
        else:
            event = b"event: message\r\ndata: " + body + b"\r\n\r\n"
            async with self._lock:
                await self._send({"type": "http.response.body", "body": event})

    async def _send_event(self, event: bytes) -> None:
        is_first = self._lock is None
        lock = self._lock = self._lock or asyncio.Lock()
        async with lock:
            if is_first:
                await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    def _start_to_watch(self, receive: Receive, watching: list[asyncio.Task[None]]) -> None:
        watching.append(asyncio.ensure_future(self._watch(receive)))

    async def _watch(self, receive: Receive) -> None:
        """End the work when the client disconnects, and show it signs of life until then."""
        disconnecting = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            while not disconnecting.done():
                await asyncio.wait({disconnecting}, timeout=PING_INTERVAL)
                if not disconnecting.done():
                    await self._send_event(b": ping\r\n\r\n")
        finally:
            disconnecting.cancel()
        if self._task is not None:
            self._has_disconnected = True
            self._task.cancel()
