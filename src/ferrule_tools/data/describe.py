"""Describes a table: its columns with examples, and their statistics, for all rows or by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry
from ferrule_tools.data.files import quote_name
from ferrule_tools.data.limits import Column, rows_output, to_json_cell
from ferrule_tools.data.query import FileDatabase

_NUMBER_TYPES: Final = lazy_pattern(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|BIGNUM|DECIMAL\(\d+,\s*\d+\)")
_DATE_TYPES: Final = lazy_pattern(r"DATE|TIME\b.*|TIMESTAMP.*")
_MAX_LISTED: Final = 30


def is_number_type(kind: str) -> bool:
    return bool(_NUMBER_TYPES.fullmatch(kind))


def is_date_type(kind: str) -> bool:
    return bool(_DATE_TYPES.fullmatch(kind)) and not kind.endswith("]")


def is_scalar_type(kind: str) -> bool:
    """Whether values of this type can be counted and compared: no lists, structures or JSON."""
    return (
        is_number_type(kind) or is_date_type(kind) or kind in ("VARCHAR", "BOOLEAN", "UUID") or kind.startswith("ENUM")
    )


def require_columns(names: Sequence[str], columns: Sequence[Column], where: str) -> list[Column]:
    """The columns of these names, ignoring case; Retry if one does not exist."""
    by_name = {column.name.casefold(): column for column in columns}
    for name in names:
        if name.casefold() not in by_name:
            existing = [column.name for column in columns]
            listed = ", ".join(map(repr, existing[:_MAX_LISTED])) + (" …" if len(existing) > _MAX_LISTED else "")
            raise Retry(f"{where} has no column {name!r}.{did_you_mean(name, existing)} Its columns are: {listed}.")
    return [by_name[name.casefold()] for name in names]


MAX_COLUMNS: Final = 200
_SAMPLE_ROWS: Final = 200
"""The number of rows that are searched for examples."""
_EXAMPLE_COUNT: Final = 3
_MAX_EXAMPLE: Final = 100


def query_columns(database: FileDatabase, source: str) -> list[Column]:
    """The columns of anything that can follow FROM."""
    return [Column(name=row[0], type=row[1]) for row in database.rows(f"DESCRIBE SELECT * FROM {source}")]


def describe_table(database: FileDatabase, name: str) -> dict[str, Any]:
    """Rows and columns of a table."""
    source = quote_name(name)
    columns = query_columns(database, source)
    described = columns[:MAX_COLUMNS]
    rows, counts = _measure_columns(database, source, [_measures_sql(column) for column in described])
    examples = _find_examples(database, source, described)
    output: dict[str, Any] = {
        "path": database.tables[name].path,
        "table": name,
        "rows": rows,
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                **_statistics_output(count | {"nulls": rows - count["nulls"]}),
                "examples": values,
            }
            for column, count, values in zip(described, counts, examples, strict=True)
        ],
        **database.tables[name].details,
    }
    if len(columns) > len(described):
        output["left_out"] = f"{len(columns) - len(described):,} more columns: name those you want in a query"
    return output


def _measure_columns(
    database: FileDatabase, source: str, measures: list[dict[str, str]]
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of rows, and the value of each measure of each column; `measures` has their SQL."""
    expressions = ", ".join(["count(*)", *(sql for each in measures for sql in each.values())])
    ((rows, *values),) = database.rows(f"SELECT {expressions} FROM {source}")
    remaining = iter(values)
    return rows, [{measure: next(remaining) for measure in each} for each in measures]


def _measures_sql(column: Column) -> dict[str, str]:
    measures = _summary_measures(column, is_exact=False)
    counts = {"nulls": measures["count"]}
    return counts | {name: measures[name] for name in ("distinct_about", "min", "max") if name in measures}


def _find_examples(database: FileDatabase, source: str, columns: list[Column]) -> list[list[Any]]:
    names = ", ".join(quote_name(column.name) for column in columns)
    rows = database.rows(f"SELECT {names} FROM {source} LIMIT {_SAMPLE_ROWS}")
    examples: list[list[Any]] = []
    for index in range(len(columns)):
        distinct: list[Any] = []
        for row in rows:
            value = to_json_cell(row[index])
            value = value[:_MAX_EXAMPLE] if isinstance(value, str) else value
            if value is not None and value not in distinct:
                distinct.append(value)
            if len(distinct) == _EXAMPLE_COUNT:
                break
        examples.append(distinct)
    return examples


_MAX_SUMMARY_COLUMNS: Final = 100
_MAX_EXACT_BYTES: Final = 50_000_000
"""Quantiles are exact for files of up to this many bytes: all values must fit into memory."""
_FREQUENT_COUNT: Final = 5
_MAX_VALUE: Final = 200
_GROUP_FUNCTIONS: Final = ("sum", "avg", "min", "max")
_FETCH_OTHERS: Final = "Name fewer columns, or ask with query."


def summarize_columns(database: FileDatabase, name: str, column_names: list[str] | None) -> dict[str, Any]:
    """Statistics of each column."""
    source, table = quote_name(name), database.tables[name]
    columns = query_columns(database, source)
    if column_names is not None:
        columns = require_columns(column_names, columns, f"{table.path!r}")
    summarized = columns[:_MAX_SUMMARY_COLUMNS]
    is_exact = table.size <= _MAX_EXACT_BYTES
    measures = [_summary_measures(column, is_exact) for column in summarized]
    rows, statistics = _measure_columns(database, source, measures)
    frequent = _frequent_values(database, source, summarized, statistics)
    output: dict[str, Any] = {
        "path": table.path,
        "rows": rows,
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                **_statistics_output(each),
                **({"frequent": values} if values else {}),
            }
            for column, each, values in zip(summarized, statistics, frequent, strict=True)
        ],
        **table.details,
    }
    if not is_exact:
        output["quantiles"] = "approximate"
    if len(columns) > len(summarized):
        output["left_out"] = f"{len(columns) - len(summarized):,} more columns. {_FETCH_OTHERS}"
    return output


def summarize_groups(
    database: FileDatabase, name: str, column_names: list[str] | None, groups: list[str], max_groups: int
) -> dict[str, Any]:
    """The number of rows of each group, and statistics of its number columns."""
    source, table = quote_name(name), database.tables[name]
    columns = query_columns(database, source)
    keys = require_columns(groups, columns, f"{table.path!r}")
    measured = columns if column_names is None else require_columns(column_names, columns, f"{table.path!r}")
    numbers = [column for column in measured if is_number_type(column.type) and column not in keys][
        :_MAX_SUMMARY_COLUMNS
    ]
    key_names = ", ".join(quote_name(key.name) for key in keys)
    count_name = "rows"
    while count_name in {column.name.casefold() for column in columns}:
        count_name += "_"
    statistics = "".join(
        f", {function}({quote_name(column.name)}) AS {quote_name(f'{function} of {column.name}')}"
        for column in numbers
        for function in _GROUP_FUNCTIONS
    )
    rows = database.query(
        f"SELECT {key_names}, count(*) AS {quote_name(count_name)}{statistics} FROM {source} "
        f"GROUP BY {key_names} ORDER BY count(*) DESC, {key_names} LIMIT {max_groups + 1}"
    )
    return {
        "path": table.path,
        "group_by": [key.name for key in keys],
        **rows_output(*rows, max_groups, advice=_FETCH_OTHERS),
    }


def _summary_measures(column: Column, is_exact: bool) -> dict[str, str]:
    name = quote_name(column.name)
    measures = {"count": f"count({name})"}
    if is_scalar_type(column.type):
        measures["distinct_about"] = f"approx_count_distinct({name})"
    if is_number_type(column.type):
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
    elif is_date_type(column.type):
        measures |= {"min": f"min({name})", "max": f"max({name})"}
    elif is_scalar_type(column.type):
        measures["frequent"] = f"approx_top_k(left(CAST({name} AS VARCHAR), {_MAX_VALUE}), {_FREQUENT_COUNT})"
    return measures


def _frequent_values(
    database: FileDatabase, source: str, columns: list[Column], statistics: list[dict[str, Any]]
) -> list[list[dict[str, Any]]]:
    """The most frequent values with their counts. The first pass finds them approximately; this one counts exactly."""
    values = [
        (index, value, f"count(*) FILTER (left(CAST({quote_name(column.name)} AS VARCHAR), {_MAX_VALUE}) = ?)")
        for index, column in enumerate(columns)
        for value in statistics[index].get("frequent") or ()
    ]
    frequent: list[list[dict[str, Any]]] = [[] for _ in columns]
    if values:
        expressions = ", ".join(sql for _, _, sql in values)
        (counts,) = database.rows(f"SELECT {expressions} FROM {source}", *(value for _, value, _ in values))
        for (index, value, _), count in zip(values, counts, strict=True):
            frequent[index].append({"value": to_json_cell(value), "count": count})
    return [sorted(each, key=lambda entry: -entry["count"]) for each in frequent]


def _statistics_output(statistics: dict[str, Any]) -> dict[str, Any]:
    return {measure: to_json_cell(value) for measure, value in statistics.items() if measure != "frequent"}
