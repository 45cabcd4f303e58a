"""What can be asked of the records. Newest first, a page at a time, each question answered from an index."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ferrule.errors import StoreError
from ferrule.store.database import Database
from ferrule.store.line import decoded
from ferrule.store.record import Status, ToolCallRecord, ToolCallSummary, percent
from ferrule.store.schema import ENDED_BADLY, JSON_COLUMNS, calls_table

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Row, Select


BEST_INDEX_FIRST = (
    "conversation_id",
    "workflow_id",
    "caller_id",
    "tool_name",
    "error_type",
    "caller_type",
    "status",
    "action",
)
"""Of several things asked for, the one with the fewest calls is looked up, and the calls found are sorted out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFilter:
    """Which records; None means any."""

    conversation_id: str | None = None
    workflow_id: str | None = None
    tool_name: str | None = None
    action: str | None = None
    caller_id: str | None = None
    caller_type: str | None = None
    status: Status | None = None
    is_success: bool | None = None
    """False: ended otherwise than well. Calls still running are neither."""
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    """Anywhere in arguments, result or error. Reads row after row, so name a time or a tool as well."""


def newest_first(wanted: CallFilter) -> Select[Any]:
    calls = calls_table().c
    return _selected().where(*_conditions(wanted)).order_by(calls.started_at.desc(), calls.record_id.desc())


def find_records(
    database: Database, wanted: CallFilter, limit: int, after: ToolCallRecord | str | None
) -> list[ToolCallRecord]:
    with database.read() as connection:
        page = newest_first(wanted).limit(limit)
        if after is not None:
            page = page.where(_older_than(connection, after))
        return [_record(row) for row in connection.execute(page)]


def find_record(database: Database, record_id: str) -> ToolCallRecord | None:
    with database.read() as connection:
        row = connection.execute(_selected().where(calls_table().c.record_id == record_id)).first()
        return None if row is None else _record(row)


def summarize(database: Database, conversation_id: str) -> ToolCallSummary:
    import sqlalchemy as sa

    calls = calls_table().c
    succeeded = sa.func.sum(sa.case((calls.status == "success", 1), else_=0))
    question = (
        sa.select(calls.tool_name, sa.func.count(), succeeded)
        .where(calls.conversation_id == conversation_id, calls.status != "running")
        .group_by(calls.tool_name)
        .order_by(sa.func.count().desc(), calls.tool_name)
    )
    with database.read() as connection:
        rows = connection.execute(question).all()
    total, successful = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return ToolCallSummary(
        conversation_id=conversation_id,
        total_calls=total,
        successful_calls=successful,
        failed_calls=total - successful,
        success_rate=percent(successful, total),
        tool_usage={row[0]: row[1] for row in rows},
    )


def _selected() -> Select[Any]:
    import sqlalchemy as sa

    columns = [c for c in calls_table().columns if c.name != "owner"]
    # JSON is read as text, so that it comes back digit by digit as it went in.
    return sa.select(*(sa.cast(c, sa.Text).label(c.name) if c.name in JSON_COLUMNS else c for c in columns))


def _conditions(wanted: CallFilter) -> list[ColumnElement[bool]]:
    import sqlalchemy as sa

    calls = calls_table().c
    asked = [name for name in BEST_INDEX_FIRST if getattr(wanted, name) is not None]
    conditions = [calls[name] == getattr(wanted, name) for name in asked[:1]]
    # The database is kept from the other indexes: left to itself it may walk through all failed calls of all tools.
    conditions += [sa.func.coalesce(calls[name], "") == getattr(wanted, name) for name in asked[1:]]
    if wanted.is_success is not None:
        conditions.append(_ended(well=wanted.is_success, by_index=not asked))
    if wanted.since is not None:
        conditions.append(calls.started_at >= wanted.since.timestamp())
    if wanted.until is not None:
        conditions.append(calls.started_at < wanted.until.timestamp())
    if wanted.text is not None:
        in_json = json.dumps(wanted.text, ensure_ascii=False)[1:-1]
        places = [sa.cast(calls[name], sa.Text).icontains(in_json, autoescape=True) for name in ("params", "result")]
        conditions.append(sa.or_(calls.error.icontains(wanted.text, autoescape=True), *places))
    return conditions


def _ended(*, well: bool, by_index: bool) -> ColumnElement[bool]:
    import sqlalchemy as sa

    status: ColumnElement[Any] = calls_table().c.status
    if not by_index:
        status = sa.func.coalesce(status, "")
    elif not well:
        return sa.text(ENDED_BADLY)  # type: ignore[return-value]
    return status == "success" if well else status.not_in(["success", "running"])


def _older_than(connection: Connection, after: ToolCallRecord | str) -> ColumnElement[bool]:
    import sqlalchemy as sa

    calls = calls_table().c
    if isinstance(after, ToolCallRecord):
        last = after.started_at, after.record_id
    else:
        started_at = connection.scalar(sa.select(calls.started_at).where(calls.record_id == after))
        if started_at is None:
            raise StoreError(f"no record {after!r} to continue after; start again without `after`")
        last = started_at, after
    return sa.tuple_(calls.started_at, calls.record_id) < sa.tuple_(*map(sa.literal, last))


def _record(row: Row[Any]) -> ToolCallRecord:
    values = row._asdict()
    for name in JSON_COLUMNS:
        values[name] = decoded(values[name])
    # A call that has not ended has said nothing about these.
    for name, default in (("execution_time", 0.0), ("wait_time", 0.0), ("attempts", 1), ("caller_type", "unknown")):
        if values[name] is None:
            values[name] = default
    return ToolCallRecord(**values)
