"""What may be written as the address of a store."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.errors import MissingExtra, StoreError, text_with_notes
from ferrule.store import ToolCallRecord, ToolKnowledgeStore
from ferrule.store.location import parse_location


@pytest.mark.parametrize("url", [None, "", "sqlite://", "sqlite:///:memory:"])
def test_no_address_is_memory(url):
    assert parse_location(url).kind == "memory"


@pytest.mark.parametrize("url", ["calls.db", "sqlite:///calls.db", "./calls.db"])
def test_a_path_is_a_file_with_its_journal_and_artifacts_beside_it(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    location = parse_location(url)
    assert (location.kind, location.database) == ("sqlite", str(tmp_path / "calls.db"))
    assert (location.journal, location.artifacts) == (tmp_path / "calls.db.journal", tmp_path / "calls.db.artifacts")


def test_four_slashes_begin_an_absolute_path():
    assert parse_location("sqlite:////var/lib/a b?c#d%20.db").database == "/var/lib/a b?c#d%20.db"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgres_has_its_journal_in_the_state_directory(scheme, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    location = parse_location(f"{scheme}://bob:pw@host:5433/calls")
    assert (location.kind, location.database) == ("postgresql", "postgresql+psycopg://bob:pw@host:5433/calls")
    assert location.journal is not None and location.journal.is_relative_to(tmp_path / "ferrule")
    assert location.display_name == "postgresql://bob:***@host:5433/calls"


def test_two_databases_never_share_a_journal(tmp_path):
    urls = ["postgresql://h/a", "postgresql://h/b", "postgresql://i/a", "postgresql://h:1/a", "x/a.db", "y/a.db"]
    assert len({parse_location(url, tmp_path).journal for url in urls}) == len(urls)
    assert parse_location("postgresql://bob:one@h/a").journal == parse_location("postgresql://ann:two@h/a").journal


@pytest.mark.parametrize(
    "url",
    ["mysql://h/d", "sqlite://calls.db", "postgresql://", "postgresql://host", "postgresql://h:x/d"]
    + ["postgresql+asyncpg://h/d", "http://h/calls.db"],
)
def test_any_other_address_is_an_error_that_says_what_to_write(url):
    with pytest.raises(StoreError, match=r"is not the address of a store. Write sqlite:///calls.db or a path"):
        parse_location(url)


@pytest.mark.parametrize(
    ("url", "display_name"),
    [
        ("mysql://bob:hunter2@host/db", "mysql://bob:***@host/db"),
        ("mysql://bob:hun@ter2@host/db", "mysql://bob:***@host/db"),
        ("mysql://bob:h/un?t#er2@host:1/db", "mysql://bob:***@host:1/db"),
        ("mysql://h/db?user=bob&password=hunter2&a=b", "mysql://h/db?user=bob&password=***&a=b"),
        ("mysql://h/db?sslPassword=hunter2", "mysql://h/db?sslPassword=***"),
        ("mysql://bob@h:1/db?a=b@c", "mysql://bob@h:1/db?a=b@c"),
    ],
)
def test_an_error_about_an_address_keeps_its_password(url, display_name):
    with pytest.raises(StoreError) as caught:
        parse_location(url)
    assert repr(display_name) in str(caught.value)


def test_a_postgres_address_is_shown_without_its_passwords():
    location = parse_location("postgresql://h/db?user=bob&password=hunter2&sslpassword=hunter3")
    assert location.display_name == "postgresql://h/db?user=bob&password=***&sslpassword=***"


def test_a_password_with_an_at_sign_is_no_part_of_the_host():
    location = parse_location("postgresql://bob:hun@ter2@h/db")
    assert (location.database, location.display_name) == (
        "postgresql+psycopg://bob:hun%40ter2@h/db",
        "postgresql://bob:***@h/db",
    )


@pytest.mark.integration
async def test_a_database_that_does_not_answer_keeps_its_password(tmp_path):
    store = ToolKnowledgeStore("postgresql://127.0.0.1:1/db?user=bob&password=hunter2", journal_directory=tmp_path)
    with pytest.raises(StoreError) as caught:
        store.start()
    await store.aclose()
    assert "password=***" in text_with_notes(caught.value)
    assert "hunter2" not in text_with_notes(caught.value)


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(StoreError, match=f"is a directory. Name a file in it: sqlite:///{tmp_path}/calls.db"):
        parse_location(f"sqlite:///{tmp_path}")


def test_postgres_without_its_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r'pip install "ferrule\[postgres\]"'):
        ToolKnowledgeStore("postgresql://host/db")


async def test_directories_on_the_way_are_made(tmp_path: Path):
    async with ToolKnowledgeStore(f"sqlite:///{tmp_path}/new/data/calls.db") as store:
        await store.flush()
    assert (tmp_path / "new" / "data" / "calls.db").exists()


async def test_records_are_for_their_owner_only(tmp_path: Path):
    async with ToolKnowledgeStore(f"sqlite:///{tmp_path}/new/data/calls.db") as store:
        store.record_finished(ToolCallRecord(record_id="1", tool_name="t", status="success"))
        store.artifacts.add(b"long", "text/plain")
        await store.flush()
        paths = list((tmp_path / "new").rglob("*"))
        assert {path.name for path in paths} >= {"calls.db", "calls.db-wal", "calls.db.journal", "calls.db.artifacts"}
        assert [p for p in [tmp_path / "new", *paths] if p.stat().st_mode & 0o077] == []


@pytest.mark.integration
async def test_a_second_store_for_a_file_takes_no_locks_from_the_first(tmp_path):
    """A process that opens and closes the file itself gives up the locks that SQLite has on it in this process."""
    path = tmp_path / "calls.db"
    program = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM sqlite_master').fetchall()"
    )
    async with ToolKnowledgeStore(str(path)) as store:
        store.write_entry("stream", "first", {"number": 1})
        await store.flush()
        async with ToolKnowledgeStore(str(path)) as other:
            assert len(await other.read_entries("stream")) == 1
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, str(path)], check=True)
        assert path.with_name("calls.db-wal").exists()  # the other process removes it if nobody has the file open
        store.write_entry("stream", "second", {"number": 2})
        await store.flush()
        assert len(await store.read_entries("stream")) == 2


async def test_a_file_that_cannot_be_created_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be created: .*Name another place in \[store\] url"):
        async with ToolKnowledgeStore(f"sqlite:///{tmp_path}/file/calls.db") as store:
            await store.query_call_records()
