"""A library opened on an event loop of its own, in a thread, for programs that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Self

from ferrule.library import UnifiedToolLibrary


class LibraryThread:
    """Opens the library in a thread; `with LibraryThread(library): …` closes it at the end."""

    def __init__(self, library: UnifiedToolLibrary) -> None:
        self._library = library
        self._opened: Future[None] = Future()
        # A daemon: a program that forgets to stop it can still end.
        self._thread = threading.Thread(target=self._run, name="ferrule-library", daemon=True)

    def start(self) -> None:
        """Returns when the library is open; raises what kept it from being opened."""
        self._thread.start()
        self._opened.result()

    def stop(self) -> None:
        """Close the library and end the thread. More than once does no harm."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._leave.set)
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._library:
                self._opened.set_result(None)
                await self._leave.wait()
        except BaseException as error:  # whatever it is: somebody waits in start()
            if self._opened.done():
                raise
            self._opened.set_exception(error)
