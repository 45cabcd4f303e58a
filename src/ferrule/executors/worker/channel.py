"""Frames to and from one worker, over a socket that belongs to no event loop.

The loop of the moment is asked only to say when the socket is ready. So a worker outlives the loop that started it,
and a worker that floods us gets one read per turn of the loop: everything else, time-outs included, goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from ferrule.errors import ExecutionFailed
from ferrule.executors.worker.frames import HEADER_SIZE, decode_from_worker, encode, length_of

CHUNK = 1 << 16


class Channel:
    """One end of a conversation in frames. EOFError means that the other end is gone."""

    def __init__(self, connection: socket.socket, max_frame: int) -> None:
        connection.setblocking(False)
        self._max_frame = max_frame
        self._socket = connection
        self._descriptor = connection.fileno()
        self._received = bytearray()

    async def send(self, frame: Any) -> None:
        await self.send_bytes(encode(frame))

    async def send_bytes(self, encoded: bytes) -> None:
        left = memoryview(encoded)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await self._ready(to_write=True)
            except OSError as error:
                raise EOFError("the worker is gone") from error

    async def receive(self) -> Any:
        while True:
            if (frame := self._next_received()) is not None:
                return frame
            await self._ready(to_write=False)
            with contextlib.suppress(BlockingIOError):
                self._received += self._read()

    def is_open(self) -> bool:
        """Whether the other end was still there a moment ago."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def say_goodbye(self) -> None:
        """Tell the other end that nothing more will come."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        try:
            chunk = self._socket.recv(CHUNK)
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise EOFError("the worker is gone")
        return chunk

    def _next_received(self) -> Any:
        received = self._received
        if len(received) < HEADER_SIZE:
            return None
        length = length_of(received)
        if length > self._max_frame:
            raise ExecutionFailed(
                f"A worker process was about to send {length:,} bytes, more than the {self._max_frame:,} allowed, and "
                "was ended. Let the tool return less, or write to a file and return its path."
            )
        end = HEADER_SIZE + length
        if len(received) < end:
            return None
        with memoryview(received) as view, view[HEADER_SIZE:end] as payload:
            frame = decode_from_worker(payload)
        del received[:end]
        return frame

    async def _ready(self, *, to_write: bool) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        watch, unwatch = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
        watch(self._descriptor, _mark_ready, ready)
        try:
            await ready
        finally:
            unwatch(self._descriptor)


def _mark_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():  # the loop may call again before the waiter has run
        ready.set_result(None)
