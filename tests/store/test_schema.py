"""The tables: how they are created, and that queries use indexes."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Select, tuple_
from sqlalchemy.dialects import sqlite

from ferrule.errors import StoreError
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import MIGRATIONS, StoreDatabase, calls_table
from ferrule.store.location import parse_location
from ferrule.store.queries import CallFilter, select_newest_first
from tests.store.records import finish_record

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


async def plan_of(path: Path, page: Select[tuple[object, ...]]) -> str:
    async with ToolKnowledgeStore(str(path)) as store:
        finish_record(store)
        await store.flush()
    statement = page.limit(100).compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    with closing(sqlite3.connect(path)) as database:
        return " | ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}"))


@pytest.mark.parametrize(
    ("conditions", "index"),
    [
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
    ],
)
async def test_a_query_uses_its_index_without_sorting(tmp_path, conditions, index):
    plan = await plan_of(tmp_path / "calls.db", select_newest_first(conditions, sqlite.dialect()))
    assert f"USING INDEX tool_calls_by_{index}" in plan
    # Only calls that started in the same instant are sorted, by their id.
    assert "TEMP B-TREE" not in plan.replace("USE TEMP B-TREE FOR RIGHT PART OF ORDER BY", "").replace(
        "USE TEMP B-TREE FOR LAST TERM OF ORDER BY", ""
    )


async def test_the_next_page_begins_in_the_index_where_the_last_one_ended(tmp_path):
    columns = calls_table().c
    page = select_newest_first(CallFilter(conversation_id="c"), sqlite.dialect())
    page = page.where(tuple_(columns.started_at, columns.record_id) < (1.5, "id"))
    plan = await plan_of(tmp_path / "calls.db", page)
    assert "tool_calls_by_conversation_id (conversation_id=? AND started_at<?)" in plan


def test_many_processes_may_create_one_database_concurrently(tmp_path):
    code = f"from ferrule.store import ToolKnowledgeStore; ToolKnowledgeStore({str(tmp_path / 'calls.db')!r}).start()"
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[1].decode() for process in processes] == [""] * 4


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_of_an_older_version_is_migrated_once_by_whoever_opens_it(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url = f"sqlite:///{tmp_path}/calls.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    database = StoreDatabase(parse_location(url))
    with monkeypatch.context() as patch:
        patch.setattr("ferrule.store.database.MIGRATIONS", MIGRATIONS[:3])  # those of the first release
        database.open()
    with database.write() as connection:
        connection.exec_driver_sql("INSERT INTO entries VALUES ('run:old', '1', 1.0, '\"kept\"')")
    database.close()
    processes = [
        subprocess.Popen([sys.executable, "-c", OPEN_AND_READ, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    assert [process.communicate() for process in processes] == [(b"kept\n", b"")] * 4
    database.open()
    with database.read() as connection:
        numbers = connection.exec_driver_sql("SELECT number, name FROM ferrule_migrations ORDER BY number").all()
    database.close()
    assert [tuple(row) for row in numbers] == [(n, name) for n, (name, _) in enumerate(MIGRATIONS, 1)]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_database_of_every_older_version_keeps_its_rows_and_gets_the_newest_schema(
    kind: str, version: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url = f"sqlite:///{tmp_path}/calls.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    database, names = StoreDatabase(parse_location(url)), [name for name, _ in MIGRATIONS]
    with monkeypatch.context() as patch:
        patch.setattr("ferrule.store.database.MIGRATIONS", MIGRATIONS[:version])
        database.open()
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
    with pytest.raises(StoreError, match=r"calls.db' failed: file is not a database"):
        ToolKnowledgeStore(str(tmp_path / "calls.db")).start()


def test_a_server_that_does_not_answer_is_an_error_without_the_password():
    with pytest.raises(StoreError, match=r"the store 'postgresql://bob:\*\*\*@127.0.0.1:9/x' failed: ") as caught:
        ToolKnowledgeStore("postgresql://bob:hunter2@127.0.0.1:9/x").start()
    assert "hunter2" not in str(caught.value)


async def test_the_manual_shows_the_tables_as_they_are(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)):
        pass
    query = "SELECT sql FROM sqlite_master WHERE tbl_name = 'tool_calls' AND sql IS NOT NULL ORDER BY type DESC, name"
    with closing(sqlite3.connect(path)) as database:
        statements = [f"{sql};" for (sql,) in database.execute(query)]
    (documented,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert documented.split() == " ".join(statements).split()
