"""Nothing that was acknowledged is lost, whatever is killed, full, locked or gone."""

import asyncio
import errno
import json
import logging
import mmap
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, Engine, event

from ferrule.store import ToolCallRecord, ToolKnowledgeStore
from ferrule.store.journal import SEGMENT_BYTES, SEGMENTS_LEFT
from tests.store.making import ended, running

HEADER = json.dumps({"ferrule_journal": 1, "owner": "host:1:start"}) + "\n"
ROOT = Path(__file__).parents[2]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.store.recording", *map(str, arguments)]


async def everything(store: ToolKnowledgeStore) -> list[ToolCallRecord]:
    return await store.query_call_records(limit=1_000_000)


def everything_in(path: Path) -> list[ToolCallRecord]:
    async def read() -> list[ToolCallRecord]:
        async with ToolKnowledgeStore(str(path)) as store:
            return await everything(store)

    return asyncio.run(read())


def run_sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


def test_every_acknowledged_call_survives_kill_9_at_any_moment(tmp_path):
    path = tmp_path / "calls.db"
    done = subprocess.run(command("kill_recorders", path, 40), cwd=ROOT, capture_output=True, text=True, check=True)
    acknowledged = done.stdout.split()
    recorded = {record.record_id: record.status for record in everything_in(path)}
    assert len(acknowledged) == len(set(acknowledged)) > 500
    assert {recorded.get(record_id) for record_id in acknowledged} == {"success"}
    assert set(recorded.values()) <= {"success", "interrupted"}
    assert list((tmp_path / "calls.db.journal").glob("*.jsonl")) == []


def test_a_call_whose_process_died_is_interrupted(tmp_path):
    path = tmp_path / "calls.db"
    assert subprocess.run(command("leave_one_running", path), cwd=ROOT).returncode == -9
    stuck, done = everything_in(path)
    assert (stuck.tool_name, stuck.status, stuck.is_success) == ("stuck", "interrupted", False)
    assert stuck.error == "The process that ran this call ended before the call did."
    assert (done.tool_name, done.status) == ("done", "success")


async def test_a_living_store_takes_over_from_a_dead_one(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        mine = running(store, "mine")
        await (await asyncio.create_subprocess_exec(*command("leave_one_running", path), cwd=ROOT)).wait()
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
        late = running(store)
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as reader:
        assert [r.status for r in await everything(reader)] == ["interrupted"]
    late.status = "success"
    store.record_finished(late)
    await store.aclose()
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as reader:
        assert [r.status for r in await everything(reader)] == ["success"]


def test_two_processes_share_one_file(tmp_path):
    path = tmp_path / "calls.db"
    both = [subprocess.Popen(command("record_many", path, 500), cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[1].decode() for process in both] == ["", ""]
    callers = [record.caller_id for record in everything_in(path)]
    assert [callers.count(str(process.pid)) for process in both] == [500, 500]


async def test_two_stores_of_one_process_share_one_file(tmp_path):
    path = str(tmp_path / "calls.db")
    async with ToolKnowledgeStore(path) as one, ToolKnowledgeStore(path) as two:
        first, second = ended(one), ended(two)
        await one.flush()
        assert await everything(two) == [second, first]


async def test_a_line_that_was_not_written_to_its_end_is_left_out(tmp_path, caplog):
    journal = tmp_path / "calls.db.journal"
    journal.mkdir()
    torn = '["two",1.0,"echo",null,null,"unknown",null,null,null,null,null,{"a":1}'
    whole = (
        '["one",1.0,"echo",null,null,"unknown",null,null,null,null,null,{},"success",0.5,0.0,1,null,null,null,{},{}]'
    )
    (journal / "start-1-000001.jsonl").write_text(f"{HEADER}{whole}\n{torn}")
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert [r.record_id for r in await everything(store)] == ["one"]
    assert "its last line was not written to the end" in caplog.text
    assert list(journal.iterdir()) == []


async def test_a_line_with_a_gap_was_not_written_to_its_end_either(tmp_path, caplog):
    journal = tmp_path / "calls.db.journal"
    journal.mkdir()
    whole = '["one",1.0,"echo",null,null,"unknown",null,null,null,null,null,{}]\n'
    gap = '["two",1.0,"echo",\0\0\0\0,null,"unknown",null,null,null,null,null,{}]\n'
    (journal / "start-1-000001.jsonl").write_text(HEADER + whole + gap + "\0" * 5_000)
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert [r.record_id for r in await everything(store)] == ["one"]
    assert "lines=<1> | not written to their end, left out" in caplog.text
    assert list(journal.iterdir()) == []


async def test_an_old_line_never_undoes_the_end_of_a_call(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        store.record_finished(ToolCallRecord(record_id="one", tool_name="echo", status="success", result={"result": 1}))
        await store.flush()
        start = '["one",1.0,"echo",null,null,"unknown",null,null,null,null,null,{}]'
        (tmp_path / "calls.db.journal" / "a-1-000001.jsonl").write_text(f"{HEADER}{start}\n")
        assert [(r.status, r.result) for r in await everything(store)] == [("success", {"result": 1})]


async def test_lines_that_make_no_sense_do_not_stop_the_others(tmp_path, caplog):
    journal = tmp_path / "calls.db.journal"
    journal.mkdir()
    good = [f'["{n}",1.0,"echo",null,null,"unknown",null,null,null,null,null,{{}}]' for n in range(9)]
    bad = ['["half', '["x",1.0,"e["y",1.0]', "\0\0\0", '["no tool",1.0]', '["n",1.0,"e"' + ',{"a":' * 3000 + "]", "[]"]
    (journal / "start-1-000001.jsonl").write_text(HEADER + "\n".join(bad[:3] + good + bad[3:]) + "\n")
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert {r.record_id for r in await everything(store)} == {str(n) for n in range(9)}
    assert "the database refuses this record, left out" in caplog.text


async def test_a_file_that_is_no_journal_is_left_alone(tmp_path, caplog):
    journal = tmp_path / "calls.db.journal"
    journal.mkdir()
    (journal / "notes.jsonl").write_text("hello\n")
    (journal / "newer.jsonl").write_text('{"ferrule_journal": 99, "owner": "x"}\n')
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert await everything(store) == await everything(store) == []
    assert len(list(journal.iterdir())) == 2
    assert caplog.text.count("not a journal of ferrule") == 1
    assert caplog.text.count("written by another version of ferrule") == 1


async def test_a_long_journal_goes_on_in_another_file(tmp_path):
    text = "x" * 100_000
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        for n in range(3 * SEGMENT_BYTES // len(text)):
            running(store, params={"n": n, "text": text})
            if n % 30 == 0:
                await store.flush()
        await store.flush()
        assert len(list((tmp_path / "calls.db.journal").iterdir())) <= 2
        found = await everything(store)
        assert sorted(r.params["n"] for r in found) == list(range(3 * SEGMENT_BYTES // len(text)))


async def test_a_line_longer_than_what_is_read_at_once(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        ended(store, params={"text": "x" * 3_000_000})
        (seen,) = await everything(store)
        assert len(seen.params["text"]) == 3_000_000


async def test_calls_are_recorded_even_where_no_journal_can_be(tmp_path, caplog):
    (tmp_path / "calls.db.journal").write_text("a file, not a directory")
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        made = [ended(store) for _ in range(50)]
        assert await everything(store) == made[::-1]
        assert store.failures == 50
    assert caplog.text.count("could not be recorded") == 1


async def test_a_journal_that_somebody_deletes_is_begun_again(tmp_path):
    journal = tmp_path / "calls.db.journal"
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        ended(store)
        for file in journal.iterdir():
            file.unlink()
        journal.rmdir()
        ended(store)
        await store.flush()
        ended(store)
        assert len(list(journal.iterdir())) == 1
        assert len(await everything(store)) == 3


def test_a_full_disk_breaks_no_call(tmp_path):
    path = tmp_path / "calls.db"
    done = subprocess.run(command("meet_a_full_disk", path, "before"), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert [record.tool_name for record in everything_in(path)] == ["after", *["during"] * 100, "before"]


def test_a_disk_without_room_for_a_journal_breaks_no_call(tmp_path):
    path = tmp_path / "calls.db"
    done = subprocess.run(command("meet_a_full_disk", path), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert [record.tool_name for record in everything_in(path)] == ["after", *["during"] * 100]


async def test_a_file_system_that_cannot_map_files_is_written_to(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENODEV, "no such thing here")

    monkeypatch.setattr(mmap, "mmap", refuse)
    async with ToolKnowledgeStore(str(tmp_path / "calls.db"), leave_to_others=True) as brief:
        made = [ended(brief, params={"n": n}) for n in range(5)]
        assert brief.failures == 0
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        assert await everything(store) == made[::-1]


async def test_a_database_that_fails_gets_its_records_later(tmp_path, caplog):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        await store.flush()
        run_sql(path, "ALTER TABLE tool_calls RENAME TO away")
        made = ended(store)
        while not store.failures:
            await asyncio.sleep(0.01)
        run_sql(path, "ALTER TABLE away RENAME TO tool_calls")
        assert await everything(store) == [made]
    assert "records wait in the journal, the database does not take them" in caplog.text


async def test_what_the_database_does_not_take_at_the_end_is_there_the_next_time(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)) as store:
        run_sql(path, "ALTER TABLE tool_calls RENAME TO away")
        made = ended(store)
    run_sql(path, "ALTER TABLE away RENAME TO tool_calls")
    async with ToolKnowledgeStore(str(path)) as store:
        assert await everything(store) == [made]


def test_a_forked_child_records_under_ids_of_its_own(tmp_path):
    assert subprocess.run(command("record_in_a_forked_child", tmp_path / "calls.db"), cwd=ROOT).returncode == 0


async def test_a_database_away_for_long_is_complained_about_once_in_a_while(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    (tmp_path / "calls.db.journal").write_text("")
    store = ToolKnowledgeStore(str(tmp_path / "calls.db"))
    for _ in range(1000):
        ended(store)
    assert (store.failures, len(caplog.records)) == (1000, 1)


async def test_what_is_recorded_while_the_store_closes_is_not_lost(tmp_path):
    store = ToolKnowledgeStore(str(tmp_path / "calls.db"))
    store.start()
    made: list[str] = []
    enough = threading.Event()

    def call_on_and_on() -> None:
        while not enough.is_set() and len(made) < 50_000:
            made.append(ended(store).record_id)

    caller = threading.Thread(target=call_on_and_on)
    caller.start()
    for _ in range(10):
        await store.aclose()
    enough.set()
    caller.join()
    await store.aclose()
    assert {record.record_id for record in await asyncio.to_thread(everything_in, tmp_path / "calls.db")} == set(made)


async def test_a_query_does_not_wait_for_calls_that_come_meanwhile(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:

        def another_call(connection: Connection) -> None:
            ended(store)

        ended(store)
        event.listen(Engine, "commit", another_call)  # with every batch that is written, something new to write
        try:
            await asyncio.wait_for(store.flush(), 10)
        finally:
            event.remove(Engine, "commit", another_call)
        assert len(await everything(store)) > 1


async def test_a_process_that_ends_at_once_leaves_its_records_to_the_next(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with ToolKnowledgeStore(url, leave_to_others=True) as brief:
        record = ToolCallRecord(record_id=brief.new_record_id(), tool_name="t", status="success")
        brief.record_finished(record)
    assert not (tmp_path / "calls.db").exists()
    (left,) = (tmp_path / "calls.db.journal").iterdir()
    assert left.stat().st_size < 1_000 and b"\0" not in left.read_bytes()
    async with ToolKnowledgeStore(url) as store:
        assert [r.record_id for r in await store.query_call_records()] == [record.record_id]


async def test_when_many_have_left_their_records_the_next_puts_them_all_away(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    for _ in range(SEGMENTS_LEFT + 1):
        async with ToolKnowledgeStore(url, leave_to_others=True) as brief:
            brief.record_finished(ToolCallRecord(record_id=brief.new_record_id(), tool_name="t", status="success"))
    assert (tmp_path / "calls.db").exists()
    async with ToolKnowledgeStore(url, leave_to_others=True) as store:
        assert len(await store.query_call_records(limit=1000)) == SEGMENTS_LEFT + 1
