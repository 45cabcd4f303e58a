"""The tables: how they are created, and that queries use indexes."""

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Select, tuple_
from sqlalchemy.dialects import sqlite

from ferrule.errors import StoreError, text_with_notes
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import MIGRATIONS, StoreDatabase, calls_table
from ferrule.store.location import parse_location
from ferrule.store.queries import CallFilter, select_newest_first
from tests.store.records import finish_record
from tests.support.processes import TalkingProcess

PAGE = Path(__file__).parents[2] / "docs" / "store.md"
COLUMNS_ADDED_LATER = {
    "principal": "add principals to tool_calls",
    "tenant": "add principals to tool_calls",
    "cost": "add cost to tool_calls",
}
OPEN_AND_READ = """
import asyncio, sys
from ferrule.store import ToolKnowledgeStore

async def main():
    async with ToolKnowledgeStore(sys.argv[1]) as store:
        print((await store.read_entries("run:old"))["1"])

asyncio.run(main())
"""
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
    columns = calls_table().c
    page = select_newest_first(CallFilter(conversation_id="c"), sqlite.dialect())
    page = page.where(tuple_(columns.started_at, columns.record_id) < (1.5, "id"))
    [plan] = await plans_of(tmp_path / "calls.db", page)
    assert "tool_calls_by_conversation_id (conversation_id=? AND started_at<?)" in plan


@pytest.mark.integration
def test_many_processes_may_create_one_database_concurrently(tmp_path):
    code = f"from ferrule.store import ToolKnowledgeStore; ToolKnowledgeStore({str(tmp_path / 'calls.db')!r}).start()"
    processes = [TalkingProcess("-c", code) for _ in range(4)]
    assert [close(process) for process in processes] == [(0, "")] * 4


@pytest.mark.integration
def test_a_database_of_an_older_version_is_migrated_once_by_whoever_opens_it(shared_store_url: str):
    database = make_older_database(shared_store_url, 3)  # the version of the first release
    with database.write() as connection:
        connection.exec_driver_sql("INSERT INTO entries VALUES ('run:old', '1', 1.0, '\"kept\"')")
    database.close()
    processes = [TalkingProcess("-c", OPEN_AND_READ, shared_store_url) for _ in range(4)]
    assert [close(process) for process in processes] == [(0, "kept\n")] * 4
    database.open()
    with database.read() as connection:
        numbers = connection.exec_driver_sql("SELECT number, name FROM ferrule_migrations ORDER BY number").all()
    database.close()
    assert [tuple(row) for row in numbers] == [(n, name) for n, (name, _) in enumerate(MIGRATIONS, 1)]


def make_older_database(url: str, version: int) -> StoreDatabase:
    database = StoreDatabase(parse_location(url))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrule.store.database.MIGRATIONS", MIGRATIONS[:version])
        database.open()
    return database


def close(process: TalkingProcess) -> tuple[int, str]:
    with process:
        output = process.read_rest()
    return process.wait(), output


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_database_of_every_older_version_keeps_its_rows_and_gets_the_newest_schema(
    shared_store_url: str, version: int
):
    database, names = make_older_database(shared_store_url, version), [name for name, _ in MIGRATIONS]
    with database.write() as connection:
        for column, migration in COLUMNS_ADDED_LATER.items():
            if version <= names.index(migration):
                connection.exec_driver_sql(f"DROP INDEX IF EXISTS tool_calls_by_{column}")
                connection.exec_driver_sql(f"ALTER TABLE tool_calls DROP COLUMN {column}")
        connection.exec_driver_sql(
            "INSERT INTO tool_calls (record_id, started_at, tool_name, status) VALUES ('old', 1.0, 'add', 'success')"
        )
        if version >= 2:
            table = "notes" if version == 2 else "entries"
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES ('run:old', '1', 1.0, '\"kept\"')")
    database.close()
    database.open()
    with database.read() as connection:
        numbers = connection.exec_driver_sql("SELECT number, name FROM ferrule_migrations ORDER BY number").all()
        row = connection.exec_driver_sql("SELECT tool_name, principal, tenant, cost FROM tool_calls").one()
        entries = connection.exec_driver_sql("SELECT stream FROM entries").all()
    database.close()
    assert [tuple(each) for each in numbers] == list(enumerate(names, 1))
    assert tuple(row) == ("add", None, None, None) and len(entries) == (version >= 2)


async def test_a_database_of_a_newer_version_is_rejected(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)):
        pass
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO ferrule_migrations VALUES (99, 'from the future')")
    with pytest.raises(StoreError, match=r"created by a newer ferrule \(schema 99\)"):
        ToolKnowledgeStore(str(path)).start()


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
