"""Locks by name. Only one user of a store holds a lock at a time: two that continue one run would do everything twice.

    memory      a name in this process
    SQLite      also a file beside the journal, which the kernel unlocks when the process dies
    Postgres    also an advisory lock of a database session, which the server releases when the process or its machine
                dies; all locks of a process share one connection

A lock is given back only when the database has everything that was written under it (see `RecordWriter.catch_up`):
the next holder reads the database, and not the journal of a process that lives.

A Postgres server releases locks when a connection is lost, which is checked every second. They are taken again; one
that another process has taken meanwhile is lost, and its holder here is cancelled. So is a holder that cannot reach
the server for half a minute: the server releases the locks of a silent machine after a minute, and then another may
have them. The table `lock_holders` has the last holder of each lock: the database accepts no entries for a stream of
that name from anybody else, so what a machine that was cut off had written comes too late.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule.errors import LockHeld, StoreError
from ferrule.store.escapes import escape_text
from ferrule.store.location import StoreLocation, make_directory

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ferrule.store.database import StoreDatabase

logger = logging.getLogger("ferrule.store")

_ATTEMPTS, _ATTEMPT_INTERVAL = 25, 0.02
"""One refusal does not prove that somebody works under the lock: `is_held` locks a file for an instant, and a holder
that has ended keeps its lock until the database has what it wrote.
"""
CHECK_INTERVAL = 1.0
"""Seconds between two checks of the connection that has the advisory locks."""
MAX_UNCONFIRMED = 30.0
"""Seconds without an answer of a Postgres server after which locks count as lost; see `tcp_keepalives_idle`."""


class StoreLocks:
    """The locks that one store object holds. All methods block; any thread may call them."""

    def __init__(self, location: StoreLocation, database: StoreDatabase) -> None:
        self._directory = location.locks
        self._advisory = _AdvisoryLocks(database) if location.kind == "postgresql" else None
        self._files: dict[str, int | None] = {}
        """The open lock file of each lock that is held; None for a store without files."""
        self._due: set[str] = set()
        self._mutex = threading.Lock()

    def acquire(self, name: str, owner: str) -> str:
        """Take the lock; LockHeld when somebody has it.

        Returns the owner that died while it held the lock, or "". `owner` is what others are told in the same case.
        """
        with self._mutex:
            if name in self._due and name not in self.lost_names:  # its holder has ended, and this process still has it
                self._due.discard(name)
                return ""
            if name in self._files:
                raise LockHeld(name)
            self._files[name] = None
        try:
            previous = self._lock_file(name, owner)
            if self._advisory is not None and not self._advisory.lock(name):
                raise LockHeld(name)
            return previous
        except BaseException:
            self._release_file(name)
            raise

    def find_last_holder(self, name: str) -> str:
        """The owner that last registered for a lock, or ""; only Postgres needs it."""
        return "" if self._advisory is None else self._advisory.find_holder(name)

    def register_holder(self, name: str, owner: str) -> None:
        """From now on entries for the stream of this name are accepted from this owner only."""
        if self._advisory is not None:
            self._advisory.register_holder(name, owner)

    def is_held(self, name: str) -> bool:
        """Whether anybody holds the lock, in this process or another."""
        if name in self._files:
            return True
        if self._directory is not None and _is_locked(self._path(name)):
            return True
        return self._advisory is not None and self._advisory.is_locked(name)

    @property
    def may_be_lost(self) -> bool:
        return self._advisory is not None

    @property
    def lost_names(self) -> Collection[str]:
        """Locks that another process has taken, although their holders here have not released them."""
        return () if self._advisory is None else self._advisory.lost_names

    @property
    def is_check_due(self) -> bool:
        return self._advisory is not None and self._advisory.is_check_due

    @property
    def is_confirmed(self) -> bool:
        """Whether the database has confirmed the locks so lately that nobody else can have taken them."""
        return self._advisory is None or self._advisory.is_confirmed

    def give_up(self, name: str) -> None:
        """Count a lock as lost, because its holder cannot know whether it still has it."""
        if self._advisory is not None:
            self._advisory.lost_names.add(name)

    def check(self) -> None:
        """Take locks again that were lost with the connection to the database; StoreError if it is out of reach."""
        if self._advisory is not None:
            self._advisory.check()

    def release_later(self, name: str) -> None:
        """The holder has ended. The lock is released once the database has what was written under it."""
        self._due.add(name)

    def due_for_release(self) -> tuple[str, ...]:
        return tuple(self._due)

    def release_due(self, names: Iterable[str]) -> None:
        """Release those that nobody has taken again since `due` returned them."""
        with self._mutex:
            names = self._due.intersection(names)
            self._due -= names
        self.release(names)

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            if self._advisory is not None:
                self._advisory.unlock(name)
            self._release_file(name)

    def restore(self) -> None:
        """After the database was out of reach: take the locks again that its sessions lost."""
        if self._advisory is not None and self._files:
            self._advisory.restore()

    def close(self) -> None:
        """Release what is due. Nothing more will come from the journal: it is in the database, or left for others."""
        self.release_due(self.due_for_release())
        if self._advisory is not None and not self._files:
            self._advisory.close()

    def reset_after_fork(self) -> None:
        """After a fork: the locks belong to the parent."""
        for file in filter(None, self._files.values()):
            os.close(file)
        self._files, self._due, self._mutex = {}, set(), threading.Lock()
        if self._advisory is not None:
            self._advisory.reset_after_fork()

    def _lock_file(self, name: str, owner: str) -> str:
        if self._directory is None:
            return ""
        path = self._path(name)
        try:
            make_directory(path.parent)
            file = _open_locked(path)
        except OSError as error:
            raise StoreError(f"the lock {name!r} cannot be taken: {error.strerror}") from error
        if file is None:
            raise LockHeld(name)
        self._files[name] = file
        previous = os.pread(file, 1000, 0).decode(errors="replace")
        with suppress(OSError):  # a full disk: the lock counts without it
            os.pwrite(file, owner.encode(), 0)
            os.ftruncate(file, len(owner.encode()))
        return previous

    def _release_file(self, name: str) -> None:
        file = self._files.get(name)
        if file is not None:
            self._path(name).unlink(missing_ok=True)
            os.close(file)
        self._due.discard(name)
        self._files.pop(name, None)

    def _path(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{_digest(name).hex()[:32]}.lock"


def _open_locked(path: Path) -> int | None:
    """Open and lock the file; None if another process holds the lock."""
    attempts = 0
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return file
        except BlockingIOError:
            attempts += 1
            if attempts == _ATTEMPTS:
                os.close(file)
                return None
            time.sleep(_ATTEMPT_INTERVAL)
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the previous holder has just removed the file, or may do so


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _digest(name: str) -> bytes:
    return sha256(name.encode("utf-8", "surrogatepass")).digest()


class _AdvisoryLocks:
    """The advisory locks of one process on a Postgres server, on a connection that is used for nothing else."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database
        self._connection: Any = None
        self._schema = ""
        self._session: tuple[Any, ...] | None = None
        """The process on the server that has the locks, and since when it runs."""
        self._holders: dict[str, str | None] = {}
        """Whom `lock_holders` names for each lock that is held; None before that is known."""
        self.lost_names: set[str] = set()
        self._checked_at = self._confirmed_at = time.monotonic()
        self._mutex = threading.Lock()

    def lock(self, name: str) -> bool:
        with self._mutex:
            # A session may take one lock twice, so `StoreLocks` checks first that this process does not have it.
            is_locked = bool(self._ask_about_lock("SELECT pg_try_advisory_lock(%s)", name))
            if is_locked:
                self._holders[name] = None
                self.lost_names.discard(name)
            return is_locked

    def unlock(self, name: str) -> None:
        with self._mutex:
            self.lost_names.discard(name)
            if name not in self._holders:
                return
            del self._holders[name]
            with suppress(StoreError):  # the server is gone, and the lock with it
                self._ask_about_lock("SELECT pg_advisory_unlock(%s)", name)

    def is_locked(self, name: str) -> bool:
        query = (
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND (classid::bigint << 32) | objid::bigint = %s)"
        )
        with self._mutex:
            return bool(self._ask_about_lock(query, name))

    def find_holder(self, name: str) -> str:
        with self._mutex:
            holder = self._holders[name] = self._ask(_FIND_HOLDER, escape_text(name), lock=name) or ""
            return holder

    def register_holder(self, name: str, owner: str) -> None:
        with self._mutex:
            self._ask(_REGISTER_HOLDER, escape_text(name), owner, lock=name)
            self._holders[name] = owner

    @property
    def is_check_due(self) -> bool:
        return time.monotonic() - self._checked_at >= CHECK_INTERVAL / 2  # of several holders, one asks for all

    @property
    def is_confirmed(self) -> bool:
        return time.monotonic() - self._confirmed_at < MAX_UNCONFIRMED

    def check(self) -> None:
        if self.is_check_due and self._mutex.acquire(blocking=False):  # or else somebody is asking
            try:
                self._restore()
            finally:
                self._mutex.release()

    def restore(self) -> None:
        with self._mutex:
            self._restore()

    def _restore(self) -> None:
        self._checked_at = time.monotonic()
        self._ask("SELECT 1")

    def close(self) -> None:
        with self._mutex:
            self._disconnect()

    def reset_after_fork(self) -> None:
        # The driver does not close a connection that another process opened.
        self._connection, self._holders, self.lost_names, self._mutex = None, {}, set(), threading.Lock()

    def _ask_about_lock(self, query: str, name: str) -> Any:
        with self._database.raise_as_store_error():
            self._connect()  # which reads the schema, a part of the key
        return self._ask(query, self._key(name))

    def _ask(self, query: str, *values: Any, lock: str | None = None) -> Any:
        """The first value of the answer; LockHeld if the session that is asked does not hold the `lock` any more."""
        import psycopg

        asked_at = time.monotonic()
        with self._database.raise_as_store_error():
            try:
                answer = self._connect(lock).execute(query, values).fetchone()
            except psycopg.OperationalError:
                self._disconnect()
                answer = self._connect(lock).execute(query, values).fetchone()
        self._confirmed_at = asked_at
        return answer[0] if answer else None

    def _connect(self, lock: str | None = None) -> Any:
        """The connection. A new one takes all locks again, which the server released with the last one."""
        if self._connection is None:
            connection = self._database.connect_outside_pool()
            try:
                if self._holders and self._session is not None:
                    self._end_session(connection, self._session)
                self._schema, *session = connection.execute(_FIND_SESSION).fetchone()
                self._session = tuple(session)
                names = [name for name in sorted(self._holders) if not self._lock_again(connection, name)]
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            for name in names:
                logger.error("lock=<%s> | lost with the connection to the database, and taken by another process", name)
                del self._holders[name]
                self.lost_names.add(name)
        if lock is not None and lock not in self._holders:
            raise LockHeld(lock)
        return self._connection

    def _end_session(self, connection: Any, session: tuple[Any, ...]) -> None:
        """End the last session, which may live on and keep the locks where the network was cut."""
        import psycopg

        with suppress(psycopg.ProgrammingError):  # not permitted: then the locks count as lost
            connection.execute(_END_SESSION, session)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lock_again(self, connection: Any, name: str) -> bool:
        """Whether a lock could be taken again, and nobody had it meanwhile."""
        if not connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key(name),)).fetchone()[0]:
            return False
        (holder,) = connection.execute(_FIND_HOLDER, (escape_text(name),)).fetchone() or ("",)
        if self._holders[name] in (None, holder):
            return True
        connection.execute("SELECT pg_advisory_unlock(%s)", (self._key(name),))
        return False

    def _key(self, name: str) -> int:
        # Advisory locks belong to a database, and a database may have several stores, each in a schema.
        return int.from_bytes(_digest(f"{self._schema}:{name}")[:8], "big", signed=True)


_FIND_SESSION = "SELECT current_schema(), pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_END_SESSION = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity AS session WHERE pid = %s AND backend_start = %s "
    "AND pid <> pg_backend_pid() "
    "AND EXISTS (SELECT 1 FROM pg_locks WHERE pg_locks.pid = session.pid AND locktype = 'advisory')"
)
"""Returns when the session has ended, or after five seconds. A pooler may have given it to this or another client."""


# The last holder of each lock, in a table. Only stores in Postgres use it.

_FIND_HOLDER = "SELECT owner FROM lock_holders WHERE name = %s"
_REGISTER_HOLDER = (
    "INSERT INTO lock_holders (name, owner, registered_at) VALUES (%s, %s, EXTRACT(EPOCH FROM now())) "
    "ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, registered_at = excluded.registered_at RETURNING 1"
)


def delete_lock_holders(connection: Connection, before: float) -> None:
    """Delete the old ones of streams that are deleted."""
    import sqlalchemy as sa

    statement = (
        "DELETE FROM lock_holders WHERE registered_at < :before "
        "AND NOT EXISTS (SELECT 1 FROM entries WHERE stream = lock_holders.name)"
    )
    connection.execute(sa.text(statement), {"before": before})
