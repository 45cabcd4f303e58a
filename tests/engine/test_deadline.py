"""The deadlines of calls, in virtual time."""

import asyncio
import math

import pytest

from ferrule.engine.deadline import Deadline, Deadlines
from tests.support.virtual_time import virtual_time

anyio_backend = virtual_time


async def sleeper(keeper: Deadlines, seconds: float, work: float) -> str:
    deadline = Deadline(keeper, seconds)
    try:
        await asyncio.sleep(work)  # virtual
    except asyncio.CancelledError:
        deadline.end()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return "expired" if deadline.is_expired else "cancelled"
    deadline.end()
    return "done"


async def test_only_those_whose_time_is_up_are_ended():
    keeper = Deadlines(asyncio.get_running_loop())
    runs = [
        sleeper(keeper, 2, 50),
        sleeper(keeper, 50, 5),
        sleeper(keeper, math.inf, 5),
        sleeper(keeper, 4, 50),
    ]
    assert await asyncio.gather(*runs) == ["expired", "done", "done", "expired"]
    assert not keeper.active
    keeper.close()


async def test_a_later_call_with_a_shorter_time_ends_first():
    keeper = Deadlines(asyncio.get_running_loop())
    order: list[float] = []

    async def run(seconds: float) -> None:
        await sleeper(keeper, seconds, 50)
        order.append(seconds)

    await asyncio.gather(run(9), run(6), run(3))
    assert order == [3, 6, 9]
    keeper.close()


async def test_a_paused_clock_does_not_run():
    keeper = Deadlines(asyncio.get_running_loop())
    deadline = Deadline(keeper, 5)
    deadline.pause()
    await asyncio.sleep(10)  # virtual
    assert not deadline.is_expired
    deadline.resume()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(50)  # virtual
    deadline.end()
    assert deadline.is_expired
    keeper.close()


async def test_one_who_ignores_the_first_cancellation_gets_more():
    keeper = Deadlines(asyncio.get_running_loop())
    deadline, swallowed = Deadline(keeper, 1), 0
    while swallowed < 2:
        try:
            await asyncio.sleep(50)  # virtual
        except asyncio.CancelledError:
            swallowed += 1
    deadline.end()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    keeper.close()
