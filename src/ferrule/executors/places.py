"""How many may be at work at once: functions in workers, look-ups of names.

A semaphore of its own: asyncio's belongs to one event loop, and these may see several, one after another or in
several threads. And a place can be lent while its owner only waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Places:
    """So many places; who finds none free gets one in the order of asking."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    async def take(self) -> None:
        with self._lock:
            if self._taken < self._most and not self._waiters:
                self._taken += 1
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
        try:
            await waiter  # whoever leaves hands their place over
        except BaseException:
            with self._lock, suppress(ValueError):
                self._waiters.remove(waiter)
            if waiter.done() and not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        with self._lock:
            # More may be taken than there are, after some were lent.
            while self._waiters and self._taken <= self._most:
                waiter = self._waiters.popleft()
                with suppress(RuntimeError):  # its event loop is closed: on to the next
                    waiter.get_loop().call_soon_threadsafe(self._hand_over, waiter)
                    return
            self._taken -= 1

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let others have the place meanwhile. Coming back never waits: those others may be waiting for us."""
        self.leave()
        try:
            yield
        finally:
            with self._lock:
                self._taken += 1

    def _hand_over(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done():
            self.leave()
        else:
            waiter.set_result(None)
