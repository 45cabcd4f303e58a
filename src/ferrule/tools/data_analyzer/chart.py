"""The points of a chart, asked of a table in such a way that there are never too many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ferrule.errors import Retry
from ferrule.tools.data_analyzer.columns import is_moment, is_number, require_columns
from ferrule.tools.data_analyzer.database import Database
from ferrule.tools.data_analyzer.description import columns_of
from ferrule.tools.data_analyzer.rows import Column
from ferrule.tools.data_analyzer.sql_text import quoted_name

ChartKind: TypeAlias = Literal["bar", "line", "scatter", "histogram", "pie"]
Aggregate: TypeAlias = Literal["sum", "avg", "min", "max", "median", "count"]

_MOST_POINTS: Final = {"bar": 100, "line": 5_000, "scatter": 5_000, "pie": 1_000}
_MOST_SERIES: Final = 10
_MOST_SLICES: Final = 10
_BINS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    values: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """What is drawn."""

    kind: ChartKind
    x_name: str
    x: list[Any]
    """Of a histogram: the borders of its bars, one more than there are bars."""
    series: list[Series]
    notes: list[str] = field(default_factory=list)


def points_of(
    database: Database, source: str, kind: ChartKind, x: str, y: Sequence[str], aggregate: Aggregate | None
) -> Points:
    """The points of a chart; `source` is what can stand in FROM."""
    columns = columns_of(database, source)
    (across,) = require_columns([x], columns, "the data")
    measured = require_columns(y, columns, "the data")
    if kind == "histogram":
        return _histogram(database, source, across)
    if len(measured) > _MOST_SERIES:
        raise Retry(f"{len(measured)} columns are too many for one chart: give up to {_MOST_SERIES} in y.")
    if not measured and kind in ("bar", "pie"):
        aggregate = aggregate or "count"
    if aggregate != "count":
        _require_numbers(measured, kind)
    if kind == "pie" and len(measured) > 1:
        raise Retry("a pie shows one column: give one in y.")
    return _series(database, source, kind, across, measured, aggregate)


def _series(
    database: Database,
    source: str,
    kind: ChartKind,
    across: Column,
    measured: Sequence[Column],
    aggregate: Aggregate | None,
) -> Points:
    place, most, notes = quoted_name(across.name), _MOST_POINTS[kind], []
    if aggregate is None:
        values = [(column.name, f"CAST({quoted_name(column.name)} AS DOUBLE)") for column in measured]
        grouping = ""
    else:
        names = [column.name for column in measured] or ["*"]
        values = [(_aggregate_name(aggregate, name), _aggregated(aggregate, name)) for name in names]
        grouping = "GROUP BY 1"
    order = _order(kind, across, aggregate)
    sample = ""
    if kind == "scatter" and aggregate is None:
        ((rows,),) = database.rows(f"SELECT count(*) FROM {source}")
        if rows > most:
            sample = f"USING SAMPLE reservoir({most} ROWS) REPEATABLE (1)"
            notes.append(f"{most:,} of {rows:,} points are drawn, chosen by chance")
    where = _number(across) if is_number(across.type) else place
    selected = ", ".join([where, *(sql for _, sql in values)])
    found = database.rows(f"SELECT {selected} FROM {source} {grouping} {order} {sample} LIMIT {most + 1}")
    if len(found) > most:
        raise Retry(
            f"there are more than {most:,} points in this {kind} chart: put them together with aggregate, or ask for "
            "fewer in sql (GROUP BY, LIMIT, date_trunc)."
        )
    if not found:
        raise Retry("there are no rows to draw.")
    series = [
        Series(name=name, values=[_or_nan(row[index + 1]) for row in found]) for index, (name, _) in enumerate(values)
    ]
    points = Points(kind=kind, x_name=across.name, x=[row[0] for row in found], series=series, notes=notes)
    return _few_slices(points) if kind == "pie" else points


def _histogram(database: Database, source: str, across: Column) -> Points:
    _require_numbers([across], "histogram")
    value = _number(across)
    finite = f"FROM {source} WHERE isfinite({value})"
    ((low, high, count),) = database.rows(f"SELECT min({value}), max({value}), count(*) {finite}")
    if not count:
        raise Retry(f"there are no numbers in {across.name!r} to draw.")
    span = (high - low) or float(_BINS)
    if not math.isfinite(span):
        raise Retry(f"the numbers in {across.name!r} are too far apart to be drawn: choose some in sql.")
    rows = database.rows(
        f"SELECT CAST(least(floor(({value} - ?) / ? * {_BINS}), {_BINS - 1}) AS INTEGER), count(*) {finite} GROUP BY 1",
        low,
        span,
    )
    counts = dict(rows)
    series = Series(name="count", values=[float(counts.get(index, 0)) for index in range(_BINS)])
    borders = [low + span * index / _BINS for index in range(_BINS + 1)]
    return Points(kind="histogram", x_name=across.name, x=borders, series=[series])


def _require_numbers(columns: Sequence[Column], kind: str) -> None:
    if not columns:
        raise Retry(f"a {kind} chart needs y: name the columns with its numbers.")
    for column in columns:
        if not is_number(column.type):
            raise Retry(f"{column.name!r} holds no numbers but {column.type}: name another column, or CAST it in sql.")


def _aggregated(aggregate: Aggregate, name: str) -> str:
    if aggregate == "count":
        return "CAST(count(*) AS DOUBLE)" if name == "*" else f"CAST(count({quoted_name(name)}) AS DOUBLE)"
    return f"CAST({aggregate}({quoted_name(name)}) AS DOUBLE)"


def _aggregate_name(aggregate: Aggregate, name: str) -> str:
    return "count" if name == "*" else f"{aggregate} of {name}"


def _order(kind: ChartKind, across: Column, aggregate: Aggregate | None) -> str:
    """Numbers and moments go on; of other things those with most come first."""
    if kind == "line" or (aggregate is not None and (is_number(across.type) or is_moment(across.type))):
        return "ORDER BY 1"
    return "ORDER BY 2 DESC, 1" if aggregate is not None and kind in ("bar", "pie") else ""


def _number(column: Column) -> str:
    return f"CAST({quoted_name(column.name)} AS DOUBLE)"


def _or_nan(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _few_slices(points: Points) -> Points:
    (series,) = points.series
    slices = [(label, value) for label, value in zip(points.x, series.values, strict=True) if value == value]
    if any(value < 0 for _, value in slices) or not 0 < sum(value for _, value in slices) < math.inf:
        raise Retry("a pie needs numbers above 0, and none without end: draw a bar chart instead.")
    slices.sort(key=lambda one: -one[1])
    notes = list(points.notes)
    if len(slices) > _MOST_SLICES:
        rest = slices[_MOST_SLICES - 1 :]
        slices = [*slices[: _MOST_SLICES - 1], ("other", sum(value for _, value in rest))]
        notes.append(f"{len(rest)} small slices are one, called 'other'")
    kept = Series(name=series.name, values=[value for _, value in slices])
    return Points(kind="pie", x_name=points.x_name, x=[label for label, _ in slices], series=[kept], notes=notes)
