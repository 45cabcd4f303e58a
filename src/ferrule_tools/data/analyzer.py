"""`data_analyzer`: describes, queries, summarizes and draws the data files of a workspace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias, TypeVar

from ferrule.core.content import Image, Output, describe_part
from ferrule.core.spec import Tool, ToolCategory
from ferrule.errors import Retry
from ferrule.kinds.function.decorator import tool
from ferrule.kinds.function.tools import tool_of
from ferrule_tools._tool_setup import WorkerMethods, describe_missing_package
from ferrule_tools.data.charts import Aggregate, ChartKind, ChartPoints, draw_chart, load_points
from ferrule_tools.data.files import DataFile, TypeDetection, quote_name
from ferrule_tools.data.limits import Column, DataAnalyzerConfig, rows_output, to_json_cell
from ferrule_tools.data.query import (
    FileDatabase,
    InconsistentFile,
    is_date_type,
    is_number_type,
    is_scalar_type,
    open_database,
    query_columns,
    require_columns,
)
from ferrule_tools.files.path_rules import PROTECTED, SECRET, Parts
from ferrule_tools.files.workspace import Workspace, display_path

_FETCH_OTHERS: Final = "Use LIMIT and OFFSET for other rows, or WHERE and GROUP BY for fewer."
_ALL_TEXT_NOTE: Final = "the lines differ in format, so all columns are text, and extra values of a line are dropped"

_CHART_TABLE: Final = "chart data"
"""The view of the query that is drawn."""

T = TypeVar("T")
File: TypeAlias = str | dict[str, Any]
"""A path, or an object with the fields of a `DataFile`."""


def data_analyzer_tools(
    config: DataAnalyzerConfig | None = None,
    *,
    root: str | Path | Workspace = ".",
    protected: Sequence[str] = PROTECTED,
    secret: Sequence[str] = SECRET,
) -> list[Tool]:
    """Return `data_analyzer` for the workspace `root`; `protected` and `secret` as in `workspace_tools`."""
    config = config or DataAnalyzerConfig()
    analyzer = DataAnalyzer(root if isinstance(root, Workspace) else Workspace.at(root, protected, secret), config)
    # The tool stops the query itself, with advice, before the engine's timeout kills the process.
    built = tool_of(analyzer, timeout=config.timeout + 5.0)
    return [replace(built, target=WorkerMethods(analyzer), needs=describe_missing_package("duckdb", "data"))]


@tool(
    name="data_analyzer",
    category=ToolCategory.DATA_PROCESSING,
    tags=["data", "csv", "excel", "parquet", "json", "sql", "statistics", "chart", "数据", "表格", "统计", "图表"],
    # DuckDB blocks the process it runs in, and only a separate process can be killed and limited.
    isolation="process",
    max_output=400_000,
)
class DataAnalyzer:
    """Describe, query in SQL, summarize and draw data files of the workspace (CSV, TSV, Parquet, JSON, JSONL, Excel).

    分析工作区的数据文件：查看、查询、统计、画图。

    For a file, give its path, or an object such as {"path": "book.xlsx", "sheet": "2024"} or
    {"path": "old.csv", "encoding": "gb18030", "delimiter": ";", "header": false}.
    """

    def __init__(self, workspace: Workspace, config: DataAnalyzerConfig) -> None:
        self._workspace, self._config = workspace, config

    @tool(
        read_only=True,
        idempotent=True,
        examples=[{"file": "data/sales.csv"}, {"file": {"path": "book.xlsx", "sheet": "2024"}}],
    )
    def describe(self, file: File) -> dict[str, Any]:
        """Describe a data file: its rows and columns, their types, examples. 查看数据文件的列、类型和样例。

        Args:
            file: the path in the workspace, or an object with path and sheet, encoding, delimiter, header
        """
        name, tables = _name_single_table(file)
        return self._run(tables, lambda database: describe_table(database, name))

    @tool(
        read_only=True,
        idempotent=True,
        examples=[
            {"sql": "SELECT region, sum(amount) FROM 'data/sales.csv' GROUP BY region ORDER BY 2 DESC"},
            {
                "sql": "SELECT c.name, count(*) FROM orders o JOIN c ON c.id = o.customer GROUP BY ALL",
                "tables": {"orders": "orders.parquet", "c": {"path": "book.xlsx", "sheet": "customers"}},
            },
        ],
    )
    def query(
        self,
        sql: str,
        tables: dict[str, File] | None = None,
        files: list[str] | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """Query data files in SQL: one SELECT in the dialect of DuckDB. 用 SQL 查询数据文件。

        Args:
            sql: one SELECT; a file in quotes can be used as a table: FROM 'data/sales.csv'
            tables: names for tables, and the file path of each, or an object with path and sheet, encoding …
            files: file paths that become tables with their names: data/sales-2024.csv is sales_2024
            limit: how many rows to return at most
        """
        max_rows = min(max(limit, 1), self._config.max_rows)

        def run_query(database: FileDatabase) -> dict[str, Any]:
            return rows_output(*database.query(sql), max_rows, advice=_FETCH_OTHERS)

        return self._run(_collect_tables(tables, files), run_query, sql=sql)

    @tool(
        read_only=True,
        idempotent=True,
        examples=[{"file": "sales.csv"}, {"file": "sales.csv", "columns": ["amount"], "group_by": ["region"]}],
    )
    def summarise(
        self,
        file: File,
        columns: list[str] | None = None,
        group_by: list[str] | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Compute statistics of columns: mean, median, quantiles, frequent values; or by group. 统计各列。

        Args:
            file: the path in the workspace, or an object with path and sheet, encoding, delimiter, header
            columns: only these
            group_by: columns; then count, sum, average, minimum and maximum are returned for each group
            limit: how many groups to return at most
        """
        name, tables = _name_single_table(file)
        max_groups = min(max(limit, 1), self._config.max_rows)

        def summarize(database: FileDatabase) -> dict[str, Any]:
            if group_by:
                return summarize_groups(database, name, columns, group_by, max_groups)
            return summarize_columns(database, name, columns)

        return self._run(tables, summarize)

    @tool(
        examples=[
            {"kind": "bar", "file": "sales.csv", "x": "region", "y": "amount", "aggregate": "sum"},
            {
                "kind": "line",
                "sql": "SELECT date_trunc('month', day) AS month, sum(amount) AS amount FROM 'sales.csv' GROUP BY 1",
                "x": "month",
                "y": "amount",
                "save_as": "charts/sales.svg",
            },
        ]
    )
    def chart(
        self,
        kind: ChartKind,
        x: str,
        y: str | list[str] | None = None,
        file: File | None = None,
        sql: str | None = None,
        tables: dict[str, File] | None = None,
        aggregate: Aggregate | None = None,
        title: str = "",
        save_as: str | None = None,
    ) -> Output:
        """Draw a chart of a data file or of a query. 用数据画图（柱状图、折线图、散点图、直方图、饼图）。

        Args:
            kind: bar, line, scatter, histogram (of the numbers in x) or pie
            x: the column of the horizontal axis, or with the names of bars and slices
            y: the column or columns with numbers; left out in a bar or pie chart, rows are counted
            file: the file path, or an object with path and sheet, encoding …; or give sql
            sql: one SELECT whose result is drawn, with files in quotes: FROM 'data/sales.csv'
            tables: names for tables in the sql, and the file path of each
            aggregate: how rows with the same x are combined
            title: of the chart
            save_as: a path of a new file that ends in .png or .svg, to save it
        """
        if (file is None) == (sql is None):
            raise Retry("give either file or sql to draw.")
        target = None
        if save_as is not None:  # errors are raised before anything is drawn
            target = self._workspace.file_parts(save_as)
            if _file_suffix(target) not in ("png", "svg"):
                raise Retry(f"{display_path(target)!r} must end in .png or .svg.")
            self._workspace.require_changeable(target)
        name, data_files = (
            _name_single_table(file) if file is not None else (_CHART_TABLE, _collect_tables(tables, None))
        )

        def query_points(database: FileDatabase) -> ChartPoints:
            if sql is not None:
                database.create_view(sql, _CHART_TABLE)
            return load_points(database, quote_name(name), kind, x, [y] if isinstance(y, str) else y or [], aggregate)

        points = self._run(data_files, query_points, sql=sql)
        formats = dict.fromkeys(["png", *([_file_suffix(target)] if target else [])])
        pictures, notes = draw_chart(points, title, list(formats))
        output: dict[str, Any] = {"kind": kind, "points": len(points.x) - (kind == "histogram")}
        if target is not None:
            with self._workspace.create_file(target) as saved:
                saved.write(pictures[_file_suffix(target)])
            output |= {"path": display_path(target), "size": len(pictures[_file_suffix(target)])}
        if notes:
            output["notes"] = notes
        image = Image(data=pictures["png"])
        return Output(data={**output, "content": [describe_part(image)]}, parts=(image,))

    # Steps

    def _run(
        self,
        files: Mapping[str, DataFile],
        run: Callable[[FileDatabase], T],
        *,
        sql: str | None = None,
        detection: TypeDetection = TypeDetection.SAMPLE,
    ) -> T:
        """Run something in a database with these files. If a file is not as its beginning suggested, run it again with
        a more thorough detection of types.
        """
        try:
            with open_database(self._workspace, self._config, detection) as database:
                paths = database.check(sql) if sql is not None else []
                names = {name.casefold() for name in files}
                unnamed = {path: DataFile(path=path) for path in paths if path.casefold() not in names}
                database.restrict_to_files({**unnamed, **files})
                result = run(database)
        except InconsistentFile:
            if detection is TypeDetection.ALL_TEXT:
                raise
            return self._run(files, run, sql=sql, detection=TypeDetection(detection + 1))
        except Retry as error:
            raise (Retry(f"{error} ({_ALL_TEXT_NOTE})") if detection is TypeDetection.ALL_TEXT else error) from None
        if detection is TypeDetection.ALL_TEXT and isinstance(result, dict):
            result["note"] = _ALL_TEXT_NOTE
        return result


def _file_suffix(parts: Parts) -> str:
    return PurePosixPath(parts[-1]).suffix.lower().removeprefix(".")


def _name_single_table(file: File) -> tuple[str, dict[str, DataFile]]:
    data_file = DataFile.of(file)
    name = _table_name(data_file.path)
    return name, {name: data_file}


def _collect_tables(tables: Mapping[str, File] | None, files: Sequence[str] | None) -> dict[str, DataFile]:
    data_files = {name: DataFile.of(file) for name, file in (tables or {}).items()}
    for path in files or ():
        name = _table_name(path)
        if name.casefold() in {each.casefold() for each in data_files}:
            raise Retry(f"two tables would be called {name!r}: give them other names in `tables`.")
        data_files[name] = DataFile(path=path)
    if not all(data_files):
        raise Retry("a table needs a name.")
    return data_files


def _table_name(path: str) -> str:
    """Return a name for SQL that needs no quotes: `data/sales-2024.csv` is `sales_2024`."""
    name = re.sub(r"\W+", "_", PurePosixPath(path).stem).strip("_")
    return f"t_{name}" if not name or name[0].isdigit() else name


# Describing a table: its columns with examples, and their statistics, for all rows or by group

MAX_COLUMNS: Final = 200
_SAMPLE_ROWS: Final = 200
"""The number of rows that are searched for examples."""
_EXAMPLE_COUNT: Final = 3
_MAX_EXAMPLE: Final = 100
_DESCRIBED: Final = ("distinct_about", "min", "max")


def describe_table(database: FileDatabase, name: str) -> dict[str, Any]:
    source = quote_name(name)
    columns = query_columns(database, source)
    described = columns[:MAX_COLUMNS]
    measures: list[dict[str, str]] = []
    for column in described:
        sql = _summary_measures(column, is_exact=False)
        measures.append({"nulls": sql["count"], **{name: sql[name] for name in _DESCRIBED if name in sql}})
    rows, counts = _measure_columns(database, source, measures)
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
_ASK_FOR_LESS: Final = "Name fewer columns, or ask with query."


def summarize_columns(database: FileDatabase, name: str, column_names: list[str] | None) -> dict[str, Any]:
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
        output["left_out"] = f"{len(columns) - len(summarized):,} more columns. {_ASK_FOR_LESS}"
    return output


def summarize_groups(
    database: FileDatabase, name: str, column_names: list[str] | None, groups: list[str], max_groups: int
) -> dict[str, Any]:
    """Return the number of rows of each group, and statistics of its number columns."""
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
        **rows_output(*rows, max_groups, advice=_ASK_FOR_LESS),
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
    """Count the most frequent values exactly. The first pass has found them approximately."""
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
