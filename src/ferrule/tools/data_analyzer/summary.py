"""Statistics of the columns of a table, as a whole or by groups."""

from __future__ import annotations

from typing import Any, Final

from ferrule.tools.data_analyzer.columns import is_moment, is_number, is_plain, require_columns
from ferrule.tools.data_analyzer.database import Database
from ferrule.tools.data_analyzer.description import columns_of
from ferrule.tools.data_analyzer.rows import Column, as_cell, told_rows
from ferrule.tools.data_analyzer.sql_text import quoted_name

_MOST_COLUMNS: Final = 100
_EXACT_UP_TO: Final = 50_000_000
"""Bytes of a file whose quantiles are exact: those of more must be held in memory."""
_FREQUENT: Final = 5
_LONGEST_VALUE: Final = 200
_IN_GROUPS: Final = ("sum", "avg", "min", "max")
_FEWER: Final = "Name fewer columns, or ask with query."


def summarised(database: Database, name: str, wanted: list[str] | None) -> dict[str, Any]:
    """Statistics of each column."""
    source, table = quoted_name(name), database.tables[name]
    columns = columns_of(database, source)
    if wanted is not None:
        columns = require_columns(wanted, columns, f"{table.path!r}")
    told = columns[:_MOST_COLUMNS]
    is_exact = table.size <= _EXACT_UP_TO
    measures = [_measures(column, is_exact) for column in told]
    expressions = ", ".join(["count(*)", *(sql for each in measures for sql in each.values())])
    ((rows, *values),) = database.rows(f"SELECT {expressions} FROM {source}")
    at = iter(values)
    facts = [{measure: next(at) for measure in each} for each in measures]
    frequent = _frequent_values(database, source, told, facts)
    said: dict[str, Any] = {
        "path": table.path,
        "rows": rows,
        "columns": [
            {"name": column.name, "type": column.type, **_told(one, often)}
            for column, one, often in zip(told, facts, frequent, strict=True)
        ],
        **table.facts,
    }
    if not is_exact:
        said["quantiles"] = "approximate"
    if len(columns) > len(told):
        said["left_out"] = f"{len(columns) - len(told):,} more columns. {_FEWER}"
    return said


def summarised_by(
    database: Database, name: str, wanted: list[str] | None, groups: list[str], most: int
) -> dict[str, Any]:
    """How many rows each group has, and statistics of the columns with numbers."""
    source, table = quoted_name(name), database.tables[name]
    columns = columns_of(database, source)
    keys = require_columns(groups, columns, f"{table.path!r}")
    measured = columns if wanted is None else require_columns(wanted, columns, f"{table.path!r}")
    numbers = [column for column in measured if is_number(column.type) and column not in keys][:_MOST_COLUMNS]
    chosen = ", ".join(quoted_name(key.name) for key in keys)
    counted = _fresh_name("rows", columns)
    statistics = "".join(
        f", {function}({quoted_name(column.name)}) AS {quoted_name(f'{function} of {column.name}')}"
        for column in numbers
        for function in _IN_GROUPS
    )
    found = database.ask(
        f"SELECT {chosen}, count(*) AS {quoted_name(counted)}{statistics} FROM {source} "
        f"GROUP BY {chosen} ORDER BY count(*) DESC, {chosen} LIMIT {most + 1}"
    )
    return {"path": table.path, "group_by": [key.name for key in keys], **told_rows(*found, most, less=_FEWER)}


def _measures(column: Column, is_exact: bool) -> dict[str, str]:
    name = quoted_name(column.name)
    measures = {"count": f"count({name})"}
    if is_plain(column.type):
        measures["distinct_about"] = f"approx_count_distinct({name})"
    if is_number(column.type):
        quantile = "quantile_cont" if is_exact else "approx_quantile"
        number = f"CAST({name} AS DOUBLE)"
        measures |= {
            "mean": f"avg({number})",
            "std": f"CASE WHEN count({name}) > 1 THEN stddev_samp({number}) END",
            "min": f"min({name})",
            "q25": f"{quantile}({number}, 0.25)",
            "median": f"{quantile}({number}, 0.5)",
            "q75": f"{quantile}({number}, 0.75)",
            "max": f"max({name})",
            "sum": f"sum({name})",
        }
    elif is_moment(column.type):
        measures |= {"min": f"min({name})", "max": f"max({name})"}
    elif is_plain(column.type):
        measures["frequent"] = f"approx_top_k(left(CAST({name} AS VARCHAR), {_LONGEST_VALUE}), {_FREQUENT})"
    return measures


def _frequent_values(
    database: Database, source: str, columns: list[Column], facts: list[dict[str, Any]]
) -> list[list[dict[str, Any]]]:
    """How often the values occur that occur most; they are found on the way and counted in a second look."""
    wanted = [
        (index, value, f"count(*) FILTER (left(CAST({quoted_name(column.name)} AS VARCHAR), {_LONGEST_VALUE}) = ?)")
        for index, column in enumerate(columns)
        for value in facts[index].get("frequent") or ()
    ]
    found: list[list[dict[str, Any]]] = [[] for _ in columns]
    if wanted:
        expressions = ", ".join(sql for _, _, sql in wanted)
        (counts,) = database.rows(f"SELECT {expressions} FROM {source}", *(value for _, value, _ in wanted))
        for (index, value, _), count in zip(wanted, counts, strict=True):
            found[index].append({"value": as_cell(value), "count": count})
    return [sorted(each, key=lambda one: -one["count"]) for each in found]


def _told(facts: dict[str, Any], often: list[dict[str, Any]]) -> dict[str, Any]:
    told = {measure: as_cell(value) for measure, value in facts.items() if measure != "frequent"}
    return {**told, "frequent": often} if often else told


def _fresh_name(name: str, columns: list[Column]) -> str:
    known = {column.name.casefold() for column in columns}
    while name in known:
        name = f"{name}_"
    return name
