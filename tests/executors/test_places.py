import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.executors.places import Places


@settings(max_examples=60, deadline=None)
@given(
    most=st.integers(1, 4),
    calls=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 8)), max_size=20),
)
def test_places_are_never_exceeded_nor_lost_whoever_is_cancelled(most, calls):
    places, inside, peak = Places(most), 0, 0

    async def call(steps: int) -> None:
        nonlocal inside, peak
        await places.take()
        inside += 1
        peak = max(peak, inside)
        try:
            for _ in range(steps):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            places.leave()

    async def main() -> None:
        tasks = [asyncio.create_task(call(steps)) for steps, _ in calls]
        for turn in range(9):
            for task, (_, cancelled_in) in zip(tasks, calls, strict=True):
                if cancelled_in == turn:
                    task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(most):  # all are free again
            await asyncio.wait_for(places.take(), 1)

    asyncio.run(main())
    assert peak <= most


async def test_who_waits_first_is_first():
    places, order = Places(1), []
    await places.take()

    async def wait(number: int) -> None:
        await places.take()
        order.append(number)
        places.leave()

    waiting = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    places.leave()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]


async def test_a_lent_place_is_there_for_others_and_comes_back_at_once():
    places = Places(1)
    await places.take()
    with places.lent():
        await asyncio.wait_for(places.take(), 1)
    latecomer = asyncio.create_task(places.take())
    places.leave()
    await asyncio.sleep(0.01)
    assert not latecomer.done()  # one place, and the lender has it again
    places.leave()
    await asyncio.wait_for(latecomer, 1)


def test_a_waiter_whose_event_loop_is_gone_is_passed_over():
    places = Places(1)

    async def wait_for_ever() -> Coroutine[Any, Any, None]:
        await places.take()
        waiting = places.take()
        waiting.send(None)
        return waiting

    abandoned = asyncio.run(wait_for_ever())
    places.leave()
    asyncio.run(asyncio.wait_for(places.take(), 1))
    abandoned.close()
