"""The tables: how they are created, and that queries use indexes."""

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Select, inspect, tuple_
from sqlalchemy.dialects import sqlite

from ferrule.errors import StoreError, text_with_notes
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import StoreDatabase
from ferrule.store.location import parse_location
from ferrule.store.queries import CallFilter, select_newest_first
from ferrule.store.tables import SCHEMA_VERSION, get_table
from tests.store.records import finish_record
from tests.support.processes import TalkingProcess

PAGE = Path(__file__).parents[2] / "docs" / "store.md"
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


async def plans_of(path: Path, *pages: Select[tuple[object, ...]]) -> list[str]:
    """How SQLite would find each of the pages."""
    async with ToolKnowledgeStore(str(path)) as store:
        finish_record(store)
        await store.flush()
    dialect = sqlite.dialect()
    statements = [page.limit(100).compile(dialect=dialect, compile_kwargs={"literal_binds": True}) for page in pages]
    with closing(sqlite3.connect(path)) as database:
        plans = [database.execute(f"EXPLAIN QUERY PLAN {statement}") for statement in statements]
        return [" | ".join(row[3] for row in plan) for plan in plans]


INDEXES = [
    (CallFilter(), "time"),
    (CallFilter(since=MOMENT, until=MOMENT), "time"),
    (CallFilter(conversation_id="c"), "conversation_id"),
    (CallFilter(workflow_id="w"), "workflow_id"),
    (CallFilter(tool_name="t"), "tool"),
    (CallFilter(tool_name="t", since=MOMENT), "tool"),
    (CallFilter(caller_id="a"), "caller_id"),
    (CallFilter(caller_type="a"), "caller_type"),
    (CallFilter(status="running"), "status"),
    (CallFilter(is_success=True), "status"),
    (CallFilter(is_success=False), "failure"),
    (CallFilter(error_type="timeout"), "error_type"),
    (CallFilter(tool_name="t", status="failed", error_type="timeout"), "tool"),
    (CallFilter(tool_name="t", is_success=False), "tool"),
    (CallFilter(conversation_id="c", tool_name="t", caller_type="direct", is_success=True), "conversation_id"),
    (CallFilter(caller_id="a", status="success", since=MOMENT), "caller_id"),
]


async def test_a_query_uses_its_index_without_sorting(tmp_path):
    pages = [select_newest_first(conditions, sqlite.dialect()) for conditions, _ in INDEXES]
    plans = await plans_of(tmp_path / "calls.db", *pages)
    for plan, (conditions, index) in zip(plans, INDEXES, strict=True):
        assert f"USING INDEX tool_calls_by_{index}" in plan, conditions
        # Only calls that started in the same instant are sorted, by their id.
        sorted_parts = re.sub("USE TEMP B-TREE FOR (RIGHT PART|LAST TERM) OF ORDER BY", "", plan)
        assert "TEMP B-TREE" not in sorted_parts, conditions


async def test_the_next_page_begins_in_the_index_where_the_last_one_ended(tmp_path):
    columns = get_table("tool_calls").c
    page = select_newest_first(CallFilter(conversation_id="c"), sqlite.dialect())
    page = page.where(tuple_(columns.started_at, columns.record_id) < (1.5, "id"))
    [plan] = await plans_of(tmp_path / "calls.db", page)
    assert "tool_calls_by_conversation_id (conversation_id=? AND started_at<?)" in plan


@pytest.mark.integration
def test_many_processes_may_create_one_database_concurrently(tmp_path):
    code = f"from ferrule.store import ToolKnowledgeStore; ToolKnowledgeStore({str(tmp_path / 'calls.db')!r}).start()"
    processes = [TalkingProcess("-c", code) for _ in range(4)]
    assert [close(process) for process in processes] == [(0, "")] * 4


def close(process: TalkingProcess) -> tuple[int, str]:
    with process:
        output = process.read_rest()
    return process.wait(), output


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
async def test_a_store_of_another_version_is_refused_and_left_as_it_is(
    shared_store_url: str, version: int, monkeypatch
):
    database = StoreDatabase(parse_location(shared_store_url))
    database.open()
    with database.write() as connection:
        connection.exec_driver_sql(f"UPDATE ferrule_migrations SET number = {version}")
        connection.exec_driver_sql("DROP TABLE tokens")
    database.close()
    store = ToolKnowledgeStore(shared_store_url)
    with pytest.raises(StoreError, match=rf"another version of ferrule .* version {version}, not {SCHEMA_VERSION}\): "):
        store.start()
    with pytest.raises(StoreError, match="export it with that version .* or name another place"):
        await store.query_call_records()
    await store.aclose()
    monkeypatch.setattr("ferrule.store.tables.SCHEMA_VERSION", version)  # as that version opens it
    database.open()
    with database.read() as connection:
        names = inspect(connection).get_table_names()
    database.close()
    assert "tool_calls" in names and "tokens" not in names


async def test_a_journal_of_another_version_is_refused_and_left_as_it_is(tmp_path):
    journal = tmp_path / "calls.db.journal"
    journal.mkdir()
    segment = journal / "start-1-000001.jsonl"
    segment.write_text('{"ferrule_journal": 1, "owner": "host:1:start"}\n["one",1.0,"echo"]\n')
    with pytest.raises(StoreError, match=r"another version of ferrule \(it has format 1, not 2\): let that") as caught:
        ToolKnowledgeStore(str(tmp_path / "calls.db")).start()
    assert text_with_notes(caught.value).endswith(f"({segment})")
    assert not (tmp_path / "calls.db").exists()
    async with ToolKnowledgeStore(str(tmp_path / "calls.db"), defer_import=True) as brief:
        with pytest.raises(StoreError, match="another version of ferrule"):
            await brief.query_call_records()
    assert segment.exists()


def test_a_file_that_is_no_database_is_an_error_that_says_so(tmp_path):
    (tmp_path / "calls.db").write_text("hello " * 1000)
    with pytest.raises(StoreError, match=r"the store failed: file is not a database") as caught:
        ToolKnowledgeStore(str(tmp_path / "calls.db")).start()
    assert text_with_notes(caught.value) == f"{caught.value} ({tmp_path}/calls.db)"


@pytest.mark.integration
def test_a_server_that_does_not_answer_is_an_error_without_the_password():
    with pytest.raises(StoreError) as caught:
        ToolKnowledgeStore("postgresql://bob:hunter2@127.0.0.1:9/x").start()
    text = text_with_notes(caught.value)
    assert "postgresql://bob:***@127.0.0.1:9/x: connection" in text and "hunter2" not in text
    assert str(caught.value) == "the store failed: the database cannot be reached"  # clients get this


async def test_the_manual_shows_the_tables_as_they_are(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)):
        pass
    query = "SELECT sql FROM sqlite_master WHERE tbl_name = 'tool_calls' AND sql IS NOT NULL ORDER BY type DESC, name"
    with closing(sqlite3.connect(path)) as database:
        statements = [f"{sql};" for (sql,) in database.execute(query)]
    (documented,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert documented.split() == " ".join(statements).split()
