"""Leases: one owner has one thing, until the owner gives it back, dies, or cannot say in time that it lives.

A lease has a key, an owner and an end:

    lock:NAME      the right to continue a run, or to do something else that only one process may do (`StoreLocks`)
    server:ID      a server of the fleet lives, and where the others reach it; a server without a lease is dead
    mcp:NAME       the server that has the process of a stateful MCP server

The table `leases` also has rows `slots:BUCKET` and `starts:BUCKET`, several per key. `shared_limits.py` makes and
renews these itself, in SQLite too, by rules and with owners of its own.

The owner is the name of a store object in a process (see `owner_name` in `journal.py`). It is never used again, so it
is the fencing token too.

    memory      the leases of this process
    SQLite      a locked file (`flock`) per key: the kernel ends the leases of a dead process at once, by no clock
    Postgres    a row of the table `leases`, which ends after `LEASE_SECONDS` by the clock of the database

A journal segment is a file that its process has locked, and keeps its own lock. A claimed idempotency key is
not a lease: it must not become free when the server with the request dies.

Four rules make a lease in Postgres safe. Clocks of servers are never compared.

1. A thread renews all leases of the process with one statement, every `RENEW_INTERVAL` seconds, on a connection that
   nothing else uses: it waits neither for slow queries nor for the pool.
2. A holder counts its lease as lost when the last confirmed request was *sent* more than `MAX_UNCONFIRMED` seconds ago
   by its own clock. So it stops before the database lets others have the lease. A stopped process (SIGSTOP), or one
   on a machine that was suspended, notices the same when it continues.
3. A renewal names the owner. A lease that nobody has taken in the meantime may be renewed after its end, for example
   when the database was away; a lease that another owner has taken cannot, even if that owner has released it again.
4. `writer` is the owner whose entries the database accepts for the stream of a lock. The next holder first inserts what
   it had written before it lost the lock (which is refused) and the journal of a dead owner on the same machine (which
   is accepted), and then registers as the writer. Inserting entries locks the row (`FOR KEY SHARE`), and so does
   registering (`FOR UPDATE`): what a machine that was cut off has written comes before that, or too late.

An owner whose lease has ended but whose journal is locked on this machine lives, although it does not answer: what it
wrote may not be in the database yet, so nobody here takes its locks.

A lock is given back only when the database has everything that was written under it (see `RecordWriter.catch_up`): the
next holder reads the database, and not the journal of a process that lives.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import wraps
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

from ferrule.errors import LockHeld, StoreError
from ferrule.store.escapes import escape_text, unescape_text
from ferrule.store.journal import Journal
from ferrule.store.location import StoreLocation, make_directory
from ferrule.store.tables import get_table, sa

if TYPE_CHECKING:
    from ferrule.store.database import StoreDatabase

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("ferrule.store")

LEASE_SECONDS: Final = 15.0
"""How long a lease in Postgres holds after its last renewal."""
RENEW_INTERVAL: Final = 2.0
MAX_UNCONFIRMED: Final = 10.0
"""Seconds since the last confirmed request was sent, after which a holder must not count on its lease. A database that
is restarted answers again before that."""
MAX_ROW_LOCK_SECONDS: Final = 2
"""How long a process that does not answer may lock the row of a lease."""
_IDLE_TIMEOUT_STATE: Final = "25P03"
"""The error with which the database ends a transaction after MAX_ROW_LOCK_SECONDS. It has changed nothing then."""
MAX_ROW_AGE: Final = 3600.0
"""Seconds after which the row of a lease that has ended is deleted, unless it has a writer."""
MAX_ATTEMPTS: Final = 25
ATTEMPT_INTERVAL: Final = 0.02
"""Seconds between two attempts. One refusal does not prove that another process has the lease: looking at a file locks
the file for an instant, and a holder that has ended keeps its lock until the database has what it wrote."""
LOCK_PREFIX: Final = "lock:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    key: str
    owner: str
    details: str = ""
    """A text for those who want to know who has the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """What the new owner of a lease must know about the owners before it."""

    dead_owner: str = ""
    """The last owner, if it has not given the lease back."""
    writer: str | None = None
    """The owner whose entries the database accepts; None where it accepts the entries of all."""


class FileLeases:
    """Leases that the kernel ends when the process dies; without a directory, leases of this process alone.

    All methods block; any thread may call them.
    """

    may_be_lost = False
    """Whether the lease of a living process can end."""

    def __init__(self, directory: Path | None, journal: Journal) -> None:
        self._directory, self._journal = directory, journal
        self._leases: dict[str, tuple[Lease, int]] = {}

    @property
    def owner(self) -> str:
        return self._journal.owner

    @property
    def held_keys(self) -> list[str]:
        return list(self._leases)

    def take(self, key: str, details: str = "") -> Takeover | None:
        """Take a lease, or keep it; return None if another owner has it."""
        if key in self._leases:
            return Takeover()
        lease = Lease(key=key, owner=self.owner, details=details)
        if self._directory is None:
            self._leases[key] = (lease, -1)
            return Takeover()
        try:
            make_directory(self._directory)
            file = _open_locked(self._path(key))
        except OSError as error:
            raise StoreError(f"the lease {key!r} cannot be taken: {error.strerror}") from error
        if file is None:
            return None
        last = _read_lease(file)
        with suppress(OSError):  # a full disk: the lease counts without it
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(asdict(lease)).encode(), 0)
        self._leases[key] = (lease, file)
        return Takeover(dead_owner="" if last is None else last.owner)

    def release(self, key: str) -> None:
        _, file = self._leases.pop(key, (None, -1))
        if file >= 0:
            self._path(key).unlink(missing_ok=True)
            os.close(file)

    def find(self, key: str) -> Lease | None:
        """Return the lease if any owner has it. While its process is writing the file, it has no owner."""
        if key in self._leases:
            return self._leases[key][0]
        lease, is_held = (None, False) if self._directory is None else _read_file(self._path(key))
        return (lease or Lease(key=key, owner="")) if is_held else None

    def find_all(self, prefix: str) -> list[Lease]:
        """Return the leases whose keys have a prefix, and delete the files of such leases that have ended."""
        if self._directory is None:
            return [lease for lease, _ in self._leases.values() if lease.key.startswith(prefix)]
        leases = []
        for path in self._directory.glob("*.lock"):
            lease, is_held = _read_file(path)
            if lease is not None and lease.key.startswith(prefix):
                if is_held:
                    leases.append(lease)
                else:
                    path.unlink(missing_ok=True)
        return leases

    def is_confirmed(self, key: str) -> bool:
        """Return whether this process has the lease for certain."""
        return key in self._leases

    def register_writer(self, key: str) -> bool:
        return True

    def close(self) -> None:
        pass

    def close_files(self) -> None:
        """Close the files in a forked child. The parent process keeps them, and its leases."""
        for _, file in self._leases.values():
            if file >= 0:
                os.close(file)
        self._leases = {}

    def _path(self, key: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.lock"


def _open_locked(path: Path) -> int | None:
    """Open and lock the file; return None if another process holds the lock."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the last holder has just removed the file


def _read_file(path: Path) -> tuple[Lease | None, bool]:
    """Return the lease in a file, if it can be read, and whether a process has it."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None, False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return _read_lease(file), False
    except BlockingIOError:
        return _read_lease(file), True
    finally:
        os.close(file)


def _read_lease(file: int) -> Lease | None:
    try:
        return Lease(**json.loads(os.pread(file, 100_000, 0)))
    except ValueError:
        return None


def _repeated_after_pause(transaction: Callable[P, T]) -> Callable[P, T]:
    """Repeat a transaction that the database ended because this process paused in it, as happens on a busy machine."""

    @wraps(transaction)
    def repeat(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(MAX_ATTEMPTS):
            try:
                return transaction(*args, **kwargs)
            except StoreError as error:
                if getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) != _IDLE_TIMEOUT_STATE:
                    raise
                logger.warning("this process paused while it locked the row of a lease | trying again")
        return transaction(*args, **kwargs)

    return repeat


class RowLeases:
    """Leases in Postgres, which a thread renews while this process has any.

    All methods block; any thread may call them.
    """

    may_be_lost = True

    def __init__(self, database: StoreDatabase, journal: Journal) -> None:
        self._database, self._journal = database, journal
        self._sent_times: dict[str, float] = {}
        """When the last confirmed request about each lease of this process was sent."""
        self._connection: Any = None
        self._thread: threading.Thread | None = None
        self._mutex, self._renewing = threading.Lock(), threading.Lock()

    @property
    def owner(self) -> str:
        return self._journal.owner

    @property
    def held_keys(self) -> list[str]:
        return list(self._sent_times)

    @_repeated_after_pause
    def take(self, key: str, details: str = "") -> Takeover | None:
        """Take a lease, or keep it; return None if another owner has it."""
        owner, sent_at = self.owner, read_machine_clock()
        writer = owner if key.startswith(LOCK_PREFIX) else None
        holder = self.find(key)  # without locking the row, which its holder renews meanwhile
        if holder is not None and holder.owner != owner:
            return None
        with self._locked_row(key) as (connection, row, now):
            if row is None:
                connection.execute(sa.text(_DELETE_ENDED), {"before": now - MAX_ROW_AGE})
                statement = _INSERT
            elif row.owner != owner and (
                row.expires_at > now
                or (row.expires_at and row.writer is not None and self._journal.is_used_by(row.owner))
            ):
                return None
            else:
                statement, writer = _UPDATE, row.writer
            values: dict[str, Any] = {"key": escape_text(key), "owner": owner, "writer": writer, "details": details}
            values |= {"now": now, "end": now + LEASE_SECONDS}
            if connection.execute(sa.text(statement), values).rowcount != 1:
                return None  # another process has inserted the row
        with self._mutex:
            self._sent_times[key] = sent_at
            if self._thread is None:
                thread = threading.Thread(target=self._renew_while_held, name="ferrule-leases", daemon=True)
                thread.start()  # which fails if the process may not have more threads; the next lease tries again
                self._thread = thread
        has_died = row is not None and row.owner != owner and row.expires_at
        return Takeover(dead_owner=row.owner if has_died else "", writer=writer)

    @_repeated_after_pause
    def register_writer(self, key: str) -> bool:
        """Let the database accept entries from this owner only; return False if the lease was lost."""
        table = get_table("leases")
        with self._locked_row(key) as (connection, row, _):
            if row is None or row.owner != self.owner:
                return False
            connection.execute(table.update().where(table.c.key == row.key).values(writer=self.owner))
        return True

    @_repeated_after_pause
    def release(self, key: str) -> None:
        with self._mutex:
            self._sent_times.pop(key, None)
        table = get_table("leases")
        with self._locked_row(key) as (connection, row, _):
            if row is None or row.owner != self.owner:
                return
            is_same = table.c.key == row.key
            if row.writer is None:
                connection.execute(table.delete().where(is_same))
            else:  # which says whose entries are accepted
                connection.execute(table.update().where(is_same).values(expires_at=0.0))

    def find(self, key: str) -> Lease | None:
        return next(iter(self._select(get_table("leases").c.key == escape_text(key))), None)

    def find_all(self, prefix: str) -> list[Lease]:
        return self._select(get_table("leases").c.key.startswith(prefix, autoescape=True))

    def is_confirmed(self, key: str) -> bool:
        """Return whether this process has the lease for certain: no other process can have taken it."""
        return read_machine_clock() - self._sent_times.get(key, float("-inf")) < MAX_UNCONFIRMED

    def close(self) -> None:
        with self._mutex:  # a lock may still be released; servers and processes end with their store
            self._sent_times = {key: sent for key, sent in self._sent_times.items() if key.startswith(LOCK_PREFIX)}
        if not self._sent_times:
            with self._renewing:
                self._disconnect()

    def close_files(self) -> None:
        pass  # the driver does not close a connection that another process opened

    @contextmanager
    def _locked_row(self, key: str) -> Iterator[tuple[sa.Connection, Any, float]]:
        """Yield a transaction, the locked row of a lease or None, and the time after the row was locked."""
        self._database.open()
        table = get_table("leases")
        with self._database.write() as connection:
            # A process that is stopped here must not keep the holder of the lease from renewing it.
            connection.execute(sa.text(f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_ROW_LOCK_SECONDS}s'"))
            query = table.select().where((table.c.key == escape_text(key)) & (table.c.part == "")).with_for_update()
            row = connection.execute(query).first()
            yield connection, row, read_database_clock(connection)

    def _select(self, condition: Any) -> list[Lease]:
        self._database.open()
        table = get_table("leases")
        with self._database.read() as connection:
            is_valid = (table.c.expires_at > read_database_clock(connection)) & (table.c.part == "")
            rows = connection.execute(table.select().where(condition & is_valid)).all()
        return [Lease(key=unescape_text(row.key), owner=row.owner, details=row.details) for row in rows]

    def _renew_while_held(self) -> None:
        while True:
            time.sleep(RENEW_INTERVAL)
            with self._renewing:
                with self._mutex:
                    if not self._sent_times:
                        self._thread = None
                        self._disconnect()
                        return
                    sent_times = dict(self._sent_times)
                try:
                    self._renew(sent_times)
                except Exception as error:  # whatever it is, the next renewal may succeed
                    logger.warning("error=<%s> | leases are not renewed, trying again", error)

    def _renew(self, sent_times: dict[str, float]) -> None:
        import psycopg

        keys = {escape_text(key): key for key in sent_times}
        values = {"seconds": LEASE_SECONDS, "owner": self.owner, "keys": list(keys)}
        sent_at = read_machine_clock()
        with self._database.raise_as_store_error():
            try:
                rows = self._connect().execute(_RENEW, values).fetchall()
            except psycopg.OperationalError:
                self._disconnect()
                sent_at = read_machine_clock()
                rows = self._connect().execute(_RENEW, values).fetchall()
        is_renewed = {keys[key]: renewed for key, renewed in rows}
        with self._mutex:
            # The answer says nothing about a lease that was released, or taken again, since the request was sent.
            for key in [key for key, confirmed_at in sent_times.items() if self._sent_times.get(key) == confirmed_at]:
                if key not in is_renewed:
                    del self._sent_times[key]
                elif is_renewed[key]:
                    self._sent_times[key] = sent_at

    def _connect(self) -> Any:
        if self._connection is None:
            self._connection = self._database.connect_outside_pool()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_INSERT: Final = (
    "INSERT INTO leases (key, owner, writer, details, taken_at, expires_at) "
    "VALUES (:key, :owner, :writer, :details, :now, :end) ON CONFLICT DO NOTHING"
)
_UPDATE: Final = (
    "UPDATE leases SET owner = :owner, writer = :writer, details = :details, taken_at = :now, expires_at = :end "
    "WHERE key = :key"
)
_RENEW: Final = """
    WITH own AS (
        SELECT key FROM leases WHERE owner = %(owner)s AND expires_at > 0 AND part = '' AND key = ANY(%(keys)s)
    ), free AS (
        SELECT key FROM leases WHERE owner = %(owner)s AND expires_at > 0 AND part = '' AND key = ANY(%(keys)s)
        FOR NO KEY UPDATE SKIP LOCKED
    ), renewed AS (
        UPDATE leases SET expires_at = extract(epoch FROM clock_timestamp()) + %(seconds)s
        FROM free WHERE leases.key = free.key AND leases.part = '' RETURNING leases.key
    )
    SELECT own.key, renewed.key IS NOT NULL FROM own LEFT JOIN renewed ON renewed.key = own.key
"""
"""Finds the leases that this process still has, and whether each was renewed. A row that another process has locked, to
look at it, is left out: one such process must not hold up all leases."""
_DELETE_ENDED: Final = (
    "DELETE FROM leases WHERE key IN (SELECT key FROM leases WHERE part = '' AND writer IS NULL "
    "AND expires_at > 0 AND expires_at < :before FOR UPDATE SKIP LOCKED)"
)


Leases: TypeAlias = FileLeases | RowLeases


def take_patiently(leases: Leases, key: str, details: str = "") -> Takeover | None:
    """Take a lease, with several attempts: one that looks at the file of a lease locks the file for an instant."""
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            time.sleep(ATTEMPT_INTERVAL)
        if (takeover := leases.take(key, details)) is not None:
            return takeover
    return None


def open_leases(location: StoreLocation, database: StoreDatabase, journal: Journal) -> Leases:
    if location.kind == "postgresql":
        return RowLeases(database, journal)
    return FileLeases(location.locks, journal)


class StoreLocks:
    """Locks by name, each held by one task of one process. All methods block; any thread may call them."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._names: set[str] = set()
        self._due: dict[str, int] = {}
        """The locks that are due for release, with a new number each time."""
        self._numbers = count(1)
        self.lost_names: set[str] = set()
        """Locks that another process has taken or may have taken, although their holders have not released them."""
        self._mutex = threading.Lock()

    def acquire(self, name: str) -> Takeover:
        """Take the lock. Raises LockHeld if another task or process has it."""
        with self._mutex:
            if name in self._due and not self._may_be_lost(name):  # its holder has ended, and this process still has it
                del self._due[name]
                return Takeover(writer=self._leases.owner)
            if name in self._names:
                raise LockHeld(name)
            self._names.add(name)
        try:
            if (takeover := take_patiently(self._leases, LOCK_PREFIX + name)) is None:
                raise LockHeld(name)
            return takeover
        except BaseException as error:
            if isinstance(error, StoreError) and not isinstance(error, LockHeld):
                self.release_later(name)  # the database may have given the lease, and only its answer was lost
            else:
                self._names.discard(name)
            raise

    def register_writer(self, name: str) -> None:
        """Let the database accept entries for the stream of this name from this process only. Raises LockHeld."""
        if not self._leases.register_writer(LOCK_PREFIX + name):
            raise LockHeld(name)

    def is_held(self, name: str) -> bool:
        """Return whether any task holds the lock, in this process or another."""
        return name in self._names or self._leases.find(LOCK_PREFIX + name) is not None

    def is_lost(self, name: str) -> bool:
        """Return whether another process has taken the lock, or may have. From then on it counts as lost."""
        is_lost = self._may_be_lost(name)
        if is_lost and name not in self.lost_names:
            logger.error("lock=<%s> | lost: the database does not confirm it any more", name)
            self.lost_names.add(name)
        return is_lost

    def _may_be_lost(self, name: str) -> bool:
        return name in self.lost_names or not self._leases.is_confirmed(LOCK_PREFIX + name)

    def release_later(self, name: str) -> None:
        """Release the lock, whose holder has ended, once the database has what was written under it."""
        with self._mutex:
            self._due[name] = next(self._numbers)

    def due_for_release(self) -> tuple[tuple[str, int], ...]:
        with self._mutex:
            return tuple(self._due.items())

    def release_due(self, due: Iterable[tuple[str, int]]) -> None:
        """Release the locks that no task has taken again since `due_for_release` returned them.

        Raises StoreError if the database does not answer. They stay due.
        """
        with self._mutex:
            names = [name for name, number in due if self._due.get(name) == number]
            for name in names:
                del self._due[name]
        if not self.release(names):
            raise StoreError("the database does not release locks that have ended")

    def release(self, names: Iterable[str]) -> bool:
        """Release locks. If the database does not answer, return False: what is left is due for release."""
        remaining = list(names)
        while remaining:
            try:
                self._leases.release(LOCK_PREFIX + remaining[0])
            except StoreError:
                for name in remaining:
                    self.release_later(name)
                return False
            name = remaining.pop(0)
            with self._mutex:
                self.lost_names.discard(name)
                self._due.pop(name, None)
                self._names.discard(name)
        return True

    def close(self) -> None:
        """Release what is due. Nothing more will come from the journal: it is in the database, or left for others."""
        with suppress(StoreError):  # the database is away: the leases end soon
            self.release_due(self.due_for_release())
        self._leases.close()


def read_machine_clock() -> float:
    """Return the seconds of a clock that cannot be set. On Linux it also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def read_database_clock(connection: sa.Connection) -> float:
    """Return the time for what several servers must agree on, whatever their clocks say."""
    if connection.dialect.name == "postgresql":
        return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
    return time.time()
