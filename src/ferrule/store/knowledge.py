"""What was called, by whom, and what came of it.

Recording is for the hot path: `record_started` and `record_finished` encode one line each and append it to the journal
(see `journal.py`, where the idea of it all is told). They never raise and never wait for a database. Everything that
asks is async, runs in a thread, and sees whatever was recorded before it asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, get_args

from ferrule.errors import StoreError
from ferrule.redaction import Redaction
from ferrule.store.artifacts import ArtifactStore
from ferrule.store.database import Database
from ferrule.store.journal import FileJournal, Journal, MemoryJournal
from ferrule.store.line import finished_line, started_line
from ferrule.store.location import locate
from ferrule.store.notes import find_books, find_notes, forget_notes, note_line
from ferrule.store.queries import CallFilter, find_record, find_records, summarize
from ferrule.store.record import CallStatistics, Status, ToolCallRecord, ToolCallSummary
from ferrule.store.statistics import collect_statistics
from ferrule.store.writer import Retention, Writer

logger = logging.getLogger("ferrule.store")

P = ParamSpec("P")
T = TypeVar("T")

NO_NAMES: frozenset[str] = frozenset()
RECORDS_IN_MEMORY = 100_000
COMPLAIN_EVERY = 10.0


class ToolKnowledgeStore:
    """The records of all calls, in SQLite, Postgres or memory."""

    def __init__(
        self,
        url: str | None = None,
        *,
        redaction: Redaction | None = None,
        retention: Retention | None = None,
        journal_directory: Path | str | None = None,
        leave_to_others: bool = False,
    ) -> None:
        """`leave_to_others` is for processes that end at once: what they record stays in the journal, which the next
        process that opens the store reads, so that they need not load a database. Questions are answered all the same.
        """
        self.location = locate(url, journal_directory)
        self.redaction = redaction or Redaction()
        self.artifacts = ArtifactStore(self.location.artifacts)
        self.failures = 0
        """How often something could not be recorded as it should."""
        if retention is None:
            retention = Retention(max_records=RECORDS_IN_MEMORY if self.location.kind == "memory" else None)
        wake = threading.Event()
        self._begin_ids()
        self._journal: Journal
        if self.location.journal is None:
            self._journal = MemoryJournal(wake.set, self._start)
        else:
            self._journal = FileJournal(self.location.journal, wake.set, self._start)
        self._append = self._journal.append
        self._database = Database(self.location)
        self._writer = Writer(
            self._journal,
            self._database,
            wake=wake,
            retention=retention,
            artifacts=self.artifacts,
            on_failure=self._failed,
        )
        self._leave_to_others = leave_to_others
        self._complain_at = 0.0
        self._closed = False
        _continue_in_children(self)

    def start(self) -> None:
        """Open the database and begin to write in the background; StoreError when it cannot be opened."""
        self._closed = False
        if self._leave_to_others:
            return
        if self.location.kind != "memory":  # which opens itself when somebody asks
            self._database.open()
        self._writer.start()

    async def aclose(self) -> None:
        """Write what is left. What the database does not take now stays in the journal for the next time.

        Calls that end later are still recorded; close again, or end the process, to hand them on.
        """
        if not self._closed or self._journal.backlog():
            self._closed = True
            await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def new_record_id(self) -> str:
        """Unique among all processes; sorts by the start of the process, then by order."""
        return f"{self._start}-{next(self._numbers):08x}"

    def record_started(self, record: ToolCallRecord, *, secret_names: frozenset[str] = NO_NAMES) -> None:
        """Write down that the call has begun. `secret_names` are parameters whose values must not be recorded."""
        try:
            self._append(started_line(record, self.redaction, secret_names))
        except Exception as error:  # arguments are anybody's objects and disks fail; a call must not fail for it
            self._failed("the start of a call could not be recorded", error)

    def record_finished(self, record: ToolCallRecord, *, secret_names: frozenset[str] = NO_NAMES) -> None:
        """Write down what came of the call. When this returns, not even `kill -9` can lose it."""
        try:
            self._append(finished_line(record, self.redaction, secret_names))
        except Exception as error:  # as above
            self._failed("the end of a call could not be recorded", error)

    def note(self, book: str, key: str, value: Any) -> None:
        """Write something else down, as safe as a record; a later note under the same key takes its place."""
        try:
            self._append(note_line(book, key, value, self.redaction))
        except Exception as error:  # as above
            self._failed("a note could not be recorded", error)

    async def notes(self, book: str) -> dict[str, Any]:
        """The notes of a book by their keys, in the order of the keys."""
        return await self._ask(find_notes, book)

    async def books(self, prefix: str = "") -> dict[str, float]:
        """The books whose names begin so, and when each was last written in (seconds); the latest first."""
        return await self._ask(find_books, prefix)

    async def forget_notes(self, book: str, keys: Sequence[str] | None = None) -> int:
        """Delete notes of a book, or all of it; returns how many."""
        return await self._ask(forget_notes, book, keys)

    async def flush(self) -> None:
        """Wait until everything recorded so far is in the database; StoreError when it does not take it."""
        await self._ask(lambda database: None)

    async def query_call_records(
        self,
        *,
        conversation_id: str | None = None,
        workflow_id: str | None = None,
        tool_name: str | None = None,
        action: str | None = None,
        caller_id: str | None = None,
        caller_type: str | None = None,
        status: Status | None = None,
        is_success: bool | None = None,
        error_type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        limit: int = 100,
        after: ToolCallRecord | str | None = None,
    ) -> list[ToolCallRecord]:
        """The newest records that fit everything asked for; `after` the last one of a page comes the next page."""
        if limit < 1:
            raise StoreError(f"limit must be at least 1, not {limit!r}")
        if status is not None and status not in get_args(Status):
            raise StoreError(f"no call has the status {status!r}; write one of: {', '.join(get_args(Status))}")
        wanted = CallFilter(
            conversation_id=conversation_id,
            workflow_id=workflow_id,
            tool_name=tool_name,
            action=action,
            caller_id=caller_id,
            caller_type=caller_type,
            status=status,
            is_success=is_success,
            error_type=error_type,
            since=since,
            until=until,
            text=text,
        )
        return await self._ask(find_records, wanted, limit, after)

    async def get_call_record(self, record_id: str) -> ToolCallRecord | None:
        return await self._ask(find_record, record_id)

    async def get_call_summary(self, conversation_id: str) -> ToolCallSummary:
        """What the calls of one conversation came to."""
        return await self._ask(summarize, conversation_id)

    async def get_call_statistics(
        self, *, since: datetime | None = None, tool_name: str | None = None
    ) -> CallStatistics:
        """Counts, error rates and times, for all tools and for each."""
        return await self._ask(collect_statistics, since, tool_name)

    async def forget(self, *, older_than: datetime | timedelta) -> int:
        """Delete the records of calls that started before a moment or longer ago; returns how many."""
        moment = older_than if isinstance(older_than, datetime) else datetime.now().astimezone() - older_than
        return await self._ask(lambda database: self._writer.forget_before(moment.timestamp()))

    async def _ask(self, question: Callable[Concatenate[Database, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        def answer() -> T:
            self._writer.catch_up()
            return question(self._database, *arguments, **options)

        if self._closed:
            raise StoreError(f"the store {self.location.shown!r} is closed; use it inside `async with`")
        return await asyncio.to_thread(answer)

    def _close(self) -> None:
        self._writer.stop()
        keep = self._leave_to_others and not self._database.is_open and self._journal.is_tidy()
        if self.location.kind != "memory" and not keep:
            try:
                self._writer.finish()
            except StoreError as error:
                keep = True
                self._failed("records stay in the journal until the store is opened again", error)
        self._journal.close(keep=keep)
        self._database.close()

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        now = time.monotonic()
        if now >= self._complain_at:  # once in a while: what fails for one call fails for a thousand
            self._complain_at = now + COMPLAIN_EVERY
            logger.error("store=<%s>, failures=<%d> | %s: %s", self.location.shown, self.failures, what, error)

    def _begin_ids(self) -> None:
        self._start = f"{int(time.time() * 1000):011x}{os.urandom(3).hex()}"
        self._numbers = count(1)

    def _continue_in_child(self) -> None:
        self._begin_ids()
        self._journal.continue_in_child(self._start)
        self._writer.continue_in_child()
        self._database.continue_in_child()


def _continue_in_children(store: ToolKnowledgeStore) -> None:
    """A forked child has its own ids and its own journal; what it records is found when it has ended."""
    reference = weakref.ref(store)

    def continue_store() -> None:
        alive = reference()
        if alive is not None:
            alive._continue_in_child()

    os.register_at_fork(after_in_child=continue_store)
