"""A client of a foreign SDK, made when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=Closable)


class LazyClient(Generic[ClientT]):
    """Makes the client in a thread: importing an SDK takes up to a second, in which the event loop must not stand.

    A client's connections belong to one event loop, so each loop gets a client of its own.
    """

    def __init__(self, make: Callable[[], ClientT]) -> None:
        self._make = make
        self._client: ClientT | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._making = asyncio.Lock()

    async def get(self) -> ClientT:
        loop = asyncio.get_running_loop()
        if self._client is not None and self._loop is loop:
            return self._client
        if self._loop is not loop:
            self._client, self._loop, self._making = None, loop, asyncio.Lock()
        async with self._making:
            if self._client is None:
                self._client = await asyncio.to_thread(self._make)
            return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()
