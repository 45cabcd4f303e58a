"""How tools have been doing, counted by the database in three passes over an index.

A percentile lies between two measured times, in proportion (`PERCENTILE_CONT` in SQL, `method="inclusive"` in Python's
`statistics.quantiles`): of the sorted times t[0] … t[n-1], p95 is t[0.95 · (n-1)], and a position between two of them
gives a value between them. Only calls in which the tool really ran count: those with an `execution_time` above zero.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from ferrule.store.database import Database
from ferrule.store.record import CallStatistics, ToolStatistics, percent
from ferrule.store.schema import calls_table

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Row

PERCENTILES = (0.50, 0.95, 0.99)


def collect_statistics(database: Database, since: datetime | None, tool_name: str | None) -> CallStatistics:
    with database.read() as connection:
        conditions = _conditions(since, tool_name)
        counts = _count(connection, conditions)
        times = _times_at_percentiles(connection, conditions)
        errors = _last_errors(connection, conditions)
    tools = {
        row.tool_name: _tool(row, times.get(row.tool_name, {}), errors.get(row.tool_name))
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


def _conditions(since: datetime | None, tool_name: str | None) -> list[ColumnElement[bool]]:
    calls = calls_table().c
    conditions = [] if since is None else [calls.started_at >= since.timestamp()]
    return conditions if tool_name is None else [*conditions, calls.tool_name == tool_name]


def _count(connection: Connection, conditions: list[ColumnElement[bool]]) -> list[Row[Any]]:
    import sqlalchemy as sa

    calls = calls_table().c

    def number(name: str, *status: str) -> ColumnElement[int]:
        return sa.func.sum(sa.case((calls.status.in_(status), 1), else_=0)).label(name)

    ran = calls.execution_time > 0
    question = (
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
    return list(connection.execute(question))


def _times_at_percentiles(connection: Connection, conditions: list[ColumnElement[bool]]) -> dict[str, dict[int, float]]:
    """Of each tool the times between which the percentiles lie, by their rank from 1."""
    import sqlalchemy as sa

    calls = calls_table().c
    conditions = [*conditions, calls.execution_time > 0]
    by_time = sa.func.row_number().over(partition_by=calls.tool_name, order_by=calls.execution_time).label("rank")
    ranked = sa.select(calls.tool_name, calls.execution_time, by_time).where(*conditions).subquery()
    number = sa.func.count().label("n")
    counted = sa.select(calls.tool_name, number).where(*conditions).group_by(calls.tool_name).subquery()
    near = [sa.func.abs(ranked.c.rank - 1 - fraction * (counted.c.n - 1)) < 1 for fraction in PERCENTILES]
    found: dict[str, dict[int, float]] = {}
    for tool_name, rank, seconds in connection.execute(
        sa.select(ranked.c.tool_name, ranked.c.rank, ranked.c.execution_time)
        .join(counted, ranked.c.tool_name == counted.c.tool_name)
        .where(sa.or_(*near))
    ):
        found.setdefault(tool_name, {})[rank] = seconds
    return found


def _last_errors(connection: Connection, conditions: list[ColumnElement[bool]]) -> dict[str, str | None]:
    import sqlalchemy as sa

    table = calls_table()
    calls = table.c
    last = (
        sa.select(calls.tool_name, sa.func.max(calls.started_at).label("at"))
        .where(*conditions, calls.status == "failed")
        .group_by(calls.tool_name)
        .subquery()
    )
    question = sa.select(calls.tool_name, calls.error).join_from(
        last,
        table,
        (calls.tool_name == last.c.tool_name) & (calls.started_at == last.c.at) & (calls.status == "failed"),
    )
    return {tool_name: error for tool_name, error in connection.execute(question)}


def _tool(counts: Row[Any], ranked: dict[int, float], last_error: str | None) -> ToolStatistics:
    p50, p95, p99 = (_percentile(ranked, counts.timed, fraction) for fraction in PERCENTILES)
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


def _percentile(ranked: dict[int, float], n: int, fraction: float) -> float | None:
    if not n:
        return None
    position = fraction * (n - 1)
    low, high = ranked[floor(position) + 1], ranked[ceil(position) + 1]
    return low + (high - low) * (position - floor(position))
