"""The small parts of the hub on their own."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.errors import StoreError
from ferrule.hub import HubConfig, ToolHub
from ferrule.hub.extra_calls import ExtraCalls
from ferrule.hub.runners import Runners, to_the_end
from tests.hub.making import BEST, FOREVER, Diary, engine_with, made


@settings(deadline=None)
@given(st.lists(st.sampled_from(["race", "extra"])), st.integers(0, 5))
def test_extra_calls_never_exceed_their_share_and_the_stock(events: list[str], burst: int):
    extra = ExtraCalls(share=0.2, burst=burst)
    races = taken = 0
    for event in events:
        if event == "race":
            extra.earn()
            races += 1
        elif extra.take():
            taken += 1
        assert taken <= burst + 0.2 * races + 1e-6


def test_five_races_earn_an_extra_call():
    extra = ExtraCalls(share=0.2, burst=1)
    assert extra.take() and not extra.take()
    for _ in range(4):
        extra.earn()
    assert not extra.take()
    extra.earn()
    assert extra.take() and not extra.take()


async def test_the_budget_of_a_hub_is_shared_by_its_races():
    times = [0.1, 0.2, 0.3, 0.4]

    async def slow() -> str:
        """Take longer every time."""
        await asyncio.sleep(times.pop(0))
        return "done"

    diary = Diary()
    other = diary.search("other", seconds=FOREVER, source="mcps", **BEST)
    async with engine_with(made(slow, read_only=True, **BEST), other) as engine:
        await engine.query_call_records()  # the first question opens the store
        hub = ToolHub(engine, config=HubConfig(stagger=0.01, extra_burst=1, extra_share=0.5))
        for _ in range(4):
            await hub.execute_by_capability("search", {})
    # One of the stock, and one that the second and the third race earned together.
    assert (times, diary.started) == ([], ["other", "other"])


async def test_runners_have_ended_even_if_leaving_is_cancelled_too():
    ended = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(FOREVER)
        finally:
            try:
                await asyncio.sleep(0.2)
            finally:
                ended.append("ended")

    async def leave() -> None:
        async with Runners() as runners:
            runners.start(slow_to_end())
            await asyncio.sleep(0)

    leaving = asyncio.create_task(leave())
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled() and ended == ["ended"]


async def test_work_that_must_not_be_left_half_way_is_finished_before_a_cancellation_counts():
    finished = []

    async def work() -> str:
        await asyncio.sleep(0.05)
        finished.append("finished")
        raise StoreError("nobody sees it")

    task = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and finished == ["finished"]


async def test_records_that_cannot_be_read_do_not_stop_a_race(caplog: pytest.LogCaptureFixture):
    diary = Diary()
    slow = diary.search("slow", seconds=FOREVER, **BEST)
    async with engine_with(slow, diary.search("other", source="mcps", **BEST)) as engine:
        await engine.store.aclose()
        result = await ToolHub(engine, config=HubConfig(stagger=0.01)).execute_by_capability("search", {})
    assert result.tool_name == "other"
    assert "its records cannot be read" in caplog.text
