"""Serves an application that is made again when its configuration changes.

New requests are answered by the new application, and those in progress finish where they began. A configuration that
cannot be used is logged, and the application of the last good one goes on. What does not end by itself, such as a
stream of events, is ended: clients open it again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.core.aio import cancel_all
from ferrule.errors import FerruleError
from ferrule.kinds.source import WatchedFolder
from ferrule.kinds.watching import FileWatcher
from ferrule.server.responses import is_endless

logger = logging.getLogger("ferrule.server")

MakeApp = Callable[[], ASGIApp]
CHECK_INTERVAL: Final = 1.0
"""Seconds after which requests in progress are looked at again for streams that do not end."""


class ReloadableApp:
    """An application that follows a file."""

    def __init__(self, make_app: MakeApp, file: Path | None, *, interval: float = 5.0, instant: bool = True) -> None:
        """Without a file, only the signal SIGHUP makes the application again."""
        self._make_app, self._file, self._interval, self._instant = make_app, file, interval, instant
        self._current: RunningApp | None = None
        self._ending: dict[asyncio.Task[None], RunningApp] = {}
        """Earlier applications, which still answer requests."""
        self._reloading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run(receive, send)
            return
        assert self._current is not None, "uvicorn takes requests when the application has started"
        await self._current.answer(scope, receive, send)

    async def reload(self) -> bool:
        """Make the application again; False when that failed, and the earlier one goes on."""
        async with self._reloading:
            try:
                app = RunningApp(await asyncio.to_thread(self._make_app))
                await app.start()
            except (FerruleError, OSError, StartFailed) as error:
                logger.error("error=<%s> | the new configuration is not used", error)
                return False
            earlier, self._current = self._current, app
            logger.warning("the configuration was read again and is used from now on")
            if earlier is not None:
                task = asyncio.create_task(earlier.end())
                self._ending[task] = earlier
                task.add_done_callback(self._ending.pop)
            return True

    async def _run(self, receive: Receive, send: Send) -> None:
        """As long as the server runs."""
        await receive()

        async def reload(changed: set[Path]) -> None:
            await self.reload()

        watcher = None
        if self._file is not None:  # made before the file is read: no change is missed
            folder = WatchedFolder.of_file(self._file)
            watcher = FileWatcher([folder], reload, interval=self._interval, instant=self._instant)
        try:
            self._current = RunningApp(self._make_app())
            await self._current.start()
        except (FerruleError, StartFailed) as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        remove_handler = self._handle_signal()
        if watcher is not None:
            watcher.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        remove_handler()
        if watcher is not None:
            await watcher.aclose()
        earlier = dict(self._ending)
        await cancel_all(earlier.keys())
        for app in (*earlier.values(), self._current):
            await app.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _handle_signal(self) -> Callable[[], object]:
        """Reload at SIGHUP, as other servers do; returns what stops that."""
        if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
            return lambda: None
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[bool]]()

        def reload() -> None:
            task = loop.create_task(self.reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
        return lambda: loop.remove_signal_handler(signal.SIGHUP)


class StartFailed(Exception):
    """An application could not start."""


class RunningApp:
    """One application from its start to its end, and the requests that it answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._requests: dict[asyncio.Task[Any], Scope] = {}
        self._ended_requests: set[asyncio.Task[Any]] = set()
        self._started: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        """What the application says when it has started, or cannot start."""
        self._stopping = asyncio.Event()
        self._lifespan: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """StartFailed when the application cannot start."""
        self._lifespan = asyncio.create_task(self._run())
        try:
            await asyncio.wait({self._started})
        except asyncio.CancelledError:
            await cancel_all([self._lifespan])
            raise
        reply = self._started.result()
        if reply["type"] != "lifespan.startup.complete":
            await asyncio.wait({self._lifespan})
            raise StartFailed(reply.get("message") or "The application could not start.")

    async def _run(self) -> None:
        """Run the application from its start until `stop`."""

        async def receive() -> Message:
            if not self._started.done():
                return {"type": "lifespan.startup"}
            await self._stopping.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message: Message) -> None:
            if not self._started.done():
                self._started.set_result(message)

        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if not self._started.done() or self._started.result()["type"] == "lifespan.startup.complete":
                logger.error("the application failed", exc_info=error)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
        finally:  # also when the application was cancelled: `start` must not wait for ever
            await send({"type": "lifespan.startup.failed"})

    async def stop(self) -> None:
        """Close what the application has opened; a second time, wait until that is done."""
        self._stopping.set()
        if self._lifespan is not None:
            await asyncio.wait({self._lifespan})

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._requests[task] = scope
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if task not in self._ended_requests:
                raise
            task.uncancel()
            with suppress(Exception):  # the client has gone, or the response has ended
                await send({"type": "http.response.body", "body": b""})
        finally:
            del self._requests[task]
            self._ended_requests.discard(task)

    async def end(self) -> None:
        """End streams without an end, wait for the other requests, and stop."""
        while self._requests:
            for task, scope in list(self._requests.items()):
                if is_endless(scope) and task not in self._ended_requests:
                    self._ended_requests.add(task)
                    task.cancel()
            await asyncio.wait(set(self._requests), timeout=CHECK_INTERVAL)
        await self.stop()
