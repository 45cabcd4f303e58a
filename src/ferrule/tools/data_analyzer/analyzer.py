"""`data_analyzer`: questions to the tables in the files of a workspace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias, TypeVar

from ferrule.content import Image, Output, describe_part
from ferrule.errors import Retry
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.data_analyzer.chart import Aggregate, ChartKind, Points, points_of
from ferrule.tools.data_analyzer.config import DataAnalyzerConfig
from ferrule.tools.data_analyzer.data_file import Care, DataFile
from ferrule.tools.data_analyzer.database import Database, new_database
from ferrule.tools.data_analyzer.description import described
from ferrule.tools.data_analyzer.drawing import drawn
from ferrule.tools.data_analyzer.failures import UnlikeItsBeginning
from ferrule.tools.data_analyzer.rows import told_rows
from ferrule.tools.data_analyzer.sql_text import quoted_name
from ferrule.tools.data_analyzer.summary import summarised, summarised_by
from ferrule.tools.files.workspace import Parts, Workspace, shown, told
from ferrule.tools.files.writing import new_file

_FEWER: Final = "Ask for others with LIMIT and OFFSET, or for less with WHERE and GROUP BY."
_AS_TEXT: Final = "not all lines are alike, so all columns are text, and lines with too many values are cut"

_DRAWN: Final = "what is drawn"
"""The name of the table that a query becomes."""

T = TypeVar("T")
File: TypeAlias = str | dict[str, Any]
"""A path, or what a `DataFile` says."""


@tool(
    name="data_analyzer",
    category=ToolCategory.DATA_PROCESSING,
    tags=["data", "csv", "excel", "parquet", "json", "sql", "statistics", "chart", "数据", "表格", "统计", "图表"],
    # DuckDB holds the process it runs in: only a process of its own can be ended, and bounded.
    isolation="process",
    max_output=400_000,
)
class DataAnalyzer:
    """Look into tables in files of the workspace (CSV, TSV, Parquet, JSON, JSONL, Excel), ask them in SQL, draw them.

    分析工作区的数据文件：查看、查询、统计、画图。

    Where a file is asked for, give its path, or an object such as {"path": "book.xlsx", "sheet": "2024"} or
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
        """Tell what is in a data file: its rows and columns, their types, examples. 查看数据文件的列、类型和样例。

        Args:
            file: the file path, from the workspace down, or an object with path and sheet, encoding, delimiter, header
        """
        name, tables = _one_table(file)
        return self._answer(tables, lambda database: described(database, name))

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
        """Ask data files in SQL: one SELECT in the dialect of DuckDB. 用 SQL 查询数据文件。

        Args:
            sql: one SELECT; a file can stand in the place of a table, in quotes: FROM 'data/sales.csv'
            tables: names for tables, and the file path of each, or an object with path and sheet, encoding …
            files: file paths that become tables named like them: data/sales-2024.csv is sales_2024
            limit: how many rows to give at most
        """
        wanted = _all_tables(tables, files)
        most = min(max(limit, 1), self._config.max_rows)

        def asked(database: Database) -> dict[str, Any]:
            return told_rows(*database.ask(sql), most, less=_FEWER)

        return self._answer(wanted, asked, sql=sql)

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
            file: the file path, from the workspace down, or an object with path and sheet, encoding, delimiter, header
            columns: only these
            group_by: columns; then count, sum, average, least and greatest are given for each group
            limit: how many groups to give at most
        """
        name, tables = _one_table(file)
        most = min(max(limit, 1), self._config.max_rows)

        def asked(database: Database) -> dict[str, Any]:
            if group_by:
                return summarised_by(database, name, columns, group_by, most)
            return summarised(database, name, columns)

        return self._answer(tables, asked)

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
            x: the column that goes across, or has the names of bars and slices
            y: the column or columns with numbers; left out in a bar chart or a pie, rows are counted
            file: the file path, or an object with path and sheet, encoding …; or give sql
            sql: one SELECT whose result is drawn, with files in quotes: FROM 'data/sales.csv'
            tables: names for tables in the sql, and the file path of each
            aggregate: how rows with the same x are put together
            title: above the chart
            save_as: a path of a new file that ends in .png or .svg, to keep it
        """
        if (file is None) == (sql is None):
            raise Retry("say what to draw: give either file or sql.")
        target = None if save_as is None else self._target(save_as)
        name, wanted = _one_table(file) if file is not None else (_DRAWN, _all_tables(tables, None))

        def asked(database: Database) -> Points:
            if sql is not None:
                database.name(sql, _DRAWN)
            return points_of(database, quoted_name(name), kind, x, [y] if isinstance(y, str) else y or [], aggregate)

        points = self._answer(wanted, asked, sql=sql)
        forms = dict.fromkeys(["png", *([_form(target)] if target else [])])
        pictures, notes = drawn(points, title, list(forms))
        said: dict[str, Any] = {"kind": kind, "points": len(points.x) - (kind == "histogram")}
        if target is not None:
            self._write(target, pictures[_form(target)])
            said |= {"path": shown(target), "size": len(pictures[_form(target)])}
        if notes:
            said["notes"] = notes
        image = Image(data=pictures["png"])
        return Output(data={**said, "content": [describe_part(image)]}, parts=(image,))

    # Steps

    def _answer(
        self,
        files: Mapping[str, DataFile],
        ask: Callable[[Database], T],
        *,
        sql: str | None = None,
        care: Care = Care.BEGINNING,
    ) -> T:
        """What a database with these files says; where they turn out to be other than they looked, with more care."""
        try:
            with new_database(self._workspace, self._config, care) as database:
                named = database.read(sql) if sql is not None else []
                database.open({**{path: DataFile(path=path) for path in _unnamed(named, files)}, **files})
                answer = ask(database)
        except UnlikeItsBeginning:
            if care is Care.NONE:
                raise
            return self._answer(files, ask, sql=sql, care=Care(care + 1))
        except Retry as error:
            raise (Retry(f"{error} ({_AS_TEXT})") if care is Care.NONE else error) from None
        if care is Care.NONE and isinstance(answer, dict):
            answer["note"] = _AS_TEXT
        return answer

    def _target(self, path: str) -> Parts:
        """Where a chart is kept: that it cannot be is told before anything is drawn."""
        parts = self._workspace.file_parts(path)
        if _form(parts) not in ("png", "svg"):
            raise Retry(f"{shown(parts)!r} must end in .png or .svg.")
        self._workspace.require_changeable(parts)
        return parts

    def _write(self, parts: Parts, data: bytes) -> None:
        with self._workspace.folder(parts[:-1], create=True) as folder:
            try:
                if self._workspace.exists(folder, parts):
                    raise FileExistsError
                with told(parts), new_file(folder, parts[-1]) as file:
                    file.write(data)
            except FileExistsError:
                raise Retry(f"{shown(parts)!r} exists already. Choose another name.") from None


def _form(parts: Parts) -> str:
    return PurePosixPath(parts[-1]).suffix.lower().removeprefix(".")


def _one_table(file: File) -> tuple[str, dict[str, DataFile]]:
    wanted = _data_file(file)
    name = _table_name(wanted.path)
    return name, {name: wanted}


def _all_tables(tables: Mapping[str, File] | None, files: Sequence[str] | None) -> dict[str, DataFile]:
    wanted = {name: _data_file(file) for name, file in (tables or {}).items()}
    for path in files or ():
        name = _table_name(path)
        if name.casefold() in {each.casefold() for each in wanted}:
            raise Retry(f"two tables would be called {name!r}: give them other names in `tables`.")
        wanted[name] = DataFile(path=path)
    if not all(wanted):
        raise Retry("a table needs a name that is not empty.")
    return wanted


def _data_file(file: File) -> DataFile:
    return DataFile(path=file) if isinstance(file, str) else DataFile.of(file)


def _table_name(path: str) -> str:
    """A name for SQL that needs no quotes: `data/sales-2024.csv` is `sales_2024`."""
    name = re.sub(r"\W+", "_", PurePosixPath(path).stem).strip("_")
    return f"t_{name}" if not name or name[0].isdigit() else name


def _unnamed(named: Sequence[str], files: Mapping[str, DataFile]) -> list[str]:
    """Files that stand in the SQL by their paths, and are not tables already."""
    known = {name.casefold() for name in files}
    return [path for path in named if path.casefold() not in known]
