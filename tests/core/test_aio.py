import asyncio

import pytest

from ferrule.core import aio
from ferrule.core.aio import ProgressQueue, TaskScope, cancel_all, finish_despite_cancellation, wait_at_most


async def test_finish_returns_the_result_and_raises_the_error():
    async def divide(number: int) -> float:
        return 1 / number

    assert await finish_despite_cancellation(divide(2)) == 0.5
    with pytest.raises(ZeroDivisionError):
        await finish_despite_cancellation(divide(0))


async def test_finish_raises_a_cancellation_only_when_the_work_has_ended():
    started, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await may_end.wait()
        ended.set()
        raise RuntimeError("ignored: the caller was cancelled")

    task = asyncio.create_task(finish_despite_cancellation(work()))
    await started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    await asyncio.wait([task])
    assert task.cancelled() and ended.is_set()


async def test_leaving_a_scope_waits_for_its_tasks_even_if_leaving_is_cancelled():
    cleaning, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.set()

    async def leave_scope() -> None:
        async with TaskScope() as scope:
            scope.start(work())
            await asyncio.sleep(0)

    leaving = asyncio.create_task(leave_scope())
    await cleaning.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled() and ended.is_set()


async def test_a_task_that_ignores_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aio, "CANCEL_INTERVAL", 0.001)
    cancellations = 0

    async def stubborn() -> None:
        nonlocal cancellations
        while cancellations < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations += 1

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_all({task})
    assert task.done() and cancellations == 3


async def test_a_failed_task_of_a_scope_does_not_stop_the_others():
    async def fail() -> None:
        raise RuntimeError("failed")

    async def answer() -> int:
        return 42

    async with TaskScope() as scope:
        failing, answering = scope.start(fail()), scope.start(answer())
        await asyncio.wait([failing, answering])
    assert answering.result() == 42


async def test_wait_at_most_tells_whether_the_event_happened():
    event = asyncio.Event()
    assert not await wait_at_most(event, 0)
    event.set()
    assert await wait_at_most(event, 0)


async def test_a_queue_drops_the_oldest_progress_and_nothing_else():
    queue = ProgressQueue[str](10, len)
    for item in ("a", "first", "second", "b"):
        queue.add(item, is_progress=len(item) > 1)
    queue.add("longer than the limit", is_progress=True)
    queue.add("c")
    assert [await queue.get() for _ in range(4)] == ["a", "b", "longer than the limit", "c"]
    assert queue.is_empty
    reading = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    for item in ("third", "forth"):
        queue.add(item, is_progress=True)
    assert [await reading, await queue.get()] == ["third", "forth"]
    for number in range(3):
        queue.add(f"{number}234", is_progress=True)
    queue.add("d")
    assert [await queue.get() for _ in range(3)] == ["1234", "2234", "d"]
