"""Statistics of calls, computed by the database, and figures over time.

A percentile is interpolated between two measured times (`PERCENTILE_CONT` in SQL, `method="inclusive"` in Python's
`statistics.quantiles`): of the sorted times t[0] … t[n-1], p95 is t[0.95 · (n-1)], and a position between two of them
gives a value between them. Only calls in which the tool really ran count: those with an `execution_time` above zero.

There are two ways. For some of the calls (since a time, of a tenant), the database counts and sorts them. For all calls
that would take seconds per million, so their figures are read from indexes: times are sorted there already, so that the
position of a percentile is reached by skipping entries, and what is not successful has a separate index.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, floor
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrule.errors import REJECTED
from ferrule.store.database import StoreDatabase
from ferrule.store.escapes import escape_text, unescape_text
from ferrule.store.queries import CallFilter, build_clauses, principals_clause, rule_column, tenant_clause
from ferrule.store.record import CallInterval, CallStatistics, ToolStatistics, percent
from ferrule.store.tables import IS_UNSUCCESSFUL, get_table

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

PERCENTILES = (0.50, 0.95, 0.99)
MAX_QUERIES = 300
"""In one statement; SQLite accepts 500."""

Percentiles: TypeAlias = tuple[float | None, ...]
_NOT_KNOWN: Percentiles = (None,) * len(PERCENTILES)


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


def collect_statistics(
    database: StoreDatabase,
    since: datetime | None,
    tool_name: str | None,
    tenant: str | None,
    principals: Collection[str] | None,
) -> CallStatistics:
    with database.read() as connection:
        conditions = _statistics_conditions(since, tool_name, tenant, principals)
        if conditions:
            counts = _count_some_calls(connection, conditions)
            times = _find_percentiles_by_sorting(connection, conditions, counts)
            errors = _find_last_errors(connection, conditions)
        else:
            counts, failed_at = _count_all_calls(connection)
            times = _find_percentiles_by_index(connection, counts)
            errors = _read_errors(connection, failed_at)
    tools = {
        unescape_text(each.tool_name): _tool_statistics(
            each, times.get(each.tool_name, _NOT_KNOWN), errors.get(each.tool_name)
        )
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


def _tool_statistics(counts: _ToolCounts, times: Percentiles, last_error: str | None) -> ToolStatistics:
    p50, p95, p99 = times
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


# Some calls: counted and sorted by the database


def _statistics_conditions(
    since: datetime | None, tool_name: str | None, tenant: str | None, principals: Collection[str] | None
) -> list[ColumnElement[bool]]:
    calls = get_table("tool_calls").c
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(calls.started_at >= since.timestamp())
    if tool_name is not None:
        conditions.append(calls.tool_name == escape_text(tool_name))
    if tenant is not None:
        conditions.append(tenant_clause(tenant))
    if principals is not None:
        conditions.append(principals_clause(principals))
    return conditions


def _count_some_calls(connection: Connection, conditions: list[ColumnElement[bool]]) -> list[_ToolCounts]:
    import sqlalchemy as sa

    calls = get_table("tool_calls").c

    def number(name: str, *status: str) -> ColumnElement[int]:
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


def _find_percentiles_by_sorting(
    connection: Connection, conditions: list[ColumnElement[bool]], counts: Iterable[_ToolCounts]
) -> dict[str, Percentiles]:
    import sqlalchemy as sa

    calls = get_table("tool_calls").c
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
    return {
        each.tool_name: tuple(_interpolate(times[each.tool_name], each.timed, fraction) for fraction in PERCENTILES)
        for each in counts
        if each.timed
    }


def _interpolate(ranked: dict[int, float], n: int, fraction: float) -> float | None:
    """Interpolate a percentile of n times. The times near it are given by rank from 1."""
    position = fraction * (n - 1)
    low, high = ranked[floor(position) + 1], ranked[ceil(position) + 1]
    return low + (high - low) * (position - floor(position))


def _find_last_errors(connection: Connection, conditions: list[ColumnElement[bool]]) -> dict[str, str | None]:
    import sqlalchemy as sa

    table = get_table("tool_calls")
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


# All calls: read from indexes


def _count_all_calls(connection: Connection) -> tuple[list[_ToolCounts], dict[str, float]]:
    """Return the counts of each tool, and when each tool last failed."""
    import sqlalchemy as sa

    counts: dict[str, _ToolCounts] = {}
    failed_at: dict[str, float] = {}
    # First, so that a call that ends meanwhile is counted once.
    others = f"SELECT tool_name, status, COUNT(*), MAX(started_at) FROM tool_calls WHERE {IS_UNSUCCESSFUL}"
    for tool_name, status, number, last in connection.execute(sa.text(f"{others} GROUP BY tool_name, status")):
        each = counts.setdefault(tool_name, _ToolCounts(tool_name=tool_name))
        if status in ("failed", "interrupted"):
            each.failed += number
        elif status == "cancelled":
            each.cancelled += number
        else:
            each.running += number
        if status == "failed":
            failed_at[tool_name] = last
    seconds: dict[str, float] = {}
    totals = "SELECT tool_name, COUNT(*), SUM(execution_time) FROM tool_calls GROUP BY tool_name ORDER BY tool_name"
    for tool_name, number, sum_of_times in connection.execute(sa.text(totals)):
        each = counts.setdefault(tool_name, _ToolCounts(tool_name=tool_name))
        each.successful = max(0, number - each.failed - each.cancelled - each.running)
        each.timed, seconds[tool_name] = number, sum_of_times or 0.0
    # In two ranges of the index: `OR` would read all of it.
    columns = (
        "(SELECT MAX(started_at) FROM tool_calls WHERE {tool}), "
        "(SELECT COUNT(*) FROM tool_calls WHERE {tool} AND execution_time IS NULL) + "
        "(SELECT COUNT(*) FROM tool_calls WHERE {tool} AND execution_time <= 0)"
    )
    for tool_name, last, untimed in _query_each_tool(connection, [(name, columns, "") for name in seconds]):
        each = counts[tool_name]
        each.last_called, each.timed = last or 0.0, each.timed - untimed
        each.mean = seconds[tool_name] / each.timed if each.timed > 0 else None
    return [counts[name] for name in seconds], failed_at


def _find_percentiles_by_index(connection: Connection, counts: Iterable[_ToolCounts]) -> dict[str, Percentiles]:
    queries, fractions = [], []
    for each in counts:
        for fraction in PERCENTILES if each.timed > 0 else ():
            position = fraction * (each.timed - 1)
            # From the end that is nearer.
            order, skipped = ("", floor(position)) if fraction <= 0.5 else ("DESC", each.timed - 1 - ceil(position))
            limit = ceil(position) - floor(position) + 1
            times = (
                f"SELECT execution_time FROM tool_calls WHERE {{tool}} AND execution_time > 0 "
                f"ORDER BY execution_time {order} LIMIT {limit} OFFSET {skipped}"
            )
            queries.append((each.tool_name, "MIN(execution_time), MAX(execution_time)", f"FROM ({times}) AS times"))
            fractions.append(position - floor(position))
    by_tool: dict[str, list[float | None]] = {}
    for (tool_name, low, high), fraction in zip(_query_each_tool(connection, queries), fractions, strict=True):
        by_tool.setdefault(tool_name, []).append(None if low is None else low + (high - low) * fraction)
    return {tool_name: tuple(percentiles) for tool_name, percentiles in by_tool.items()}


def _read_errors(connection: Connection, failed_at: dict[str, float]) -> dict[str, str | None]:
    """Return the errors of the calls of tools at given times."""
    call = "FROM tool_calls WHERE {tool} AND started_at = {value} AND status = 'failed'"
    queries = [(name, "MAX(error)", call, at) for name, at in failed_at.items()]
    return {name: error and unescape_text(error) for name, error in _query_each_tool(connection, queries)}


def _query_each_tool(connection: Connection, queries: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield one row of each query. A query is a tool's name, columns, the rest, and perhaps a value."""
    import sqlalchemy as sa

    for start in range(0, len(queries), MAX_QUERIES):
        chunk = queries[start : start + MAX_QUERIES]
        statements: list[str] = []
        values: dict[str, Any] = {}
        for number, (tool_name, columns, source, *value) in enumerate(chunk):
            values |= {f"tool{number}": tool_name, **({f"value{number}": value[0]} if value else {})}
            names = {"tool": f"tool_name = :tool{number}", "value": f":value{number}"}
            statements.append(f"SELECT {number} AS number, {columns.format(**names)} {source.format(**names)}")
        rows = {row[0]: tuple(row[1:]) for row in connection.execute(sa.text(" UNION ALL ".join(statements)), values)}
        for number, query in enumerate(chunk):
            yield (query[0], *rows[number])


def count_calls_by_rule(
    database: StoreDatabase, since: datetime, tenant: str | None
) -> dict[str, tuple[int, float | None]]:
    """Count the calls that each rule of a policy has decided about, with the time of the last call."""
    import sqlalchemy as sa

    calls, rule = get_table("tool_calls").c, rule_column()
    query = sa.select(rule, sa.func.count(), sa.func.max(calls.started_at)).where(rule.is_not(None)).group_by(rule)
    query = query.where(calls.started_at >= since.timestamp())
    if tenant is not None:
        query = query.where(tenant_clause(tenant))
    with database.read() as connection:
        return {unescape_text(text): (number, last) for text, number, last in connection.execute(query)}


# Figures over time


def find_oldest_call(database: StoreDatabase) -> float | None:
    """Return when the first call started."""
    import sqlalchemy as sa

    with database.read() as connection:
        oldest: float | None = connection.scalar(sa.select(sa.func.min(get_table("tool_calls").c.started_at)))
        return oldest


def collect_series(
    database: StoreDatabase, conditions: CallFilter, start: datetime, end: datetime, parts: int
) -> list[CallInterval]:
    """Return counts and times of calls in equal parts of a time. A percentile is one of the measured times."""
    import sqlalchemy as sa

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
