"""The small parts of the hub on their own."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.hub import HubConfig, ToolHub
from ferrule.hub.race import ExtraCallBudget
from tests.hub.recording_tools import BEST, FOREVER, CallRecorder, engine_with, make_tool
from tests.support.virtual_time import virtual_time

anyio_backend = virtual_time


@given(st.lists(st.sampled_from(["race", "extra"])), st.integers(0, 5))
def test_extra_calls_never_exceed_their_share_and_the_stock(events: list[str], burst: int):
    extra = ExtraCallBudget(share=0.2, burst=burst)
    races = extra_calls = 0
    for event in events:
        if event == "race":
            extra.add_allowance()
            races += 1
        elif extra.try_use():
            extra_calls += 1
        assert extra_calls <= burst + 0.2 * races + 1e-6


def test_five_races_earn_an_extra_call():
    extra = ExtraCallBudget(share=0.2, burst=1)
    assert extra.try_use() and not extra.try_use()
    for _ in range(4):
        extra.add_allowance()
    assert not extra.try_use()
    extra.add_allowance()
    assert extra.try_use() and not extra.try_use()


async def test_the_budget_of_a_hub_is_shared_by_its_races():
    times = [0.1, 0.3, 0.7, 1.5]

    async def slow() -> str:
        """Take longer every time."""
        await asyncio.sleep(times.pop(0))  # virtual
        return "done"

    recorder = CallRecorder()
    other = recorder.search("other", seconds=FOREVER, source="mcps", **BEST)
    async with engine_with(make_tool(slow, read_only=True, **BEST), other) as engine:
        hub = ToolHub(engine, config=HubConfig(stagger=0.01, hedge_burst=1, hedge_share=0.5))
        for _ in range(4):
            await hub.execute_by_capability("search", {})
    # One of the stock, and one that the second and the third race earned together.
    assert (times, recorder.started) == ([], ["other", "other"])


async def test_records_that_cannot_be_read_do_not_stop_a_race(caplog: pytest.LogCaptureFixture):
    recorder = CallRecorder()
    slow = recorder.search("slow", seconds=FOREVER, **BEST)
    async with engine_with(slow, recorder.search("other", source="mcps", **BEST)) as engine:
        await engine.store.aclose()
        result = await ToolHub(engine, config=HubConfig(stagger=0.01)).execute_by_capability("search", {})
    assert result.tool_name == "other"
    assert "its records cannot be read" in caplog.text
