"""Locks: one holder at a time, in all processes, and what was written under a lock is there for the next holder."""

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from ferrule import Agent, UnifiedToolLibrary, tool
from ferrule.core.model import ModelReply
from ferrule.errors import LockHeld, LockLost, RunInterrupted, StoreError
from ferrule.server.responses import problem_of_error
from ferrule.store import ToolKnowledgeStore, leases, writer
from ferrule.testing import ScriptedModel
from tests.support.processes import TalkingProcess
from tests.support.waiting import until, until_sync

pytestmark = pytest.mark.integration

HOLDER = """
import asyncio, sys
from ferrule.store import ToolKnowledgeStore, leases

leases.LEASE_SECONDS, leases.RENEW_INTERVAL = 1.0, 0.2

async def main():
    async with ToolKnowledgeStore(sys.argv[1]) as store, store.lock("job"):
        for number in range(int(sys.argv[2])):
            store.write_entry("job", f"{number:04}", number)
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
STOPPED_HOLDER = """
import asyncio, signal, sys
from ferrule.errors import LockLost
from ferrule.store import ToolKnowledgeStore

async def main():
    async with ToolKnowledgeStore(sys.argv[1], journal_directory=sys.argv[2]) as store:
        def write_late():
            store.write_entry("job", "0002", "too late")
            store.write_entry("job", "0003", "too late")
        try:
            async with store.lock("job"):
                store.write_entry("job", "0001", "begun")
                await store.flush()
                asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, write_late)
                print("held", flush=True)
                await asyncio.Event().wait()
        except LockLost:
            await store.flush()
            print("lost", flush=True)

asyncio.run(main())
"""


@contextmanager
def killed_holder(url: str, entries: int = 0) -> Iterator[None]:
    """A process that is killed while it holds the lock `job`; it may not have ended completely yet."""
    with TalkingProcess("-c", HOLDER, url, str(entries)) as process:
        assert process.read() == "held"
        os.kill(process.pid, signal.SIGKILL)
        yield


async def take_when_free(store: ToolKnowledgeStore, name: str) -> Any:
    """Enter the lock as soon as it can be had."""
    entered = None

    async def attempt() -> bool:
        nonlocal entered
        entered = store.lock(name)
        try:
            await entered.__aenter__()
        except LockHeld:
            return False
        return True

    while not await attempt():
        await asyncio.sleep(0.001)  # between two attempts
    return entered


def test_a_run_approved_in_two_processes_pays_once(shared_store_url, tmp_path):
    payments = tmp_path / "payments"
    orders = [f"{kind} order-{kind}-{number}" for kind in ("agent", "plan") for number in range(3)]
    command = ("-m", "tests.store.paying_process", shared_store_url, str(payments))
    with TalkingProcess(*command) as first, TalkingProcess(*command) as second:
        assert (first.read(), second.read()) == ("ready", "ready")
        for order in orders:  # one after the other
            assert first.ask(f"start {order}") == "waiting"
            assert first.ask(f"resume {order}") == "finished"
            assert second.ask(f"resume {order}") == "finished"
        for order in orders:  # and both at once
            assert first.ask(f"start {order}-at-once") == "waiting"
            first.tell(f"resume {order}-at-once")
            for result in second.ask(f"resume {order}-at-once"), first.read():
                assert result == "finished" or "is in progress, here or in another process" in result
    names = [order.split()[1] for order in orders]
    assert payments.read_text().split() == [*names, *(f"{name}-at-once" for name in names)]


async def test_a_lock_has_one_holder(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        assert not await store.is_locked("job")
        async with store.lock("job"):
            assert await store.is_locked("job")
            async with store.lock("other"):
                pass
            with pytest.raises(LockHeld, match="the lock 'job' is held by another user of the store"):
                await store.lock("job").__aenter__()
        assert not await store.is_locked("job")
        async with store.lock("job"):
            pass


async def test_a_lock_that_is_released_in_the_background_is_soon_free(shared_store_url, monkeypatch):
    monkeypatch.setattr(writer, "MAINTENANCE_INTERVAL", 3600.0)  # so nothing but the release wakes the writer up
    async with ToolKnowledgeStore(shared_store_url) as store, ToolKnowledgeStore(shared_store_url) as other:
        async with store.lock("job") as lock:
            lock.release_in_background = True
            store.write_entry("job", "1", "done")
            await store.flush()  # so the writer has nothing more to do
        next_lock = await take_when_free(other, "job")
        await next_lock.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("shared_store_url", "machines"),
    [("sqlite", "aa"), ("postgres", "aa"), ("postgres", "ab")],
    indirect=["shared_store_url"],
)
async def test_a_lock_excludes_other_processes(shared_store_url, tmp_path, machines):
    """Another journal directory is what another machine has: it shares nothing but the database."""
    journals = [tmp_path / "journals" / machine for machine in machines]
    async with (
        ToolKnowledgeStore(shared_store_url, journal_directory=journals[0]) as store,
        ToolKnowledgeStore(shared_store_url, journal_directory=journals[1]) as other,
    ):
        async with store.lock("job"):
            store.write_entry("job", "1", "written under the lock")
            assert await other.is_locked("job")
            with pytest.raises(LockHeld):
                await other.lock("job").__aenter__()
        assert not await other.is_locked("job")
        async with other.lock("job"):
            assert await other.read_entries("job") == {"1": "written under the lock"}
        assert store.location.locks is None or list(store.location.locks.iterdir()) == []


@contextmanager
def administer(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as admin:
        yield admin


async def wait_for_renewal(url: str) -> None:
    """Wait until a lease is renewed once more."""
    with administer(url) as admin:
        last_end = "SELECT max(expires_at) FROM leases"
        before = admin.execute(last_end).fetchall()
        await until(lambda: admin.execute(last_end).fetchall() > before)


async def test_a_lock_in_postgres_outlives_its_connections(postgres_url, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_INTERVAL", 0.05)
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other,
    ):
        async with store.lock("job"):
            await wait_for_renewal(postgres_url)
            with administer(postgres_url) as admin:
                sessions = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = current_user"
                admin.execute(f"SELECT pg_terminate_backend(pid) {sessions}")
            await wait_for_renewal(postgres_url)
            with pytest.raises(LockHeld):
                await other.lock("job").__aenter__()
        async with other.lock("job"):
            pass


async def test_a_process_that_looks_at_a_lease_and_stops_does_not_hold_up_other_leases(
    postgres_url, tmp_path, monkeypatch
):
    monkeypatch.setattr(leases, "RENEW_INTERVAL", 0.05)
    end_of_other = "SELECT expires_at FROM leases WHERE key = 'lock:other'"
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        store.lock("job"),
        store.lock("other"),
    ):
        with psycopg.connect(postgres_url) as stopped, administer(postgres_url) as admin:
            stopped.execute("SELECT * FROM leases WHERE key = 'lock:job' FOR UPDATE")
            before = admin.execute(end_of_other).fetchall()
            await until(lambda: admin.execute(end_of_other).fetchall() > before)
        await wait_for_renewal(postgres_url)


async def test_a_lock_is_taken_although_its_process_paused_until_the_database_ended_the_transaction(
    postgres_url, tmp_path, monkeypatch
):
    read_clock = leases.read_database_clock
    sessions: list[int] = []

    def read_clock_after_pause(connection: Connection) -> float:
        if not sessions and "ferrule_writes" in connection.get_execution_options():
            sessions.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
            with administer(postgres_url) as admin:
                is_alive = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
                until_sync(lambda: not admin.execute(is_alive, sessions).fetchall())
        return read_clock(connection)

    monkeypatch.setattr(leases, "read_database_clock", read_clock_after_pause)
    async with ToolKnowledgeStore(postgres_url, journal_directory=tmp_path) as store, store.lock("job"):
        assert sessions and await store.is_locked("job")


async def test_a_lock_that_the_database_does_not_release_is_released_later(postgres_url, tmp_path, monkeypatch):
    release = leases.RowLeases.release
    failures: list[str] = []

    def fail_once(self: leases.RowLeases, key: str) -> None:
        if not failures:
            failures.append(key)
            raise StoreError("the database is away")
        release(self, key)

    monkeypatch.setattr(leases.RowLeases, "release", fail_once)
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as other,
    ):
        async with store.lock("job"):
            pass
        assert failures == ["lock:job"]
        await take_when_free(other, "job")


async def test_a_store_that_closes_while_a_lock_is_released_is_closed_by_one_thread_at_a_time(tmp_path, monkeypatch):
    store = ToolKnowledgeStore(str(tmp_path / "calls.db"))
    finish, meeting, met = writer.RecordWriter.finish, threading.Barrier(2), list[bool]()

    def finish_with_others(self: writer.RecordWriter) -> None:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)  # a moment in which a second thread would come
            met.append(True)
        finish(self)

    await store.__aenter__()
    lock = store.lock("job")
    await lock.__aenter__()
    monkeypatch.setattr(writer.RecordWriter, "finish", finish_with_others)
    await asyncio.gather(store.aclose(), lock.__aexit__(None, None, None))
    assert met == []


async def test_a_lock_that_was_taken_again_is_not_released_with_what_was_due_before(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        locks = store._locks
        locks.acquire("job")
        locks.release_later("job")
        due = locks.due_for_release()
        locks.acquire("job")
        locks.release_later("job")  # what was written since may not be in the database yet
        locks.release_due(due)
        assert locks.is_held("job")
        locks.release_due(locks.due_for_release())
        assert not locks.is_held("job")


async def take_from(holder_url: str, store: ToolKnowledgeStore, name: str) -> AbstractAsyncContextManager[Any]:
    """Take a lock whose holder could not renew its lease in time."""
    while True:
        with administer(holder_url) as admin:
            admin.execute("UPDATE leases SET expires_at = 1 WHERE key = %s", [f"lock:{name}"])
        lock = store.lock(name)
        try:
            await lock.__aenter__()
            return lock
        except LockHeld:
            continue


async def test_the_holder_of_a_lock_that_another_process_has_taken_is_cancelled(postgres_url, tmp_path):
    begun, ended = asyncio.Event(), asyncio.Event()
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other,
    ):

        async def work() -> None:
            async with store.lock("job"):
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    store.write_entry("job", "1", "written too late")
                    ended.set()

        task = asyncio.create_task(work())
        await begun.wait()
        lock = await take_from(postgres_url, other, "job")
        with pytest.raises(LockHeld):
            await task
        assert ended.is_set() and not task.cancelled()
        await store.flush()
        assert await other.read_entries("job") == {}
        with pytest.raises(LockHeld):
            await store.lock("job").__aenter__()
        await lock.__aexit__(None, None, None)
        async with store.lock("job"):
            store.write_entry("job", "1", "written")
        assert await other.read_entries("job") == {"1": "written"}


async def test_a_lock_that_another_process_had_meanwhile_is_lost_also_when_it_was_taken_twice(postgres_url, tmp_path):
    begun = asyncio.Event()
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other,
    ):

        async def work() -> None:
            async with store.lock("job"):
                begun.set()
                await asyncio.Event().wait()

        async with store.lock("job"):  # so this process is the last holder already
            pass
        task = asyncio.create_task(work())
        await begun.wait()
        lock = await take_from(postgres_url, other, "job")
        await lock.__aexit__(None, None, None)
        with pytest.raises(LockLost):
            await task


async def test_a_process_that_lost_a_lock_while_it_took_it_does_not_register_for_it(
    postgres_url, tmp_path, monkeypatch
):
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other,
    ):
        register, locks_taken = store._locks.register_writer, list[AbstractAsyncContextManager[Any]]()

        def register_later(name: str) -> None:
            taking = asyncio.run_coroutine_threadsafe(take_from(postgres_url, other, "job"), loop)
            locks_taken.append(taking.result(60))
            register(name)

        loop = asyncio.get_running_loop()
        async with other.lock("job"):
            pass
        monkeypatch.setattr(store._locks, "register_writer", register_later)
        with pytest.raises(LockHeld):
            await store.lock("job").__aenter__()
        other.write_entry("job", "0001", "written with the lock")
        await locks_taken[0].__aexit__(None, None, None)
        assert await other.read_entries("job") == {"0001": "written with the lock"}


async def test_what_a_stopped_holder_writes_after_another_has_finished_comes_too_late(postgres_url, tmp_path):
    async with ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other:
        with TalkingProcess("-c", STOPPED_HOLDER, postgres_url, str(tmp_path / "a")) as process:
            try:
                assert await asyncio.to_thread(process.read) == "held"
                process.send_signal(signal.SIGSTOP)
                lock = await take_from(postgres_url, other, "job")
                other.write_entry("job", "0002", "finished")
                await lock.__aexit__(None, None, None)
                process.send_signal(signal.SIGCONT)  # nobody has the lock now, but somebody had it
                assert await asyncio.to_thread(process.read) == "lost"
            finally:
                process.kill()
        assert await other.read_entries("job") == {"0001": "begun", "0002": "finished"}


async def test_a_process_that_takes_a_lock_back_discards_what_it_wrote_before_it_was_lost(
    postgres_url, tmp_path, caplog
):
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other,
    ):
        async with store.lock("job"):
            pass
        async with other.lock("job"):
            other.write_entry("job", "0001", "newer")
        store.write_entry("job", "0001", "written without the lock")
        async with store.lock("job"):
            assert await store.read_entries("job") == {"0001": "newer"}
            store.write_entry("job", "0002", "written with the lock")
        assert await other.read_entries("job") == {"0001": "newer", "0002": "written with the lock"}
    warnings = [record.message for record in caplog.records if "too late" in record.message]
    assert len(warnings) == 1 and "stream=<job>" in warnings[0], warnings


async def test_a_run_that_another_process_has_taken_makes_no_more_calls(postgres_url, tmp_path):
    asked, done = asyncio.Event(), list[str]()

    @tool
    async def pay() -> str:
        """Pay."""
        done.append("paid")
        return "paid"

    class SlowModel(ScriptedModel):
        async def generate(self, request: Any, on_text: Any = None) -> ModelReply:
            asked.set()
            await asyncio.Event().wait()
            return await super().generate(request, on_text)

    store = ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a")
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other,
        UnifiedToolLibrary(store=store) as library,
    ):
        library.register(pay)
        agent = Agent(library, SlowModel([{"name": "pay", "arguments": {}}, "Done."]))
        task = asyncio.create_task(agent.run("Pay", run_id="r"))
        await asked.wait()
        await store.flush()
        lock = await take_from(postgres_url, other, "run:r")
        before = await other.read_entries("run:r")
        with pytest.raises(RunInterrupted, match="another process may have continued it") as caught:
            await task
        assert problem_of_error(caught.value).status == 503  # so a server keeps the idempotency key of the request
        await store.flush()
        assert done == [] and len(before) == 1 and await other.read_entries("run:r") == before
        await lock.__aexit__(None, None, None)


async def test_a_holder_that_does_not_hear_from_the_server_stops_before_others_can_have_its_lock(
    postgres_url, tmp_path, monkeypatch
):
    monkeypatch.setattr(leases, "MAX_UNCONFIRMED", 2.0)
    monkeypatch.setattr(leases, "RENEW_INTERVAL", 0.1)
    begun = asyncio.Event()
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as other,
    ):

        async def work() -> None:
            async with store.lock("job") as lock:
                lock.release_in_background = True
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        with administer(postgres_url) as admin, admin.transaction():
            admin.execute("LOCK TABLE leases IN ACCESS EXCLUSIVE MODE")  # so no renewal is answered
            with pytest.raises(LockLost, match="another process may have it"):
                await task
        lock = await take_when_free(other, "job")
        await lock.__aexit__(None, None, None)


async def test_a_lock_is_confirmed_while_all_threads_of_the_event_loop_are_busy(postgres_url, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_INTERVAL", 0.05)
    is_over, started = threading.Event(), list[int]()

    def wait(number: int) -> None:
        started.append(number)
        is_over.wait(120)

    with ThreadPoolExecutor(max_workers=2) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        async with ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as store, store.lock("job"):
            waiting = [asyncio.create_task(asyncio.to_thread(wait, number)) for number in range(2)]
            try:
                await until(lambda: len(started) == 2)
                await wait_for_renewal(postgres_url)
            finally:
                is_over.set()
                await asyncio.gather(*waiting)


async def test_a_process_of_this_machine_that_does_not_answer_keeps_its_lock(postgres_url, tmp_path, monkeypatch):
    """What it wrote under the lock is in its journal, and perhaps not in the database."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with ToolKnowledgeStore(postgres_url) as store:
        with TalkingProcess("-c", HOLDER, postgres_url, "3") as process:
            try:
                assert await asyncio.to_thread(process.read) == "held"
                process.send_signal(signal.SIGSTOP)
                with administer(postgres_url) as admin:
                    admin.execute("UPDATE leases SET expires_at = 1")
                with pytest.raises(LockHeld):
                    await store.lock("job").__aenter__()
            finally:
                process.kill()
        lock = await take_when_free(store, "job")  # a renewal that was on its way may have come after the update
        assert len(await store.read_entries("job")) == 3
        await lock.__aexit__(None, None, None)


async def test_the_next_holder_reads_all_that_a_killed_one_wrote(shared_store_url):
    async with ToolKnowledgeStore(shared_store_url) as store:
        for round_number in range(1, 4):
            with killed_holder(shared_store_url, 20 * round_number):
                lock = await take_when_free(store, "job")  # perhaps before the process has ended completely
                assert len(await store.read_entries("job")) == 20 * round_number
                await lock.__aexit__(None, None, None)


async def test_a_lock_is_kept_until_the_database_accepts_what_was_written_under_it(tmp_path):
    path = tmp_path / "calls.db"

    def run_sql(statement: str) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    async with ToolKnowledgeStore(str(path)) as store, ToolKnowledgeStore(str(path)) as other:
        async with store.lock("job"):
            store.write_entry("job", "1", "paid")
            run_sql("ALTER TABLE entries RENAME TO unreachable")
        assert store.failures > 0
        with pytest.raises(LockHeld):
            await other.lock("job").__aenter__()
        async with store.lock("job"):  # the process that has it may go on: it reads nothing while the table is gone
            with pytest.raises(StoreError):
                await store.read_entries("job")
        run_sql("ALTER TABLE unreachable RENAME TO entries")
        lock = await take_when_free(other, "job")
        assert await other.read_entries("job") == {"1": "paid"}
        await lock.__aexit__(None, None, None)


async def test_a_cancelled_holder_keeps_its_lock_until_its_entries_can_be_read(tmp_path):
    path = str(tmp_path / "calls.db")
    is_held, is_over = asyncio.Event(), asyncio.Event()
    async with ToolKnowledgeStore(path) as store, ToolKnowledgeStore(path) as other:
        await store.flush()

        async def hold() -> None:
            try:
                async with store.lock("job"):
                    try:
                        is_held.set()
                        await asyncio.Event().wait()
                    finally:
                        store.write_entry("job", "1", "cancelled")
            finally:
                is_over.set()

        holder = asyncio.create_task(hold())
        await is_held.wait()
        with closing(sqlite3.connect(path, isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")  # the database accepts nothing meanwhile
            holder.cancel()
            await until(lambda: "job" in dict(store._locks.due_for_release()))
            holder.cancel()  # as a second Ctrl-C does
            await is_over.wait()
            with pytest.raises(LockHeld):
                await other.lock("job").__aenter__()
            blocker.execute("ROLLBACK")
        lock = await take_when_free(other, "job")
        assert await other.read_entries("job") == {"1": "cancelled"}
        await lock.__aexit__(None, None, None)


async def test_a_holder_that_outlives_its_store_releases_its_lock(shared_store_url):
    store = ToolKnowledgeStore(shared_store_url)
    await store.__aenter__()
    async with store.lock("job"):
        await store.aclose()
        store.write_entry("job", "1", "late")
    with pytest.raises(StoreError, match="is closed"):
        await store.lock("job").__aenter__()
    async with ToolKnowledgeStore(shared_store_url) as other, other.lock("job"):
        assert await other.read_entries("job") == {"1": "late"}


async def test_a_forked_child_has_no_locks_of_its_parent(shared_store_url):
    async with ToolKnowledgeStore(shared_store_url) as store:
        async with store.lock("job"):
            child = os.fork()
            if child == 0:
                os._exit(0 if not store._locks._names else 1)
            assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
            async with ToolKnowledgeStore(shared_store_url) as other:
                with pytest.raises(LockHeld):
                    await other.lock("job").__aenter__()
        async with store.lock("job"):
            pass
