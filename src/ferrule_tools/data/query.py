"""A DuckDB database for one call, which can access the given files as tables and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, MissingExtra, Refuse, Retry, TimedOut, Transient
from ferrule.texts.shorten import cut
from ferrule_tools.data.files import KINDS, DataFile, OpenTable, TypeDetection, open_table, quote_name, quote_text
from ferrule_tools.data.limits import Column, DataAnalyzerConfig, limit_memory, scratch_folder
from ferrule_tools.files.workspace import Workspace

_FETCH_ROWS: Final = 500
_MAX_TABLES: Final = 50


class FileDatabase:
    """Checks the query, then opens its files, then runs it: after `restrict_to_files` nothing more can be opened."""

    def __init__(
        self, connection: Any, workspace: Workspace, scratch: Path, config: DataAnalyzerConfig, detection: TypeDetection
    ):
        self._connection, self._workspace, self._scratch, self._config = connection, workspace, scratch, config
        self._detection = detection
        self._open_files = ExitStack()
        self._paths: dict[str, str] = {}
        self.tables: dict[str, OpenTable] = {}

    def check(self, sql: str) -> list[str]:
        """Return the files that a query names. Raises an error if the query may not be run."""
        return find_files_in_query(self._connection, sql)

    def restrict_to_files(self, files: Mapping[str, DataFile]) -> None:
        """Create a view of each file by its name, then lock the database to these files."""
        if len(files) > _MAX_TABLES:
            raise Retry(f"{len(files)} files are too many for one call: give up to {_MAX_TABLES}.")
        for name, file in files.items():
            table = self._open_files.enter_context(
                open_table(self._workspace, file, self._scratch, self._config.disk_mb << 20)
            )
            self.tables[name] = table
            self._paths[table.address] = table.path
        addresses = ", ".join(quote_text(address) for address in self._paths)
        self._connection.execute(f"SET allowed_paths = [{addresses}]")
        self._connection.execute("SET enable_external_access = false")
        for name, table in self.tables.items():
            self._create_file_view(name, table)
        self._connection.execute("SET lock_configuration = true")

    def query(self, sql: str, *values: Any) -> tuple[list[Column], Iterator[tuple[Any, ...]]]:
        """Run a query, which must have been checked or be our own. Return its columns and rows."""
        with convert_errors(self._paths, self.tables):
            cursor = self._connection.execute(sql, list(values))
            columns = [Column(name=each[0], type=str(each[1])) for each in cursor.description]
        return columns, self._fetch_rows(cursor)

    def create_view(self, sql: str, name: str) -> None:
        """Name the result of a query, which must have been checked."""
        with convert_errors(self._paths, self.tables):
            self._connection.execute(f"CREATE TEMPORARY VIEW {quote_name(name)} AS {sql}")

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of our own query, which has few."""
        return list(self.query(sql, *values)[1])

    def close(self) -> None:
        self._connection.close()
        self._open_files.close()

    def _fetch_rows(self, cursor: Any) -> Iterator[tuple[Any, ...]]:
        while True:
            with convert_errors(self._paths):
                rows = cursor.fetchmany(_FETCH_ROWS)
            if not rows:
                return
            yield from rows

    def _create_file_view(self, name: str, table: OpenTable) -> None:
        try:
            with convert_errors(self._paths):
                self._connection.execute(
                    f"CREATE VIEW {quote_name(name)} AS SELECT * FROM {table.read_sql(self._detection)}"
                )
        except CallError as error:
            if isinstance(error, InconsistentFile) and self._detection is not TypeDetection.ALL_TEXT:
                raise
            reason = str(error).partition("\n\nLINE 1: CREATE VIEW")[0]
            raise ExecutionFailed(f"{table.path!r} cannot be read as the table {name!r}. {reason}") from None


@contextmanager
def open_database(workspace: Workspace, config: DataAnalyzerConfig, detection: TypeDetection) -> Iterator[FileDatabase]:
    """Open an empty DuckDB with limits."""
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("duckdb", "data") from None
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{config.memory_mb}MB",
        "threads": config.threads,
        "max_execution_time": int(config.timeout * 1000),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "python_enable_replacements": False,
        "enable_external_file_cache": False,
    }
    with scratch_folder() as scratch, limit_memory(config.memory_mb):
        connection = duckdb.connect(":memory:", config={**settings, "temp_directory": str(scratch)})
        # DuckDB ignores this one when it is passed together with the others.
        connection.execute(f"SET max_temp_directory_size = '{config.disk_mb}MB'")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        database = FileDatabase(connection, workspace, scratch, config, detection)
        try:
            yield database
        except MemoryError:  # raised outside of DuckDB, for example by the workbook reader
            raise memory_error() from None
        finally:
            database.close()


# Checks of a query: one SELECT, over the given tables, with functions that only compute. DuckDB parses it, and its
# syntax tree is checked name by name. No text is searched, so nothing can be hidden in quotes or comments. A file
# that is used as a table (`FROM 'sales.csv'`) is opened in the workspace.

TABLE_FUNCTIONS: Final = frozenset(
    {"range", "generate_series", "unnest", "json_each", "json_tree", "generate_subscripts", "regexp_split_to_table"}
)
"""The only functions allowed in FROM. Others read files, settings, memory or other SQL."""
_DENIED_FUNCTIONS: Final = frozenset(
    (
        *("write_log", "getvariable", "current_setting", "finalize", "combine", "to_aggregate_state"),
        *("variant_bytes_to_variant", "json_serialize_sql", "json_serialize_plan", "json_deserialize_sql"),
    )
)
"""Functions that access the process, reinterpret raw bytes, or parse a text as SQL: planning it would open the files it
names and evaluate its constants."""
_MAX_SQL: Final = 50_000
ONE_SELECT: Final = "Give one SELECT statement, which may begin with WITH or FROM."


def find_files_in_query(connection: Any, sql: str) -> list[str]:
    """Return the files that a query names as tables. Raises an error if the query may not be run; it is only parsed."""
    if len(sql) > _MAX_SQL:
        raise Retry(f"the SQL has {len(sql):,} characters; the limit is {_MAX_SQL:,}.")
    if "\0" in sql:
        raise Retry("the SQL contains a NUL character.")
    with convert_errors():
        (serialized,) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    try:
        tree = json.loads(serialized)
    except RecursionError:
        raise Retry("the SQL is nested too deeply.") from None
    if tree["error"]:
        if tree.get("error_type") == "not implemented":
            raise Refuse(
                f"only SELECT is allowed, because nothing may be changed. {ONE_SELECT} A PIVOT must name its "
                "values: PIVOT … ON column IN ('a', 'b')."
            )
        raise Retry(f"the SQL cannot be parsed: {str(tree.get('error_message', ''))[:500]}")
    if len(tree["statements"]) != 1:
        raise Retry(f"there are {len(tree['statements'])} statements in the SQL. {ONE_SELECT}")
    nodes = list(_walk_tree(tree))
    _require_safe_nodes(nodes)
    return _find_file_names(nodes)


def _walk_tree(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every node of a syntax tree, without recursion: queries can be nested deeply."""
    remaining = [tree]
    while remaining:
        part = remaining.pop()
        if isinstance(part, dict):
            yield part
            remaining += part.values()
        elif isinstance(part, list):
            remaining += part


def _require_safe_nodes(nodes: list[dict[str, Any]]) -> None:
    for node in nodes:
        if node.get("type") == "TABLE_FUNCTION":
            name = _function_name(node.get("function"))
            if name not in TABLE_FUNCTIONS:
                raise Refuse(
                    f"{name!r} is not allowed in FROM.{did_you_mean(name, TABLE_FUNCTIONS)} Use files "
                    "like tables: FROM 'sales.csv', or give them in `tables`."
                )
        elif "function_name" in node and _function_name(node) in _DENIED_FUNCTIONS:
            raise Refuse(f"the function {_function_name(node)!r} is not allowed: it does more than compute with data.")


def _function_name(node: Any) -> str:
    return str(node.get("function_name", "")).lower() if isinstance(node, dict) else ""


def _find_file_names(nodes: list[dict[str, Any]]) -> list[str]:
    common_tables = {
        str(entry.get("key")).casefold()
        for node in nodes
        if isinstance(entries := node.get("map"), list)
        for entry in entries
        if isinstance(entry, dict)
    }
    files: dict[str, str] = {}
    for node in nodes:
        name = str(node.get("table_name", ""))
        is_table = node.get("type") == "BASE_TABLE" and not node.get("schema_name")
        if is_table and name.casefold() not in common_tables and PurePosixPath(name).suffix.lower() in KINDS:
            first = files.setdefault(name.casefold(), name)
            if first != name:
                raise Retry(f"{first!r} and {name!r} are equal for DuckDB: give the files other names in `tables`.")
    return list(files.values())


# Errors of DuckDB

_MAX_MESSAGE: Final = 700
_CORRECTABLE: Final = (
    *("ParserException", "SyntaxException", "BinderException", "CatalogException", "NotImplementedException"),
    *("ConversionException", "OutOfRangeException", "TypeMismatchException", "InvalidTypeException"),
    *("InvalidInputException", "SequenceException"),
)
"""The caller can correct the query."""
_FILE_ERRORS: Final = lazy_pattern(r"CSV Error on Line|Error when sniffing file|JSON transform error")
_NO_TABLE: Final = lazy_pattern(r"Table with name (.+?) does not exist")
_SETTINGS_ADVICE: Final = lazy_pattern(r"\n*(Possible (solutions|fixes):|The search space used was:).*", re.DOTALL)
"""Advice about settings, which callers cannot change."""
_MAX_MESSAGE_LINE: Final = 200
_QUOTE_FILES: Final = "Put files in quotes: FROM 'data/sales.csv'."


class InconsistentFile(ExecutionFailed):
    """A file is not in the format that its beginning suggested."""


@contextmanager
def convert_errors(files: Mapping[str, str] = MappingProxyType({}), tables: Collection[str] = ()) -> Iterator[None]:
    """Raise errors of DuckDB as our errors; `files` maps the addresses that DuckDB knows to paths of the workspace."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise _convert_error(error, files, tables) from None
    except MemoryError:
        raise memory_error() from None


def _convert_error(error: Exception, files: Mapping[str, str], tables: Collection[str]) -> CallError:
    name, text = type(error).__name__, str(error)
    replaced = [path for address, path in files.items() if address in text and name == "PermissionException"]
    for address, path in files.items():
        text = text.replace(address, path)
    if name == "InterruptException":
        return TimedOut("the query took too long and was stopped. Ask for less: fewer rows, columns or joins.")
    if name == "OutOfMemoryException":
        return memory_error()
    if replaced:
        return Transient(f"{replaced[0]!r} was replaced while it was read. Try again.")
    if name == "PermissionException":
        return Refuse(f"not allowed: {_shorten(text)}. {_QUOTE_FILES}")
    if _FILE_ERRORS.search(text):
        return InconsistentFile(_shorten(text))
    if missing := _NO_TABLE.search(text):
        listed = f"The tables are: {', '.join(map(repr, tables))}. " if tables else ""
        return Retry(f"there is no table {missing[1]!r}. {listed}{_QUOTE_FILES}")
    return Retry(_shorten(text)) if name in _CORRECTABLE else ExecutionFailed(_shorten(text))


def memory_error() -> CallError:
    """Return the error of a call that exceeded its limits."""
    return Retry(
        "the query needs more memory or disk than it may use. Ask for less: fewer rows or columns, a WHERE, a GROUP BY."
    )


def _shorten(text: str) -> str:
    lines = _SETTINGS_ADVICE.sub("", text).strip().splitlines()
    return cut("\n".join(cut(line, _MAX_MESSAGE_LINE) for line in lines), _MAX_MESSAGE)


# Columns and their types

_NUMBER_TYPES: Final = lazy_pattern(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|BIGNUM|DECIMAL\(\d+,\s*\d+\)")
_DATE_TYPES: Final = lazy_pattern(r"DATE|TIME\b.*|TIMESTAMP.*")
_MAX_COLUMNS_LISTED: Final = 30


def is_number_type(kind: str) -> bool:
    return bool(_NUMBER_TYPES.fullmatch(kind))


def is_date_type(kind: str) -> bool:
    return bool(_DATE_TYPES.fullmatch(kind)) and not kind.endswith("]")


def is_scalar_type(kind: str) -> bool:
    """Return whether values of this type can be counted and compared: no lists, structures or JSON."""
    return (
        is_number_type(kind) or is_date_type(kind) or kind in ("VARCHAR", "BOOLEAN", "UUID") or kind.startswith("ENUM")
    )


def require_columns(names: Sequence[str], columns: Sequence[Column], where: str) -> list[Column]:
    """Return the columns of these names, ignoring case. Raises Retry if a column does not exist."""
    by_name = {column.name.casefold(): column for column in columns}
    for name in names:
        if name.casefold() not in by_name:
            existing = [column.name for column in columns]
            listed = ", ".join(map(repr, existing[:_MAX_COLUMNS_LISTED])) + (
                " …" if len(existing) > _MAX_COLUMNS_LISTED else ""
            )
            raise Retry(f"{where} has no column {name!r}.{did_you_mean(name, existing)} Its columns are: {listed}.")
    return [by_name[name.casefold()] for name in names]


def query_columns(database: FileDatabase, source: str) -> list[Column]:
    """Return the columns of anything that can follow FROM."""
    return [Column(name=row[0], type=row[1]) for row in database.rows(f"DESCRIBE SELECT * FROM {source}")]
