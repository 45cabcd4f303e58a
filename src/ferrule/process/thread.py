"""Functions in threads of this process, for those that no worker process can run.

A thread cannot be killed. When its call is cancelled, an exception is raised in it at its next Python instruction:
a loop, or code that comes after a `sleep`, stops there. Code that stays inside one call into C (a query, a download
without a timeout) goes on until that returns. From the cancellation on, the thread can neither report progress nor call
other tools.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ferrule.core.aio import cancel_all
from ferrule.core.call import Invocation, Progress, ToolExecutionResult
from ferrule.errors import ExecutionFailed, Rejected

logger = logging.getLogger("ferrule.process")

NestedCall: TypeAlias = Callable[[], Awaitable[ToolExecutionResult]]
MAX_THREADS = 256
_STOP_TIMEOUT = 0.1
"""Seconds a cancelled call waits for its thread."""


class FunctionThreads:
    """Runs functions in threads of their own, up to a limit."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    async def run(self, work: Callable[[Invocation], Any], invocation: Invocation) -> Any:
        """Run `work` in a thread; returns or raises what it does."""
        # Threads do not remove themselves from the list: one that is interrupted could fail to.
        if len(self._threads) >= MAX_THREADS:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= MAX_THREADS:
            raise Rejected(
                f"Tool {invocation.tool.id!r} needs a thread, but {MAX_THREADS} tools still run in threads, some "
                "perhaps for ever. Give their requests timeouts, or make them top-level functions of a module."
            )
        call = _ThreadCall(work, invocation)
        self._threads.append(call.thread)
        call.thread.start()
        try:
            value, error = await call.outcome
        except BaseException as cancellation:
            call.interrupt()
            if isinstance(cancellation, asyncio.CancelledError):
                await call.wait_for_thread()
            raise
        await cancel_all(call.nested)
        if isinstance(error, KeyboardInterrupt):  # a thread never gets Ctrl-C: the function raised it itself
            raise ExecutionFailed(f"Tool {invocation.tool.id!r} raised KeyboardInterrupt.") from error
        if error is not None:
            raise error
        return value


class _ThreadCall:
    """One function in its thread."""

    def __init__(self, work: Callable[[Invocation], Any], invocation: Invocation) -> None:
        self._work, self._invocation = work, invocation
        self._loop = asyncio.get_running_loop()
        self._has_ended = False
        self.nested: set[asyncio.Task[None]] = set()
        """The calls of other tools that the function has made; they end with the function at the latest."""
        self.outcome: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()
        # A daemon thread: a function that never returns must not keep the interpreter from exiting.
        self.thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=f"ferrule-{invocation.tool.id}", daemon=True
        )

    def interrupt(self) -> None:
        """Raise SystemExit in the thread."""
        import ctypes

        self._has_ended = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(SystemExit))

    async def wait_for_thread(self) -> None:
        """Wait until the function's nested calls have ended, and briefly for the thread itself."""
        try:
            await cancel_all(self.nested)
        finally:
            deadline = time.monotonic() + _STOP_TIMEOUT
            while self.thread.is_alive() and time.monotonic() < deadline:
                await asyncio.sleep(0.001)
        if self.thread.is_alive():
            logger.warning(
                "tool=<%s> | cancelled, but its thread is busy and stops only at its next Python instruction",
                self._invocation.tool.id,
            )

    # These methods run in the thread.

    def _run(self) -> None:
        inside = replace(
            self._invocation,
            report=partial(self._call_soon, self._forward_report),
            call_tool=lambda *request: asyncio.wrap_future(self._request(*request)),
            call_tool_sync=lambda *request: self._request(*request).result(),
        )
        Invocation.current.set(inside)
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = self._work(inside), None
        except BaseException as error:
            outcome = None, error
        with suppress(SystemExit):  # the caller does not wait any more
            self._call_soon(self._set_outcome, outcome)

    def _request(self, tool_name: str, params: dict[str, Any], action: str | None) -> Future[ToolExecutionResult]:
        """Have the event loop call another tool."""
        future: Future[ToolExecutionResult] = Future()
        self._call_soon(self._start_nested, future, partial(self._invocation.call_tool, tool_name, params, action))
        return future

    def _call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        if self._has_ended:
            raise SystemExit("the call has ended")
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError as error:
            raise SystemExit("the event loop has ended") from error

    # These methods run in the event loop.

    def _set_outcome(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def _forward_report(self, progress: Progress) -> None:
        if not self._has_ended:
            self._invocation.report(progress)

    def _start_nested(self, future: Future[ToolExecutionResult], call: NestedCall) -> None:
        if self._has_ended:  # after the thread asked for it
            future.cancel()
            return
        task = self._loop.create_task(self._run_nested(future, call))
        self.nested.add(task)
        task.add_done_callback(self.nested.discard)

    async def _run_nested(self, future: Future[ToolExecutionResult], call: NestedCall) -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(await call())
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
