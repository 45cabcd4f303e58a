"""A semaphore that several event loops and threads may share.

`asyncio.Semaphore` belongs to one event loop. This one limits things that outlive a loop or are shared by several of
them: functions in worker processes, look-ups of host names. An owner can also give its permit up for a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class ThreadsafeSemaphore:
    """At most `limit` permits; tasks that find none free get one in the order in which they asked."""

    def __init__(self, limit: int) -> None:
        self._limit, self._acquired = limit, 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    async def acquire(self) -> None:
        with self._lock:
            if self._acquired < self._limit and not self._waiters:
                self._acquired += 1
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
        try:
            await waiter  # `release` hands its permit over without counting it as free in between
        except BaseException:
            with self._lock, suppress(ValueError):
                self._waiters.remove(waiter)
            if waiter.done() and not waiter.cancelled():
                self.release()
            raise

    def release(self) -> None:
        with self._lock:
            # After `suspended`, more permits may be in use than the limit allows.
            while self._waiters and self._acquired <= self._limit:
                waiter = self._waiters.popleft()
                with suppress(RuntimeError):  # its event loop is closed: try the next one
                    waiter.get_loop().call_soon_threadsafe(self._hand_over, waiter)
                    return
            self._acquired -= 1

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *exc: object) -> None:
        self.release()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Let others use the permit during the block.

        Coming back never waits, even if that exceeds the limit: those others may be waiting for this owner.
        """
        self.release()
        try:
            yield
        finally:
            with self._lock:
                self._acquired += 1

    def _hand_over(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done():
            self.release()
        else:
            waiter.set_result(None)
