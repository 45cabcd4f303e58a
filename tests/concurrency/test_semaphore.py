import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ferrule.concurrency.semaphore import ThreadsafeSemaphore


@given(
    limit=st.integers(1, 4),
    calls=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 8)), max_size=20),
)
def test_the_limit_holds_and_no_permit_is_lost_by_cancellation(limit, calls):
    semaphore, inside, peak = ThreadsafeSemaphore(limit), 0, 0

    async def call(steps: int) -> None:
        nonlocal inside, peak
        await semaphore.acquire()
        inside += 1
        peak = max(peak, inside)
        try:
            for _ in range(steps):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            semaphore.release()

    async def main() -> None:
        tasks = [asyncio.create_task(call(steps)) for steps, _ in calls]
        for turn in range(9):
            for task, (_, cancelled_in) in zip(tasks, calls, strict=True):
                if cancelled_in == turn:
                    task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(limit):  # all are free again
            await asyncio.wait_for(semaphore.acquire(), 60)

    asyncio.run(main())
    assert peak <= limit


async def test_waiting_tasks_are_served_in_order():
    semaphore, order = ThreadsafeSemaphore(1), []
    await semaphore.acquire()

    async def wait(number: int) -> None:
        await semaphore.acquire()
        order.append(number)
        semaphore.release()

    waiting = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    semaphore.release()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]


async def test_a_suspended_permit_is_free_for_others_and_comes_back_without_waiting():
    semaphore = ThreadsafeSemaphore(1)
    await semaphore.acquire()
    with semaphore.suspend():
        await asyncio.wait_for(semaphore.acquire(), 60)
    latecomer = asyncio.create_task(semaphore.acquire())
    semaphore.release()
    for _ in range(10):  # turns of the event loop in which a permit would be handed over
        await asyncio.sleep(0)
    assert not latecomer.done()  # one permit, and the owner that suspended it has it again
    semaphore.release()
    await asyncio.wait_for(latecomer, 60)


def test_a_waiting_task_of_a_closed_event_loop_is_skipped():
    semaphore = ThreadsafeSemaphore(1)

    async def wait_for_ever() -> Coroutine[Any, Any, None]:
        await semaphore.acquire()
        waiting = semaphore.acquire()
        waiting.send(None)
        return waiting

    abandoned = asyncio.run(wait_for_ever())
    semaphore.release()

    async def acquire_twice() -> asyncio.Task[None]:
        await asyncio.wait_for(semaphore.acquire(), 60)
        second = asyncio.create_task(semaphore.acquire())
        await asyncio.sleep(0)
        return second

    assert asyncio.run(acquire_twice()).cancelled()  # it waited: there was one permit, and only one
    abandoned.close()
