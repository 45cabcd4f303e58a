"""Limits that several processes share: never exceeded, whatever is killed, and no process waits for ever."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ferrule import ConcurrencyConfig, ToolEngine, tool
from ferrule.concurrency import ToolConcurrencyController
from ferrule.concurrency.adaptive import AdaptiveLimit
from ferrule.errors import Rejected, SetupError, StoreError, Transient
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import StoreDatabase
from ferrule.store.leases import (
    RATE_PERIOD,
    BucketLoad,
    LeaseGrants,
    LeaseRequest,
    LimitState,
    SlotLease,
    SlotRequest,
    StartLease,
    StartRequest,
    _lock_leases,
    adapt_limit,
    grant_slots,
    grant_starts,
    list_slot_leases,
    renew_leases,
)
from tests.concurrency.fleet_process import count_most_running, read_log
from tests.support.virtual_time import loop_time, run_in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


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
        return LeaseGrants(slots=slots, starts=starts)

    async def release(self, owner: str, used_starts: Mapping[str, int]) -> None:
        for leases in self.slots.values():
            leases.pop(owner, None)


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

    async def release(self, owner: str, used_starts: Mapping[str, int]) -> None:
        await self._table.release(owner, used_starts)


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
    controller.join_fleet(table)
    return controller


@settings(max_examples=60)
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


def test_two_processes_take_turns_with_a_limit_of_one() -> None:
    async def main() -> None:
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

    run_in_virtual_time(main)


async def _call_forever(running: RunningCalls, controller: ToolConcurrencyController, process: int) -> None:
    while True:
        await running.run(controller, process, 0.1)


def test_busy_processes_get_equal_shares_and_an_idle_one_gives_its_slots_back() -> None:
    async def main() -> None:
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

    run_in_virtual_time(main)


def test_a_process_that_yields_leaves_others_all_but_one_slot_and_takes_them_back() -> None:
    async def main() -> None:
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

    run_in_virtual_time(main)


def _leased(controller: ToolConcurrencyController) -> int | None:
    return controller.get_bucket_metrics()["pay"]["leased"]


def test_without_the_database_no_slot_is_handed_out_after_the_lease_and_calls_go_on_when_it_is_back() -> None:
    async def main() -> None:
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

    run_in_virtual_time(main)


@settings(deadline=None, max_examples=25)
@given(
    limit=st.integers(1, 3),
    cuts=st.lists(st.tuples(st.floats(0, 20), st.floats(0, 30)), min_size=1, max_size=2),
    effect=st.sampled_from(["arrives late", "fails", "answer is lost"]),
)
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


def test_slots_that_were_given_back_are_not_used_when_the_answer_is_lost() -> None:
    async def main() -> None:
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

    run_in_virtual_time(main)


def test_slots_of_a_dead_process_are_free_after_its_lease() -> None:
    async def main() -> None:
        table, running = LeasesInMemory(), RunningCalls()
        table.slots["pay"] = {
            "dead": SlotLease(owner="dead", slots=1, waiting=0, waiting_since=None, slot_limit=1, expires_at=7.0)
        }
        controller = make_process(table, bucket_limits={"pay": 1})
        await running.run(controller, 0, 0.1)
        assert running.started_at[0] >= 7.0
        assert running.started_at[0] < 8.0
        await controller.leave_fleet()

    run_in_virtual_time(main)


@settings(max_examples=40)
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


def test_starts_that_another_process_gives_back_are_waited_for() -> None:
    async def main() -> None:
        table, running = LeasesInMemory(), RunningCalls()
        first, second = (
            ToolConcurrencyController(
                ConcurrencyConfig(shared=True, rate_limits={"pay": 20}, max_concurrent=50, default_timeout=5.0),
                clock=loop_time,
            )
            for _ in range(2)
        )
        for controller in (first, second):
            controller.join_fleet(table)
        await asyncio.gather(*(running.run(first, 0, 0.01) for _ in range(10)))
        await running.run(first, 0, 0.01)  # its process leases as many starts as it needed last
        waiting = asyncio.create_task(running.run(second, 1, 0.01))
        await asyncio.sleep(0.2)
        await running.run(second, 1, 0.01)  # it knows by now that all starts are leased
        await waiting
        assert loop_time() < 5.0
        await first.leave_fleet()
        await second.leave_fleet()

    run_in_virtual_time(main)


def test_an_overload_that_one_process_sees_lowers_the_limit_of_all() -> None:
    async def main() -> None:
        table, running = LeasesInMemory(), RunningCalls()
        options = {"bucket_limits": {"pay": 8}, "adaptive_limits": {"pay": 2}, "max_concurrent": 50}
        first, second = (make_process(table, **options) for _ in range(2))
        tasks = [
            asyncio.create_task(_call_forever(running, each, n))
            for n, each in enumerate((first, second))
            for _ in range(8)
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

    run_in_virtual_time(main)


def test_good_calls_of_any_process_raise_the_limit_again() -> None:
    async def main() -> None:
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

    run_in_virtual_time(main)


def test_calls_that_do_not_wait_are_rejected_only_when_the_fleet_has_no_slot() -> None:
    async def main() -> None:
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

    run_in_virtual_time(main)


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


# The leases in a database


async def test_the_database_grants_no_more_than_the_limit(shared_store_url: str, tmp_path: Path) -> None:
    async with ToolKnowledgeStore(shared_store_url, journal_directory=tmp_path / "journal") as store:

        async def ask(owner: str, **wish: Any) -> int:
            request = LeaseRequest(owner=owner, seconds=60, slots={"pay": SlotRequest(limit=5, **wish)})
            grants = await store.query_without_records(renew_leases, request)
            return grants.slots["pay"].slots

        assert await ask("a", slots=0, demand=4) == 4
        assert await ask("b", slots=0, demand=4, waiting=4) == 1
        assert await ask("a", slots=4, demand=5, waiting=1) == 4
        assert await ask("a", slots=0, demand=0) == 0
        assert await ask("b", slots=1, demand=4, waiting=3) == 4
        leases = await store.query_without_records(list_slot_leases)
        assert [(lease.owner, lease.slots) for lease in leases["pay"]] == [("b", 4)]


async def test_the_database_grants_no_more_starts_than_the_rate(shared_store_url: str, tmp_path: Path) -> None:
    async with ToolKnowledgeStore(shared_store_url, journal_directory=tmp_path / "journal") as store:

        async def ask(owner: str, **wish: int) -> int:
            request = LeaseRequest(owner=owner, seconds=60, starts={"mail": StartRequest(limit=10, **wish)})
            grants = await store.query_without_records(renew_leases, request)
            return grants.starts["mail"].starts

        assert await ask("a", demand=8) == 8
        assert await ask("b", demand=8) == 1  # half of what is free, so that "a" can get more
        assert await ask("a", used=2, demand=0) == 0
        assert await ask("b", used=1, demand=20) == 3


async def test_the_database_has_one_adaptive_limit_for_all(shared_store_url: str, tmp_path: Path) -> None:
    async with ToolKnowledgeStore(shared_store_url, journal_directory=tmp_path / "journal") as store:

        async def ask(owner: str, **load: int) -> int:
            report = BucketLoad(minimum=2, good_calls=load.get("good", 0), is_overload=bool(load.get("overload")))
            wish = SlotRequest(limit=10, slots=0, demand=1, load=report)
            grants = await store.query_without_records(
                renew_leases, LeaseRequest(owner=owner, seconds=60, slots={"pay": wish})
            )
            await store.query_without_records(renew_leases, LeaseRequest(owner=owner, seconds=60))  # gives all back
            return grants.slots["pay"].limit

        assert await ask("a") == 10
        assert await ask("a", overload=1) == 7
        assert await ask("b", overload=1) == 7  # within the same second
        assert await ask("b", good=8) == 8
        assert await ask("a", good=1000) == 10


async def test_a_process_that_stops_in_the_middle_of_a_renewal_delays_others_only_for_a_moment(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection lives, as after SIGSTOP or when its network is cut, and it has the lock of all leases."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with ToolKnowledgeStore(postgres_url) as stopped, ToolKnowledgeStore(postgres_url) as other:

        def stop(database: StoreDatabase) -> None:
            with database.write() as connection:
                _lock_leases(connection)
                has_lock.set()
                is_over.wait(60)
                connection.exec_driver_sql("SELECT 1")

        has_lock, is_over = threading.Event(), threading.Event()
        stopping = asyncio.create_task(stopped.query_without_records(stop))
        await asyncio.to_thread(has_lock.wait, 60)
        request = LeaseRequest(owner="b", seconds=60, slots={"pay": SlotRequest(limit=1, slots=0, demand=1)})
        grants = await asyncio.wait_for(other.query_without_records(renew_leases, request), 60)
        is_over.set()
        assert grants.slots["pay"].slots == 1
        with pytest.raises(StoreError):
            await stopping
        grants = await stopped.query_without_records(
            renew_leases, LeaseRequest(owner="a", seconds=60, slots=request.slots)
        )
        assert grants.slots["pay"].slots == 0


async def test_engines_with_one_store_share_a_limit(shared_store_url: str, tmp_path: Path) -> None:
    running, most = 0, 0
    together = asyncio.Event()

    @tool(bucket="pay")
    async def pay() -> str:
        """Pay."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            together.set()
        await asyncio.sleep(0.01)
        running -= 1
        return "paid"

    limits = ConcurrencyConfig(bucket_limits={"pay": 2}, shared=True)
    stores = [ToolKnowledgeStore(shared_store_url, journal_directory=tmp_path / f"journal{n}") for n in range(2)]
    async with (
        ToolEngine(concurrency=limits, store=stores[0]) as a,
        ToolEngine(concurrency=limits, store=stores[1]) as b,
    ):
        a.register(pay)
        b.register(pay)
        results = await asyncio.gather(*(engine.execute("pay", {}) for engine in (a, b) for _ in range(15)))
        assert all(result.success for result in results)
        assert together.is_set()
    assert most == 2


@pytest.mark.parametrize("limit", [1, 3])
async def test_killed_processes_leave_no_slot_behind_and_exceed_nothing(
    shared_store_url: str, tmp_path: Path, limit: int
) -> None:
    log = tmp_path / "calls.log"

    def start(calls: int) -> subprocess.Popen[bytes]:
        arguments = [shared_store_url, str(log), str(limit), "4", str(calls)]
        return subprocess.Popen([sys.executable, "-m", "tests.concurrency.fleet_process", *arguments], cwd=ROOT)

    victims = [start(1_000_000) for _ in range(2)]
    for victim in victims:
        await until(lambda victim=victim: any(pid == victim.pid for _, pid, _ in read_log(log)))  # type: ignore[misc]
        victim.kill()
        victim.wait()
    survivors = [start(5) for _ in range(2)]
    codes = [await asyncio.to_thread(process.wait, 60) for process in survivors]
    assert codes == [0, 0]
    finished = Counter(pid for _, pid, change in read_log(log) if change < 0)
    assert [finished[process.pid] for process in survivors] == [20, 20]
    assert count_most_running(log, {victim.pid for victim in victims}) <= limit


async def test_a_process_that_was_stopped_starts_nothing_with_its_old_lease(
    shared_store_url: str, tmp_path: Path
) -> None:
    log, limit = tmp_path / "calls.log", 2

    def start() -> subprocess.Popen[bytes]:
        arguments = [shared_store_url, str(log), str(limit), "4", "1000000"]
        return subprocess.Popen([sys.executable, "-m", "tests.concurrency.fleet_process", *arguments], cwd=ROOT)

    def lines_of(process: subprocess.Popen[bytes], change: int) -> int:
        return sum(pid == process.pid and step == change for _, pid, step in read_log(log))

    stopped = start()
    processes = [stopped]
    try:
        await until(lambda: lines_of(stopped, 1) > 0)
        running = begun = 0
        while running < limit:  # all slots are taken by calls that have begun, and none by one that is about to begin
            stopped.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.001)
            stopped.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(os.waitpid, stopped.pid, os.WUNTRACED)
            begun = lines_of(stopped, 1)
            running = begun - lines_of(stopped, -1)
        processes.append(other := start())
        await until(lambda: lines_of(other, 1) > 0)
        stopped.send_signal(signal.SIGCONT)
        await until(lambda: lines_of(stopped, 1) > begun + limit)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = log.read_text().splitlines()
    ends = [line for line in lines if line.split()[1:] == [str(stopped.pid), "-1"]]
    late = ends[begun - running : begun]  # the calls that ran when it was stopped end when it goes on
    before = [line for line in lines if line.split()[1] == str(stopped.pid)][: 2 * begun - running]
    ended = [f"{before[-1].split()[0]} {stopped.pid} -1"] * running
    log.write_text("\n".join([*(line for line in lines if line not in late), *ended]) + "\n")
    assert count_most_running(log, {process.pid for process in processes}) <= limit
