"""Functions in threads of this process, for those that no worker process can run.

A thread cannot be killed. When its call is cancelled, an exception is raised in it at its next Python instruction:
a loop, or code that comes after a `sleep`, stops there. Code that stays inside one call into C (a query, a download
without a time-out) goes on until that returns. Its progress and its calls of other tools are refused at once.
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
from typing import Any

from ferrule.call import Invocation, Progress, ToolExecutionResult
from ferrule.errors import Rejected
from ferrule.executors.function.nested_calls import NestedCalls

logger = logging.getLogger("ferrule.executors")

_TIME_TO_STOP = 0.1
"""Seconds a cancelled call waits for its thread."""


class FunctionThreads:
    """Runs functions in threads of their own, so many at once and no more."""

    def __init__(self, *, most: int = 256) -> None:
        self._most = most
        self._threads: list[threading.Thread] = []

    async def run(self, work: Callable[[Invocation], Any], invocation: Invocation) -> Any:
        """What `work` returns or raises in a thread."""
        self._make_room(invocation)
        call = _ThreadCall(work, invocation)
        self._threads.append(call.thread)
        call.thread.start()
        try:
            value, error = await call.ended
        except BaseException as cancellation:
            call.interrupt()
            if isinstance(cancellation, asyncio.CancelledError):
                await call.wait_a_moment()
            raise
        await call.nested.end()
        if error is not None:
            raise error
        return value

    def _make_room(self, invocation: Invocation) -> None:
        # Threads are not asked to sign off: one that is interrupted could fail to.
        if len(self._threads) >= self._most:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= self._most:
            raise Rejected(
                f"Tool {invocation.tool.id!r} needs a thread, but {self._most} tools still run in theirs, some perhaps "
                "for good. Let what they wait for have time-outs, or make them top-level functions of a module."
            )


class _ThreadCall:
    """One function in its thread."""

    def __init__(self, work: Callable[[Invocation], Any], invocation: Invocation) -> None:
        self._work, self._invocation = work, invocation
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self.nested = NestedCalls()
        self.ended: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()
        # A daemon: a function that never ends must not keep the interpreter from ending.
        self.thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=f"ferrule-{invocation.tool.id}", daemon=True
        )

    def interrupt(self) -> None:
        """Have SystemExit raised in the thread."""
        import ctypes

        self._is_over = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(SystemExit))

    async def wait_a_moment(self) -> None:
        """See the function's own calls ended, and give the thread time to end too."""
        try:
            await self.nested.end()
        finally:
            give_up_at = time.monotonic() + _TIME_TO_STOP
            while self.thread.is_alive() and time.monotonic() < give_up_at:
                await asyncio.sleep(0.001)
        if self.thread.is_alive():
            logger.warning(
                "tool=<%s> | cancelled, but its thread is busy and stops only at its next Python instruction",
                self._invocation.tool.id,
            )

    # In the thread

    def _run(self) -> None:
        inside = replace(
            self._invocation, report=self._report, call_tool=self._call_tool, call_tool_sync=self._call_tool_sync
        )
        Invocation.current.set(inside)
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = self._work(inside), None
        except BaseException as error:
            outcome = None, error
        with suppress(SystemExit):  # nobody waits any more
            self._tell(self._settle, outcome)

    def _report(self, progress: Progress) -> None:
        self._tell(self._deliver, progress)

    def _call_tool_sync(self, tool_name: str, params: dict[str, Any], action: str | None) -> ToolExecutionResult:
        return self._ask(tool_name, params, action).result()

    def _call_tool(self, tool_name: str, params: dict[str, Any], action: str | None) -> Awaitable[ToolExecutionResult]:
        return asyncio.wrap_future(self._ask(tool_name, params, action))

    def _ask(self, tool_name: str, params: dict[str, Any], action: str | None) -> Future[ToolExecutionResult]:
        answer: Future[ToolExecutionResult] = Future()
        self._tell(self._start_answering, answer, tool_name, params, action)
        return answer

    def _tell(self, listener: Callable[..., None], *args: Any) -> None:
        if self._is_over:
            raise SystemExit("the call has ended")
        try:
            self._loop.call_soon_threadsafe(listener, *args)
        except RuntimeError as error:
            raise SystemExit("the event loop has ended") from error

    # In the event loop

    def _settle(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)

    def _deliver(self, progress: Progress) -> None:
        if not self._is_over:
            self._invocation.report(progress)

    def _start_answering(
        self, answer: Future[ToolExecutionResult], tool_name: str, params: dict[str, Any], action: str | None
    ) -> None:
        self.nested.add(self._loop.create_task(self._answer(answer, tool_name, params, action)))

    async def _answer(
        self, answer: Future[ToolExecutionResult], tool_name: str, params: dict[str, Any], action: str | None
    ) -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result(await self._invocation.call_tool(tool_name, params, action))
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
