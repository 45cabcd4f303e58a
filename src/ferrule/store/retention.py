"""Deleting what is old: calls, runs, conversations, stored failures, cached answers, and the artifacts of all these.

A run is deleted as a whole, with the calls it made, once nothing was written to it for long enough. A run that waits
for a person or is in progress is never deleted. Streams of other kinds stay: their owners decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias

from ferrule.errors import LockHeld, SetupError
from ferrule.store.artifacts import ArtifactStore
from ferrule.store.database import StoreDatabase
from ferrule.store.encoding import parse_stored_json
from ferrule.store.escapes import unescape_text
from ferrule.store.leases import LOCK_PREFIX, StoreLocks
from ferrule.store.tables import get_table, sa

Transaction: TypeAlias = "Callable[[], AbstractContextManager[sa.Connection]]"

BATCH_ROWS = 2_000
"""Deleted in one transaction, so that other processes get their turn."""
_OLD_RUNS = (
    "SELECT stream FROM entries WHERE stream IN "
    "(SELECT stream FROM entries WHERE written_at < :before AND substr(stream, 1, 4) = 'run:') "
    "GROUP BY stream HAVING MAX(written_at) < :before"
)
_LAST_ENTRIES = "SELECT CAST(value AS TEXT) FROM entries WHERE stream = :stream ORDER BY key DESC LIMIT 100"
_OLD_ROWS = {
    "conversation_entries": "entries WHERE written_at < :before AND substr(stream, 1, 13) = 'conversation:'",
    "failures": "entries WHERE written_at < :before AND (stream = 'failures' OR substr(stream, 1, 9) = 'failures:')",
    "cached_answers": "entries WHERE written_at < :before AND stream = 'answers'",
    "model_replies": "entries WHERE written_at < :before AND substr(stream, 1, 6) = 'usage:'",
    "approvals": "approvals WHERE created_at < :before "
    "AND NOT (state IN ('pending', 'approved') AND expires_at > :now)",
    "responses": "requests WHERE created_at < :before",
    # The newest token stays: a server without tokens would need none.
    "tokens": "tokens WHERE (revoked_at < :before OR expires_at < :before) AND (parent_id IS NOT NULL "
    "OR created_at < (SELECT MAX(newest.created_at) FROM tokens AS newest WHERE newest.parent_id IS NULL))",
}
"""What is deleted, by the name of its number in the report."""
_OLD_ROWS_WITHOUT_REPORT = {
    "references to deleted runs": "entries WHERE written_at < :before AND substr(stream, 1, 6) = 'asked:' "
    "AND NOT EXISTS (SELECT 1 FROM entries AS run WHERE run.stream = 'run:' || substr(entries.stream, 7))",
    "vectors": "tool_vectors WHERE used_at < :before",
    "spending": "budget_spending WHERE changed_at < :before AND period <> ''",
    "locks of deleted streams": "leases WHERE writer IS NOT NULL AND taken_at < :before AND expires_at < :before "
    f"AND NOT EXISTS (SELECT 1 FROM entries WHERE stream = substr(leases.key, {len(LOCK_PREFIX) + 1}))",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept. None means everything; running calls, and runs that wait or are in progress, are always kept."""

    max_age: timedelta | None = None
    """Of everything in the store."""
    max_records: int | None = None
    """Of call records: of more, the oldest are deleted."""

    def __post_init__(self) -> None:
        if self.max_records is not None and self.max_records < 1:
            raise SetupError(f"max_records must be at least 1, not {self.max_records!r}; None keeps all records")
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise SetupError(f"max_age must be positive, not {self.max_age!r}; None keeps all records")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionReport:
    """How much was deleted, by kind."""

    calls: int = 0
    runs: int = 0
    conversation_entries: int = 0
    """Questions and answers of conversations."""
    failures: int = 0
    cached_answers: int = 0
    model_replies: int = 0
    """What replies of models cost."""
    approvals: int = 0
    """Requests that are decided and used, or have expired."""
    responses: int = 0
    """Of requests with an idempotency key."""
    tokens: int = 0
    """Tokens and sessions that were revoked or have expired."""
    artifacts: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


class OldDataDeletion:
    """Deletes what is old from one store. All methods block."""

    def __init__(self, database: StoreDatabase, locks: StoreLocks, artifacts: ArtifactStore) -> None:
        self._database, self._locks, self._artifacts = database, locks, artifacts

    def delete(self, before: float) -> DeletionReport:
        """Delete what was last changed before a time. Artifacts without records are left to `delete_all`."""
        report, candidates = self._delete_rows(self._database.write, before)
        return replace(report, artifacts=self._remove_unused(candidates))

    def delete_all(self, before: float, *, dry_run: bool = False) -> DeletionReport:
        """Delete also artifacts that lost their records earlier. `dry_run` only counts what would be deleted."""
        old_artifacts = set(self._artifacts.list_older_than(before))
        if not dry_run:
            report = self.delete(before)
            return replace(report, artifacts=report.artifacts + self._remove_unused(old_artifacts))
        with self._database.write() as connection:
            report, candidates = self._delete_rows(lambda: nullcontext(connection), before)
            unused = _find_unused(connection, candidates | old_artifacts)
            connection.rollback()
        return replace(report, artifacts=sum(map(self._artifacts.can_remove, unused)))

    def delete_calls_beyond(self, number: int) -> None:
        """Keep the newest calls, so many of them."""
        started_at = get_table("tool_calls").c.started_at
        with self._database.read() as connection:
            oldest = connection.scalar(sa.select(started_at).order_by(started_at.desc()).offset(number - 1).limit(1))
        if oldest is None:
            return
        _, artifacts = _delete_calls(self._database.write, started_at < oldest)
        self._remove_unused(artifacts)

    def _remove_unused(self, artifacts: set[str]) -> int:
        with self._database.read() as connection:
            unused = _find_unused(connection, artifacts)
        return sum(map(self._artifacts.remove, unused))

    def _delete_rows(self, transaction: Transaction, before: float) -> tuple[DeletionReport, set[str]]:
        """Delete rows; the report has no artifacts yet, and the set has those that calls referred to."""
        runs = self._delete_runs(transaction, before)
        counts = {}
        with transaction() as connection:
            for kind, rows in {**_OLD_ROWS, **_OLD_ROWS_WITHOUT_REPORT}.items():
                values = {"before": before, "now": time.time()}
                counts[kind] = connection.execute(sa.text(f"DELETE FROM {rows}"), values).rowcount
        run_is_deleted = "NOT EXISTS (SELECT 1 FROM entries WHERE stream = 'run:' || tool_calls.conversation_id)"
        is_old = sa.and_(get_table("tool_calls").c.started_at < before, sa.text(run_is_deleted))
        calls, artifacts = _delete_calls(transaction, is_old)
        return DeletionReport(calls=calls, runs=runs, **{kind: counts[kind] for kind in _OLD_ROWS}), artifacts

    def _delete_runs(self, transaction: Transaction, before: float) -> int:
        with transaction() as connection:
            streams = connection.scalars(sa.text(_OLD_RUNS), {"before": before}).all()
        deleted = 0
        for stream in streams:
            name = unescape_text(stream)
            with suppress(LockHeld):
                takeover = self._locks.acquire(name)
                try:
                    with transaction() as connection:
                        last = connection.scalars(sa.text(_LAST_ENTRIES), {"stream": stream})
                        # More entries may follow if the holder of the lock has just died.
                        if not takeover.dead_owner and not _is_waiting(map(parse_stored_json, last)):
                            statement = sa.text("DELETE FROM entries WHERE stream = :stream")
                            connection.execute(statement, {"stream": stream})
                            deleted += 1
                finally:
                    self._locks.release([name])
        return deleted


def _is_waiting(last_entries: Iterator[dict[str, Any]]) -> bool:
    """Return whether a run waits for a person, by its entries from the last one back."""
    for entry in last_entries:
        is_call = entry.get("kind") == "step" and not entry["step"]["description"]  # unlike a step of a plan
        if not is_call:  # one of several calls was approved: the run waits for the others
            return entry.get("kind") == "wait" or entry.get("state") == "waiting"
    return True  # only answers: nothing says that the run has ended


def _delete_calls(transaction: Transaction, condition: sa.ColumnElement[bool]) -> tuple[int, set[str]]:
    """Delete ended calls; returns how many, and the artifacts they referred to."""
    calls = get_table("tool_calls")
    old = (calls.c.status != "running") & condition
    batch = sa.select(calls.c.record_id).where(old).order_by(calls.c.started_at).limit(BATCH_ROWS)
    delete = sa.delete(calls).where(calls.c.record_id.in_(batch)).returning(calls.c.artifact_id)
    deleted, artifacts = 0, set[str]()
    while True:
        with transaction() as connection:
            artifact_ids = connection.scalars(delete).all()
        deleted += len(artifact_ids)
        artifacts.update(filter(None, artifact_ids))
        if len(artifact_ids) < BATCH_ROWS:
            return deleted, artifacts


def _find_unused(connection: sa.Connection, artifacts: set[str]) -> list[str]:
    """Return the artifacts that no record refers to."""
    column = get_table("tool_calls").c.artifact_id
    return [
        artifact_id
        for artifact_id in sorted(artifacts)
        if connection.scalar(sa.select(column).where(column == artifact_id).limit(1)) is None
    ]
