"""Slots, queues, priorities and rates, in virtual time."""

import asyncio
import gc
import math
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

import pytest

from ferrule.concurrency import ConcurrencyConfig, ConcurrencyMetrics, Slot, ToolConcurrencyController
from ferrule.errors import Rejected, SetupError
from tests.support.virtual_time import loop_time, virtual_time

anyio_backend = virtual_time


def controller_of(**settings) -> ToolConcurrencyController:
    return ToolConcurrencyController(ConcurrencyConfig(**settings), clock=loop_time)


def occupy(controller: ToolConcurrencyController, bucket: str = "general") -> Slot:
    """A slot held by another call."""
    slot = Context().run(controller.try_acquire, bucket)
    assert slot is not None
    return slot


async def hold(controller: ToolConcurrencyController, seconds: float, bucket: str = "general", **options) -> float:
    """One call that takes so many seconds; returns when it started."""
    async with controller.slot(bucket, **options):
        start = loop_time()
        await asyncio.sleep(seconds)
    return start


async def start(*calls: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """The calls as tasks of their own, each of which has run as far as it can."""
    tasks = [asyncio.create_task(call, context=Context()) for call in calls]
    await asyncio.sleep(0)
    return tasks


async def rejection_of(call) -> Rejected:
    with pytest.raises(Rejected) as caught:
        await call
    return caught.value


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_concurrent": 0}, "max_concurrent must be a whole number of at least 1, not 0"),
        ({"max_concurrent": True}, "max_concurrent must be a whole number of at least 1, not True"),
        ({"queue_size": -1}, "queue_size must be a whole number of at least 0, not -1"),
        ({"default_timeout": "30"}, "default_timeout must be a number of seconds, 0 or more, not '30'"),
        ({"default_timeout": math.nan}, "default_timeout must be a number of seconds, 0 or more, not nan"),
        ({"strategy": "prioritty"}, "strategy 'prioritty' does not exist: use 'fifo', 'priority' or 'reject'. Did you"),
        ({"bucket_limits": {"http": 0}}, "bucket_limits['http'] must be a whole number of at least 1, not 0"),
        ({"bucket_limits": [("http", 5)]}, "bucket_limits must map bucket names to whole numbers"),
        ({"rate_limits": {"ai": 0.5}}, "rate_limits['ai'] must be a whole number of at least 1, not 0.5"),
        ({"ageing": 0}, "ageing must be more than 0 seconds"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_what_to_write(settings, message):
    with pytest.raises(SetupError) as caught:
        ConcurrencyConfig(**settings)
    assert str(caught.value).startswith(message)


async def test_a_dict_changed_later_does_not_change_the_limits():
    limits = {"http": 1}
    config = ConcurrencyConfig(bucket_limits=limits)
    limits["http"] = 99
    assert config.bucket_limits == {"http": 1}


# Slots


async def test_releasing_twice_is_harmless():
    controller = controller_of(max_concurrent=2)
    (other,) = await start(hold(controller, 0.01))
    slot = await controller.acquire()
    controller.release(slot)
    controller.release(slot)
    await controller.release_and_wait(slot)
    assert controller.get_metrics().current_concurrent == 1
    await other


async def test_metrics_are_those_of_the_manual():
    controller = controller_of(max_concurrent=3, bucket_limits={"http": 1, "ai": 2})
    tasks = await start(*(hold(controller, 2, b) for b in ["http", "http", "files"]))
    assert controller.get_bucket_metrics() == {
        "http": {"current": 1, "limit": 1, "queue": 1},
        "ai": {"current": 0, "limit": 2, "queue": 0},
        "files": {"current": 1, "limit": None, "queue": 0},
    }
    await asyncio.gather(*tasks)
    assert controller.get_metrics() == ConcurrencyMetrics(
        current_concurrent=0,
        queue_length=0,
        total_acquired=3,
        total_rejected=0,
        total_timeout=0,
        avg_execution_time=2.0,
    )


@pytest.mark.parametrize(
    ("settings", "buckets", "expected"),
    [
        ({"max_concurrent": 2, "bucket_limits": {"http": 1}}, "http http files", [0, 1, 0]),
        ({"max_concurrent": 1, "bucket_limits": {"http": 1}}, "a http b http a", [0, 1, 2, 3, 4]),
        ({"max_concurrent": 1, "rate_limits": {"http": 1}, "default_timeout": 99}, "http http b b", [0, 60, 1, 2]),
    ],
    ids=["full bucket", "order of arrival", "rate"],
)
async def test_a_bucket_delays_no_call_of_another_that_could_run(settings, buckets, expected):
    controller = controller_of(**settings)
    assert await asyncio.gather(*(hold(controller, 1, bucket) for bucket in buckets.split())) == expected


async def test_try_acquire_gives_a_slot_or_none():
    controller = controller_of(max_concurrent=2, bucket_limits={"http": 1})
    assert isinstance(controller.try_acquire("http"), Slot)
    assert Context().run(controller.try_acquire, "http") is None
    assert Context().run(controller.try_acquire, "files") is not None
    assert Context().run(controller.try_acquire, "files") is None


async def test_a_newcomer_does_not_overtake_a_waiter_who_was_just_let_in():
    controller = controller_of(max_concurrent=1)
    first = occupy(controller)
    (waiter,) = await start(controller.acquire())
    controller.release(first)
    assert controller.try_acquire() is None
    controller.release(await waiter)


async def test_workflow_nodes_pass_a_full_house_and_are_not_counted():
    controller = controller_of(max_concurrent=1, strategy="reject")
    holder = occupy(controller)
    before = controller.get_metrics()
    async with controller.slot("http", caller_type="workflow_node") as slot:
        assert controller.try_acquire(caller_type="workflow_node") is not None
        assert controller.get_metrics() == before
    controller.release(slot)
    assert controller.get_metrics() == before
    controller.release(holder)


# Rejections


async def test_strategy_reject_rejects_immediately_and_says_what_to_do():
    controller = controller_of(max_concurrent=5, strategy="reject", bucket_limits={"http": 1})
    occupy(controller, "http")
    rejection = await rejection_of(controller.acquire("http"))
    assert rejection.details == {"reason": "concurrency_limit", "bucket": "http"}
    assert str(rejection) == (
        "No slot for a call in bucket 'http' (limit: 1 call in this bucket, 5 in total), and calls do not wait for one "
        "(strategy 'reject'). Call again when another call has ended."
    )
    assert controller.get_metrics().total_rejected == 1


async def test_a_full_queue_rejects_the_next_call():
    controller = controller_of(max_concurrent=1, queue_size=1)
    slot = occupy(controller)
    (waiter,) = await start(hold(controller, 0))
    rejection = await rejection_of(controller.acquire())
    assert rejection.details == {"reason": "queue_full", "bucket": "general"}
    assert str(rejection).endswith("(limit: 1 call), and the queue of 1 is full. Call again later.")
    controller.release(slot)
    await waiter


async def test_a_call_that_waited_too_long_is_rejected_and_leaves_the_queue():
    controller = controller_of(max_concurrent=1, default_timeout=7)
    occupy(controller)
    rejection = await rejection_of(controller.acquire("http"))
    assert (loop_time(), rejection.details) == (7, {"reason": "queue_timeout", "bucket": "http"})
    assert "within 7 s. Call again later" in str(rejection)
    metrics = controller.get_metrics()
    assert (metrics.queue_length, metrics.total_timeout, metrics.total_rejected) == (0, 1, 0)


async def test_a_call_may_bring_its_own_timeout():
    controller = controller_of(max_concurrent=1, default_timeout=7)
    (holder,) = await start(hold(controller, 500))
    await rejection_of(controller.acquire(timeout=2))
    assert loop_time() == 2
    await controller.acquire(timeout=math.inf)
    assert loop_time() == 500
    await holder


async def test_all_waiting_calls_can_be_rejected_for_shutting_down():
    controller = controller_of(max_concurrent=1)
    slot = occupy(controller)
    waiters = await start(controller.acquire(), controller.acquire("http"))
    controller.reject_waiting()
    assert [(await rejection_of(w)).details["reason"] for w in waiters] == ["closed", "closed"]
    controller.release(slot)
    assert controller.try_acquire() is not None


# Priority


@pytest.mark.parametrize(("strategy", "expected"), [("priority", [0, 3, 1, 2, 4]), ("fifo", [0, 1, 2, 3, 4])])
async def test_by_priority_the_important_go_first_and_equals_in_order_of_arrival(strategy, expected):
    controller = controller_of(max_concurrent=1, strategy=strategy)
    assert await asyncio.gather(*(hold(controller, 1, priority=p) for p in [0, 0, 5, 5, 0])) == expected


async def test_waiting_makes_up_for_low_priority():
    controller = controller_of(max_concurrent=1, strategy="priority", ageing=2.0, default_timeout=99)

    async def arrive(at: float, priority: int) -> float:
        await asyncio.sleep(at)
        return await hold(controller, 1, priority=priority)

    important = [arrive(second, 3) for second in range(20)]
    _, humble, *_ = await asyncio.gather(hold(controller, 1), arrive(0.5, 0), *important)
    # Three steps of two seconds: only those who came within six seconds after it, at 1 to 6, went before it
    # (and the one that came at 0, before it).
    assert humble == 8


# Rate limits


async def test_a_call_beyond_the_rate_starts_a_minute_after_the_one_it_follows():
    controller = controller_of(rate_limits={"ai": 2}, default_timeout=200)

    async def arrive(at: float) -> float:
        await asyncio.sleep(at)
        return await hold(controller, 0, "ai")

    assert await asyncio.gather(*map(arrive, [0, 10, 11, 12, 13])) == [0, 10, 60, 70, 120]


async def test_a_call_that_the_rate_limit_delays_too_long_is_rejected_immediately():
    controller = controller_of(rate_limits={"ai": 1}, default_timeout=60)
    waiting = await start(hold(controller, 0, "ai"), hold(controller, 0, "ai"))
    await asyncio.sleep(15)
    rejection = await rejection_of(controller.acquire("ai"))
    assert (loop_time(), rejection.details) == (15, {"reason": "rate_limit", "bucket": "ai", "retry_after": 105})
    assert str(rejection) == "Bucket 'ai' is limited to 1 call per minute. Call again in 105.0 s."
    await asyncio.gather(*waiting)
    assert (loop_time(), controller.get_metrics().total_rejected) == (60, 1)


@pytest.mark.parametrize(("ahead", "retry_after"), [(0, 48), (1, 58), (2, 108), (3, 118), (4, 168)])
async def test_retry_after_counts_those_who_wait_already(ahead, retry_after):
    controller = controller_of(rate_limits={"ai": 2}, default_timeout=math.inf)
    await hold(controller, 10, "ai")
    await hold(controller, 2, "ai")
    waiting = await start(*(hold(controller, 0, "ai") for _ in range(ahead)))
    rejection = await rejection_of(controller.acquire("ai", timeout=1))
    assert (loop_time(), rejection.details["retry_after"]) == (12, retry_after)
    await asyncio.gather(*waiting)


async def test_under_strategy_reject_a_rate_limit_rejects_and_says_when_to_retry():
    controller = controller_of(rate_limits={"ai": 1}, strategy="reject")
    await hold(controller, 20, "ai")
    rejection = await rejection_of(controller.acquire("ai"))
    assert (rejection.details["reason"], rejection.details["retry_after"]) == ("rate_limit", 40)
    await asyncio.sleep(40)
    await hold(controller, 0, "ai")


async def test_a_cancelled_call_gives_its_start_back_to_the_rate():
    controller = controller_of(max_concurrent=1, rate_limits={"ai": 1})
    slot = occupy(controller)
    (waiter,) = await start(controller.acquire("ai"))
    controller.release(slot)
    waiter.cancel()
    await asyncio.wait([waiter])
    await controller.acquire("ai", timeout=0)


# Cancellation


async def test_a_cancelled_waiter_leaves_the_queue():
    controller = controller_of(max_concurrent=1)
    slot = occupy(controller)
    first, second = await start(controller.acquire(), controller.acquire())
    first.cancel()
    await asyncio.wait([first])
    assert controller.get_metrics().queue_length == 1
    controller.release(slot)
    controller.release(await second)


async def test_a_call_cancelled_just_when_it_may_start_passes_its_slot_on():
    controller = controller_of(max_concurrent=1)
    slot = occupy(controller)
    first, second = await start(controller.acquire(), controller.acquire())
    controller.release(slot)
    first.cancel()
    await asyncio.wait([first, second])
    assert first.cancelled()
    controller.release(second.result())
    assert controller.get_metrics().current_concurrent == 0
    assert controller.get_metrics().total_acquired == 2


async def test_a_slot_that_becomes_free_just_before_the_timeout_is_still_given():
    controller = controller_of(max_concurrent=1, rate_limits={"ai": 1})
    await hold(controller, 0, "ai")
    await controller.acquire("ai", timeout=60)
    assert loop_time() == 60


# Tools that call tools


async def test_a_tool_that_calls_tools_does_not_wait_for_itself():
    controller = controller_of(max_concurrent=1, default_timeout=math.inf)
    async with controller.slot(), controller.slot(), controller.slot() as innermost:
        assert (innermost.state, controller.get_metrics().current_concurrent) == ("active", 1)
    assert controller.get_metrics().current_concurrent == 0


async def test_nested_calls_one_after_the_other_lend_each_time():
    controller = controller_of(max_concurrent=1, default_timeout=math.inf)
    async with controller.slot() as outer:
        states: list[str] = []
        for _ in range(2):
            async with controller.slot():
                states.append(outer.state)
            states.append(outer.state)
    assert states == ["suspended", "active", "suspended", "active"]


async def test_the_outer_slot_is_suspended_once_and_reclaimed_when_the_last_nested_call_ends():
    controller = controller_of(max_concurrent=2, default_timeout=math.inf)
    async with controller.slot() as outer:
        nested = asyncio.gather(*(hold(controller, seconds) for seconds in (1, 2, 3)))
        await asyncio.sleep(3.5)
        assert (outer.state, outer.nested) == ("suspended", 1)
        assert await nested == [0, 0, 1]
        assert (outer.state, outer.nested) == ("active", 0)


async def test_nested_calls_queue_but_a_suspended_slot_is_reclaimed_ahead_of_all_queues():
    controller = controller_of(max_concurrent=1, default_timeout=math.inf)
    async with controller.slot():
        (first,) = await start(hold(controller, 5))
        nested = asyncio.create_task(hold(controller, 1))
        await asyncio.sleep(0)
        (second,) = await start(hold(controller, 5))
        assert await nested == 5
        assert loop_time() == 6
        await asyncio.sleep(2)
    assert (await first, await second) == (0, 8)


async def test_the_outer_call_waits_for_its_slot_without_a_timeout_and_outside_the_queue():
    controller = controller_of(max_concurrent=2, queue_size=0, default_timeout=0, bucket_limits={"db": 1})
    async with controller.slot("db") as outer:
        async with controller.slot("files"):
            (other,) = await start(hold(controller, 100, "db"))
        assert (loop_time(), outer.state) == (100, "active")
    assert await other == 0


async def test_a_rejected_nested_call_gives_the_outer_call_its_slot_back():
    controller = controller_of(max_concurrent=2, bucket_limits={"db": 1}, strategy="reject")
    occupy(controller, "db")
    async with controller.slot() as outer:
        rejection = await rejection_of(controller.acquire("db"))
        assert (rejection.details["reason"], outer.state) == ("concurrency_limit", "active")


async def test_cancelling_a_call_that_reclaims_its_slot_ends_it_immediately():
    controller = controller_of(max_concurrent=2, bucket_limits={"db": 1}, default_timeout=math.inf)

    async def outer() -> None:
        async with controller.slot("db"), controller.slot("files"):
            await asyncio.sleep(1)

    outer_task, rival = await start(outer(), hold(controller, 50, "db"))
    await asyncio.sleep(10)
    outer_task.cancel()
    await asyncio.wait([outer_task])
    assert (loop_time(), controller.get_metrics().current_concurrent) == (10, 1)
    await rival
    assert occupy(controller, "db").state == "active"


@pytest.mark.parametrize("nested_bucket", ["files", "db"])
async def test_a_time_out_around_a_nested_call_is_not_delayed_by_the_way_back(nested_bucket):
    controller = controller_of(max_concurrent=2, bucket_limits={"db": 1}, default_timeout=math.inf)
    async with controller.slot("db") as outer:
        (other,) = await start(hold(controller, 100, "db"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):  # while the nested call runs, or still waits
                await hold(controller, 999, nested_bucket)
        assert (loop_time(), outer.state) == (5, "reclaiming")
        await other
        assert outer.state == "active"


async def test_a_call_made_after_its_maker_has_ended_is_an_ordinary_one():
    controller = controller_of(max_concurrent=1)
    maker = await controller.acquire()
    left_behind = asyncio.create_task(controller.acquire())
    controller.release(maker)
    slot = await left_behind
    assert (slot.state, slot.outer) == ("active", None)


async def test_a_call_that_ends_before_its_nested_one_takes_nothing_back():
    controller = controller_of(max_concurrent=1)
    outer = await controller.acquire()
    nested = await controller.acquire()
    controller.release(outer)
    await controller.release_and_wait(nested)
    assert controller.get_metrics().current_concurrent == 0
    assert nested.outer is None  # or a chain of ended slots would grow where tasks start tasks


async def test_nothing_waits_for_an_outer_slot_that_is_suspended_again():
    controller = controller_of(max_concurrent=2, bucket_limits={"db": 1}, default_timeout=math.inf)
    async with controller.slot("db") as outer:
        first = asyncio.create_task(hold(controller, 1, "files"))
        await asyncio.sleep(0)
        (rival,) = await start(hold(controller, 50, "db"))
        await asyncio.sleep(5)
        assert (outer.state, first.done()) == ("reclaiming", False)
        second = asyncio.create_task(hold(controller, 1, "files"))
        await first
        assert (loop_time(), outer.state) == (5, "suspended")
        assert await second == 5
        assert (loop_time(), outer.state) == (50, "active")
    await rival


async def test_leaving_goes_on_waiting_when_a_quick_nested_call_came_between():
    controller = controller_of(max_concurrent=2, bucket_limits={"db": 1}, default_timeout=math.inf)
    async with controller.slot("db") as outer:
        first = asyncio.create_task(hold(controller, 1, "files"))
        await asyncio.sleep(0)
        (rival,) = await start(hold(controller, 50, "db"))
        await asyncio.sleep(5)
        controller.release(await controller.acquire("files"))
        await first
        assert (loop_time(), outer.state) == (50, "active")
    await rival


async def test_slots_of_two_controllers_are_independent():
    first, second = controller_of(max_concurrent=1), controller_of(max_concurrent=1)
    async with first.slot() as outer, second.slot(), first.slot():
        assert outer.state == "suspended"
        assert second.get_metrics().current_concurrent == 1
    assert first.get_metrics().current_concurrent == second.get_metrics().current_concurrent == 0


# Event loops


def test_a_controller_serves_one_event_loop_after_the_other():
    controller = ToolConcurrencyController(ConcurrencyConfig(max_concurrent=1))

    async def main() -> None:
        slot = occupy(controller)
        waiting, cancelled_by_the_loop = await start(hold(controller, 0), hold(controller, 999))
        controller.release(slot)
        await waiting

    for _ in range(3):
        asyncio.run(main())
        metrics = controller.get_metrics()
        assert (metrics.current_concurrent, metrics.queue_length) == (0, 0)


def test_rates_outlive_the_event_loop():
    controller = ToolConcurrencyController(ConcurrencyConfig(strategy="reject", rate_limits={"ai": 1}))

    async def main() -> None:
        controller.release(await controller.acquire("ai"))

    asyncio.run(main())
    with pytest.raises(Rejected, match="limited to 1 call per minute"):
        asyncio.run(main())


def test_two_concurrent_event_loops_are_rejected():
    controller = ToolConcurrencyController()
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    slot = first.run_until_complete(controller.acquire())
    with pytest.raises(SetupError, match="still in use by another event loop .1 running, 0 waiting."):
        second.run_until_complete(controller.acquire())
    controller.release(slot)
    controller.release(second.run_until_complete(controller.acquire()))
    first.close()
    second.close()


async def test_two_event_loops_in_two_threads_are_rejected():
    controller = ToolConcurrencyController(ConcurrencyConfig(max_concurrent=1))
    occupy(controller)
    with pytest.raises(SetupError, match="create a controller for each loop"):
        await asyncio.to_thread(asyncio.run, controller.acquire())


def test_a_slot_lost_with_its_event_loop_is_no_outer_slot():
    controller, context = ToolConcurrencyController(), Context()
    for _ in range(2):
        loop = asyncio.new_event_loop()
        slot = loop.run_until_complete(loop.create_task(controller.acquire(), context=context))
        loop.close()
    assert (slot.state, slot.outer) == ("active", None)
    assert controller.get_metrics().current_concurrent == 1


def test_an_event_loop_closed_under_its_calls_leaves_nothing_behind(caplog):
    controller = ToolConcurrencyController(ConcurrencyConfig(max_concurrent=1))
    loop = asyncio.new_event_loop()
    calls = [loop.create_task(hold(controller, 999)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    slot = asyncio.run(controller.acquire())
    assert "running=<1>, waiting=<2> | the event loop of these calls was closed" in caplog.text
    calls.clear()
    gc.collect()  # ends the lost calls, whose slots must not be given back to the new loop
    assert controller.get_metrics().current_concurrent == 1
    controller.release(slot)
    assert controller.get_metrics().current_concurrent == 0


def test_calls_collected_with_their_closed_event_loop_pass_their_slots_on_quietly():
    controller = ToolConcurrencyController(ConcurrencyConfig(max_concurrent=1))
    loop = asyncio.new_event_loop()
    calls = [loop.create_task(hold(controller, 999)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    calls.clear()
    gc.collect()  # an error in here would fail the test
    asyncio.run(controller.acquire())
    gc.collect()
    metrics = controller.get_metrics()
    assert (metrics.current_concurrent, metrics.queue_length) == (1, 0)


async def test_a_slot_is_shown_without_the_queue_it_waits_in():
    assert "queue" not in repr(occupy(controller_of()))
