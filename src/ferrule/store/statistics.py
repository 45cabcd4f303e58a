"""Statistics of calls, computed by the database, and figures over time.

A percentile is interpolated between two measured times (`PERCENTILE_CONT` in SQL, `method="inclusive"` in Python's
`statistics.quantiles`): of the sorted times t[0] … t[n-1], p95 is t[0.95 · (n-1)], and a position between two of them
gives a value between them. Only calls in which the tool really ran count: those with an `execution_time` above zero.

A percentile is reached by skipping sorted times, which an index has for all calls of a tool. There are two ways to
count: some of the calls (since a time, of a tenant) are read one by one. For all calls that would take seconds per
million, so they are counted in indexes. What is not successful has a separate index.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, floor
from typing import Any

from ferrule.errors import REJECTED
from ferrule.store.database import StoreDatabase
from ferrule.store.escapes import unescape_text
from ferrule.store.queries import CallFilter, build_clauses, rule_column
from ferrule.store.record import CallInterval, CallStatistics, ToolStatistics, percent
from ferrule.store.tables import IS_UNSUCCESSFUL, get_table, sa

PERCENTILES = (0.50, 0.95, 0.99)


@dataclass(slots=True, kw_only=True)
class _ToolCounts:
    """How many calls of a tool there are."""

    tool_name: str
    """As it is stored."""
    successful: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    timed: int = 0
    """In which the tool ran."""
    mean: float | None = None
    last_called: float = 0.0

    @property
    def ended(self) -> int:
        return self.successful + self.failed + self.cancelled


def collect_statistics(database: StoreDatabase, which: CallFilter) -> CallStatistics:
    with database.read() as connection:
        conditions = build_clauses(which, connection.dialect)
        counts = _count_some_calls(connection, conditions) if conditions else _count_all_calls(connection)
        tools = {
            unescape_text(each.tool_name): _tool_statistics(connection, conditions, each)
            for each in counts
            if each.ended
        }
    total, successful = sum(each.ended for each in counts), sum(each.successful for each in counts)
    return CallStatistics(
        total=total,
        successful=successful,
        failed=sum(each.failed for each in counts),
        cancelled=sum(each.cancelled for each in counts),
        running=sum(each.running for each in counts),
        success_rate=percent(successful, total),
        tools=tools,
    )


def _tool_statistics(
    connection: sa.Connection, conditions: list[sa.ColumnElement[bool]], counts: _ToolCounts
) -> ToolStatistics:
    calls = get_table("tool_calls").c
    of_tool = [*conditions, calls.tool_name == counts.tool_name]
    times = sa.select(calls.execution_time.label("seconds")).where(*of_tool, calls.execution_time > 0)
    positions = [fraction * max(0, counts.timed - 1) for fraction in PERCENTILES]
    error = sa.select(calls.error).where(*of_tool, calls.status == "failed", sa.text(IS_UNSUCCESSFUL))
    columns: list[Any] = [error.order_by(calls.started_at.desc()).limit(1).scalar_subquery()]
    source: Any = None
    for position in positions:
        # From the end that is nearer: an index has the times in order.
        from_start = position <= counts.timed / 2
        order = calls.execution_time if from_start else calls.execution_time.desc()
        skipped = floor(position) if from_start else counts.timed - 1 - ceil(position)
        near = times.order_by(order).limit(ceil(position) - floor(position) + 1).offset(skipped).subquery()
        bounds = sa.select(sa.func.min(near.c.seconds), sa.func.max(near.c.seconds)).subquery()
        source = bounds if source is None else source.join(bounds, sa.true())
        columns += bounds.c
    [(last_error, *bounds_of_all)] = connection.execute(sa.select(*columns).select_from(source))
    p50, p95, p99 = (
        None if low is None else low + (high - low) * (position - floor(position))
        for low, high, position in zip(bounds_of_all[::2], bounds_of_all[1::2], positions, strict=True)
    )
    return ToolStatistics(
        calls=counts.ended,
        failures=counts.failed,
        mean=counts.mean,
        p50=p50,
        p95=p95,
        p99=p99,
        last_called=datetime.fromtimestamp(counts.last_called, UTC),
        last_error=last_error and unescape_text(last_error),
    )


def _count_some_calls(connection: sa.Connection, conditions: list[sa.ColumnElement[bool]]) -> list[_ToolCounts]:
    calls = get_table("tool_calls").c

    def number(name: str, *status: str) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((calls.status.in_(status), 1), else_=0)).label(name)

    ran = calls.execution_time > 0
    query = (
        sa.select(
            calls.tool_name,
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
    return [_ToolCounts(**row._mapping) for row in connection.execute(query)]


def _count_all_calls(connection: sa.Connection) -> list[_ToolCounts]:
    calls, number = get_table("tool_calls").c, sa.func.count()
    counts: dict[str, _ToolCounts] = {}
    # First, so that a call that ends meanwhile is counted once.
    others = sa.select(calls.tool_name, calls.status, number).where(sa.text(IS_UNSUCCESSFUL))
    for tool_name, status, times in connection.execute(others.group_by(calls.tool_name, calls.status)):
        each = counts.setdefault(tool_name, _ToolCounts(tool_name=tool_name))
        if status in ("failed", "interrupted"):
            each.failed += times
        elif status == "cancelled":
            each.cancelled += times
        else:
            each.running += times
    totals = sa.select(calls.tool_name, number, sa.func.sum(calls.execution_time)).group_by(calls.tool_name)
    for tool_name, times, seconds in connection.execute(totals.order_by(calls.tool_name)).all():
        each = counts.setdefault(tool_name, _ToolCounts(tool_name=tool_name))
        each.successful = max(0, times - each.failed - each.cancelled - each.running)
        count_of_tool = sa.select(number).where(calls.tool_name == tool_name)
        # In two ranges of the index: `OR` would read all of it.
        untimed = (
            count_of_tool.where(calls.execution_time.is_(None)).scalar_subquery()
            + count_of_tool.where(calls.execution_time <= 0).scalar_subquery()
        )
        last = sa.select(sa.func.max(calls.started_at)).where(calls.tool_name == tool_name).scalar_subquery()
        [(last_called, not_timed)] = connection.execute(sa.select(last, untimed))
        each.last_called, each.timed = last_called or 0.0, times - not_timed
        each.mean = (seconds or 0.0) / each.timed if each.timed > 0 else None
    return sorted(counts.values(), key=lambda each: each.tool_name)


def count_calls_by_rule(
    database: StoreDatabase, since: datetime, tenant: str | None
) -> dict[str, tuple[int, float | None]]:
    """Count the calls that each rule of a policy has decided about, with the time of the last call."""
    rule, started_at = rule_column(), get_table("tool_calls").c.started_at
    query = sa.select(rule, sa.func.count(), sa.func.max(started_at)).where(rule.is_not(None)).group_by(rule)
    with database.read() as connection:
        clauses = build_clauses(CallFilter(since=since, tenant=tenant), connection.dialect)
        return {unescape_text(text): (number, last) for text, number, last in connection.execute(query.where(*clauses))}


# Figures over time


def find_oldest_call(database: StoreDatabase) -> float | None:
    """Return when the first call started."""
    [(oldest,)] = database.find(sa.select(sa.func.min(get_table("tool_calls").c.started_at)))
    return None if oldest is None else float(oldest)


def collect_series(
    database: StoreDatabase, conditions: CallFilter, start: datetime, end: datetime, parts: int
) -> list[CallInterval]:
    """Return counts and times of calls in equal parts of a time. A percentile is one of the measured times."""
    calls, width = get_table("tool_calls").c, max(1e-3, (end - start).total_seconds() / parts)
    conditions = replace(conditions, since=start, until=end)
    with database.read() as connection:
        position = (calls.started_at - start.timestamp()) / width
        # A cast rounds in PostgreSQL, and SQLite may have no `floor`.
        is_postgres = connection.dialect.name == "postgresql"
        part = (sa.func.floor(position) if is_postgres else sa.cast(position, sa.Integer)).label("part")
        clauses = build_clauses(conditions, connection.dialect)
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
        interval = CallInterval(
            start=start.timestamp() + number * width,
            calls=calls_of_part,
            failures=int(failures),
            rejections=int(rejections),
            wait_time=float(wait_time or 0.0),
            **dict(zip(("p50", "p95", "p99"), times.get(number, (None, None, None)), strict=True)),
        )
        intervals.append(interval)
    return intervals
