"""The tables: how they come to be, and that questions are answered from indexes."""

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
from sqlalchemy.schema import CreateIndex, CreateTable

from ferrule.errors import StoreError
from ferrule.store import ToolKnowledgeStore
from ferrule.store.queries import CallFilter, newest_first
from ferrule.store.schema import calls_table
from tests.store.making import ended

PAGE = Path(__file__).parents[2] / "docs" / "store.md"
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


async def plan_of(path: Path, page: Select[tuple[object, ...]]) -> str:
    async with ToolKnowledgeStore(str(path)) as store:
        ended(store)
        await store.flush()
    statement = page.limit(100).compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    with closing(sqlite3.connect(path)) as database:
        return " | ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}"))


@pytest.mark.parametrize(
    ("wanted", "index"),
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
async def test_a_question_is_answered_from_its_index_without_sorting(tmp_path, wanted, index):
    plan = await plan_of(tmp_path / "calls.db", newest_first(wanted))
    assert f"USING INDEX tool_calls_by_{index}" in plan
    # Only calls that started in the same instant are sorted, by their id.
    assert "TEMP B-TREE" not in plan.replace("USE TEMP B-TREE FOR RIGHT PART OF ORDER BY", "").replace(
        "USE TEMP B-TREE FOR LAST TERM OF ORDER BY", ""
    )


async def test_the_next_page_begins_in_the_index_where_the_last_one_ended(tmp_path):
    columns = calls_table().c
    page = newest_first(CallFilter(conversation_id="c"))
    page = page.where(tuple_(columns.started_at, columns.record_id) < (1.5, "id"))
    plan = await plan_of(tmp_path / "calls.db", page)
    assert "tool_calls_by_conversation_id (conversation_id=? AND started_at<?)" in plan


def test_many_processes_may_create_one_database_at_once(tmp_path):
    code = f"from ferrule.store import ToolKnowledgeStore; ToolKnowledgeStore({str(tmp_path / 'calls.db')!r}).start()"
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[1].decode() for process in processes] == [""] * 4


async def test_a_database_of_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(str(path)):
        pass
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO ferrule_migrations VALUES (99, 'from the future')")
    with pytest.raises(StoreError, match=r"made by a newer ferrule \(schema 99\)"):
        ToolKnowledgeStore(str(path)).start()


def test_a_file_that_is_no_database_is_an_error_that_says_so(tmp_path):
    (tmp_path / "calls.db").write_text("hello " * 1000)
    with pytest.raises(StoreError, match=r"calls.db' failed: file is not a database"):
        ToolKnowledgeStore(str(tmp_path / "calls.db")).start()


def test_a_server_that_does_not_answer_is_an_error_without_the_password():
    with pytest.raises(StoreError, match=r"the store 'postgresql://bob:\*\*\*@127.0.0.1:9/x' failed: ") as caught:
        ToolKnowledgeStore("postgresql://bob:hunter2@127.0.0.1:9/x").start()
    assert "hunter2" not in str(caught.value)


def test_the_manual_shows_the_tables_as_they_are():
    calls = calls_table()
    indexes = sorted(calls.indexes, key=lambda index: str(index.name))
    statements = [str(CreateTable(calls).compile(dialect=sqlite.dialect())).strip()]
    statements += [str(CreateIndex(index).compile(dialect=sqlite.dialect())) for index in indexes]
    (shown,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown.split() == " ".join(f"{statement};" for statement in statements).split()
