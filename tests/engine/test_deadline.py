import asyncio
import math

import pytest

from ferrule.engine.deadline import Deadline, Deadlines


async def sleeper(keeper: Deadlines, seconds: float, work: float) -> str:
    deadline = Deadline(keeper, seconds)
    try:
        await asyncio.sleep(work)
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
        sleeper(keeper, 0.02, 5),
        sleeper(keeper, 5, 0.05),
        sleeper(keeper, math.inf, 0.05),
        sleeper(keeper, 0.04, 5),
    ]
    assert await asyncio.gather(*runs) == ["expired", "done", "done", "expired"]
    assert not keeper.active
    keeper.close()


async def test_a_later_call_with_a_shorter_time_ends_first():
    keeper = Deadlines(asyncio.get_running_loop())
    order: list[float] = []

    async def run(seconds: float) -> None:
        await sleeper(keeper, seconds, 5)
        order.append(seconds)

    await asyncio.gather(run(0.09), run(0.06), run(0.03))
    assert order == [0.03, 0.06, 0.09]
    keeper.close()


async def test_a_paused_clock_does_not_run():
    keeper = Deadlines(asyncio.get_running_loop())
    deadline = Deadline(keeper, 0.05)
    deadline.pause()
    await asyncio.sleep(0.1)
    assert not deadline.is_expired
    deadline.resume()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(5)
    deadline.end()
    assert deadline.is_expired
    keeper.close()


async def test_one_who_ignores_the_first_cancellation_gets_more():
    keeper = Deadlines(asyncio.get_running_loop())
    deadline, swallowed = Deadline(keeper, 0.01), 0
    while swallowed < 2:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            swallowed += 1
    deadline.end()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    keeper.close()
