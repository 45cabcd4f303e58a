"""A DuckDB of one call: it holds the tables of some files, and can reach nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from ferrule.errors import CallError, ExecutionFailed, MissingExtra, Retry
from ferrule.tools.data_analyzer.config import DataAnalyzerConfig
from ferrule.tools.data_analyzer.data_file import Care, DataFile, OpenTable, opened_table
from ferrule.tools.data_analyzer.failures import UnlikeItsBeginning, told_failures, too_much
from ferrule.tools.data_analyzer.memory_limit import limited_memory
from ferrule.tools.data_analyzer.rows import Column
from ferrule.tools.data_analyzer.scratch import scratch_folder
from ferrule.tools.data_analyzer.sql_text import quoted_name, quoted_text
from ferrule.tools.data_analyzer.statement import files_in
from ferrule.tools.files.workspace import Workspace

_AT_ONCE: Final = 500
_MOST_TABLES: Final = 50


class Database:
    """Reads queries, then opens files, then answers; in this order, as nothing can be opened afterwards."""

    def __init__(self, connection: Any, workspace: Workspace, scratch: Path, config: DataAnalyzerConfig, care: Care):
        self._connection, self._workspace, self._scratch, self._config = connection, workspace, scratch, config
        self._care = care
        self._open_files = ExitStack()
        self._paths: dict[str, str] = {}
        self.tables: dict[str, OpenTable] = {}

    def read(self, sql: str) -> list[str]:
        """The files a query names, if it may be run."""
        return files_in(self._connection, sql)

    def open(self, files: Mapping[str, DataFile]) -> None:
        """Make tables of files by these names, and close the door behind them."""
        if len(files) > _MOST_TABLES:
            raise Retry(f"{len(files)} files are too many for one call: give up to {_MOST_TABLES}.")
        for name, wanted in files.items():
            table = self._open_files.enter_context(
                opened_table(self._workspace, wanted, self._scratch, self._config.disk_mb << 20)
            )
            self.tables[name] = table
            self._paths[table.address] = table.path
        addresses = ", ".join(quoted_text(address) for address in self._paths)
        self._connection.execute(f"SET allowed_paths = [{addresses}]")
        self._connection.execute("SET enable_external_access = false")
        for name, table in self.tables.items():
            self._make_view(name, table)
        self._connection.execute("SET lock_configuration = true")

    def ask(self, sql: str, *values: Any) -> tuple[list[Column], Iterator[tuple[Any, ...]]]:
        """The columns and rows of a query, which must have been read or be our own."""
        with told_failures(self._paths, self.tables):
            answer = self._connection.execute(sql, list(values))
            columns = [Column(name=each[0], type=str(each[1])) for each in answer.description]
        return columns, self._rows(answer)

    def name(self, sql: str, name: str) -> None:
        """Make a table of a query, which must have been read."""
        with told_failures(self._paths, self.tables):
            self._connection.execute(f"CREATE TEMPORARY VIEW {quoted_name(name)} AS {sql}")

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query of ours, which has few."""
        return list(self.ask(sql, *values)[1])

    def close(self) -> None:
        self._connection.close()
        self._open_files.close()

    def _rows(self, answer: Any) -> Iterator[tuple[Any, ...]]:
        while True:
            with told_failures(self._paths):
                rows = answer.fetchmany(_AT_ONCE)
            if not rows:
                return
            yield from rows

    def _make_view(self, name: str, table: OpenTable) -> None:
        try:
            with told_failures(self._paths):
                self._connection.execute(
                    f"CREATE VIEW {quoted_name(name)} AS SELECT * FROM {table.reading(self._care)}"
                )
        except CallError as error:
            if isinstance(error, UnlikeItsBeginning) and self._care is not Care.NONE:
                raise
            said = str(error).partition("\n\nLINE 1: CREATE VIEW")[0]
            raise ExecutionFailed(f"{table.path!r} cannot be read as the table {name!r}. {said}") from None


@contextmanager
def new_database(workspace: Workspace, config: DataAnalyzerConfig, care: Care) -> Iterator[Database]:
    """A DuckDB with nothing in it, and with bounds."""
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("duckdb", "data") from None
    with scratch_folder() as scratch, limited_memory(config.memory_mb):
        connection = duckdb.connect(":memory:", config=_settings(config, scratch))
        # DuckDB does not keep to this one if it is said together with the others.
        connection.execute(f"SET max_temp_directory_size = '{config.disk_mb}MB'")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        database = Database(connection, workspace, scratch, config, care)
        try:
            yield database
        except MemoryError:  # where it is not DuckDB that reads: in a workbook, say
            raise too_much() from None
        finally:
            database.close()


def _settings(config: DataAnalyzerConfig, scratch: Path) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "memory_limit": f"{config.memory_mb}MB",
        "threads": config.threads,
        "temp_directory": str(scratch),
        "max_execution_time": int(config.timeout * 1000),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "python_enable_replacements": False,
        "enable_external_file_cache": False,
    }
