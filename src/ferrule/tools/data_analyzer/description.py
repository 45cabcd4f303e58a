"""What is in a table: its columns, and what stands in them."""

from __future__ import annotations

from typing import Any, Final

from ferrule.tools.data_analyzer.columns import is_moment, is_number, is_plain
from ferrule.tools.data_analyzer.database import Database
from ferrule.tools.data_analyzer.rows import Column, as_cell
from ferrule.tools.data_analyzer.sql_text import quoted_name

MOST_COLUMNS: Final = 200
_LOOKED_AT: Final = 200
"""Rows among which examples are found."""
_EXAMPLES: Final = 3
_LONGEST_EXAMPLE: Final = 100


def columns_of(database: Database, source: str) -> list[Column]:
    """The columns of what can stand in FROM."""
    return [Column(name=row[0], type=row[1]) for row in database.rows(f"DESCRIBE SELECT * FROM {source}")]


def described(database: Database, name: str) -> dict[str, Any]:
    """Rows and columns of a table."""
    source = quoted_name(name)
    columns = columns_of(database, source)
    told = columns[:MOST_COLUMNS]
    rows, counts = _counted(database, source, told)
    examples = _examples(database, source, told)
    said: dict[str, Any] = {
        "path": database.tables[name].path,
        "table": name,
        "rows": rows,
        "columns": [
            {"name": column.name, "type": column.type, **counts[index], "examples": examples[index]}
            for index, column in enumerate(told)
        ],
        **database.tables[name].facts,
    }
    if len(columns) > len(told):
        said["left_out"] = f"{len(columns) - len(told):,} more columns: name those you want in a query"
    return said


def _counted(database: Database, source: str, columns: list[Column]) -> tuple[int, list[dict[str, Any]]]:
    wanted = [_measures(column) for column in columns]
    expressions = ", ".join(["count(*)", *(sql for measures in wanted for sql in measures.values())])
    ((rows, *values),) = database.rows(f"SELECT {expressions} FROM {source}")
    found, at = [], iter(values)
    for measures in wanted:
        facts = {measure: as_cell(next(at)) for measure in measures}
        facts["nulls"] = rows - facts["nulls"]
        found.append(facts)
    return rows, found


def _measures(column: Column) -> dict[str, str]:
    name = quoted_name(column.name)
    measures = {"nulls": f"count({name})"}
    if is_plain(column.type):
        measures["distinct_about"] = f"approx_count_distinct({name})"
    if is_number(column.type) or is_moment(column.type):
        measures |= {"min": f"min({name})", "max": f"max({name})"}
    return measures


def _examples(database: Database, source: str, columns: list[Column]) -> list[list[Any]]:
    names = ", ".join(quoted_name(column.name) for column in columns)
    rows = database.rows(f"SELECT {names} FROM {source} LIMIT {_LOOKED_AT}")
    found: list[list[Any]] = []
    for index in range(len(columns)):
        seen: list[Any] = []
        for row in rows:
            value = as_cell(row[index])
            value = value[:_LONGEST_EXAMPLE] if isinstance(value, str) else value
            if value is not None and value not in seen:
                seen.append(value)
            if len(seen) == _EXAMPLES:
                break
        found.append(seen)
    return found
