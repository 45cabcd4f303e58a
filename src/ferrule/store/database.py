"""The SQL side of the store: the tables with their migrations, inserting lines of the journal.

Lines are inserted with one statement per batch: the batch travels as one JSON text, which the database itself takes
apart. So no row is ever touched by Python, and the interpreter is free for calls while SQLite works.

SQLAlchemy takes longer to import than the rest of Ferrule together, so it is imported when a database is opened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import StoreError
from ferrule.store.approvals import create_approvals_table
from ferrule.store.client_requests import add_claims_to_requests, create_requests_table
from ferrule.store.credentials import create_credentials_table
from ferrule.store.encoding import last_line_per_entry, last_line_per_record, split_entries_from_calls
from ferrule.store.entry_streams import (
    create_notes_table,
    index_entries_by_time,
    insert_entries_statement,
    json_lines_sql,
    late_streams_statement,
    rename_notes_table,
)
from ferrule.store.leases import create_adaptive_limits_table, create_lease_tables
from ferrule.store.location import StoreLocation, hide_password, make_file
from ferrule.store.locks import create_lock_holders_table
from ferrule.store.servers import (
    add_sockets_to_servers,
    create_circuits_table,
    create_mcp_owners_table,
    create_servers_table,
)
from ferrule.store.spending import create_spending_table
from ferrule.store.tokens import create_tokens_table
from ferrule.store.tool_vectors import create_tool_vectors_table

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection, CursorResult, Dialect, Engine, Table

logger = logging.getLogger("ferrule.store")

BUSY_TIMEOUT = 20
"""Seconds to wait while another process writes to the same SQLite file."""
INTERRUPTED = "The process that ran this call ended before the call did."
JSON_COLUMNS = frozenset({"params", "result", "metadata"})
IS_FAILURE = "status NOT IN ('success', 'running')"
IS_UNSUCCESSFUL = "status <> 'success'"
"""Must be the same text in the index and in the queries that use it, or the database does not use the index."""
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
    # So the server gives up a silent machine, and the locks of its runs, after a minute, and not after hours.
    "tcp_keepalives_idle": "30s",
    "tcp_keepalives_interval": "10s",
    "tcp_keepalives_count": "3",
}
"""What the server is told for each connection."""
_MIGRATION_LOCK = 0x666572  # any number; only ferrule's migrations use it


@cache
def calls_table() -> Table:
    """One row per call. The columns have the order of a journal line (see `encoding.py`), except `owner` at the end."""
    import sqlalchemy as sa

    json_text = sa.Text().with_variant(sa.JSON(), "postgresql")
    return sa.Table(
        "tool_calls",
        sa.MetaData(),
        sa.Column("record_id", sa.Text, primary_key=True),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("tool_name", sa.Text, nullable=False),
        sa.Column("action", sa.Text),
        sa.Column("caller_id", sa.Text),
        sa.Column("caller_type", sa.Text),
        sa.Column("conversation_id", sa.Text),
        sa.Column("workflow_id", sa.Text),
        sa.Column("fingerprint", sa.Text),
        sa.Column("source", sa.Text),
        sa.Column("parent_id", sa.Text),
        sa.Column("params", json_text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("execution_time", sa.Double),
        sa.Column("wait_time", sa.Double),
        sa.Column("attempts", sa.Integer),
        sa.Column("error_type", sa.Text),
        sa.Column("artifact_id", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("result", json_text),
        sa.Column("metadata", json_text),
        sa.Column("principal", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("cost", sa.Double),
        sa.Column("owner", sa.Text),
    )


_INDEXES: Final = {
    "time": ("started_at", ""),
    # The last two columns let statistics of some calls be computed from the index alone; the two after it are for those
    # of all calls.
    "tool": ("tool_name, started_at, status, execution_time", ""),
    "tool_and_time": ("tool_name, execution_time", ""),
    "tool_and_status": ("tool_name, status, started_at", IS_UNSUCCESSFUL),
    "status": ("status, started_at", ""),
    "caller_type": ("caller_type, started_at", ""),
    "failure": ("started_at", IS_FAILURE),
    **{
        name: (f"{name}, started_at", f"{name} IS NOT NULL")
        for name in ("conversation_id", "workflow_id", "caller_id", "error_type", "artifact_id", "principal", "tenant")
    },
}
"""Columns and condition of each. SQL, because SQLAlchemy loads both dialects for an index with a condition."""


def _create_calls_table(connection: Connection) -> None:
    calls_table().metadata.create_all(connection)
    _create_indexes(connection)


def _create_indexes(connection: Connection) -> None:
    for name, (columns, condition) in _INDEXES.items():
        where = f" WHERE {condition}" if condition else ""
        connection.exec_driver_sql(
            f"CREATE INDEX IF NOT EXISTS tool_calls_by_{name} ON {calls_table().name} ({columns}){where}"
        )


def _add_principals_to_calls(connection: Connection) -> None:
    import sqlalchemy as sa

    calls = calls_table()
    if "principal" not in {column["name"] for column in sa.inspect(connection).get_columns(calls.name)}:
        for name in ("principal", "tenant"):
            connection.exec_driver_sql(f"ALTER TABLE {calls.name} ADD COLUMN {name} TEXT")
    _create_indexes(connection)


def _add_cost_to_calls(connection: Connection) -> None:
    import sqlalchemy as sa

    calls = calls_table()
    if "cost" not in {column["name"] for column in sa.inspect(connection).get_columns(calls.name)}:
        connection.exec_driver_sql(f"ALTER TABLE {calls.name} ADD COLUMN cost DOUBLE PRECISION")


MIGRATIONS: tuple[tuple[str, Callable[[Connection], None]], ...] = (
    ("create tool_calls", _create_calls_table),
    ("create notes", create_notes_table),
    ("rename notes to entries", rename_notes_table),
    ("index entries by time", index_entries_by_time),
    ("create approvals", create_approvals_table),
    ("add principals to tool_calls", _add_principals_to_calls),
    ("create tokens", create_tokens_table),
    ("create requests", create_requests_table),
    ("create tool_vectors", create_tool_vectors_table),
    ("create leases", create_lease_tables),
    ("create credentials", create_credentials_table),
    ("add cost to tool_calls", _add_cost_to_calls),
    ("create budget_spending", create_spending_table),
    ("create servers", create_servers_table),
    ("index tool_calls for statistics", _create_indexes),
    ("create lock_holders", create_lock_holders_table),
    ("add claims to requests", add_claims_to_requests),
    ("create adaptive_limits", create_adaptive_limits_table),
    ("create mcp_owners", create_mcp_owners_table),
    ("add sockets to servers", add_sockets_to_servers),
    ("create open_circuits", create_circuits_table),
)
"""Applied in order, once each. Add to the end, never change one that was released."""


def has_newest_schema(connection: Connection) -> bool:
    """Whether the database already has the newest schema. Needs no lock, so that opening a store is usually cheap."""
    import sqlalchemy as sa

    table = _migrations_table()
    return sa.inspect(connection).has_table(table.name) and _last_migration(connection) == len(MIGRATIONS)


def migrate(connection: Connection) -> None:
    """Bring the database to the newest schema. The caller holds a lock, so that two processes do not both do it."""
    table = _migrations_table()
    table.create(connection, checkfirst=True)
    last = _last_migration(connection)
    if last > len(MIGRATIONS):
        raise StoreError(
            f"the database was created by a newer ferrule (schema {last}). Install that version or a later one."
        )
    for number, (name, apply) in enumerate(MIGRATIONS[last:], last + 1):
        apply(connection)
        connection.execute(table.insert().values(number=number, name=name))


@cache
def _migrations_table() -> Table:
    import sqlalchemy as sa

    return sa.Table(
        "ferrule_migrations",
        sa.MetaData(),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
    )


def _last_migration(connection: Connection) -> int:
    import sqlalchemy as sa

    return connection.scalar(sa.select(sa.func.max(_migrations_table().c.number))) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """The start of a call that is recorded immediately, and not through the journal."""

    record_id: str
    line: bytes
    """As in the journal."""
    owner: str
    """The journal of the process that makes the call."""


class StoreDatabase:
    """One open database. All methods block; each runs one transaction or a few."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._engine: Engine | None = None
        self._insert_calls = self._insert_start = ""
        self._insert_entries = ""

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def open(self) -> None:
        """Connect, and create or migrate the tables; raises StoreError."""
        if self._engine is not None:
            return
        engine = _create_engine(self._location)
        self._engine = engine
        try:
            self._insert_calls = _insert_calls_statement(engine.dialect, "excluded.status <> 'running'")
            # It may replace the start that was recorded before a person edited the arguments.
            self._insert_start = _insert_calls_statement(engine.dialect, f"{calls_table().name}.status = 'running'")
            self._insert_entries = insert_entries_statement(engine.dialect)
            with self.read() as connection:
                current = has_newest_schema(connection)
            if not current:
                self._migrate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def reset_after_fork(self) -> None:
        """After a fork: the connections belong to the parent and must not even be closed here."""
        if self._engine is not None:
            self._engine.dispose(close=False)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with _raise_as_store_error(self._location), self._open_engine().connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with (
            _raise_as_store_error(self._location),
            self._open_engine().connect() as connection,
            connection.execution_options(ferrule_writes=True).begin(),
        ):
            yield connection

    def connect_outside_pool(self) -> Any:
        """A connection of the driver without transactions, for locks and notifications."""
        self.open()
        connection = self._open_engine().raw_connection()
        session: Any = connection.driver_connection
        connection.detach()
        session.autocommit = True
        return session

    def raise_as_store_error(self) -> AbstractContextManager[None]:
        return _raise_as_store_error(self._location)

    def insert_journal_lines(self, lines: Sequence[bytes], owner: str, *, is_abandoned: bool = False) -> int:
        """Insert lines into the tables; returns how many the database rejected because of their content.

        They are inserted in one transaction: where the record of a call is, the turn of the run that made it is too. A
        run that continues on another machine would make the call again otherwise.
        """
        entries, calls = split_entries_from_calls(lines)
        replaced_after = time.time() if is_abandoned else 0.0
        inserts: list[tuple[list[bytes], str, Mapping[str, Any]]] = []
        if entries:
            values: Mapping[str, Any] = {"replaced_after": replaced_after}
            if self._location.kind == "postgresql":
                values = {**values, "owner": owner}
            inserts.append((last_line_per_entry(entries), self._insert_entries, values))
        if calls:
            inserts.append((last_line_per_record(calls), self._insert_calls, {"owner": owner}))
        try:
            with self.write() as connection:
                for rows, statement, values in inserts:
                    inserted = _execute_with_lines(connection, statement, rows, values).rowcount
                    if statement is self._insert_entries and inserted < len(rows):
                        self._log_late_entries(connection, rows, owner)
            return 0
        except StoreError as error:
            if not _is_content_error(error.__cause__):
                raise
        return sum(self._insert_lines(*insert) for insert in inserts)

    def _log_late_entries(self, connection: Connection, lines: list[bytes], owner: str) -> None:
        if self._location.kind != "postgresql":  # where such lines are older than what is there
            return
        statement = late_streams_statement(connection.dialect)
        for (stream,) in _execute_with_lines(connection, statement, lines, {"owner": owner}):
            logger.warning(
                "stream=<%s> | entries came too late and are discarded: another process has had its lock since", stream
            )

    def insert_start(self, connection: Connection, start: CallStart) -> None:
        """Record the start of a call in the transaction of a connection; a call that has ended stays as it is."""
        _execute_with_lines(connection, self._insert_start, [start.line], {"owner": start.owner})

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
        calls = calls_table()
        running = (calls.c.status == "running") & (calls.c.owner == owner)
        with self.write() as connection:
            connection.execute(calls.update().where(running).values(status="interrupted", error=INTERRUPTED))

    def _migrate(self) -> None:
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            migrate(connection)

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise StoreError("the store is closed")
        return self._engine


def _create_engine(location: StoreLocation) -> Engine:
    import sqlalchemy as sa

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
        # Each connection would be a database of its own, so all threads share one and wait for it.
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


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that will write takes the lock first: SQLite may refuse it to one that has already read.
    writes = connection.get_execution_options().get("ferrule_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _execute_with_lines(
    connection: Connection, statement: str, lines: Sequence[bytes], values: Mapping[str, Any]
) -> CursorResult[Any]:
    import sqlalchemy as sa

    document = (b"[" + b",".join(lines) + b"]").decode("utf-8", "replace")
    return connection.execute(sa.text(statement), {**values, "lines": document})


def _insert_calls_statement(dialect: Dialect, replaces_if: str) -> str:
    """`INSERT … SELECT` from a JSON array of lines, which replace the rows they have a condition for.

    Either condition keeps a call that has ended from being set back to running.
    """
    calls = calls_table()
    columns = [column for column in calls.columns if column.name != "owner"]
    names = [column.name for column in columns]
    values = [_column_value(number, column, dialect) for number, column in enumerate(columns)]
    changes = [f"{name} = excluded.{name}" for name in names if name != "record_id"]
    return (
        f"INSERT INTO {calls.name} ({', '.join(names)}, owner) SELECT {', '.join(values)}, :owner "
        f"FROM {json_lines_sql(dialect)} "
        f"WHERE true ON CONFLICT (record_id) DO UPDATE SET {', '.join(changes)} WHERE {replaces_if}"
    )


def _column_value(number: int, column: Column[Any], dialect: Dialect) -> str:
    if column.name in JSON_COLUMNS:
        return f"line.value->{number}"
    if column.name == "status":
        return f"COALESCE(line.value->>{number}, 'running')"
    return f"CAST(line.value->>{number} AS {column.type.compile(dialect)})"


@contextmanager
def _raise_as_store_error(location: StoreLocation) -> Iterator[None]:
    import sqlite3

    from sqlalchemy.exc import SQLAlchemyError

    # UnicodeDecodeError: a text of a damaged file, or the message about it, which the driver cannot decode.
    errors: tuple[type[Exception], ...] = (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError)
    if location.kind == "postgresql":
        import psycopg

        errors += (psycopg.Error,)
    try:
        yield
    except errors as error:
        cause = getattr(error, "orig", None) or error
        reason, state = hide_password(str(cause)).strip(), getattr(cause, "sqlstate", None)
        if location.kind != "postgresql":
            failure = StoreError(f"the store failed: {reason}")
            failure.add_note(location.display_name)
        else:  # whose messages name hosts, users and values
            text = "the database cannot be reached" if state is None else f"{type(cause).__name__}, SQLSTATE {state}"
            failure = StoreError(f"the store failed: {text}")
            failure.add_note(f"{location.display_name}: {reason}")
        raise failure from error


def _is_content_error(error: BaseException | None) -> bool:
    """Whether the database rejected a line for its content, rather than being unreachable, full or busy."""
    from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

    if isinstance(error, (DataError, IntegrityError)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    is_duplicate_in_batch = getattr(error.orig, "sqlstate", None) == "21000"
    return is_duplicate_in_batch or "malformed JSON" in str(error.orig)
