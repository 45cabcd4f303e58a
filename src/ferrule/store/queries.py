"""Queries over call records: pages of records (newest first, read from an index), summaries and statistics."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from ferrule.errors import (
    APPROVAL_REQUIRED,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    REJECTED,
    TOOL_NOT_FOUND,
    StoreError,
)
from ferrule.store.database import IS_FAILURE, JSON_COLUMNS, StoreDatabase, calls_table
from ferrule.store.encoding import decode_json_column
from ferrule.store.entry_streams import json_lines_sql
from ferrule.store.record import (
    CallInterval,
    CallStatistics,
    Status,
    ToolCallRecord,
    ToolCallSummary,
    ToolStatistics,
    percent,
)
from ferrule.store.redaction import escape_text, unescape_text

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Dialect, Row, Select

BEST_INDEX_FIRST = (
    "conversation_id",
    "workflow_id",
    "caller_id",
    "principal",
    "tool_name",
    "error_type",
    "caller_type",
    "status",
    "action",
)
"""Of several conditions, the one that usually matches the fewest calls is looked up in its index; the rest filter."""

ERRORS_THAT_NAME_TOOLS = (KNOWN_FAILURE, PERMISSION_DENIED, APPROVAL_REQUIRED, TOOL_NOT_FOUND)
"""Their texts say what the caller may try instead or use, or which tool that it calls needs approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCalls:
    """Which calls somebody is shown: those that certain principals made, and those of certain actions.

    Of the latter, not those whose errors say which other tools there are.
    """

    principals: frozenset[str]
    """Their labels."""
    actions: frozenset[tuple[str, str, str]]
    """Tool, action and source."""

    def shows(self, record: ToolCallRecord) -> bool:
        action = (record.tool_name, record.action or "", record.source or "")
        is_of_action = action in self.actions and record.error_type not in ERRORS_THAT_NAME_TOOLS
        return record.principal in self.principals or is_of_action


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
    visible: VisibleCalls | None = None
    rule: str | None = None
    """The rule of the policy that decided about the call."""


def select_newest_first(conditions: CallFilter, dialect: Dialect) -> Select[Any]:
    calls = calls_table().c
    query = _select_calls().where(*_build_clauses(conditions, dialect))
    return query.order_by(calls.started_at.desc(), calls.record_id.desc())


def find_records(
    database: StoreDatabase, conditions: CallFilter, limit: int, after: ToolCallRecord | str | None
) -> list[ToolCallRecord]:
    with database.read() as connection:
        page = select_newest_first(conditions, connection.dialect).limit(limit)
        if after is not None:
            page = page.where(_older_than_clause(connection, after))
        return [_row_to_record(row) for row in connection.execute(page)]


def find_record(database: StoreDatabase, record_id: str) -> ToolCallRecord | None:
    with database.read() as connection:
        row = connection.execute(_select_calls().where(calls_table().c.record_id == escape_text(record_id))).first()
        return None if row is None else _row_to_record(row)


def summarize_conversation(database: StoreDatabase, conversation_id: str) -> ToolCallSummary:
    import sqlalchemy as sa

    calls = calls_table().c
    succeeded = sa.func.sum(sa.case((calls.status == "success", 1), else_=0))
    query = (
        sa.select(calls.tool_name, sa.func.count(), succeeded)
        .where(calls.conversation_id == escape_text(conversation_id), calls.status != "running")
        .where(calls.error_type.is_distinct_from(APPROVAL_REQUIRED))  # the call that follows the approval counts
        .group_by(calls.tool_name)
        .order_by(sa.func.count().desc(), calls.tool_name)
    )
    with database.read() as connection:
        rows = connection.execute(query).all()
    total, successful = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return ToolCallSummary(
        conversation_id=conversation_id,
        total_calls=total,
        successful_calls=successful,
        failed_calls=total - successful,
        success_rate=percent(successful, total),
        tool_usage={unescape_text(row[0]): row[1] for row in rows},
    )


def _select_calls() -> Select[Any]:
    import sqlalchemy as sa

    columns = [c for c in calls_table().columns if c.name != "owner"]
    # JSON is read as text, so that numbers come back with exactly the digits they had.
    return sa.select(*(sa.cast(c, sa.Text).label(c.name) if c.name in JSON_COLUMNS else c for c in columns))


def _build_clauses(conditions: CallFilter, dialect: Dialect) -> list[ColumnElement[bool]]:
    import sqlalchemy as sa

    calls = calls_table().c
    names = [name for name in BEST_INDEX_FIRST if getattr(conditions, name) is not None]
    clauses = [calls[name] == escape_text(getattr(conditions, name)) for name in names[:1]]
    # `coalesce` keeps the database from the other indexes: else it might scan all failed calls of all tools.
    clauses += [sa.func.coalesce(calls[name], "") == escape_text(getattr(conditions, name)) for name in names[1:]]
    if conditions.tenant is not None:
        clauses.append(_tenant_clause(conditions.tenant))
    if conditions.visible is not None:
        clauses.append(_visible_clause(conditions.visible, dialect))
    if conditions.is_success is not None:
        clauses.append(_ended_clause(success=conditions.is_success, by_index=not names))
    if conditions.since is not None:
        clauses.append(calls.started_at >= conditions.since.timestamp())
    if conditions.until is not None:
        clauses.append(calls.started_at < conditions.until.timestamp())
    if conditions.rule is not None:
        clauses.append(_rule_column() == escape_text(conditions.rule))
    if conditions.text is not None:
        text = escape_text(conditions.text)
        in_json = json.dumps(text, ensure_ascii=False)[1:-1]
        columns = [sa.cast(calls[name], sa.Text).icontains(in_json, autoescape=True) for name in ("params", "result")]
        clauses.append(sa.or_(calls.error.icontains(text, autoescape=True), *columns))
    return clauses


def _rule_column() -> ColumnElement[str]:
    import sqlalchemy as sa

    return sa.literal_column(f"({calls_table().name}.metadata->>'rule')", sa.Text)


def _tenant_clause(tenant: str) -> ColumnElement[bool]:
    column = calls_table().c.tenant
    return column == escape_text(tenant) if tenant else column.is_(None)


def _visible_clause(visible: VisibleCalls, dialect: Dialect) -> ColumnElement[bool]:
    import sqlalchemy as sa

    table = calls_table()
    columns = f"{table.name}.tool_name, COALESCE({table.name}.action, ''), COALESCE({table.name}.source, '')"
    actions = [list(map(escape_text, action)) for action in visible.actions]
    # One parameter, because databases limit their number, and there may be thousands of actions.
    of_action = sa.text(
        f"({columns}) IN (SELECT line.value->>0, line.value->>1, line.value->>2 FROM {json_lines_sql(dialect)})"
    ).bindparams(lines=json.dumps(actions))
    names_no_tools = sa.func.coalesce(table.c.error_type, "").not_in(ERRORS_THAT_NAME_TOOLS)
    return sa.or_(table.c.principal.in_(list(map(escape_text, visible.principals))), of_action & names_no_tools)


def _ended_clause(*, success: bool, by_index: bool) -> ColumnElement[bool]:
    import sqlalchemy as sa

    status: ColumnElement[Any] = calls_table().c.status
    if not by_index:
        status = sa.func.coalesce(status, "")
    elif not success:
        return sa.text(IS_FAILURE)  # type: ignore[return-value]
    return status == "success" if success else status.not_in(["success", "running"])


def _older_than_clause(connection: Connection, after: ToolCallRecord | str) -> ColumnElement[bool]:
    import sqlalchemy as sa

    calls = calls_table().c
    if isinstance(after, ToolCallRecord):
        last = after.started_at, escape_text(after.record_id)
    else:
        started_at = connection.scalar(sa.select(calls.started_at).where(calls.record_id == escape_text(after)))
        if started_at is None:
            raise StoreError(f"no record {after!r} to continue after; start again without `after`")
        last = started_at, escape_text(after)
    return sa.tuple_(calls.started_at, calls.record_id) < sa.tuple_(*map(sa.literal, last))


def _row_to_record(row: Row[Any]) -> ToolCallRecord:
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


# Statistics, computed by the database in three passes over an index.
#
# A percentile is interpolated between two measured times (`PERCENTILE_CONT` in SQL, `method="inclusive"` in Python's
# `statistics.quantiles`): of the sorted times t[0] … t[n-1], p95 is t[0.95 · (n-1)], and a position between two of them
# gives a value between them. Only calls in which the tool really ran count: those with an `execution_time` above zero.

PERCENTILES = (0.50, 0.95, 0.99)


def collect_statistics(
    database: StoreDatabase,
    since: datetime | None,
    tool_name: str | None,
    tenant: str | None,
    visible: VisibleCalls | None,
) -> CallStatistics:
    with database.read() as connection:
        conditions = _statistics_conditions(since, tool_name, tenant, visible, connection.dialect)
        counts = _count_calls(connection, conditions)
        times = _times_at_percentiles(connection, conditions)
        errors = _find_last_errors(connection, conditions)
    tools = {
        unescape_text(row.tool_name): _tool_statistics(row, times.get(row.tool_name, {}), errors.get(row.tool_name))
        for row in counts
        if row.ended
    }
    total, successful = sum(row.ended for row in counts), sum(row.successful for row in counts)
    return CallStatistics(
        total=total,
        successful=successful,
        failed=sum(row.failed for row in counts),
        cancelled=sum(row.cancelled for row in counts),
        running=sum(row.running for row in counts),
        success_rate=percent(successful, total),
        tools=tools,
    )


def _statistics_conditions(
    since: datetime | None, tool_name: str | None, tenant: str | None, visible: VisibleCalls | None, dialect: Dialect
) -> list[ColumnElement[bool]]:
    calls = calls_table().c
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(calls.started_at >= since.timestamp())
    if tool_name is not None:
        conditions.append(calls.tool_name == escape_text(tool_name))
    if tenant is not None:
        conditions.append(_tenant_clause(tenant))
    if visible is not None:
        conditions.append(_visible_clause(visible, dialect))
    return conditions


def _count_calls(connection: Connection, conditions: list[ColumnElement[bool]]) -> list[Row[Any]]:
    import sqlalchemy as sa

    calls = calls_table().c

    def number(name: str, *status: str) -> ColumnElement[int]:
        return sa.func.sum(sa.case((calls.status.in_(status), 1), else_=0)).label(name)

    ran = calls.execution_time > 0
    query = (
        sa.select(
            calls.tool_name,
            number("ended", "success", "failed", "interrupted", "cancelled"),
            number("successful", "success"),
            number("failed", "failed", "interrupted"),
            number("cancelled", "cancelled"),
            number("running", "running"),
            sa.func.sum(sa.case((ran, 1), else_=0)).label("timed"),
            sa.func.avg(sa.case((ran, calls.execution_time))).label("mean"),
            sa.func.max(calls.started_at).label("last_called"),
        )
        .where(*conditions)
        .group_by(calls.tool_name)
        .order_by(calls.tool_name)
    )
    return list(connection.execute(query))


def _times_at_percentiles(connection: Connection, conditions: list[ColumnElement[bool]]) -> dict[str, dict[int, float]]:
    """For each tool, the times between which the percentiles lie, by rank from 1."""
    import sqlalchemy as sa

    calls = calls_table().c
    conditions = [*conditions, calls.execution_time > 0]
    by_time = sa.func.row_number().over(partition_by=calls.tool_name, order_by=calls.execution_time).label("rank")
    ranked = sa.select(calls.tool_name, calls.execution_time, by_time).where(*conditions).subquery()
    number = sa.func.count().label("n")
    counted = sa.select(calls.tool_name, number).where(*conditions).group_by(calls.tool_name).subquery()
    near = [sa.func.abs(ranked.c.rank - 1 - fraction * (counted.c.n - 1)) < 1 for fraction in PERCENTILES]
    times: dict[str, dict[int, float]] = {}
    for tool_name, rank, seconds in connection.execute(
        sa.select(ranked.c.tool_name, ranked.c.rank, ranked.c.execution_time)
        .join(counted, ranked.c.tool_name == counted.c.tool_name)
        .where(sa.or_(*near))
    ):
        times.setdefault(tool_name, {})[rank] = seconds
    return times


def _find_last_errors(connection: Connection, conditions: list[ColumnElement[bool]]) -> dict[str, str | None]:
    import sqlalchemy as sa

    table = calls_table()
    calls = table.c
    last = (
        sa.select(calls.tool_name, sa.func.max(calls.started_at).label("at"))
        .where(*conditions, calls.status == "failed")
        .group_by(calls.tool_name)
        .subquery()
    )
    query = sa.select(calls.tool_name, calls.error).join_from(
        last,
        table,
        (calls.tool_name == last.c.tool_name) & (calls.started_at == last.c.at) & (calls.status == "failed"),
    )
    return {tool_name: error and unescape_text(error) for tool_name, error in connection.execute(query)}


def _tool_statistics(counts: Row[Any], ranked: dict[int, float], last_error: str | None) -> ToolStatistics:
    p50, p95, p99 = (_interpolate_percentile(ranked, counts.timed, fraction) for fraction in PERCENTILES)
    return ToolStatistics(
        calls=counts.ended,
        failures=counts.failed,
        mean=counts.mean,
        p50=p50,
        p95=p95,
        p99=p99,
        last_called=datetime.fromtimestamp(counts.last_called, UTC),
        last_error=last_error,
    )


def _interpolate_percentile(ranked: dict[int, float], n: int, fraction: float) -> float | None:
    if not n:
        return None
    position = fraction * (n - 1)
    low, high = ranked[floor(position) + 1], ranked[ceil(position) + 1]
    return low + (high - low) * (position - floor(position))


def count_calls_by_rule(
    database: StoreDatabase, since: datetime, tenant: str | None
) -> dict[str, tuple[int, float | None]]:
    """How many calls each rule of a policy has decided about, and when the last was made."""
    import sqlalchemy as sa

    calls, rule = calls_table().c, _rule_column()
    query = sa.select(rule, sa.func.count(), sa.func.max(calls.started_at)).where(rule.is_not(None)).group_by(rule)
    query = query.where(calls.started_at >= since.timestamp())
    if tenant is not None:
        query = query.where(_tenant_clause(tenant))
    with database.read() as connection:
        return {unescape_text(text): (number, last) for text, number, last in connection.execute(query)}


# Figures over time


def find_oldest_call(database: StoreDatabase) -> float | None:
    """When the first call started."""
    import sqlalchemy as sa

    with database.read() as connection:
        oldest: float | None = connection.scalar(sa.select(sa.func.min(calls_table().c.started_at)))
        return oldest


def collect_series(
    database: StoreDatabase, conditions: CallFilter, start: datetime, end: datetime, parts: int
) -> list[CallInterval]:
    """Counts and times of the calls in equal parts of a time; a percentile is one of the measured times."""
    import sqlalchemy as sa

    calls, width = calls_table().c, max(1e-3, (end - start).total_seconds() / parts)
    conditions = replace(conditions, since=start, until=end)
    with database.read() as connection:
        position = (calls.started_at - start.timestamp()) / width
        # A cast rounds in PostgreSQL, and SQLite may have no `floor`.
        is_postgres = connection.dialect.name == "postgresql"
        part = (sa.func.floor(position) if is_postgres else sa.cast(position, sa.Integer)).label("part")
        clauses = _build_clauses(conditions, connection.dialect)
        failed = sa.case((calls.status.in_(["failed", "interrupted"]), 1), else_=0)
        rejected = sa.case((calls.error_type == REJECTED, 1), else_=0)
        counts = sa.select(
            part, sa.func.count(), sa.func.sum(failed), sa.func.sum(rejected), sa.func.sum(calls.wait_time)
        )
        ran = (
            sa.select(part, calls.execution_time.label("seconds")).where(*clauses, calls.execution_time > 0).subquery()
        )
        rank = sa.func.row_number().over(partition_by=ran.c.part, order_by=ran.c.seconds).label("rank")
        total = sa.func.count().over(partition_by=ran.c.part).label("total")
        ranked = sa.select(ran.c.part, ran.c.seconds, rank, total).subquery()
        percentiles = [
            sa.func.min(sa.case((ranked.c.rank >= fraction * ranked.c.total, ranked.c.seconds)))
            for fraction in PERCENTILES
        ]
        counted = {int(row[0]): row[1:] for row in connection.execute(counts.where(*clauses).group_by(part))}
        timed = connection.execute(sa.select(ranked.c.part, *percentiles).group_by(ranked.c.part))
        times = {int(row[0]): row[1:] for row in timed}
    intervals: list[CallInterval] = []
    for number in range(parts):
        calls_of_part, failures, rejections, wait_time = counted.get(number, (0, 0, 0, 0.0))
        p50, p95, p99 = times.get(number, (None, None, None))
        intervals.append(
            CallInterval(
                start=start.timestamp() + number * width,
                calls=calls_of_part,
                failures=int(failures),
                rejections=int(rejections),
                wait_time=float(wait_time or 0.0),
                p50=p50,
                p95=p95,
                p99=p99,
            )
        )
    return intervals
