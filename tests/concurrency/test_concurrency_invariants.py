"""What must hold whatever happens: random calls, nested and cancelled at random, in virtual time."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ferrule.concurrency import ConcurrencyConfig, Slot, ToolConcurrencyController
from ferrule.errors import Rejected
from tests.support.virtual_time import loop_time, run_in_virtual_time

BUCKETS = ["free", "loose", "narrow", "rated"]
AGEING = 2.0


@dataclass(frozen=True)
class Call:
    bucket: str
    priority: int
    work: int
    timeout: float
    caller_type: str
    groups: tuple[tuple["Call", ...], ...] = ()
    """Calls it makes: one group after the other, those of a group together."""
    cancelled_after: float | None = None
    """Seconds after which the caller cancels the call."""
    background: "Call | None" = None
    """A call it starts in the background when it ends."""


def calls(nested: st.SearchStrategy[Call] | None) -> st.SearchStrategy[Call]:
    groups = (
        st.lists(st.lists(nested, min_size=1, max_size=3).map(tuple), max_size=2) if nested is not None else st.just([])
    )
    return st.builds(
        Call,
        bucket=st.sampled_from(BUCKETS),
        priority=st.integers(0, 3),
        work=st.sampled_from([0, 0, 1, 2, 5]),
        timeout=st.sampled_from([0.0, 1.0, 4.0, 100.0, 100.0]),
        caller_type=st.sampled_from(["direct"] * 7 + ["workflow_node"]),
        groups=groups.map(tuple),
        cancelled_after=st.sampled_from([None, None, None, 0.0, 1.0, 3.0]),
        background=st.none() if nested is None else st.none() | nested,
    )


ANY_CALL = calls(calls(calls(None)))
ARRIVALS = st.lists(st.tuples(st.integers(0, 8), ANY_CALL, st.none() | st.integers(0, 9)), min_size=1, max_size=12)
CONFIGS = st.builds(
    ConcurrencyConfig,
    max_concurrent=st.integers(1, 3),
    queue_size=st.sampled_from([0, 1, 5, 100]),
    strategy=st.sampled_from(["fifo", "fifo", "priority", "priority", "reject"]),
    bucket_limits=st.just({"narrow": 1, "loose": 2}),
    rate_limits=st.sampled_from([{"rated": 2}, {"rated": 3, "narrow": 4}]),
    ageing=st.just(AGEING),
)


class World:
    """Makes the calls and watches, with counts of its own, what the controller lets happen."""

    def __init__(self, config: ConcurrencyConfig) -> None:
        self.config = config
        self.controller = ToolConcurrencyController(config, clock=loop_time)
        self.inside: Counter[str] = Counter()
        self.arrived = 0
        self.cancelled = 0
        self.starts: list[tuple[str, float, int, int, float]] = []
        """Bucket, arrival, its number, priority and start of each call that ran."""
        self.background: list[asyncio.Task[bool]] = []

    async def perform(self, call: Call) -> bool:
        """Make a call; a refusal is taken as an answer. True if calls made for the same outer slot were given up."""
        if call.caller_type == "direct":
            self.arrived += 1
        arrival, number = loop_time(), self.arrived
        try:
            slot = await self.controller.acquire(
                call.bucket, priority=call.priority, caller_type=call.caller_type, timeout=call.timeout
            )
        except Rejected:
            return False
        except asyncio.CancelledError:
            self.cancelled += call.caller_type == "direct"
            raise
        if call.caller_type == "direct":
            self.starts.append((call.bucket, arrival, number, call.priority, loop_time()))
        try:
            gave_up = await self.run_body(call, slot)
        finally:
            await self.controller.release_and_wait(slot)
        return gave_up and call.caller_type == "workflow_node"

    async def run_body(self, call: Call, slot: Slot) -> bool:
        await self.work(call, slot, may_lack_slot=False)
        gave_up = False
        for group in call.groups:
            if len(group) == 1:  # in the same task
                gave_up |= await self.perform_nested(group[0])
            else:
                gave_up |= any(await asyncio.gather(*(self.perform_nested(nested) for nested in group)))
            await self.work(call, slot, may_lack_slot=gave_up)
        if call.background is not None and call.caller_type == "direct":
            self.background.append(asyncio.create_task(self.perform(call.background)))
            await asyncio.sleep(0)
        return gave_up

    async def perform_nested(self, call: Call) -> bool:
        """True if the caller lost timeout, which cancels the nested call."""
        try:
            async with asyncio.timeout(call.cancelled_after):
                return await self.perform(call)
        except TimeoutError:
            return True

    async def work(self, call: Call, slot: Slot, *, may_lack_slot: bool) -> None:
        if call.caller_type == "workflow_node" or (may_lack_slot and slot.state != "active"):
            await asyncio.sleep(call.work)
            return
        assert slot.state == "active"
        with self.counted(call.bucket):
            await asyncio.sleep(call.work)

    @contextmanager
    def counted(self, bucket: str) -> Iterator[None]:
        self.inside[bucket] += 1
        try:
            assert self.inside.total() <= self.config.max_concurrent
            assert self.inside[bucket] <= self.config.bucket_limits.get(bucket, 999)
            metrics = self.controller.get_metrics()
            assert metrics.current_concurrent <= self.config.max_concurrent
            assert metrics.queue_length <= self.config.queue_size
            yield
        finally:
            self.inside[bucket] -= 1

    async def arrive(self, at: float, call: Call, cancel_after: float | None) -> None:
        await asyncio.sleep(at)
        task = asyncio.create_task(self.perform(call))
        if cancel_after is not None:
            await asyncio.sleep(cancel_after)
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def settle(self, arrivals: list[tuple[int, Call, int | None]]) -> None:
        await asyncio.gather(*(self.arrive(*arrival) for arrival in arrivals))
        for task in self.background:  # grows while we wait, as what is left behind leaves calls behind
            await task


def play(config: ConcurrencyConfig, arrivals: list[tuple[int, Call, int | None]]) -> World:
    worlds: list[World] = []

    async def main() -> None:
        worlds.append(World(config))
        await worlds[0].settle(arrivals)
        assert_nothing_leaked(worlds[0])

    run_in_virtual_time(main)
    return worlds[0]


def assert_nothing_leaked(world: World) -> None:
    metrics = world.controller.get_metrics()
    assert (metrics.current_concurrent, metrics.queue_length) == (0, 0)
    assert all(b["current"] == b["queue"] == 0 for b in world.controller.get_bucket_metrics().values())
    answered = metrics.total_acquired + metrics.total_rejected + metrics.total_timeout
    # A rejection call may be cancelled as well, while its caller takes its slot back.
    assert answered <= world.arrived <= answered + world.cancelled
    for _ in range(world.config.max_concurrent):
        assert Context().run(world.controller.try_acquire, "free") is not None
    assert Context().run(world.controller.try_acquire, "free") is None


@given(config=CONFIGS, arrivals=ARRIVALS)
def test_limits_hold_and_no_slot_leaks(config, arrivals):
    play(config, arrivals)


@given(config=CONFIGS.filter(lambda c: c.strategy == "fifo"), arrivals=ARRIVALS)
def test_within_a_bucket_calls_start_in_order_of_arrival(config, arrivals):
    world = play(config, arrivals)
    for (bucket, _, first, _, first_start), (other, _, second, _, second_start) in combinations(world.starts, 2):
        if bucket == other:
            assert (first_start <= second_start) if first < second else (first_start >= second_start)


@given(config=CONFIGS.filter(lambda c: c.strategy == "priority"), arrivals=ARRIVALS)
def test_a_call_is_overtaken_only_by_those_whose_priority_outweighs_its_age(config, arrivals):
    world = play(config, arrivals)
    for bucket, arrival, _, priority, start in world.starts:
        for other, later_arrival, _, higher, earlier_start in world.starts:
            if other == bucket and arrival < earlier_start < start:
                assert later_arrival - arrival <= (higher - priority) * AGEING


@given(config=CONFIGS, arrivals=ARRIVALS)
def test_no_minute_sees_more_starts_than_the_rate_limit(config, arrivals):
    world = play(config, arrivals)
    for bucket, limit in config.rate_limits.items():
        starts = sorted(start for name, _, _, _, start in world.starts if name == bucket)
        assert all(later - earlier >= 60 for earlier, later in zip(starts, starts[limit:], strict=False))


@given(limit=st.integers(1, 2), trees=st.lists(ANY_CALL, min_size=1, max_size=8))
def test_tools_that_call_tools_never_wait_for_each_other_for_ever(limit, trees):
    config = ConcurrencyConfig(max_concurrent=limit, queue_size=1000, bucket_limits={"narrow": 1, "loose": 1})
    world = play(config, [(0, patient(tree), None) for tree in trees])
    assert len(world.starts) == world.arrived


def patient(call: Call) -> Call:
    """The same call with all its nested ones, but no caller ever stops waiting."""
    return Call(
        bucket=call.bucket,
        priority=call.priority,
        work=call.work,
        timeout=float("inf"),
        caller_type=call.caller_type,
        groups=tuple(tuple(map(patient, group)) for group in call.groups),
        background=None if call.background is None else patient(call.background),
    )
