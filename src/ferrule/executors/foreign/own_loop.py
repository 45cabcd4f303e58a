"""Running the async face of a sync tool to its end in the thread we are in.

Frameworks put a sync function into a thread to await it. That thread cannot be ended: a call that timed out would go
on in it. Here nothing else runs on the loop, so the function may as well run right where it is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


class SameThread(ThreadPoolExecutor):
    """Runs what it is given at once, in the thread that gives it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        with _no_loop_running():
            try:
                done.set_result(fn(*args, **kwargs))
            except Exception as error:
                done.set_exception(error)
        return done


@contextmanager
def _no_loop_running() -> Iterator[None]:
    """As in a thread of its own, where `asyncio.run` may be called."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def run_in_this_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine's result; what it would put into other threads runs in this one."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(SameThread())
        return runner.run(coroutine)
