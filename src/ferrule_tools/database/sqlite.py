"""SQLite: a file with an authorizer that allows or denies every operation of a statement.

For reading, the file is opened read-only, the connection is set to query-only, and each operation of a statement is
allowed or denied by name before it runs. A statement that takes too long is stopped by SQLite's progress handler, or by
an interrupt from another thread.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, Transient
from ferrule_tools.data.limits import Column
from ferrule_tools.database.session import (
    DatabaseAddress,
    DatabaseSession,
    StatementResult,
    StatementTimer,
    encode_parameters,
)

_BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for other writers."""
_PROGRESS_STEPS: Final = 20_000
"""Virtual machine steps between two checks of the timer."""
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 50_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_READ_ACTIONS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_DENIED_ACTIONS: Final = frozenset(
    {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
)
"""Denied even for writing: other files, and control of our transaction."""
_READ_PRAGMAS: Final = frozenset(
    "table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list data_version".split()
)
_DENIED_ERRORS: Final = lazy_pattern(r"not authorized|authorization denied|prohibited|readonly database")
_SCHEMA_TABLES: Final = frozenset({"sqlite_master", "sqlite_temp_master"})
_DENIED_FUNCTIONS: Final = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


class SqliteSession(DatabaseSession):
    errors = (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError)

    def run_statement(self, sql: str, parameters: Mapping[str, Any]) -> StatementResult:
        with self.convert_errors():
            cursor = self.connection.execute(sql, encode_parameters(parameters))
            columns = [Column(name=each[0], type="") for each in cursor.description or ()]
        rows = iter(list(self.fetch_rows(cursor))) if self.writes else self.fetch_rows(cursor)
        changed = cursor.rowcount  # correct only after all rows were fetched
        return StatementResult(columns=columns, rows=rows, changed=changed if changed >= 0 else None)

    @contextmanager
    def inspect_connection(self) -> Iterator[Any]:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.pool import StaticPool

        self.connection.set_authorizer(None)  # the following statements are SQLAlchemy's own
        engine = create_engine("sqlite://", creator=lambda: self.connection, poolclass=StaticPool)
        try:
            with engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise self.convert_error(error.orig or error) from None

    def convert_error(self, error: BaseException) -> CallError:
        text = str(error).rstrip(".")
        if text == "interrupted":
            return self.timer.timeout_error()
        if _DENIED_ERRORS.search(text):
            return Refuse(f"not allowed: {text}.")
        if "one statement at a time" in text:
            return Retry("there are several statements in the SQL: give one.")
        if "locked" in text or "busy" in text:
            return Transient(f"another process is writing to the database ({text}).")
        if text.startswith("no such"):
            return Retry(f"{text}. Use schema to list the tables.")
        if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError | sqlite3.IntegrityError | ValueError):
            return Retry(f"{text[:500]}.")
        if isinstance(error, OverflowError | sqlite3.DataError):
            return Retry(f"a value is too large: {text[:500]}.")
        return ExecutionFailed(f"SQLite failed: {text[:500]}.")


@contextmanager
def open_sqlite(address: DatabaseAddress, timer: StatementTimer, *, writes: bool) -> Iterator[SqliteSession]:
    """Open the file of an address; changes are committed only if nothing failed."""
    path = str(address.url().database)
    mode = "rwc" if writes else "ro"
    try:
        raw = sqlite3.connect(
            f"file:{quote(path)}?mode={mode}", uri=True, timeout=min(_BUSY_TIMEOUT, timer.seconds), isolation_level=None
        )
    except sqlite3.Error as error:
        raise ExecutionFailed(_explain_open_error(address, error)) from None
    try:
        _prepare_connection(raw, timer, writes=writes)
        if writes:
            raw.execute("BEGIN IMMEDIATE")
        raw.set_authorizer(_authorize_write if writes else _authorize_read)
        session = SqliteSession(raw, timer, writes=writes)
        with _interrupt_after(raw, timer):
            yield session
        raw.set_authorizer(None)
        if writes:
            with session.convert_errors():
                raw.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise ExecutionFailed(_explain_open_error(address, error)) from None
    finally:
        with suppress(sqlite3.Error):
            raw.close()


def _prepare_connection(raw: sqlite3.Connection, timer: StatementTimer, *, writes: bool) -> None:
    for limit, value in _LIMITS.items():
        raw.setlimit(limit, value)
    raw.text_factory = lambda data: data.decode("utf-8", "replace")
    raw.set_progress_handler(lambda: int(timer.has_expired()), _PROGRESS_STEPS)
    raw.execute("PRAGMA trusted_schema = OFF")
    raw.execute("PRAGMA foreign_keys = ON")
    if not writes:
        raw.execute("PRAGMA query_only = ON")


@contextmanager
def _interrupt_after(raw: sqlite3.Connection, timer: StatementTimer) -> Iterator[None]:
    """Interrupt a statement at its timeout, also if few steps take long and the handler is not called in between."""
    thread = threading.Timer(max(timer.remaining(), 0), raw.interrupt)
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        thread.cancel()
        thread.join()


def _authorize_read(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = str(first).lower() in _READ_PRAGMAS
    elif action == sqlite3.SQLITE_UPDATE:
        # SQLite asks this whenever a virtual table is used (json_each, full-text search). A real update of the
        # schema would need a pragma that is denied, and a writable file.
        allowed = str(first) in _SCHEMA_TABLES
    else:
        allowed = action in _READ_ACTIONS and not (
            action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _DENIED_FUNCTIONS
        )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _authorize_write(action: int, first: str | None, second: str | None, *rest: Any) -> int:
    if action in (sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_FUNCTION):
        return _authorize_read(action, first, second, *rest)
    return sqlite3.SQLITE_DENY if action in _DENIED_ACTIONS else sqlite3.SQLITE_OK


def _explain_open_error(address: DatabaseAddress, error: Exception) -> str:
    return (
        f"the database {address.name!r} cannot be opened ({error}). Tell the user to check that its url names an "
        "existing SQLite file."
    )
