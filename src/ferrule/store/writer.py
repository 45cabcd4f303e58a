"""The thread that moves lines from the journal into the database.

It sleeps until there is something to read, waits briefly for more (a commit costs the same for one line as for a
thousand), and then reads until the journal is empty. When the database fails it retries with growing delays; the
journal keeps the lines meanwhile. A query cannot wait for the thread: it does the same work first by calling
`catch_up`, which any thread may do, one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ferrule.errors import StoreError
from ferrule.store.database import StoreDatabase
from ferrule.store.journal import Journal, JournalSegment
from ferrule.store.leases import StoreLocks
from ferrule.store.retention import OldDataDeletion, Retention

logger = logging.getLogger("ferrule.store")

BATCH_DELAY = 0.05
MAINTENANCE_INTERVAL = 30.0
RETRY_DELAYS = (0.1, 0.5, 2.0, 10.0, 30.0)
DEAD_OWNER_TIMEOUT = 10.0
"""Seconds until the kernel has surely released everything that a dead process had."""


class RecordWriter:
    """Keeps the database up to date with the journal."""

    def __init__(
        self,
        journal: Journal,
        database: StoreDatabase,
        locks: StoreLocks,
        *,
        wake: threading.Event,
        retention: Retention,
        old_data: OldDataDeletion,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._journal, self._database, self._locks = journal, database, locks
        self._wake = wake
        self._retention, self._old_data = retention, old_data
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._rows = 0
        self._retained_rows = 0
        self._recovered_at = self._retained_at = float("-inf")

    def start(self) -> None:
        if self._thread is None:
            self._stop.clear()
            self._wake.set()  # look immediately for segments of dead processes
            self._thread = threading.Thread(target=self._run, name="ferrule-store", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._wake.set()
            self._thread.join()
            self._thread = None

    def wake(self) -> None:
        """Let the thread catch up soon, even if there is nothing to insert: a lock is due for release."""
        self._wake.set()

    def catch_up(self, *, recover: bool = True) -> None:
        """Insert everything appended so far; StoreError when the database does not accept it."""
        with self._lock:
            due = self._locks.due_for_release()  # before the journal is read: all that was written under them is in it
            self._database.open()
            if recover:
                self._recover_abandoned()
            self._rows += self._insert_backlog(self._journal)
            self._locks.release_due(due)
            self._journal.rotate()
            self._apply_retention()

    def import_journal_of(self, owner: str) -> None:
        """Insert what a dead process has left. The kernel may not have released all of its files yet."""
        deadline = time.monotonic() + DEAD_OWNER_TIMEOUT
        while True:
            self.catch_up()
            if not self._journal.has_segment_of(owner):
                return
            if time.monotonic() > deadline:
                raise StoreError(f"the journal of the process {owner!r}, which held the lock, is still in use")
            time.sleep(0.01)

    def finish(self) -> None:
        """Catch up for the last time. This process will end no more calls: those still running are interrupted."""
        self.catch_up(recover=False)
        if self._rows or self._database.is_open:
            self._database.mark_interrupted(self._journal.owner)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                self._journal.reader_sleeps = True
                if not self._journal.has_enough_to_read():  # checked after setting the flag: a later line wakes us
                    self._wake.wait(MAINTENANCE_INTERVAL)
                self._wake.clear()
                self._journal.reader_sleeps = False
                self._stop.wait(BATCH_DELAY)
                # A database in memory is not even created before there are many lines, or a query.
                if self._database.is_open or self._journal.has_enough_to_read():
                    self.catch_up(recover=time.monotonic() - self._recovered_at > MAINTENANCE_INTERVAL)
                failures = 0
            except Exception as error:  # whatever it is: without this thread nothing would be written any more
                self._on_failure("the database does not accept records, which wait in the journal", error)
                self._stop.wait(RETRY_DELAYS[min(failures, len(RETRY_DELAYS) - 1)])
                failures += 1

    def _insert_backlog(self, lines: Journal | JournalSegment) -> int:
        """Read the present backlog, and not what is appended meanwhile: a query must not wait without end."""
        rows, remaining = 0, lines.backlog()
        while remaining > 0 and (batch := lines.read()):
            is_abandoned = isinstance(lines, JournalSegment)
            rejected = self._database.insert_journal_lines(batch, lines.owner, is_abandoned=is_abandoned)
            remaining -= lines.mark_read()
            rows += len(batch)
            if rejected:
                self._on_failure(
                    "records were skipped", StoreError(f"the database rejected {rejected} of {len(batch)}")
                )
        return rows

    def _recover_abandoned(self) -> None:
        for segment in self._journal.take_abandoned():
            try:
                self._insert_backlog(segment)
                if segment.owner != self._journal.owner:
                    self._database.mark_interrupted(segment.owner)
                segment.delete()
            except BaseException:
                segment.close()  # it stays for the next attempt
                raise
        self._recovered_at = time.monotonic()

    def _apply_retention(self) -> None:
        age, number = self._retention.max_age, self._retention.max_records
        many_new_rows = number is not None and self._rows - self._retained_rows > number // 20
        if not many_new_rows and time.monotonic() - self._retained_at < MAINTENANCE_INTERVAL:
            return
        self._retained_rows, self._retained_at = self._rows, time.monotonic()
        if age is not None:
            self._old_data.delete(time.time() - age.total_seconds())
        if number is not None:
            self._old_data.delete_calls_beyond(number)
