"""The SQL side of the store: opening a database, putting lines into it, taking old rows out.

Lines go in with one statement per batch: the batch travels as one JSON text, which the database itself takes apart.
So no row is ever touched by Python, and the interpreter is free for calls while SQLite works.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule.errors import StoreError
from ferrule.store.line import newest
from ferrule.store.location import Location, hide_password
from ferrule.store.notes import insert_notes_statement, newest_notes, split_notes
from ferrule.store.private_files import make_file
from ferrule.store.schema import JSON_COLUMNS, calls_table, is_current, migrate

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection, Dialect, Engine, Table

logger = logging.getLogger("ferrule.store")

BUSY_SECONDS = 20
FORGET_ROWS = 2_000
"""Deleted in one transaction, so that other processes get their turn."""
_LOCK_NUMBER = 0x666572  # any number; only ferrule's migrations use it
INTERRUPTED = "The process that ran this call ended before the call did."


class Database:
    """One open database. All methods block; each is one transaction or a few."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._engine: Engine | None = None
        self._insert = ""
        self._insert_notes = ""

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def open(self) -> None:
        """Connect and create or migrate the tables; StoreError says what is wrong."""
        if self._engine is not None:
            return
        engine = _create_engine(self._location)
        self._engine = engine
        try:
            self._insert = _insert_statement(calls_table(), engine.dialect)
            self._insert_notes = insert_notes_statement(engine.dialect)
            with self.read() as connection:
                current = is_current(connection)
            if not current:
                self._migrate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def continue_in_child(self) -> None:
        """After a fork: connections belong to the parent and are not even closed."""
        if self._engine is not None:
            self._engine.dispose(close=False)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with _as_store_error(self._location), self._open_engine().connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with (
            _as_store_error(self._location),
            self._open_engine().connect() as connection,
            connection.execution_options(ferrule_writes=True).begin(),
        ):
            yield connection

    def ingest(self, lines: Sequence[bytes], owner: str) -> int:
        """Put lines into the tables; returns how many the database refused for what is in them."""
        notes, calls = split_notes(lines)
        refused = self._ingest(newest(calls), owner) if calls else 0
        return refused + (self._ingest(newest_notes(notes), None) if notes else 0)

    def _ingest(self, lines: list[bytes], owner: str | None) -> int:
        """Lines of one kind: calls have an owner, notes have none."""
        import sqlalchemy as sa

        document = (b"[" + b",".join(lines) + b"]").decode("utf-8", "replace")
        try:
            with self.write() as connection:
                if owner is None:
                    connection.execute(sa.text(self._insert_notes), {"lines": document})
                else:
                    connection.execute(sa.text(self._insert), {"owner": owner, "lines": document})
            return 0
        except StoreError as error:
            if not _is_about_content(error.__cause__):
                raise
            if len(lines) > 1:
                half = len(lines) // 2
                return self._ingest(lines[:half], owner) + self._ingest(lines[half:], owner)
            if b"\\u0000" in lines[0]:  # in a name or an id; Postgres takes no NUL characters
                return self._ingest([lines[0].replace(b"\\u0000", b"\\ufffd")], owner)
            logger.error("line=<%.300r> | the database refuses this record, left out: %s", lines[0], error)
            return 1

    def interrupt(self, owner: str) -> None:
        """The process is gone: what it has not ended never will be."""
        calls = calls_table()
        mine = (calls.c.status == "running") & (calls.c.owner == owner)
        with self.write() as connection:
            connection.execute(calls.update().where(mine).values(status="interrupted", error=INTERRUPTED))

    def forget_before(self, moment: float) -> tuple[int, list[str]]:
        """Delete ended calls that started before; returns how many, and the artifacts nobody refers to any more."""
        removed, artifacts = 0, set[str]()
        while True:
            count, found = self._forget_some(moment)
            removed += count
            artifacts.update(found)
            if count < FORGET_ROWS:
                return removed, self._unused(artifacts)

    def nth_newest(self, number: int) -> float | None:
        """When the call started after which `number` others did."""
        import sqlalchemy as sa

        started_at = calls_table().c.started_at
        with self.read() as connection:
            return connection.scalar(sa.select(started_at).order_by(started_at.desc()).offset(number - 1).limit(1))

    def _migrate(self) -> None:
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})")
            migrate(connection)

    def _forget_some(self, moment: float) -> tuple[int, list[str]]:
        import sqlalchemy as sa

        calls = calls_table()
        old = (calls.c.started_at < moment) & (calls.c.status != "running")
        some = sa.select(calls.c.record_id).where(old).order_by(calls.c.started_at).limit(FORGET_ROWS)
        with self.write() as connection:
            gone = connection.scalars(
                sa.delete(calls).where(calls.c.record_id.in_(some)).returning(calls.c.artifact_id)
            ).all()
        return len(gone), [artifact_id for artifact_id in gone if artifact_id]

    def _unused(self, artifacts: set[str]) -> list[str]:
        import sqlalchemy as sa

        column = calls_table().c.artifact_id
        with self.read() as connection:
            return [
                artifact_id
                for artifact_id in sorted(artifacts)
                if connection.scalar(sa.select(column).where(column == artifact_id).limit(1)) is None
            ]

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise StoreError("the store is closed")
        return self._engine


def _create_engine(location: Location) -> Engine:
    import sqlalchemy as sa

    if location.kind == "postgresql":
        return sa.create_engine(location.database, pool_pre_ping=True, connect_args={"connect_timeout": 10})
    if location.kind == "sqlite":
        try:
            make_file(Path(location.database))
        except OSError as error:
            raise StoreError(f"there is no place for the store {location.shown!r}: {error}") from error
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_SECONDS, "check_same_thread": False}}
    if location.kind == "memory":
        # One connection is one database: whoever wants it waits until it is free.
        options |= {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0}
    engine = sa.create_engine(sa.URL.create("sqlite", database=location.database or None), **options)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says, not where the driver guesses
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except connection.OperationalError:
            # Two processes that create the same file at once: SQLite does not wait by itself here.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=4000")
    connection.execute("PRAGMA cache_size=-16000")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that will write asks for the lock at once; one that asks later can be refused.
    writes = connection.get_execution_options().get("ferrule_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _insert_statement(calls: Table, dialect: Dialect) -> str:
    """`INSERT … SELECT` from a JSON array of lines. A call that has ended is never set back to running."""
    columns = [column for column in calls.columns if column.name != "owner"]
    names = [column.name for column in columns]
    members = [_member(number, column, dialect) for number, column in enumerate(columns)]
    changes = [f"{name} = excluded.{name}" for name in names if name != "record_id"]
    # Through a subquery that SQLite may not flatten: else it would write out the value anew for every column read.
    lines = "(SELECT value FROM json_each(:lines) LIMIT -1) AS line"
    if dialect.name == "postgresql":
        lines = "json_array_elements(CAST(:lines AS json)) AS line(value)"
    return (
        f"INSERT INTO {calls.name} ({', '.join(names)}, owner) SELECT {', '.join(members)}, :owner FROM {lines} "
        f"WHERE true ON CONFLICT (record_id) DO UPDATE SET {', '.join(changes)} WHERE excluded.status <> 'running'"
    )


def _member(number: int, column: Column[Any], dialect: Dialect) -> str:
    if column.name in JSON_COLUMNS:
        return f"line.value->{number}"
    if column.name == "status":
        return f"COALESCE(line.value->>{number}, 'running')"
    return f"CAST(line.value->>{number} AS {column.type.compile(dialect)})"


@contextmanager
def _as_store_error(location: Location) -> Iterator[None]:
    import sqlite3

    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        reason = hide_password(str(getattr(error, "orig", None) or error)).strip()
        raise StoreError(f"the store {location.shown!r} failed: {reason}") from error


def _is_about_content(error: BaseException | None) -> bool:
    """Whether a line was refused for what it says, rather than the database being away, full or busy."""
    from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

    if isinstance(error, (DataError, IntegrityError)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    twice_in_one_batch = getattr(error.orig, "sqlstate", None) == "21000"
    return twice_in_one_batch or "malformed JSON" in str(error.orig)
