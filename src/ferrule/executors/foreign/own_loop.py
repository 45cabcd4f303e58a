"""Running the async face of a sync tool to its end in the thread we are in.

Frameworks put a sync function into a thread to await it. That thread cannot be ended: a call that timed out would go
on in it. Here nothing else runs on the loop, so the function may as well run right where it is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class SameThread(ThreadPoolExecutor):
    """Runs what it is given at once, in the thread that gives it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def run_in_this_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine's result; what it would put into other threads runs in this one."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(SameThread())
        return runner.run(coroutine)
