"""The SQL side of the store: opening a database, inserting lines of the journal.

Lines are inserted with one statement per batch: the batch travels as one JSON text, which the database itself takes
apart. So no row is ever touched by Python, and the interpreter is free for calls while SQLite works.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ferrule.errors import StoreError
from ferrule.store.encoding import last_line_per_entry, last_line_per_record, split_entries_from_calls
from ferrule.store.entry_streams import insert_entries_statement, json_lines_sql, late_streams_statement
from ferrule.store.location import StoreLocation, hide_password, make_file
from ferrule.store.tables import create_tables, get_table, has_tables, sa

logger = logging.getLogger("ferrule.store")

BUSY_TIMEOUT = 20
"""Seconds to wait while another process writes to the same SQLite file."""
INTERRUPTED = "The process that ran this call ended before the call did."
JSON_COLUMNS = frozenset({"params", "result", "metadata"})
_POSTGRES_OPTIONS: Final = {
    "connect_timeout": 10,
    # A server whose network is cut answers nothing at all. Without these a query would wait for a quarter of an hour.
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Of each connection, unless the address of the store says otherwise; seconds, `tcp_user_timeout` milliseconds."""
_POSTGRES_SETTINGS: Final = {
    # A process that is cut off or stopped in the middle of a transaction must not keep its locks: others wait for them.
    "idle_in_transaction_session_timeout": "10s",
}
"""What the server is told for each connection."""
_CREATION_LOCK = 0x666572  # any number; only this module uses it


class StoreDatabase:
    """One open database. All methods block; each runs one transaction or a few."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._engine: sa.Engine | None = None
        self._insert_calls = self._insert_start = ""
        self._insert_entries = ""

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def open(self) -> None:
        """Connect, and create the tables in an empty database; raises StoreError."""
        if self._engine is not None:
            return
        engine = _create_engine(self._location)
        self._engine = engine
        try:
            self._insert_calls = _insert_calls_statement(engine.dialect, "excluded.status <> 'running'")
            # It may replace the start that was recorded before a person edited the arguments.
            self._insert_start = _insert_calls_statement(engine.dialect, "tool_calls.status = 'running'")
            self._insert_entries = insert_entries_statement(engine.dialect)
            with self.read() as connection:  # without a lock, so that opening a store is usually cheap
                is_complete = has_tables(connection)
            if not is_complete:
                with self.write() as connection:
                    if connection.dialect.name == "postgresql":
                        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
                    if not has_tables(connection):
                        create_tables(connection)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def forget_connections(self) -> None:
        """Forget the connections of the parent process, which must not be closed in a forked child."""
        if self._engine is not None:
            self._engine.dispose(close=False)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        with self.raise_as_store_error(), self._open_engine().connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        with (
            self.raise_as_store_error(),
            self._open_engine().connect() as connection,
            connection.execution_options(ferrule_writes=True).begin(),
        ):
            yield connection

    def find(self, query: sa.Select[Any] | str, values: Mapping[str, Any] | None = None) -> list[Any]:
        with self.read() as connection:
            return list(connection.execute(sa.text(query) if isinstance(query, str) else query, values))

    def find_first(self, query: sa.Select[Any]) -> dict[str, Any] | None:
        """Return the first row that a query finds, by column; None if it finds nothing."""
        return next((row._asdict() for row in self.find(query.limit(1))), None)

    def change(self, statement: sa.UpdateBase | str, values: Mapping[str, Any] | None = None) -> int:
        """Execute a statement in its own transaction; return the number of rows that it has changed."""
        with self.write() as connection:
            return connection.execute(sa.text(statement) if isinstance(statement, str) else statement, values).rowcount

    def connect_outside_pool(self) -> Any:
        """Open a connection of the driver without transactions, for leases and notifications."""
        self.open()
        connection = self._open_engine().raw_connection()
        session: Any = connection.driver_connection
        connection.detach()
        session.autocommit = True
        return session

    @contextmanager
    def raise_as_store_error(self) -> Iterator[None]:
        import sqlite3

        from sqlalchemy.exc import SQLAlchemyError

        # UnicodeDecodeError: a text of a damaged file, or the message about it, which the driver cannot decode.
        errors: tuple[type[Exception], ...] = (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError)
        if self._location.kind == "postgresql":
            import psycopg

            errors += (psycopg.Error,)
        try:
            yield
        except errors as error:
            cause, name = getattr(error, "orig", None) or error, self._location.display_name
            reason, state = hide_password(str(cause)).strip(), getattr(cause, "sqlstate", None)
            if self._location.kind != "postgresql":
                failure = StoreError(f"the store failed: {reason}")
                failure.add_note(name)
            else:  # whose messages name hosts, users and values
                text = f"{type(cause).__name__}, SQLSTATE {state}" if state else "the database cannot be reached"
                failure = StoreError(f"the store failed: {text}")
                failure.add_note(f"{name}: {reason}")
            raise failure from error

    def insert_journal_lines(self, lines: Sequence[bytes], owner: str, *, is_abandoned: bool = False) -> int:
        """Insert lines into the tables; returns how many the database rejected because of their content.

        They are inserted in one transaction: where the record of a call is, the turn of the run that made it is too. A
        run that continues on another machine would make the call again otherwise.
        """
        entries, calls = split_entries_from_calls(lines)
        replaced_after, is_postgres = time.time() if is_abandoned else 0.0, self._location.kind == "postgresql"
        inserts: list[tuple[list[bytes], str, Mapping[str, Any]]] = []
        if entries:
            values: Mapping[str, Any] = {"replaced_after": replaced_after}
            if is_postgres:
                values = {**values, "owner": owner}
            inserts.append((last_line_per_entry(entries), self._insert_entries, values))
        if calls:
            inserts.append((last_line_per_record(calls), self._insert_calls, {"owner": owner}))
        try:
            with self.write() as connection:
                for rows, statement, values in inserts:
                    inserted = _execute_with_lines(connection, statement, rows, values).rowcount
                    # In SQLite, lines that are not inserted are older than what is there.
                    if statement is self._insert_entries and is_postgres and inserted < len(rows):
                        late_streams = late_streams_statement(connection.dialect)
                        for (stream,) in _execute_with_lines(connection, late_streams, rows, {"owner": owner}):
                            logger.warning(
                                "stream=<%s> | entries came too late and are discarded: another process has had its "
                                "lock since",
                                stream,
                            )
            return 0
        except StoreError as error:
            if not _is_content_error(error.__cause__):
                raise
        return sum(self._insert_lines(*insert) for insert in inserts)

    def insert_start(self, connection: sa.Connection, line: bytes, owner: str) -> None:
        """Record the start of a call in the transaction of a connection; a call that has ended stays as it is.

        `line` is the line of the journal of `owner`, which it need not pass then.
        """
        _execute_with_lines(connection, self._insert_start, [line], {"owner": owner})

    def _insert_lines(self, lines: list[bytes], statement: str, values: Mapping[str, Any]) -> int:
        try:
            with self.write() as connection:
                _execute_with_lines(connection, statement, lines, values)
            return 0
        except StoreError as error:
            if not _is_content_error(error.__cause__):
                raise
            if len(lines) > 1:  # find the line that spoils the batch
                half = len(lines) // 2
                first = self._insert_lines(lines[:half], statement, values)
                return first + self._insert_lines(lines[half:], statement, values)
            if b"\\u0000" in lines[0]:  # in a name or an id; Postgres accepts no NUL characters
                return self._insert_lines([lines[0].replace(b"\\u0000", b"\\ufffd")], statement, values)
            logger.error("line=<%.300r> | the database rejects this record, which is skipped: %s", lines[0], error)
            return 1

    def mark_interrupted(self, owner: str) -> None:
        """Mark the calls that a dead process has not ended."""
        calls = get_table("tool_calls")
        running = (calls.c.status == "running") & (calls.c.owner == owner)
        with self.write() as connection:
            connection.execute(calls.update().where(running).values(status="interrupted", error=INTERRUPTED))

    def _open_engine(self) -> sa.Engine:
        if self._engine is None:
            raise StoreError("the store is closed")
        return self._engine


def _create_engine(location: StoreLocation) -> sa.Engine:
    if location.kind == "postgresql":
        stated = sa.make_url(location.database).query
        arguments = {name: value for name, value in _POSTGRES_OPTIONS.items() if name not in stated}
        engine = sa.create_engine(location.database, pool_pre_ping=True, connect_args=arguments)
        sa.event.listen(engine, "connect", _prepare_postgres)
        return engine
    if location.kind == "sqlite":
        try:
            make_file(Path(location.database))
        except OSError as error:
            failure = StoreError(
                f"the file of the store cannot be created: {error.strerror}. Name another place in [store] url of "
                "ferrule.toml, or in FERRULE_STORE_URL."
            )
            failure.add_note(location.display_name)
            raise failure from error
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_TIMEOUT, "check_same_thread": False}}
    if location.kind == "memory":
        # Each connection would be a separate database, so all threads share one and wait for it.
        options |= {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0}
    engine = sa.create_engine(sa.URL.create("sqlite", database=location.database or None), **options)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_postgres(connection: Any, _record: Any) -> None:
    connection.autocommit = True  # or else a transaction that fails would take the settings back
    connection.execute("; ".join(f"SET {name} = '{value}'" for name, value in _POSTGRES_SETTINGS.items()))
    connection.autocommit = False


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin in `_begin_sqlite`, not where the driver guesses
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except connection.OperationalError:
            # Another process creates the same file just now; here SQLite does not wait by itself.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=4000")
    connection.execute("PRAGMA cache_size=-16000")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that will write takes the lock first: SQLite may refuse it to one that has already read.
    writes = connection.get_execution_options().get("ferrule_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _execute_with_lines(
    connection: sa.Connection, statement: str, lines: Sequence[bytes], values: Mapping[str, Any]
) -> sa.CursorResult[Any]:
    document = (b"[" + b",".join(lines) + b"]").decode("utf-8", "replace")
    return connection.execute(sa.text(statement), {**values, "lines": document})


def _insert_calls_statement(dialect: sa.Dialect, replaces_if: str) -> str:
    """Build an `INSERT … SELECT` from a JSON array of lines, which replace rows under a condition.

    Either condition keeps a call that has ended from being set back to running.
    """
    calls = get_table("tool_calls")
    columns = [column for column in calls.columns if column.name != "owner"]
    names = [column.name for column in columns]
    values = [f"CAST(line.value->>{number} AS {c.type.compile(dialect)})" for number, c in enumerate(columns)]
    for name in JSON_COLUMNS:
        values[names.index(name)] = f"line.value->{names.index(name)}"
    values[names.index("status")] = f"COALESCE(line.value->>{names.index('status')}, 'running')"
    changes = [f"{name} = excluded.{name}" for name in names if name != "record_id"]
    return (
        f"INSERT INTO {calls.name} ({', '.join(names)}, owner) SELECT {', '.join(values)}, :owner "
        f"FROM {json_lines_sql(dialect)} "
        f"WHERE true ON CONFLICT (record_id) DO UPDATE SET {', '.join(changes)} WHERE {replaces_if}"
    )


def _is_content_error(error: BaseException | None) -> bool:
    """Return whether the database rejected a line for its content, and is not unreachable, full or busy."""
    from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

    if isinstance(error, (DataError, IntegrityError)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    is_duplicate_in_batch = getattr(error.orig, "sqlstate", None) == "21000"
    return is_duplicate_in_batch or "malformed JSON" in str(error.orig)
