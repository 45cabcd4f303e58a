"""SQLite: a file that is opened for reading, and asks about everything a statement wants to do.

The file is opened read-only, told to be, and each part of a statement is allowed or denied by name before it runs. A
statement that takes too long is stopped by the handler that SQLite calls as it goes, or from outside.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, Transient
from ferrule.tools.data_analyzer.rows import Column
from ferrule.tools.database_query.address import Address
from ferrule.tools.database_query.session import AT_ONCE, Answer, Clock

_BUSY: Final = 5.0
"""Seconds to wait for others who write."""
_BETWEEN: Final = 20_000
"""Steps between two looks at the clock."""
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 50_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_NEVER: Final = frozenset(
    {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
)
"""Not even by those who may write: other files, and the transaction we hold."""
_LOOKING: Final = frozenset(
    {
        "table_info",
        "table_xinfo",
        "table_list",
        "index_list",
        "index_info",
        "index_xinfo",
        "foreign_key_list",
        "data_version",
    }
)
"""Pragmas that only tell."""
_DENIED: Final = re.compile(r"not authorized|authorization denied|prohibited|readonly database")
_LISTS: Final = frozenset({"sqlite_master", "sqlite_temp_master"})
_FORBIDDEN: Final = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


class SqliteSession:
    """One open file."""

    def __init__(self, raw: sqlite3.Connection, clock: Clock, *, writes: bool) -> None:
        self._raw, self._clock, self._writes = raw, clock, writes

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        with self.told():
            cursor = self._raw.execute(sql, {name: _bound(value) for name, value in parameters.items()})
            columns = [Column(name=each[0], type="") for each in cursor.description or ()]
        rows = iter(list(self._rows(cursor))) if self._writes else self._rows(cursor)
        changed = cursor.rowcount  # known when all rows were fetched
        return Answer(columns=columns, rows=rows, changed=changed if changed >= 0 else None)

    @contextmanager
    def inspected(self) -> Iterator[Any]:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.pool import StaticPool

        self._raw.set_authorizer(None)  # what follows is not written by strangers
        try:
            with create_engine("sqlite://", creator=lambda: self._raw, poolclass=StaticPool).connect() as connection:
                yield connection
        except DBAPIError as error:
            raise self._failure(error.orig or error) from None

    def _rows(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        while True:
            with self.told():
                rows = cursor.fetchmany(AT_ONCE)
            if not rows:
                return
            yield from rows

    @contextmanager
    def told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            raise self._failure(error) from None

    def _failure(self, error: BaseException) -> CallError:
        text = str(error).rstrip(".")
        if text == "interrupted":
            return self._clock.time_out()
        if _DENIED.search(text):
            return Refuse(f"that is not allowed here: {text}.")
        if "one statement at a time" in text:
            return Retry("there are several statements in the SQL: give one.")
        if "locked" in text or "busy" in text:
            return Transient(f"somebody else is writing into the database ({text}).")
        if text.startswith("no such"):
            return Retry(f"{text}. Look at the tables with schema.")
        if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError | sqlite3.IntegrityError | ValueError):
            return Retry(f"{text[:500]}.")
        if isinstance(error, OverflowError | sqlite3.DataError):
            return Retry(f"a value is too large: {text[:500]}.")
        return ExecutionFailed(f"SQLite says: {text[:500]}.")


@contextmanager
def open_sqlite(address: Address, clock: Clock, *, writes: bool) -> Iterator[SqliteSession]:
    """The file of an address; what was written is kept only if all went well."""
    path = str(address.url().database)
    mode = "rwc" if writes else "ro"
    try:
        raw = sqlite3.connect(
            f"file:{quote(path)}?mode={mode}", uri=True, timeout=min(_BUSY, clock.seconds), isolation_level=None
        )
    except sqlite3.Error as error:
        raise ExecutionFailed(_not_opened(address, error)) from None
    try:
        _prepare(raw, clock, writes=writes)
        if writes:
            raw.execute("BEGIN IMMEDIATE")
        raw.set_authorizer(_may_write if writes else _may_read)
        session = SqliteSession(raw, clock, writes=writes)
        with _interrupted(raw, clock):
            yield session
        raw.set_authorizer(None)
        if writes:
            with session.told():
                raw.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise ExecutionFailed(_not_opened(address, error)) from None
    finally:
        with suppress(sqlite3.Error):
            raw.close()


def _prepare(raw: sqlite3.Connection, clock: Clock, *, writes: bool) -> None:
    for limit, value in _LIMITS.items():
        raw.setlimit(limit, value)
    raw.text_factory = _text
    raw.set_progress_handler(_stopper(clock), _BETWEEN)
    raw.execute("PRAGMA trusted_schema = OFF")
    raw.execute("PRAGMA foreign_keys = ON")
    if not writes:
        raw.execute("PRAGMA query_only = ON")


@contextmanager
def _interrupted(raw: sqlite3.Connection, clock: Clock) -> Iterator[None]:
    """Stopped in the end: with large values even few steps take long, and the handler is not called in between."""
    timer = threading.Timer(max(clock.left(), 0), raw.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _stopper(clock: Clock) -> Callable[[], int]:
    return lambda: int(clock.is_over())


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _may_read(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = str(first).lower() in _LOOKING
    elif action == sqlite3.SQLITE_UPDATE:
        # Asked about whenever a table is used that is made of code (json_each, full-text search). To really do it
        # takes a pragma that is denied, and a file that can be written.
        allowed = str(first) in _LISTS
    else:
        allowed = action in _READING and not (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FORBIDDEN)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _may_write(action: int, first: str | None, second: str | None, *rest: Any) -> int:
    if action in (sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_FUNCTION):
        return _may_read(action, first, second, *rest)
    return sqlite3.SQLITE_DENY if action in _NEVER else sqlite3.SQLITE_OK


def _bound(value: Any) -> Any:
    """Lists and objects as JSON, which `json_each` reads."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value


def _not_opened(address: Address, error: Exception) -> str:
    return (
        f"the database {address.name!r} cannot be opened ({error}). That its url names a SQLite file which is there is "
        "for the user to see to."
    )
