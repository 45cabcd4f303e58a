"""Queries over call records: pages of records (newest first, read from an index), and summaries."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ferrule.errors import APPROVAL_REQUIRED, StoreError
from ferrule.store.approvals import OPEN_STATES
from ferrule.store.database import JSON_COLUMNS, StoreDatabase
from ferrule.store.encoding import decode_json_column
from ferrule.store.escapes import escape_text, unescape_text
from ferrule.store.record import Status, ToolCallRecord, ToolCallSummary, percent
from ferrule.store.tables import IS_FAILURE, get_table, sa

BEST_INDEX_FIRST = (
    *("conversation_id", "workflow_id", "caller_id", "principal", "tool_name"),
    *("error_type", "caller_type", "status", "action"),
)
"""Of several conditions, the one that usually matches the fewest calls is looked up in its index; the rest filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFilter:
    """Conditions on records; None means any value."""

    conversation_id: str | None = None
    workflow_id: str | None = None
    tool_name: str | None = None
    action: str | None = None
    caller_id: str | None = None
    caller_type: str | None = None
    status: Status | None = None
    principal: str | None = None
    tenant: str | None = None
    """An empty text: calls of no tenant."""
    is_success: bool | None = None
    """False: ended without success. Running calls match neither."""
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    """Anywhere in arguments, result or error. Scans all rows, so add a time or a tool."""
    principals: Collection[str] | None = None
    """The labels of those who may have made the call."""
    rule: str | None = None
    """The rule of the policy that decided about the call."""


def select_newest_first(conditions: CallFilter, dialect: sa.Dialect) -> sa.Select[Any]:
    calls = get_table("tool_calls").c
    query = _select_calls().where(*build_clauses(conditions, dialect))
    return query.order_by(calls.started_at.desc(), calls.record_id.desc())


def find_records(
    database: StoreDatabase, conditions: CallFilter, limit: int, after: ToolCallRecord | str | None
) -> list[ToolCallRecord]:
    with database.read() as connection:
        page = select_newest_first(conditions, connection.dialect).limit(limit)
        if after is not None:
            page = page.where(_older_than_clause(connection, after))
        return _read_records(connection, page)


def find_record(database: StoreDatabase, record_id: str) -> ToolCallRecord | None:
    with database.read() as connection:
        query = _select_calls().where(get_table("tool_calls").c.record_id == escape_text(record_id))
        return next(iter(_read_records(connection, query)), None)


def _read_records(connection: sa.Connection, query: sa.Select[Any]) -> list[ToolCallRecord]:
    """Return the records, with the approvals that calls have asked for: these are decided after the calls ended."""
    records = [_row_to_record(row) for row in connection.execute(query)]
    asking = [record for record in records if record.error_type == APPROVAL_REQUIRED]
    if asking:
        approvals = get_table("approvals").c
        is_expired = approvals.state.in_(OPEN_STATES) & (approvals.expires_at <= time.time())
        state = sa.case((is_expired, "expired"), else_=approvals.state)
        ids = {str(record.metadata.get("approval_id")) for record in asking}
        rows = connection.execute(
            sa.select(approvals.approval_id, state, approvals.used_by).where(approvals.approval_id.in_(ids))
        )
        facts = {row[0]: {"approval_state": row[1], "used_by": row[2]} for row in rows}
        for record in asking:
            record.metadata |= facts.get(record.metadata.get("approval_id"), {})
    return records


def summarize_conversation(database: StoreDatabase, conversation_id: str) -> ToolCallSummary:
    calls = get_table("tool_calls").c
    succeeded = sa.func.sum(sa.case((calls.status == "success", 1), else_=0))
    query = (
        sa.select(calls.tool_name, sa.func.count(), succeeded)
        .where(calls.conversation_id == escape_text(conversation_id), calls.status != "running")
        .where(calls.error_type.is_distinct_from(APPROVAL_REQUIRED))  # the call that follows the approval counts
        .group_by(calls.tool_name)
        .order_by(sa.func.count().desc(), calls.tool_name)
    )
    rows = database.find(query)
    total, successful = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return ToolCallSummary(
        conversation_id=conversation_id,
        total_calls=total,
        successful_calls=successful,
        failed_calls=total - successful,
        success_rate=percent(successful, total),
        tool_usage={unescape_text(row[0]): row[1] for row in rows},
    )


def _select_calls() -> sa.Select[Any]:
    columns = [c for c in get_table("tool_calls").columns if c.name != "owner"]
    # JSON is read as text, so that numbers come back with exactly the digits they had.
    return sa.select(*(sa.cast(c, sa.Text).label(c.name) if c.name in JSON_COLUMNS else c for c in columns))


def build_clauses(conditions: CallFilter, dialect: sa.Dialect) -> list[sa.ColumnElement[bool]]:
    calls = get_table("tool_calls").c
    names = [name for name in BEST_INDEX_FIRST if getattr(conditions, name) is not None]
    clauses = [calls[name] == escape_text(getattr(conditions, name)) for name in names[:1]]
    # `coalesce` keeps the database from the other indexes: else it might scan all failed calls of all tools.
    clauses += [sa.func.coalesce(calls[name], "") == escape_text(getattr(conditions, name)) for name in names[1:]]
    if conditions.tenant is not None:
        is_tenant = calls.tenant == escape_text(conditions.tenant) if conditions.tenant else calls.tenant.is_(None)
        clauses.append(is_tenant)
    if conditions.principals is not None:
        clauses.append(calls.principal.in_(list(map(escape_text, conditions.principals))))
    if conditions.is_success is not None:
        clauses.append(_ended_clause(success=conditions.is_success, by_index=not names))
    if conditions.since is not None:
        clauses.append(calls.started_at >= conditions.since.timestamp())
    if conditions.until is not None:
        clauses.append(calls.started_at < conditions.until.timestamp())
    if conditions.rule is not None:
        clauses.append(rule_column() == escape_text(conditions.rule))
    if conditions.text is not None:
        text = escape_text(conditions.text)
        in_json = json.dumps(text, ensure_ascii=False)[1:-1]
        columns = [sa.cast(calls[name], sa.Text) for name in ("params", "result")]
        texts = [(calls.error, text), *((column, in_json) for column in columns)]
        # SQLite's LIKE ignores the case; `icontains` would convert all texts first.
        contains = sa.ColumnElement.contains if dialect.name == "sqlite" else sa.ColumnElement.icontains
        clauses.append(sa.or_(*(contains(column, part, autoescape=True) for column, part in texts)))
    return clauses


def rule_column() -> sa.ColumnElement[str]:
    return sa.literal_column("(tool_calls.metadata->>'rule')", sa.Text)


def _ended_clause(*, success: bool, by_index: bool) -> sa.ColumnElement[bool]:
    status: sa.ColumnElement[Any] = get_table("tool_calls").c.status
    if not by_index:
        status = sa.func.coalesce(status, "")
    elif not success:
        return sa.text(IS_FAILURE)  # type: ignore[return-value]
    return status == "success" if success else status.not_in(["success", "running"])


def _older_than_clause(connection: sa.Connection, after: ToolCallRecord | str) -> sa.ColumnElement[bool]:
    calls = get_table("tool_calls").c
    if isinstance(after, ToolCallRecord):
        last = after.started_at, escape_text(after.record_id)
    else:
        started_at = connection.scalar(sa.select(calls.started_at).where(calls.record_id == escape_text(after)))
        if started_at is None:
            raise StoreError(f"no record {after!r} to continue after; start again without `after`")
        last = started_at, escape_text(after)
    return sa.tuple_(calls.started_at, calls.record_id) < sa.tuple_(*map(sa.literal, last))


def _row_to_record(row: sa.Row[Any]) -> ToolCallRecord:
    values = row._asdict()
    for name, value in values.items():
        if name in JSON_COLUMNS:
            values[name] = decode_json_column(value)
        elif isinstance(value, str):
            values[name] = unescape_text(value)
    # NULL for a call that has not ended.
    for name, default in (("execution_time", 0.0), ("wait_time", 0.0), ("attempts", 1), ("caller_type", "unknown")):
        if values[name] is None:
            values[name] = default
    return ToolCallRecord(**values)
