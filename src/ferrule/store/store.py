"""The store: which tools were called, by which caller, and with what result.

Recording is on the path of every call: `record_started` and `record_finished` encode one line each and append it to the
journal (`journal.py` explains the design). They never raise and never wait for a database. Queries are async, run in a
thread, and see everything recorded before them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar, get_args

from ferrule.core.content import encode_json, plain_json
from ferrule.core.secrets import Redaction, Secrets, merge_secrets
from ferrule.errors import LockLost, StoreError, text_with_notes
from ferrule.store.approvals import use_approval
from ferrule.store.artifacts import ArtifactStore
from ferrule.store.channel import ChannelMessage, StoreChannel
from ferrule.store.credentials import Credentials
from ferrule.store.database import StoreDatabase
from ferrule.store.encoding import encode_call_end, encode_call_start, encode_entry
from ferrule.store.entry_streams import delete_entries, find_entries, find_streams
from ferrule.store.journal import Journal, check_formats
from ferrule.store.leases import Leases, StoreLocks, open_leases
from ferrule.store.location import parse_location
from ferrule.store.queries import CallFilter, find_record, find_records, summarize_conversation
from ferrule.store.record import CallStatistics, Status, ToolCallRecord, ToolCallSummary
from ferrule.store.retention import DeletionReport, OldDataDeletion, Retention
from ferrule.store.statistics import collect_statistics
from ferrule.store.tool_vectors import ToolVectors
from ferrule.store.writer import RecordWriter

logger = logging.getLogger("ferrule.store")

P = ParamSpec("P")
T = TypeVar("T")
_Encode: TypeAlias = Callable[[ToolCallRecord, Redaction, frozenset[str]], bytes]

NO_NAMES: frozenset[str] = frozenset()
MAX_RECORDS_IN_MEMORY = 100_000
LOG_INTERVAL = 10.0
LOCK_CHECK_INTERVAL = 0.5
"""Seconds between two looks whether a lock is lost."""
MAX_RUNS_WITH_SECRETS = 10_000
"""The secrets of the oldest runs are forgotten first: these have ended long ago."""


@dataclass(slots=True, kw_only=True)
class StoreLock:
    release_in_background: bool = False
    """Whether its holder need not wait until others can read what was written under it."""


class ToolKnowledgeStore:
    """The records of all calls, in SQLite, Postgres or memory."""

    def __init__(
        self,
        url: str | None = None,
        *,
        redaction: Redaction | None = None,
        retention: Retention | None = None,
        journal_directory: Path | str | None = None,
        defer_import: bool = False,
    ) -> None:
        """Use `defer_import` for short-lived processes: their records stay in the journal, which the next process that
        opens the store imports, so that they need not load a database. Queries work all the same.
        """
        self.location = parse_location(url, journal_directory)
        self.redaction = redaction or Redaction()
        self._run_secrets: dict[str, Secrets] = {}
        self.artifacts = ArtifactStore(self.location.artifacts)
        self.vectors = ToolVectors(self.query)
        """The vectors by which tools are found."""
        self.credentials = Credentials(self.query)
        """What servers elsewhere are sent in the name of a user."""
        self.failures = 0
        """How often something could not be recorded properly."""
        if retention is None:
            retention = Retention(max_records=MAX_RECORDS_IN_MEMORY if self.location.kind == "memory" else None)
        self._retention = retention
        self._open_parts()
        self._defer_import = defer_import
        self._next_log_at = 0.0
        self._closed = False
        reference = weakref.ref(self)

        def continue_after_fork() -> None:
            store = reference()
            if store is not None:
                store._reset_after_fork()

        os.register_at_fork(after_in_child=continue_after_fork)

    def _open_parts(self) -> None:
        """Start with new ids, an empty journal, and no lease."""
        wake = threading.Event()
        self._start = f"{int(time.time() * 1000):011x}{os.urandom(3).hex()}"
        self._numbers = count(1)
        self._journal = Journal(self.location.journal, wake.set, self._start)
        self._append = self._journal.append
        self._closing = threading.Lock()
        self._database = StoreDatabase(self.location)
        self.leases = open_leases(self.location, self._database, self._journal)
        """What only one process of the store has at a time."""
        self._locks = StoreLocks(self.leases)
        self._old_data = OldDataDeletion(self._database, self._locks, self.artifacts)
        self._writer = RecordWriter(
            self._journal,
            self._database,
            self._locks,
            wake=wake,
            retention=self._retention,
            old_data=self._old_data,
            on_failure=self._count_failure,
        )

    @property
    def backlog(self) -> int:
        """Return how much waits to be written to the database: bytes, or lines of a store in memory."""
        return self._journal.backlog()

    def start(self) -> None:
        """Open the database and start the writer thread; StoreError when the database cannot be opened."""
        self._closed = False
        if self._defer_import:
            return
        if self.location.journal is not None:  # a database in memory is opened by the first query
            check_formats(self.location.journal)
            self._database.open()
        self._writer.start()

    async def aclose(self) -> None:
        """Write the remaining records. What the database does not accept now stays in the journal for the next time.

        Calls that end later are still recorded: in the database after another `aclose`, else by the next process.
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
        """Return an id that is unique among all processes and sorts by the start of the process, then by order."""
        return f"{self._start}-{next(self._numbers):08x}"

    def record_started(self, record: ToolCallRecord, *, secret_names: frozenset[str] = NO_NAMES) -> Exception | None:
        """Record that the call has started. `secret_names` are parameters whose values must not be recorded.

        Returns None, or what went wrong: then the record is in memory at best, and lost if the process dies.
        """
        try:
            self._append(self._encode_start(record, secret_names))
        except Exception as error:  # disks fail; the caller decides whether the call does
            self._count_failure("the start of a call could not be recorded", error)
            return error
        return None

    def record_finished(self, record: ToolCallRecord, *, secret_names: frozenset[str] = NO_NAMES) -> None:
        """Record the end of the call. After this returns, not even `kill -9` can lose it."""
        try:
            self._append(
                self._encode(encode_call_end, record, secret_names, record.error, record.result, record.metadata)
            )
        except Exception as error:  # as above
            self._count_failure("the end of a call could not be recorded", error)

    async def use_approval(
        self,
        approval_id: str,
        binding: Mapping[str, str],
        record: ToolCallRecord,
        *,
        now: float,
        secret_names: frozenset[str] = NO_NAMES,
    ) -> bool:
        """Use an approval and record the start of its call, both or neither; False when it covers no such call (now).

        The end of the call is recorded by `record_finished`.
        """
        line, owner = self._encode_start(record, secret_names), self._journal.owner

        def use(database: StoreDatabase) -> bool:
            self._journal.ensure_segment()  # without it nobody would see that the call was interrupted
            return use_approval(database, approval_id, binding, record.record_id, line=line, owner=owner, now=now)

        return await self.query(use)

    def _encode_start(self, record: ToolCallRecord, secret_names: frozenset[str]) -> bytes:
        line = self._encode(encode_call_start, record, secret_names, record.params)
        if record.secrets and record.conversation_id is not None:
            self.get_run_secrets(record.conversation_id).add_spellings(record.secrets)
        return line

    def _encode(self, encode: _Encode, record: ToolCallRecord, secret_names: frozenset[str], *values: Any) -> bytes:
        """Encode a record without the secrets in its values, of which earlier calls of the run may have told.

        Arguments and results may be any objects. What cannot be encoded is replaced: the call has its record.
        """
        if self._run_secrets and (known_secrets := self.find_known_secrets(record.conversation_id, *values)):
            record.secrets = merge_secrets(record.secrets, known_secrets)
        try:
            return encode(record, self.redaction, secret_names)
        except Exception as error:
            self._count_failure("the values of a call could not be recorded", error)
            note = f"[not recorded: {type(error).__name__}]"
            if not record.encoded_head:
                record.params = {"arguments": note}
            record.result, record.metadata = {"result": note} if record.result else {}, {}
            return encode(record, self.redaction, secret_names)

    def find_known_secrets(self, run_id: str | None, *values: Any) -> tuple[str, ...]:
        """Return the secrets of a run that values contain."""
        secrets = None if run_id is None else self._run_secrets.get(run_id)
        return () if secrets is None else secrets.find_in(*values)

    def redact_arguments(
        self,
        params: Any,
        secret_names: frozenset[str] = NO_NAMES,
        run_id: str | None = None,
        known_secrets: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Return arguments as they may be shown: without the values of `secret_names`, and without other secrets."""
        plain = params if type(params) is dict else plain_json(params)
        arguments = plain if isinstance(plain, dict) else {"arguments": plain}
        known_secrets = (*known_secrets, *self.find_known_secrets(run_id, arguments))
        if not (secret_names or known_secrets or self.redaction.may_contain_secret(encode_json(arguments).decode())):
            return dict(arguments)
        secrets = merge_secrets(known_secrets, self.redaction.find_secrets(arguments, secret_names))
        return self.redaction.redact_params(arguments, secret_names, secrets)

    def get_run_secrets(self, run_id: str) -> Secrets:
        """Return the secrets that the calls of a run contained. They are in memory only."""
        secrets = self._run_secrets.get(run_id)
        if secrets is None:
            secrets = self._run_secrets[run_id] = Secrets(redaction=self.redaction)
            if len(self._run_secrets) > MAX_RUNS_WITH_SECRETS:
                del self._run_secrets[next(iter(self._run_secrets))]
        return secrets

    def write_entry(self, stream: str, key: str, value: Any) -> None:
        """Write a JSON value to a stream, as safely as a record; an earlier value of the same key is replaced.

        A stream whose lock this process has lost belongs to another, and is not written to.
        """
        if stream in self._locks.lost_names:
            return
        try:
            self._append(encode_entry(stream, key, value, self.redaction))
        except Exception as error:  # as above
            self._count_failure(f"an entry of stream {stream!r} could not be written", error)

    async def read_entries(self, stream: str) -> dict[str, Any]:
        """Return the values of a stream by key, in the order of the keys."""
        return await self.query(find_entries, stream)

    async def list_streams(self, prefix: str = "") -> dict[str, float]:
        """Return the streams with this prefix and when each was last written to (seconds), the latest first."""
        return await self.query(find_streams, prefix)

    async def delete_entries(self, stream: str, keys: Sequence[str] | None = None) -> int:
        """Delete some keys of a stream, or all of it; returns how many entries were deleted."""
        return await self.query(delete_entries, stream, keys)

    async def flush(self) -> None:
        """Wait until everything recorded so far is in the database; StoreError when it does not accept it."""
        await self.query(lambda database: None)

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[StoreLock]:
        """Hold a lock that only one user of the store has at a time. Raises LockHeld while another one has it.

        It is released when others can read everything written under it: while the database does not accept that, the
        lock stays taken. The death of a process releases its locks (with Postgres after some seconds). A holder whose
        lock another process has taken, or may have taken, because the database could not be reached, is cancelled, and
        LockLost is raised.
        """
        lock = StoreLock()
        taking = asyncio.ensure_future(asyncio.to_thread(self._take_lock, name))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:

            def give_back(done: asyncio.Future[None]) -> None:  # the thread takes the lock all the same
                if not done.cancelled() and done.exception() is None:
                    self._locks.release([name])

            taking.add_done_callback(give_back)
            raise
        watching = self._start_watching(name)
        try:
            yield lock
        except asyncio.CancelledError:
            if name in self._locks.lost_names and (holder := asyncio.current_task()) is not None:
                holder.uncancel()
                raise LockLost(name) from None
            raise
        finally:
            if watching is not None:
                watching.cancel()
            await self._release_lock(name, in_background=lock.release_in_background)

    def _start_watching(self, name: str) -> asyncio.Task[None] | None:
        """Cancel the holder when its lock is lost; return None where a living process cannot lose a lock."""
        holder = asyncio.current_task()
        if holder is None or not self.leases.may_be_lost:
            return None

        async def watch() -> None:
            while not self._locks.is_lost(name):
                await asyncio.sleep(LOCK_CHECK_INTERVAL)
            holder.cancel()

        return asyncio.create_task(watch(), name=f"ferrule-lock-{name}")

    async def is_locked(self, name: str) -> bool:
        """Return whether any task holds the lock, in this process or another."""
        return await asyncio.to_thread(self._locks.is_held, name)

    async def query_call_records(
        self, *, limit: int = 100, after: ToolCallRecord | str | None = None, **conditions: Any
    ) -> list[ToolCallRecord]:
        """Return the newest records that match all conditions, which are the fields of `CallFilter`.

        `after` is the last record of the page before.
        """
        if limit < 1:
            raise StoreError(f"limit must be at least 1, not {limit!r}")
        call_filter = CallFilter(**conditions)
        if (status := call_filter.status) is not None and status not in get_args(Status):
            raise StoreError(f"no call has the status {status!r}; write one of: {', '.join(get_args(Status))}")
        return await self.query(find_records, call_filter, limit, after)

    async def get_call_record(self, record_id: str) -> ToolCallRecord | None:
        return await self.query(find_record, record_id)

    async def get_call_summary(self, conversation_id: str) -> ToolCallSummary:
        """Count the calls of one conversation, by tool and by success."""
        return await self.query(summarize_conversation, conversation_id)

    async def get_call_statistics(
        self,
        *,
        since: datetime | None = None,
        tool_name: str | None = None,
        tenant: str | None = None,
        principals: Collection[str] | None = None,
    ) -> CallStatistics:
        """Return counts, error rates and times, in total and by tool."""
        which = CallFilter(since=since, tool_name=tool_name, tenant=tenant, principals=principals)
        return await self.query(collect_statistics, which)

    async def delete_records(self, *, older_than: datetime | timedelta, dry_run: bool = False) -> DeletionReport:
        """Delete what is older than a time or a duration: calls, runs, conversations and everything else.

        Calls that run, and runs that wait or are in progress, stay. `dry_run` only counts what would be deleted.
        """
        limit = older_than if isinstance(older_than, datetime) else datetime.now().astimezone() - older_than
        return await self.query(lambda database: self._old_data.delete_all(limit.timestamp(), dry_run=dry_run))

    async def query(
        self, function: Callable[Concatenate[StoreDatabase, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Run a function of the database in a thread, after everything recorded so far is in it."""
        self._check_open()
        work = partial(self._run_query, self._writer.catch_up, lambda: function(self._database, *arguments, **options))
        return await asyncio.to_thread(work)

    async def query_without_records(
        self, function: Callable[Concatenate[StoreDatabase, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Run a function of the database that needs no records, so that it does not wait for those in the journal."""
        self._check_open()
        work = partial(self._run_query, self._database.open, lambda: function(self._database, *arguments, **options))
        return await asyncio.to_thread(work)

    async def query_leases(
        self, function: Callable[Concatenate[Leases, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Run a function of the leases in a thread."""
        return await self.query_without_records(lambda _: function(self.leases, *arguments, **options))

    def _run_query(self, prepare: Callable[[], None], work: Callable[[], T]) -> T:
        try:
            prepare()
            return work()
        except OSError as error:  # of the journal, whose text names a path
            raise StoreError(f"a file of the store failed: {error.strerror or error}") from error

    def open_channel(self, receive: Callable[[ChannelMessage], None], on_listening: Callable[[], None]) -> StoreChannel:
        """Open a channel to the other processes of the store: `receive` gets their messages, in the event loop.

        `on_listening` is called whenever messages begin to arrive, at first and after a connection was lost.
        """
        return StoreChannel(self._database, receive, on_listening, is_available=self.location.kind == "postgresql")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed; use it inside `async with`")

    def _take_lock(self, name: str) -> None:
        self._check_open()
        takeover = self._locks.acquire(name)
        try:
            if takeover.dead_owner:
                self._writer.import_journal_of(takeover.dead_owner)
            elif takeover.writer not in (None, self.leases.owner):
                self._writer.catch_up()  # what was written before the lock was lost is rejected now, not accepted
            if takeover.writer not in (None, self.leases.owner):
                self._locks.register_writer(name)
        except BaseException:
            self._locks.release([name])
            raise

    async def _release_lock(self, name: str, *, in_background: bool) -> None:
        if self.location.kind == "memory":
            self._locks.release([name])
            return
        self._locks.release_later(name)  # by `flush`, or by the writer thread if this task is cancelled now
        if in_background and not self._closed:
            self._writer.wake()
            return
        try:
            await (asyncio.to_thread(self._close) if self._closed else self.flush())
        except StoreError as error:
            self._count_failure(f"the lock {name!r} stays taken until the database accepts records again", error)

    def _close(self) -> None:
        with self._closing:  # a lock may be released meanwhile, which closes the store again
            self._writer.stop()
            keep = self._defer_import and not self._database.is_open and self._journal.has_room_for_segment()
            if self.location.kind != "memory" and not keep:
                try:
                    self._writer.finish()
                except StoreError as error:
                    keep = True
                    self._count_failure("records stay in the journal until the store is opened again", error)
            self._journal.close(keep=keep)
            self._locks.close()
            self._database.close()

    def _count_failure(self, message: str, error: Exception) -> None:
        self.failures += 1
        now = time.monotonic()
        if now >= self._next_log_at:  # not every time: what fails for one call fails for a thousand
            self._next_log_at = now + LOG_INTERVAL
            logger.error(
                "store=<%s>, failures=<%d> | %s: %s",
                self.location.display_name,
                self.failures,
                message,
                text_with_notes(error),
            )

    def _reset_after_fork(self) -> None:
        """Leave everything that is open to the parent process. The child gets new ids and a journal of its own."""
        self._journal.close_files()
        self.leases.close_files()
        self._database.forget_connections()
        self._open_parts()
