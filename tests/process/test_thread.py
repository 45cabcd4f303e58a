"""Functions in threads: what a cancelled call has asked for is not done any more."""

import asyncio
import threading
from typing import Any

import pytest

from ferrule.core.call import Invocation, ToolExecutionResult
from ferrule.process.thread import FunctionThreads
from tests.kinds.function.invocations import invocation_of
from tests.support.waiting import DEADLINE, until


async def test_a_tool_that_a_thread_called_just_before_its_call_was_cancelled_is_not_run(monkeypatch):
    loop = asyncio.get_running_loop()
    has_started, may_call, has_asked = threading.Event(), threading.Event(), threading.Event()
    calls: list[Any] = []

    def work(invocation: Invocation) -> None:
        has_started.set()
        may_call.wait(DEADLINE)
        assert invocation.call_tool_sync is not None
        invocation.call_tool_sync("other", {}, None)

    async def call_tool(*request: Any) -> ToolExecutionResult:
        calls.append(request)
        raise AssertionError

    call_soon = loop.call_soon_threadsafe

    def call_soon_and_say_so(*arguments: Any, **options: Any) -> Any:
        handle = call_soon(*arguments, **options)
        has_asked.set()
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon_and_say_so)
    running = asyncio.create_task(FunctionThreads().run(work, invocation_of(work, call_tool=call_tool)))
    await until(has_started.is_set)
    running.cancel()
    may_call.set()
    assert has_asked.wait(DEADLINE)  # while the event loop has not seen the cancellation yet
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    assert calls == []
