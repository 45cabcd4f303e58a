"""Limits that several processes share: never exceeded, and no process waits for ever. In virtual time."""

import asyncio
from collections import Counter

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import ConcurrencyConfig, ToolEngine, tool
from ferrule.concurrency import ToolConcurrencyController
from ferrule.concurrency.scheduler import AdaptiveLimit
from ferrule.errors import Rejected, SetupError, StoreError, Transient
from ferrule.store.shared_limits import (
    RATE_PERIOD,
    LeaseGrants,
    LeaseRequest,
    LimitState,
    SlotLease,
    StartLease,
    adapt_limit,
    grant_slots,
    grant_starts,
)
from tests.support.tiers import examples
from tests.support.virtual_time import loop_time, run_in_virtual_time, virtual_time

anyio_backend = virtual_time


class LeasesInMemory:
    """The leases of a fleet whose processes are all here, by the rules of the store."""

    def __init__(self, delay: float = 0.01) -> None:
        self.delay = delay
        self.is_unreachable = False
        self.slots: dict[str, dict[str, SlotLease]] = {}
        self.starts: dict[str, list[StartLease]] = {}
        self.limits: dict[str, LimitState] = {}

    async def renew(self, request: LeaseRequest) -> LeaseGrants:
        await asyncio.sleep(self.delay)
        if self.is_unreachable:
            raise StoreError("the database cannot be reached")
        slots, starts = {}, {}
        for bucket in self.slots.keys() - request.slots.keys():
            self.slots[bucket].pop(request.owner, None)
        for bucket, wish in request.slots.items():
            if wish.load is not None:
                self.limits[bucket], wish = adapt_limit(self.limits.get(bucket), wish, loop_time())
            leases = self.slots.setdefault(bucket, {})
            leases[request.owner], slots[bucket] = grant_slots(
                leases.values(), request.owner, wish, request.seconds, loop_time()
            )
        for bucket, start_wish in request.starts.items():
            leases_of_starts = self.starts.get(bucket, [])
            self.starts[bucket], starts[bucket] = grant_starts(leases_of_starts, request.owner, start_wish, loop_time())
        await asyncio.sleep(self.delay)
        return slots, starts


class CutOffLeases:
    """The leases as a process sees them whose network is cut at times: a request waits until it is whole again.

    Then it arrives late, or fails, as a connection does that was silent for too long; or only its answer is lost.
    """

    def __init__(self, table: LeasesInMemory, cuts: list[tuple[float, float]], effect: str) -> None:
        """`cuts` have a beginning and a length, in seconds."""
        self._table, self._cuts, self._effect = table, cuts, effect

    async def renew(self, request: LeaseRequest) -> LeaseGrants:
        for begins_at, seconds in self._cuts:
            if begins_at <= loop_time() < begins_at + seconds:
                if self._effect == "answer is lost":
                    await self._table.renew(request)
                else:
                    await asyncio.sleep(begins_at + seconds - loop_time())
                if self._effect != "arrives late":
                    raise StoreError("the database cannot be reached")
        return await self._table.renew(request)


class RunningCalls:
    """Counts what runs in all processes together."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.of_process: Counter[int] = Counter()
        self.started_at: list[float] = []

    async def run(
        self, controller: ToolConcurrencyController, process: int, seconds: float, bucket: str = "pay"
    ) -> None:
        async with controller.slot(bucket):
            self.now += 1
            self.most = max(self.most, self.now)
            self.started_at.append(loop_time())
            await asyncio.sleep(seconds)
            self.now -= 1
            self.of_process[process] += 1


def make_process(table: LeasesInMemory | CutOffLeases, **options: object) -> ToolConcurrencyController:
    config = ConcurrencyConfig(shared=True, default_timeout=10_000, queue_size=1000, **options)  # type: ignore[arg-type]
    controller = ToolConcurrencyController(config, clock=loop_time)
    controller.join_fleet(table.renew)
    return controller


@given(
    limit=st.integers(1, 5),
    calls=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 5), st.floats(0, 3)), min_size=1, max_size=30),
    delay=st.sampled_from([0.0, 0.01, 0.3]),
)
def test_a_shared_limit_is_never_exceeded_and_every_call_runs(
    limit: int, calls: list[tuple[int, float, float]], delay: float
) -> None:
    async def main() -> None:
        table, running = LeasesInMemory(delay), RunningCalls()
        processes = [make_process(table, bucket_limits={"pay": limit}, max_concurrent=20) for _ in range(3)]

        async def call(process: int, arrival: float, seconds: float) -> None:
            await asyncio.sleep(arrival)
            await running.run(processes[process], process, seconds)

        async with asyncio.TaskGroup() as group:
            for process, arrival, seconds in calls:
                group.create_task(call(process, arrival, seconds))
        assert running.most <= limit
        assert running.of_process.total() == len(calls)
        for controller in processes:
            await controller.leave_fleet()

    run_in_virtual_time(main)


async def test_two_processes_take_turns_with_a_limit_of_one() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    processes = [make_process(table, bucket_limits={"pay": 1}) for _ in range(2)]
    tasks = [asyncio.create_task(_call_forever(running, each, n)) for n, each in enumerate(processes)]
    await asyncio.sleep(60)
    assert running.most == 1
    assert min(running.of_process[0], running.of_process[1]) > 100
    for task in tasks:
        task.cancel()
    for controller in processes:
        await controller.leave_fleet()


async def _call_forever(running: RunningCalls, controller: ToolConcurrencyController, process: int) -> None:
    while True:
        await running.run(controller, process, 0.1)


async def test_busy_processes_get_equal_shares_and_an_idle_one_gives_its_slots_back() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    first, second = (make_process(table, bucket_limits={"pay": 6}) for _ in range(2))
    tasks = [asyncio.create_task(_call_forever(running, first, 0)) for _ in range(8)]
    await asyncio.sleep(5)
    assert _leased(first) == 6
    tasks += [asyncio.create_task(_call_forever(running, second, 1)) for _ in range(8)]
    await asyncio.sleep(5)
    assert (_leased(first), _leased(second)) == (3, 3)
    for task in tasks[:8]:
        task.cancel()
    await asyncio.sleep(5)
    assert (_leased(first), _leased(second)) == (0, 6)
    for task in tasks:
        task.cancel()
    await first.leave_fleet()
    await second.leave_fleet()


async def test_a_process_that_yields_leaves_others_all_but_one_slot_and_takes_them_back() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    batch, live = (make_process(table, bucket_limits={"pay": 6}) for _ in range(2))
    batch.yield_to_others()
    tasks = [asyncio.create_task(_call_forever(running, batch, 0)) for _ in range(8)]
    await asyncio.sleep(5)
    assert _leased(batch) == 6
    people = [asyncio.create_task(_call_forever(running, live, 1)) for _ in range(8)]
    await asyncio.sleep(5)
    assert (_leased(batch), _leased(live)) == (1, 5)
    assert running.most <= 6
    for task in people:
        task.cancel()
    await asyncio.sleep(5)
    assert (_leased(batch), _leased(live)) == (6, 0)
    for task in tasks:
        task.cancel()
    await batch.leave_fleet()
    await live.leave_fleet()


def _leased(controller: ToolConcurrencyController) -> int | None:
    return controller.get_bucket_metrics()["pay"]["leased"]


async def test_without_the_database_no_slot_is_handed_out_after_the_lease_and_calls_go_on_when_it_is_back() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    first, second = (make_process(table, bucket_limits={"pay": 2}, lease_seconds=10.0) for _ in range(2))
    await running.run(first, 0, 0.1)
    table.is_unreachable = True
    await running.run(first, 0, 0.1)  # a slot is leased
    await asyncio.sleep(10)
    late = asyncio.create_task(running.run(first, 0, 0.1))
    await asyncio.sleep(20)
    assert running.of_process[0] == 2
    table.is_unreachable = False
    await running.run(second, 1, 0.1)
    await late
    await first.leave_fleet()
    await second.leave_fleet()


@given(
    limit=st.integers(1, 3),
    cuts=st.lists(st.tuples(st.floats(0, 20), st.floats(0, 30)), min_size=1, max_size=2),
    effect=st.sampled_from(["arrives late", "fails", "answer is lost"]),
)
@examples(0.4)
@example(limit=1, cuts=[(1.0, 30.0)], effect="fails")
@example(limit=2, cuts=[(0.4, 0.7)], effect="answer is lost")
def test_a_limit_holds_while_requests_of_a_process_hang_and_calls_go_on_afterwards(
    limit: int, cuts: list[tuple[float, float]], effect: str
) -> None:
    async def main() -> None:
        table, running = LeasesInMemory(), RunningCalls()
        tables = (CutOffLeases(table, cuts, effect), table)
        processes = [make_process(each, bucket_limits={"pay": limit}) for each in tables]

        async def call_until(end: float, process: int) -> None:
            while loop_time() < end:
                await running.run(processes[process], process, 1.0)

        await asyncio.gather(*(call_until(60.0, process) for process in (0, 1) for _ in range(2)))
        assert running.most <= limit
        before = Counter(running.of_process)
        await asyncio.gather(*(call_until(70.0, process) for process in (0, 1)))
        assert all(running.of_process[process] > before[process] for process in (0, 1))
        for controller in processes:
            await controller.leave_fleet()

    run_in_virtual_time(main)


async def test_slots_that_were_given_back_are_not_used_when_the_answer_is_lost() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    tables = (CutOffLeases(table, [(0.9, 4.0)], "answer is lost"), table)
    first, second = (make_process(each, bucket_limits={"pay": 2}) for each in tables)

    async def call(controller: ToolConcurrencyController, process: int, seconds: float, arrival: float) -> None:
        await asyncio.sleep(arrival)
        await running.run(controller, process, seconds)

    await asyncio.gather(*(call(first, 0, 0.1, 0.0) for _ in range(2)))
    await asyncio.gather(  # after a second without calls, the first process gives its slots back
        *(call(second, 1, 3.0, 2.0) for _ in range(2)), *(call(first, 0, 0.1, 2.2 + number) for number in range(3))
    )
    assert running.most == 2
    await first.leave_fleet()
    await second.leave_fleet()


async def test_slots_of_a_dead_process_are_free_after_its_lease() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    table.slots["pay"] = {
        "dead": SlotLease(owner="dead", slots=1, waiting=0, waiting_since=None, slot_limit=1, expires_at=7.0)
    }
    controller = make_process(table, bucket_limits={"pay": 1})
    await running.run(controller, 0, 0.1)
    assert running.started_at[0] >= 7.0
    assert running.started_at[0] < 8.0
    await controller.leave_fleet()


@given(limit=st.integers(1, 6), calls=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 90)), max_size=40))
def test_a_shared_rate_is_never_exceeded(limit: int, calls: list[tuple[int, float]]) -> None:
    async def main() -> None:
        table, running = LeasesInMemory(), RunningCalls()
        processes = [make_process(table, rate_limits={"pay": limit}, max_concurrent=50) for _ in range(3)]

        async def call(process: int, arrival: float) -> None:
            await asyncio.sleep(arrival)
            await running.run(processes[process], process, 0.01)

        async with asyncio.TaskGroup() as group:
            for process, arrival in calls:
                group.create_task(call(process, arrival))
        starts = sorted(running.started_at)
        assert len(starts) == len(calls)
        for first, later in zip(starts, starts[limit:], strict=False):
            assert later - first >= RATE_PERIOD
        for controller in processes:
            await controller.leave_fleet()

    run_in_virtual_time(main)


async def test_starts_that_another_process_gives_back_are_waited_for() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    first, second = (
        ToolConcurrencyController(
            ConcurrencyConfig(shared=True, rate_limits={"pay": 20}, max_concurrent=50, default_timeout=5.0),
            clock=loop_time,
        )
        for _ in range(2)
    )
    for controller in (first, second):
        controller.join_fleet(table.renew)
    await asyncio.gather(*(running.run(first, 0, 0.01) for _ in range(10)))
    await running.run(first, 0, 0.01)  # its process leases as many starts as it needed last
    waiting = asyncio.create_task(running.run(second, 1, 0.01))
    await asyncio.sleep(0.2)
    await running.run(second, 1, 0.01)  # it knows by now that all starts are leased
    await waiting
    assert loop_time() < 5.0
    await first.leave_fleet()
    await second.leave_fleet()


async def test_an_overload_that_one_process_sees_lowers_the_limit_of_all() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    options = {"bucket_limits": {"pay": 8}, "adaptive_limits": {"pay": 2}, "max_concurrent": 50}
    first, second = (make_process(table, **options) for _ in range(2))
    tasks = [
        asyncio.create_task(_call_forever(running, each, n)) for n, each in enumerate((first, second)) for _ in range(8)
    ]
    await asyncio.sleep(10)
    for _ in range(10):
        async with first.slot("pay") as slot:
            first.report_load(slot, seconds=0.1, is_overload=True)
        await asyncio.sleep(2)
    running.most = running.now
    await asyncio.sleep(20)
    assert running.most == 2
    for _ in range(100):
        async with first.slot("pay") as slot:
            first.report_load(slot, seconds=0.1, is_overload=False)
    await asyncio.sleep(20)
    assert running.most == 8
    for task in tasks:
        task.cancel()
    await first.leave_fleet()
    await second.leave_fleet()


async def test_good_calls_of_any_process_raise_the_limit_again() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    options = {"bucket_limits": {"pay": 8}, "adaptive_limits": {"pay": 2}, "max_concurrent": 50}
    first, second = (make_process(table, **options) for _ in range(2))
    long_call = asyncio.create_task(running.run(first, 0, 1000.0))
    await asyncio.sleep(1)
    for _ in range(10):
        async with first.slot("pay") as slot:
            first.report_load(slot, is_overload=True)
        await asyncio.sleep(2)
    assert first.get_bucket_metrics()["pay"]["adaptive_limit"] == 2
    for _ in range(60):
        async with second.slot("pay") as slot:
            await asyncio.sleep(0.1)
            second.report_load(slot, seconds=0.1)
    await asyncio.sleep(2)
    for controller in (first, second):
        assert controller.get_bucket_metrics()["pay"]["adaptive_limit"] == 8
    long_call.cancel()
    await first.leave_fleet()
    await second.leave_fleet()


async def test_calls_that_do_not_wait_are_rejected_only_when_the_fleet_has_no_slot() -> None:
    table, running = LeasesInMemory(), RunningCalls()
    first, second = (make_process(table, bucket_limits={"pay": 1}, strategy="reject") for _ in range(2))
    call = asyncio.create_task(running.run(first, 0, 5.0))
    await asyncio.sleep(1)
    with pytest.raises(Rejected) as caught:
        await running.run(second, 1, 0.1)
    assert caught.value.details["reason"] == "concurrency_limit"
    await call
    await asyncio.sleep(3)
    await running.run(second, 1, 0.1)
    await first.leave_fleet()
    await second.leave_fleet()


def test_a_shared_limit_needs_a_sensible_lease() -> None:
    with pytest.raises(SetupError, match="lease_seconds must be between 1 and 600"):
        ConcurrencyConfig(shared=True, lease_seconds=0.1)


def test_an_adaptive_limit_goes_down_with_overload_and_up_with_good_calls() -> None:
    limit = AdaptiveLimit(maximum=10, minimum=2, max_latency=5.0)
    limit.report(0.0, seconds=0.1, is_overload=True)
    assert limit.slots == 7
    limit.report(0.5, seconds=0.1, is_overload=True)  # the same overload
    assert limit.slots == 7
    limit.report(2.0, seconds=9.0, is_overload=False)  # too slow
    assert limit.slots == 4
    for _ in range(3):
        limit.report(4.0, seconds=0.1, is_overload=False)
    assert limit.slots == 5
    for second in range(10, 30):
        limit.report(float(second), seconds=0.1, is_overload=True)
    assert limit.slots == 2


def test_an_adaptive_limit_needs_a_highest_number_of_slots() -> None:
    with pytest.raises(SetupError, match="'pay' needs both a highest number of slots"):
        ConcurrencyConfig(adaptive_limits={"pay": 1})


async def test_an_answer_429_lowers_the_limit_of_an_engine() -> None:
    @tool(bucket="pay", idempotent=False)
    async def pay() -> str:
        """Pay."""
        raise Transient("too many requests", status_code=429)

    limits = ConcurrencyConfig(bucket_limits={"pay": 10}, adaptive_limits={"pay": 1})
    async with ToolEngine(concurrency=limits) as engine:
        engine.register(pay)
        await engine.execute("pay", {})
        assert engine.concurrency.get_bucket_metrics()["pay"]["adaptive_limit"] == 7


@pytest.mark.parametrize(
    "error, slots",
    [(ConnectionRefusedError("full"), 7), (ValueError("no"), 7), (TimeoutError(), 4), (httpx.ReadTimeout(""), 4)],
)
async def test_a_failure_raises_no_limit_and_a_timeout_of_the_tool_itself_lowers_it(
    error: Exception, slots: int
) -> None:
    failures = iter([Transient("too many requests", status_code=429)])

    @tool(bucket="pay", idempotent=False)
    async def pay() -> str:
        """Pay."""
        raise next(failures, error)

    now = iter(range(0, 1000, 10))
    limits = ConcurrencyConfig(bucket_limits={"pay": 10}, adaptive_limits={"pay": 4})
    async with ToolEngine(concurrency=limits) as engine:
        engine.concurrency._clock = lambda: float(next(now))
        engine.register(pay)
        for _ in range(8):
            await engine.execute("pay", {})
        assert engine.concurrency.get_bucket_metrics()["pay"]["adaptive_limit"] == slots
