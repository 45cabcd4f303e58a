"""Limits that several processes share, in a real store and in real processes that are killed and stopped."""

import asyncio
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ferrule import ConcurrencyConfig, ToolEngine, tool
from ferrule.errors import StoreError
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import StoreDatabase
from ferrule.store.shared_limits import (
    BucketLoad,
    LeaseRequest,
    SlotRequest,
    StartRequest,
    _lock_leases,
    renew_leases,
)
from tests.concurrency.fleet_process import count_most_running, read_log
from tests.support.processes import TalkingProcess
from tests.support.waiting import until


async def test_the_database_grants_no_more_than_the_limit(shared_store_url: str, tmp_path: Path) -> None:
    async with ToolKnowledgeStore(shared_store_url, journal_directory=tmp_path / "journal") as store:

        async def ask(owner: str, **wish: Any) -> int:
            request = LeaseRequest(owner=owner, seconds=600, slots={"pay": SlotRequest(limit=5, **wish)})
            slots, _ = await store.query_without_records(renew_leases, request)
            return slots["pay"].slots

        assert await ask("a", slots=0, demand=4) == 4
        assert await ask("b", slots=0, demand=4, waiting=4) == 1
        assert await ask("a", slots=4, demand=5, waiting=1) == 4
        assert await ask("a", slots=0, demand=0) == 0
        assert await ask("b", slots=1, demand=4, waiting=3) == 4
        assert await ask("a", slots=0, demand=5, waiting=5) == 1  # the only one that "b" does not have


async def test_the_database_grants_no_more_starts_than_the_rate(shared_store_url: str, tmp_path: Path) -> None:
    async with ToolKnowledgeStore(shared_store_url, journal_directory=tmp_path / "journal") as store:

        async def ask(owner: str, **wish: int) -> int:
            request = LeaseRequest(owner=owner, seconds=600, starts={"mail": StartRequest(limit=10, **wish)})
            _, starts = await store.query_without_records(renew_leases, request)
            return starts["mail"][0]

        assert await ask("a", demand=8) == 8
        assert await ask("b", demand=8) == 1  # half of what is free, so that "a" can get more
        assert await ask("a", used=2, demand=0) == 0
        assert await ask("b", used=1, demand=20) == 3


async def test_the_database_has_one_adaptive_limit_for_all(shared_store_url: str, tmp_path: Path) -> None:
    async with ToolKnowledgeStore(shared_store_url, journal_directory=tmp_path / "journal") as store:

        async def ask(owner: str, **load: int) -> int:
            report = BucketLoad(minimum=2, good_calls=load.get("good", 0), is_overload=bool(load.get("overload")))
            wish = SlotRequest(limit=10, slots=0, demand=1, load=report)
            slots, _ = await store.query_without_records(
                renew_leases, LeaseRequest(owner=owner, seconds=600, slots={"pay": wish})
            )
            await store.query_without_records(renew_leases, LeaseRequest(owner=owner, seconds=600))  # gives all back
            return slots["pay"].limit

        assert await ask("a") == 10
        assert await ask("a", overload=1) == 7
        assert await ask("b", good=8) == 8
        assert await ask("a", good=1000) == 10


@pytest.mark.integration
async def test_a_process_that_stops_in_the_middle_of_a_renewal_delays_others_only_for_a_moment(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection lives, as after SIGSTOP or when its network is cut, and it has the lock of all leases."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("ferrule.store.shared_limits.MAX_LOCK_SECONDS", 1)
    async with ToolKnowledgeStore(postgres_url) as stopped, ToolKnowledgeStore(postgres_url) as other:

        def stop(database: StoreDatabase) -> None:
            with database.write() as connection:
                _lock_leases(connection)
                has_lock.set()
                is_over.wait(120)
                connection.exec_driver_sql("SELECT 1")

        has_lock, is_over = threading.Event(), threading.Event()
        stopping = asyncio.create_task(stopped.query_without_records(stop))
        await asyncio.to_thread(has_lock.wait, 120)
        request = LeaseRequest(owner="b", seconds=600, slots={"pay": SlotRequest(limit=1, slots=0, demand=1)})
        slots, _ = await asyncio.wait_for(other.query_without_records(renew_leases, request), 120)
        is_over.set()
        assert slots["pay"].slots == 1
        with pytest.raises(StoreError):
            await stopping
        slots, _ = await stopped.query_without_records(
            renew_leases, LeaseRequest(owner="a", seconds=600, slots=request.slots)
        )
        assert slots["pay"].slots == 0


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
        await together.wait()  # both slots are taken once
        await asyncio.sleep(0.01)  # a third call would start meanwhile
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
        results = await asyncio.gather(
            *(engine.execute("pay", {}, timeout=300) for engine in (a, b) for _ in range(15))
        )
        assert all(result.success for result in results)
        assert together.is_set()
    assert most == 2


LEASE_SECONDS = 6.0
"""Much longer than a busy machine keeps a process waiting. A killed process blocks its slots for so long."""


def start_process(store_url: str, log: Path, limit: int, calls: int) -> TalkingProcess:
    """A process whose four callers make so many calls each."""
    arguments = (store_url, str(log), str(limit), "4", str(calls), str(LEASE_SECONDS))
    return TalkingProcess("-m", "tests.concurrency.fleet_process", *arguments)


def count_lines(log: Path, process: TalkingProcess, change: int) -> int:
    return sum(pid == process.pid and step == change for _, pid, step in read_log(log))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("shared_store_url", "limit"),
    [
        ("sqlite", 3),
        ("postgres", 1),
        pytest.param("sqlite", 1, marks=pytest.mark.long),
        pytest.param("postgres", 3, marks=pytest.mark.long),
    ],
    indirect=["shared_store_url"],
)
async def test_killed_processes_leave_no_slot_behind_and_exceed_nothing(
    shared_store_url: str, tmp_path: Path, limit: int
) -> None:
    log = tmp_path / "calls.log"
    victims = [start_process(shared_store_url, log, limit, 1_000_000) for _ in range(2)]
    for victim in victims:
        with victim:
            await until(lambda victim=victim: count_lines(log, victim, 1))  # type: ignore[misc]
            victim.kill()
    survivors = [start_process(shared_store_url, log, limit, 5) for _ in range(2)]
    for survivor in survivors:
        with survivor:
            assert await asyncio.to_thread(survivor.wait, 200) == 0
    assert [count_lines(log, survivor, -1) for survivor in survivors] == [20, 20]
    assert count_most_running(log, {victim.pid for victim in victims}, LEASE_SECONDS) <= limit


@pytest.mark.integration
@pytest.mark.parametrize(
    "shared_store_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True
)
async def test_a_process_that_was_stopped_starts_nothing_with_its_old_lease(
    shared_store_url: str, tmp_path: Path
) -> None:
    log, limit = tmp_path / "calls.log", 2
    with ExitStack() as stack:

        def start() -> TalkingProcess:
            process = stack.enter_context(start_process(shared_store_url, log, limit, 1_000_000))
            stack.callback(process.kill)
            return process

        stopped = start()
        await until(lambda: count_lines(log, stopped, 1))
        running = begun = 0
        while running < limit:  # all slots are taken by calls that have begun, and none by one that is about to begin
            stopped.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.001)  # it makes some calls
            stopped.send_signal(signal.SIGSTOP)
            await until(lambda: is_stopped(stopped.pid))
            begun = count_lines(log, stopped, 1)
            running = begun - count_lines(log, stopped, -1)
        other = start()
        await until(lambda: count_lines(log, other, 1))
        stopped.send_signal(signal.SIGCONT)
        await until(lambda: count_lines(log, stopped, 1) > begun + limit)
    lines_before = {stopped.pid: 2 * begun - running}  # others may have its slots before half a lease has passed
    assert count_most_running(log, {stopped.pid, other.pid}, LEASE_SECONDS, lines_before) <= limit


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
