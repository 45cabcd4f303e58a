"""The thread that carries lines from the journal into SQL.

It sleeps until there is something to read, waits a moment for more (a commit costs the same for one line as for a
thousand), and then reads until the journal is empty. When the database fails it tries again later and later; the
journal keeps the lines meanwhile. The same work can be done at once by whoever needs it done, which is what a query
does first: `catch_up` is for any thread, one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ferrule.errors import SetupError, StoreError
from ferrule.store.artifacts import ArtifactStore
from ferrule.store.database import Database
from ferrule.store.journal import Journal
from ferrule.store.segment import Segment

logger = logging.getLogger("ferrule.store")

GATHER_SECONDS = 0.05
HOUSEKEEPING_SECONDS = 30.0
BACK_OFF_SECONDS = (0.1, 0.5, 2.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept. None means all; calls still running are always kept."""

    max_age: timedelta | None = None
    max_records: int | None = None

    def __post_init__(self) -> None:
        if self.max_records is not None and self.max_records < 1:
            raise SetupError(f"max_records must be at least 1, not {self.max_records!r}; None keeps all records")
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise SetupError(f"max_age must be more than nothing, not {self.max_age!r}; None keeps records for ever")


class Writer:
    """Keeps SQL up with the journal."""

    def __init__(
        self,
        journal: Journal,
        database: Database,
        *,
        wake: threading.Event,
        retention: Retention,
        artifacts: ArtifactStore,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._journal, self._database = journal, database
        self._wake = wake
        self._retention, self._artifacts = retention, artifacts
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()
        self._rows = 0
        self._retained_rows = 0
        self._adopted_at = self._retained_at = float("-inf")

    def start(self) -> None:
        if self._thread is None:
            self._stop.clear()
            self._wake.set()  # look at once for what dead processes left
            self._thread = threading.Thread(target=self._run, name="ferrule-store", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._wake.set()
            self._thread.join()
            self._thread = None

    def catch_up(self, *, adopt: bool = True) -> None:
        """Put everything appended so far into SQL; StoreError when the database does not take it."""
        with self._turn:
            self._database.open()
            if adopt:
                self._adopt_abandoned()
            self._rows += self._drain(self._journal)
            self._journal.rotate()
            self._keep_house()

    def finish(self) -> None:
        """Catch up for the last time. What is still running will not be ended by this process any more."""
        self.catch_up(adopt=False)
        if self._rows:
            self._database.interrupt(self._journal.owner)

    def forget_before(self, moment: float) -> int:
        removed, unused = self._database.forget_before(moment)
        for artifact_id in unused:
            self._artifacts.remove(artifact_id)
        return removed

    def continue_in_child(self) -> None:
        """After a fork: the thread stayed with the parent, its turn must not be waited for."""
        self._thread, self._turn = None, threading.Lock()

    def _run(self) -> None:
        failed = 0
        while not self._stop.is_set():
            try:
                self._sleep()
                # A database in memory is not even made until there is much to put into it, or somebody asks.
                if self._database.is_open or self._journal.has_enough():
                    self.catch_up(adopt=time.monotonic() - self._adopted_at > HOUSEKEEPING_SECONDS)
                failed = 0
            except Exception as error:  # whatever it is: the thread goes on, or nothing would be written any more
                self._on_failure("records wait in the journal, the database does not take them", error)
                self._stop.wait(BACK_OFF_SECONDS[min(failed, len(BACK_OFF_SECONDS) - 1)])
                failed += 1

    def _sleep(self) -> None:
        self._journal.reader_sleeps = True
        if not self._journal.has_enough():  # asked after saying so: what comes later wakes us
            self._wake.wait(HOUSEKEEPING_SECONDS)
        self._wake.clear()
        self._journal.reader_sleeps = False
        self._stop.wait(GATHER_SECONDS)

    def _drain(self, lines: Journal | Segment) -> int:
        """Read what is there now, and not what comes meanwhile: a query must not wait for ever."""
        rows, left = 0, lines.backlog()
        while left > 0 and (batch := lines.read()):
            refused = self._database.ingest(batch, lines.owner)
            left -= lines.done()
            rows += len(batch)
            if refused:
                self._on_failure("records left out", StoreError(f"the database refuses {refused} of {len(batch)}"))
        return rows

    def _adopt_abandoned(self) -> None:
        for segment in self._journal.abandoned():
            try:
                self._drain(segment)
                if segment.owner != self._journal.owner:
                    self._database.interrupt(segment.owner)
                segment.delete()
            except BaseException:
                segment.close()  # left for the next time
                raise
        self._adopted_at = time.monotonic()

    def _keep_house(self) -> None:
        oldest = self._oldest_to_keep()
        if oldest is not None:
            self.forget_before(oldest)

    def _oldest_to_keep(self) -> float | None:
        """When the oldest record worth keeping started; None when that need not be asked now."""
        age, number = self._retention.max_age, self._retention.max_records
        enough_rows = number is not None and self._rows - self._retained_rows > number // 20
        if not enough_rows and time.monotonic() - self._retained_at < HOUSEKEEPING_SECONDS:
            return None
        self._retained_rows, self._retained_at = self._rows, time.monotonic()
        moments = [] if age is None else [time.time() - age.total_seconds()]
        if number is not None and (nth := self._database.nth_newest(number)) is not None:
            moments.append(nth)
        return max(moments, default=None)
