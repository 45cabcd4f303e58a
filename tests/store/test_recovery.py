"""Nothing that was acknowledged is lost, whatever is killed, full, locked or gone."""

import asyncio
import errno
import json
import logging
import mmap
import sqlite3
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest
from sqlalchemy import Connection, Engine, event

from ferrule.errors import StoreError
from ferrule.store import ToolCallRecord, ToolKnowledgeStore
from ferrule.store.journal import MAX_DEFERRED_SEGMENTS, SEGMENT_BYTES
from tests.store.records import finish_record, start_record
from tests.support.processes import ROOT, TalkingProcess, run_python
from tests.support.waiting import until

HEADER = json.dumps({"ferrule_journal": 2, "owner": "host:1:start"}) + "\n"


def run_recorder(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "tests.store.recording_process", *map(str, arguments), cwd=ROOT)


async def everything(store: ToolKnowledgeStore) -> list[ToolCallRecord]:
    return await store.query_call_records(limit=1_000_000)


def everything_in(path: Path) -> list[ToolCallRecord]:
    async def read() -> list[ToolCallRecord]:
        async with ToolKnowledgeStore(str(path)) as store:
            return await everything(store)

    return asyncio.run(read())


def leave_segment(folder: Path, *lines: str, rest: str = "") -> Path:
    """Write the journal of a dead process, with a checksum before each line; returns the folder of the journal."""
    journal = folder / "calls.db.journal"
    journal.mkdir(exist_ok=True)
    whole = [line + "\n" for line in lines]
    text = "".join(f"{crc32(line.encode()):08x}{line}" for line in whole)
    (journal / "start-1-000001.jsonl").write_text(HEADER + text + rest)
    return journal


def run_sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


@pytest.mark.integration
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.long)])
def test_every_acknowledged_call_survives_kill_9_at_any_moment(tmp_path, kills):
    path = tmp_path / "calls.db"
    acknowledged = run_recorder("kill_recorders", path, kills).stdout.split()
    recorded = {record.record_id: record.status for record in everything_in(path)}
    assert len(acknowledged) == len(set(acknowledged)) > 100
    assert {recorded.get(record_id) for record_id in acknowledged} == {"success"}
    assert set(recorded.values()) <= {"success", "interrupted"}
    assert list((tmp_path / "calls.db.journal").glob("*.jsonl")) == []


@pytest.mark.integration
def test_a_call_whose_process_died_is_interrupted(tmp_path):
    path = tmp_path / "calls.db"
    assert run_recorder("leave_one_running", path).returncode == -9
    stuck, done = everything_in(path)
    assert (stuck.tool_name, stuck.status, stuck.is_success) == ("stuck", "interrupted", False)
    assert stuck.error == "The process that ran this call ended before the call did."
    assert (done.tool_name, done.status) == ("done", "success")


@pytest.mark.integration
async def test_a_living_store_takes_over_from_a_dead_one(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        mine = start_record(store, "mine")
        await asyncio.to_thread(run_recorder, "leave_one_running", path)
        assert {r.tool_name: r.status for r in await everything(store)} == {
            "stuck": "interrupted",
            "done": "success",
            "mine": "running",
        }
        mine.status = "success"
        store.record_finished(mine)
        assert (await store.get_call_record(mine.record_id)).is_success  # type: ignore[union-attr]


async def test_a_call_still_running_when_its_store_is_closed_is_interrupted(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        late = start_record(store)
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as reader:
        assert [r.status for r in await everything(reader)] == ["interrupted"]
    late.status = "success"
    store.record_finished(late)
    await store.aclose()
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as reader:
        assert [r.status for r in await everything(reader)] == ["success"]


@pytest.mark.integration
def test_two_processes_share_one_file(tmp_path):
    path = tmp_path / "calls.db"
    command = ("-m", "tests.store.recording_process", "record_many", str(path), "500")
    with TalkingProcess(*command) as first, TalkingProcess(*command) as second:
        pass
    assert (first.returncode, second.returncode) == (0, 0)
    callers = [record.caller_id for record in everything_in(path)]
    assert [callers.count(str(process.pid)) for process in (first, second)] == [500, 500]


async def test_two_stores_of_one_process_share_one_file(tmp_path):
    path = str(tmp_path / "calls.db")
    async with ToolKnowledgeStore(path) as store, ToolKnowledgeStore(path) as other_store:
        first, second = finish_record(store), finish_record(other_store)
        await store.flush()
        assert await everything(other_store) == [second, first]


WHOLE_LINE = '["one",1.0,"echo",null,null,"unknown",null,null,null,null,null,{}]'
HALF_LINE = '00000000["two",1.0,"echo",null,null,"unknown",null,null,null'
LINE_WITH_A_GAP = '00000000["two",1.0,"echo",\0\0\0\0,null,"unknown",null,null,null,null,null,{}]\n' + "\0" * 5_000


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (HALF_LINE, "its last line was not written to its end"),
        (LINE_WITH_A_GAP, "lines=<1> | not written to their end, skipped"),
    ],
    ids=["half", "gap"],
)
async def test_a_line_that_was_not_written_to_its_end_is_skipped(tmp_path, caplog, rest, message):
    journal = leave_segment(tmp_path, WHOLE_LINE, rest=rest)
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert [r.record_id for r in await everything(store)] == ["one"]
    assert message in caplog.text
    assert list(journal.iterdir()) == []


async def test_a_line_that_was_damaged_on_the_disk_is_reported_and_not_imported(tmp_path, caplog):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db"), defer_import=True) as brief:
        records = [finish_record(brief, params={"text": f"number {n}"}) for n in range(3)]
    (segment,) = (tmp_path / "calls.db.journal").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"number 1", b"number 7"))
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert await everything(store) == [records[2], records[0]]
        assert await everything(store) == [records[2], records[0]]
    assert "lines=<1> | damaged, not imported; the file is kept" in caplog.text
    assert [file.suffix for file in segment.parent.iterdir()] == [".damaged"]


async def test_values_that_were_damaged_in_the_database_are_a_store_error(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        finish_record(store)
        store.write_entry("orders", "1", {"state": "new"})
        await store.flush()
        run_sql(path, "UPDATE tool_calls SET params = '{\"a'")
        run_sql(path, "UPDATE entries SET value = '{\"a'")
        for query in (everything(store), store.read_entries("orders")):
            with pytest.raises(StoreError, match="the database is damaged: a stored value is not JSON: .* Restore"):
                await query


async def test_a_text_that_cannot_be_decoded_any_more_is_a_store_error(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        finish_record(store)
        await store.flush()
        run_sql(path, "UPDATE tool_calls SET tool_name = CAST(x'ec41' AS TEXT)")
        with pytest.raises(StoreError, match="failed: .*decode"):
            await everything(store)


async def test_an_entry_is_replaced_after_the_clock_was_set_back(store_url, monkeypatch):
    real, offset = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset)
    for offset, state in ((0.0, "new"), (-7200.0, "paid"), (-3600.0, "sent")):
        async with ToolKnowledgeStore(store_url) as store:
            store.write_entry("orders", "1", {"state": "draft"})
            offset -= 60  # the clock jumps while the store is open too
            store.write_entry("orders", "1", {"state": state})
            await store.flush()
            offset -= 60
            store.write_entry("orders", "1", {"state": f"{state} again"})
            assert await store.read_entries("orders") == {"1": {"state": f"{state} again"}}


async def test_an_old_line_never_undoes_the_end_of_a_call(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        store.record_finished(ToolCallRecord(record_id="one", tool_name="echo", status="success", result={"result": 1}))
        await store.flush()
        leave_segment(tmp_path, WHOLE_LINE)
        assert [(r.status, r.result) for r in await everything(store)] == [("success", {"result": 1})]


async def test_invalid_lines_do_not_stop_the_others(tmp_path, caplog):
    good = [f'["{n}",1.0,"echo",null,null,"unknown",null,null,null,null,null,{{}}]' for n in range(9)]
    bad = ['["half', '["x",1.0,"e["y",1.0]', "\0\0\0", '["no tool",1.0]', '["n",1.0,"e"' + ',{"a":' * 3000 + "]", "[]"]
    leave_segment(tmp_path, *bad[:3], *good, *bad[3:])
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert {r.record_id for r in await everything(store)} == {str(n) for n in range(9)}
    assert "the database rejects this record, which is skipped" in caplog.text


async def test_a_file_that_is_no_journal_is_ignored(tmp_path, caplog):
    journal = tmp_path / "calls.db.journal"
    journal.mkdir()
    (journal / "notes.jsonl").write_text("hello\n")
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert await everything(store) == await everything(store) == []
    assert len(list(journal.iterdir())) == 1
    assert caplog.text.count("not a journal of ferrule") == 1


async def test_a_long_journal_goes_on_in_another_file(tmp_path):
    text = "x" * 100_000
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        for n in range(3 * SEGMENT_BYTES // len(text)):
            start_record(store, params={"n": n, "text": text})
            if n % 30 == 0:
                await store.flush()
        await store.flush()
        assert len(list((tmp_path / "calls.db.journal").iterdir())) <= 2
        records = await everything(store)
        assert sorted(r.params["n"] for r in records) == list(range(3 * SEGMENT_BYTES // len(text)))


async def test_a_line_longer_than_a_chunk_is_read(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        finish_record(store, params={"text": "x" * 3_000_000})
        (record,) = await everything(store)
        assert len(record.params["text"]) == 3_000_000


async def test_calls_are_recorded_even_where_no_journal_can_be(tmp_path, caplog):
    (tmp_path / "calls.db.journal").write_text("a file, not a directory")
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        records = [finish_record(store) for _ in range(50)]
        assert await everything(store) == records[::-1]
        assert store.failures == 50
    assert caplog.text.count("could not be recorded") == 1


async def test_a_journal_that_is_deleted_is_created_again(tmp_path):
    journal = tmp_path / "calls.db.journal"
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        finish_record(store)
        for file in journal.iterdir():
            file.unlink()
        journal.rmdir()
        finish_record(store)
        await store.flush()
        finish_record(store)
        assert len(list(journal.iterdir())) == 1
        assert len(await everything(store)) == 3


@pytest.mark.integration
@pytest.mark.parametrize("earlier_calls", [["before"], []])  # without any, there is no room for a journal either
def test_a_full_disk_breaks_no_call(tmp_path, earlier_calls):
    path = tmp_path / "calls.db"
    done = run_recorder("meet_a_full_disk", path, *earlier_calls)
    assert (done.returncode, done.stdout) == (0, "")
    assert [record.tool_name for record in everything_in(path)] == ["after", *["during"] * 100, *earlier_calls]


async def test_a_file_system_that_cannot_map_files_is_written_to(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENODEV, "not supported here")

    monkeypatch.setattr(mmap, "mmap", fail)
    async with ToolKnowledgeStore(str(tmp_path / "calls.db"), defer_import=True) as brief:
        records = [finish_record(brief, params={"n": n}) for n in range(5)]
        assert brief.failures == 0
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert await everything(store) == records[::-1]


async def test_a_database_that_fails_gets_its_records_later(tmp_path, caplog):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        await store.flush()
        run_sql(path, "ALTER TABLE tool_calls RENAME TO away")
        record = finish_record(store)
        await until(lambda: store.failures)
        run_sql(path, "ALTER TABLE away RENAME TO tool_calls")
        assert await everything(store) == [record]
    assert "the database does not accept records, which wait in the journal" in caplog.text


async def test_records_the_database_does_not_accept_at_the_end_are_imported_next_time(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        run_sql(path, "ALTER TABLE tool_calls RENAME TO away")
        record = finish_record(store)
    run_sql(path, "ALTER TABLE away RENAME TO tool_calls")
    async with ToolKnowledgeStore(str(path)) as store:
        assert await everything(store) == [record]


@pytest.mark.integration
def test_a_forked_child_records_under_ids_of_its_own(tmp_path):
    assert run_recorder("record_in_a_forked_child", tmp_path / "calls.db").returncode == 0


async def test_repeated_failures_are_logged_only_once_in_a_while(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("ferrule.store.store.LOG_INTERVAL", 3600.0)
    caplog.set_level(logging.ERROR, "ferrule")
    (tmp_path / "calls.db.journal").write_text("")
    store = ToolKnowledgeStore(str(tmp_path / "calls.db"))
    for _ in range(1000):
        finish_record(store)
    logged = [record for record in caplog.records if record.name.startswith("ferrule")]
    assert (store.failures, len(logged)) == (1000, 1)


async def test_what_is_recorded_while_the_store_closes_is_not_lost(tmp_path):
    store = ToolKnowledgeStore(str(tmp_path / "calls.db"))
    store.start()
    record_ids: list[str] = []
    is_stopped = threading.Event()

    def keep_calling() -> None:
        while not is_stopped.is_set() and len(record_ids) < 2_000:
            record_ids.append(finish_record(store).record_id)

    caller = threading.Thread(target=keep_calling)
    caller.start()
    for _ in range(10):
        await store.aclose()
    is_stopped.set()
    caller.join()
    await store.aclose()
    assert {record.record_id for record in await asyncio.to_thread(everything_in, tmp_path / "calls.db")} == set(
        record_ids
    )


async def test_a_query_does_not_wait_for_calls_made_meanwhile(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:

        def another_call(connection: Connection) -> None:
            finish_record(store)

        finish_record(store)
        event.listen(Engine, "commit", another_call)  # with every batch that is written, something new to write
        try:
            await asyncio.wait_for(store.flush(), 120)
        finally:
            event.remove(Engine, "commit", another_call)
        assert len(await everything(store)) > 1


async def test_a_short_lived_process_leaves_its_records_to_the_next(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with ToolKnowledgeStore(url, defer_import=True) as brief:
        record = ToolCallRecord(record_id=brief.new_record_id(), tool_name="t", status="success")
        brief.record_finished(record)
    assert not (tmp_path / "calls.db").exists()
    (segment,) = (tmp_path / "calls.db.journal").iterdir()
    assert segment.stat().st_size < 1_000 and b"\0" not in segment.read_bytes()
    async with ToolKnowledgeStore(url) as store:
        assert [r.record_id for r in await store.query_call_records()] == [record.record_id]


async def test_after_many_deferred_segments_the_next_process_imports_them_all(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    for _ in range(MAX_DEFERRED_SEGMENTS + 1):
        async with ToolKnowledgeStore(url, defer_import=True) as brief:
            brief.record_finished(ToolCallRecord(record_id=brief.new_record_id(), tool_name="t", status="success"))
    assert (tmp_path / "calls.db").exists()
    async with ToolKnowledgeStore(url, defer_import=True) as store:
        assert len(await store.query_call_records(limit=1000)) == MAX_DEFERRED_SEGMENTS + 1


async def test_a_record_is_in_the_database_only_together_with_the_turn_that_made_the_call(tmp_path):
    """A run that continues on another machine, without the journal, must see what the call belongs to."""
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        await everything(store)
        run_sql(path, "ALTER TABLE entries RENAME TO hidden")
        store.write_entry("run-1", "0001", {"role": "assistant"})
        record = start_record(store)
        with pytest.raises(StoreError):
            await everything(store)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT count(*) FROM tool_calls").fetchone() == (0,)
        run_sql(path, "ALTER TABLE hidden RENAME TO entries")
        assert [each.record_id for each in await everything(store)] == [record.record_id]
        assert await store.read_entries("run-1") == {"0001": {"role": "assistant"}}
