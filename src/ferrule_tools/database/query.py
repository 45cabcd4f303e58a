"""`database_query`: SQL queries to the databases that a project configures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ferrule.core.call import ToolExecutionContext
from ferrule.core.names import did_you_mean
from ferrule.core.spec import Tool, ToolCategory
from ferrule.errors import Refuse, Retry
from ferrule.kinds.function.decorator import tool
from ferrule.kinds.function.tools import tool_of
from ferrule_tools._tool_setup import WorkerMethods, describe_needs, limit_seconds
from ferrule_tools.data.limits import limit_memory, rows_output
from ferrule_tools.database.generic import open_generic
from ferrule_tools.database.postgres import open_postgres
from ferrule_tools.database.session import (
    TOO_LARGE,
    DatabaseAddress,
    DatabaseQueryConfig,
    DatabaseSession,
    StatementTimer,
    bind_values,
    is_query,
)
from ferrule_tools.database.sqlite import open_sqlite

NO_DATABASE: Final = (
    'a database: write [tools.database_query.databases.main] and below it url = "sqlite:///shop.db" in ferrule.toml'
)
_EXTRA_TIME: Final = 5.0
"""Seconds beyond the longest timeout of a database, to report that it expired."""
_MEMORY_MB: Final = 512
_DATABASE_SHARE: Final = 0.9
"""The share of a call's timeout that the database may use; the rest is for reporting the result."""
_FETCH_OTHERS: Final = "Use LIMIT and OFFSET for other rows, or WHERE and GROUP BY for fewer."
_MAX_SQL: Final = 50_000
_TAGS: Final = ["database", "sql", "query", "table", "schema", "sqlite", "postgres", "数据库", "查询", "表"]


def database_query_tools(
    config: DatabaseQueryConfig | None = None, *, root: str | Path = ".", environ: Mapping[str, str] = os.environ
) -> list[Tool]:
    """Return `database_query` for the configured databases; paths of SQLite files start at `root`."""
    databases = (config or DatabaseQueryConfig()).databases
    start = Path(root).absolute()
    addresses = {name: DatabaseAddress.of(name, each, start, environ) for name, each in databases.items()}
    is_writable = any(not each.read_only for each in databases.values())
    queries = DatabaseWriter(addresses) if is_writable else DatabaseReader(addresses)
    timeout = max((each.timeout for each in databases.values()), default=30.0)
    built = tool_of(queries, timeout=timeout + _EXTRA_TIME)
    spec = replace(built.spec, description=_describe_databases(built.spec.description, addresses))
    needs = describe_needs({name: each.problem() for name, each in addresses.items()}, "database", NO_DATABASE)
    return [replace(built, spec=spec, target=WorkerMethods(queries), needs=needs)]


def _describe_databases(description: str, addresses: Mapping[str, DatabaseAddress]) -> str:
    """Add the usable databases to the description: models must know their names."""
    listed = [
        f"{name} ({address.kind}{'' if address.config.read_only else ', writable'})"
        + (f": {address.config.description}" if address.config.description else "")
        for name, address in addresses.items()
        if not address.problem()
    ]
    return f"{description}\n\nDatabases: {'; '.join(listed)}." if listed else description


@tool(
    name="database_query",
    category=ToolCategory.DATABASE,
    tags=_TAGS,
    # A query may return more than fits into memory, and only a process can be killed and limited.
    isolation="process",
    max_output=400_000,
)
class DatabaseReader:
    """Query the databases of the project in SQL, and list their tables. Read-only. 只读查询数据库。"""

    def __init__(self, addresses: Mapping[str, DatabaseAddress]) -> None:
        self._addresses = addresses

    @tool(
        read_only=True,
        idempotent=True,
        examples=[
            {"sql": "SELECT name, price FROM products WHERE price < :most", "parameters": {"most": 10}},
            {"sql": "SELECT count(*) FROM orders", "database": "main"},
        ],
    )
    def query(
        self,
        sql: str,
        parameters: dict[str, Any] | None = None,
        database: str | None = None,
        limit: int = 100,
        context: ToolExecutionContext | None = None,
    ) -> dict[str, Any]:
        """Query a database with one SELECT. 用一条 SELECT 查询数据库。

        Args:
            sql: one SELECT statement in the dialect of the database; write values as :name
            parameters: the values for each :name in the sql; never write values into the sql itself
            database: which one; left out where there is only one
            limit: how many rows to return at most
        """
        address = self._find_address(database)
        max_rows = min(max(limit, 1), address.config.max_rows)
        if not is_query(sql):
            raise Refuse("only queries that change nothing are allowed: give one SELECT.")
        with self._open(address, context, sql) as session:
            result = session.run_statement(sql, bind_values(sql, parameters or {}))
            if not result.columns:
                raise Retry("the statement returns no rows: give one SELECT.")
            return rows_output(result.columns, result.rows, max_rows, advice=_FETCH_OTHERS)

    @tool(read_only=True, idempotent=True, examples=[{}, {"table": "orders"}])
    def schema(
        self, table: str | None = None, database: str | None = None, context: ToolExecutionContext | None = None
    ) -> dict[str, Any]:
        """List the tables of a database, or the columns, types and keys of one table. 查看数据库的表和列。

        Args:
            table: the name of a table; left out, all tables are listed
            database: which one; left out where there is only one
        """
        address = self._find_address(database)
        with self._open(address, context) as session, session.inspect_connection() as connection:
            output = _describe_table(connection, table) if table else _list_tables(connection)
        return {"database": address.name, **output}

    # Steps

    def _find_address(self, name: str | None) -> DatabaseAddress:
        names = list(self._addresses)
        if name is None and len(names) == 1:
            name = names[0]
        if name is None or name not in self._addresses:
            problem = f"there is no database {name!r}.{did_you_mean(name, names)}" if name else "say which database."
            raise Retry(f"{problem} The databases are: {', '.join(map(repr, names))}.")
        return self._addresses[name]

    @contextmanager
    def _open(
        self, address: DatabaseAddress, context: ToolExecutionContext | None, sql: str = "", *, writes: bool = False
    ) -> Iterator[DatabaseSession]:
        """Open a session with limits on time and memory, whose errors show no secrets."""
        if len(sql) > _MAX_SQL or "\0" in sql:
            raise Retry(f"the SQL is longer than {_MAX_SQL:,} characters, or contains a NUL character.")
        seconds = limit_seconds(context, address.config.timeout, _DATABASE_SHARE)
        with address.secrets().hide_in_errors(), limit_memory(_MEMORY_MB):
            open_session = _OPEN_FUNCTIONS.get(address.kind, open_generic)
            try:
                with open_session(address, StatementTimer(seconds), writes=writes) as session:
                    yield session
            except MemoryError:
                raise Retry(TOO_LARGE) from None


@tool(
    name="database_query",
    category=ToolCategory.DATABASE,
    tags=[*_TAGS, "insert", "update", "写入"],
    isolation="process",
    max_output=400_000,
)
class DatabaseWriter(DatabaseReader):
    """Query and change the databases of the project in SQL, and list their tables. 查询和修改数据库。"""

    @tool(
        destructive=True,
        examples=[
            {
                "sql": "UPDATE products SET price = :price WHERE id = :id",
                "parameters": {"price": 9.5, "id": 7},
            }
        ],
    )
    def execute(
        self,
        sql: str,
        parameters: dict[str, Any] | None = None,
        database: str | None = None,
        context: ToolExecutionContext | None = None,
    ) -> dict[str, Any]:
        """Change a database with one INSERT, UPDATE, DELETE or other statement. 执行一条修改数据库的语句。

        Args:
            sql: one statement in the dialect of the database; write values as :name
            parameters: the values for each :name in the sql; never write values into the sql itself
            database: which one; left out where there is only one
        """
        address = self._find_address(database)
        if address.config.read_only:
            raise Refuse(f"the database {address.name!r} is read-only.")
        with self._open(address, context, sql, writes=True) as session:
            result = session.run_statement(sql, bind_values(sql, parameters or {}))
            rows = list(result.rows)
        output: dict[str, Any] = {"database": address.name}
        if result.changed is not None:
            output["changed"] = result.changed
        if result.columns:
            output |= rows_output(result.columns, rows, address.config.max_rows, advice="All of them were changed.")
        return output


_OPEN_FUNCTIONS: Final[Mapping[str, Callable[..., AbstractContextManager[DatabaseSession]]]] = {
    "sqlite": open_sqlite,
    "postgresql": open_postgres,
}
"""By the kind of database; `open_generic` opens all others."""


# The tables of a database, their columns and keys

_MAX_TABLES_WITH_COLUMNS: Final = 30
"""Columns are listed only if there are at most this many tables."""
_MAX_TABLES: Final = 500
_MAX_COLUMNS: Final = 300
_MAX_TEXT: Final = 200
_SYSTEM_SCHEMAS: Final = frozenset({"information_schema", "mysql", "performance_schema", "sys"})


def _list_tables(connection: Any) -> dict[str, Any]:
    """List all tables and views, with their columns if there are only a few tables."""
    from sqlalchemy import inspect

    inspector = inspect(connection)
    kinds = _table_kinds(inspector)
    tables: list[dict[str, Any]] = [{"name": name, "kind": kind} for name, kind in list(kinds.items())[:_MAX_TABLES]]
    output: dict[str, Any] = {"dialect": inspector.dialect.name, "tables": tables}
    if len(kinds) > _MAX_TABLES:
        output["left_out"] = f"{len(kinds) - _MAX_TABLES:,} more tables"
    elif len(kinds) > _MAX_TABLES_WITH_COLUMNS:
        output["columns"] = "name a table to see its columns"
    else:
        for table in tables:
            table["columns"] = _describe_columns_briefly(inspector, *_split_table_name(inspector, table["name"]))
    return output


def _describe_table(connection: Any, table_name: str) -> dict[str, Any]:
    """Describe one table, with its columns, keys and indexes."""
    from sqlalchemy import inspect

    inspector = inspect(connection)
    kinds = _table_kinds(inspector)
    same_name = (each for each in kinds if each.lower() == table_name.lower())
    name = table_name if table_name in kinds else next(same_name, None)
    if name is None:
        listed = ", ".join(map(repr, list(kinds)[:_MAX_TABLES_WITH_COLUMNS]))
        hint = did_you_mean(table_name, kinds)
        raise Retry(f"there is no table {table_name!r}.{hint} The tables are: {listed or 'none'}.")
    schema, table = _split_table_name(inspector, name)
    key = inspector.get_pk_constraint(table, schema=schema).get("constrained_columns") or []
    columns = inspector.get_columns(table, schema=schema)
    output: dict[str, Any] = {
        "name": name,
        "kind": kinds[name],
        "columns": [_describe_column(each, key, inspector.dialect) for each in columns[:_MAX_COLUMNS]],
        "primary_key": key,
        "foreign_keys": [
            {
                "columns": each["constrained_columns"],
                "references": ".".join(filter(None, (each.get("referred_schema"), each["referred_table"]))),
                "referenced_columns": each["referred_columns"],
            }
            for each in inspector.get_foreign_keys(table, schema=schema)
        ],
        "indexes": [
            {"columns": each["column_names"], "unique": bool(each["unique"])}
            for each in inspector.get_indexes(table, schema=schema)
        ],
    }
    if len(columns) > _MAX_COLUMNS:
        output["left_out"] = f"{len(columns) - _MAX_COLUMNS:,} more columns"
    return output


def _table_kinds(inspector: Any) -> dict[str, str]:
    """Return tables and views by name, with the schema in front unless it is the default one."""
    default = inspector.default_schema_name
    kinds: dict[str, str] = {}
    for schema in sorted(inspector.get_schema_names(), key=lambda each: (each != default, each)):
        if schema in _SYSTEM_SCHEMAS or schema.startswith("pg_"):
            continue
        prefix = "" if schema == default else f"{schema}."
        kinds |= {f"{prefix}{name}": "table" for name in sorted(inspector.get_table_names(schema=schema))}
        kinds |= {f"{prefix}{name}": "view" for name in sorted(inspector.get_view_names(schema=schema))}
        if hasattr(inspector.dialect, "get_materialized_view_names") and inspector.dialect.name == "postgresql":
            views = inspector.get_materialized_view_names(schema=schema)
            kinds |= {f"{prefix}{name}": "materialized view" for name in sorted(views)}
    return kinds


def _split_table_name(inspector: Any, name: str) -> tuple[str | None, str]:
    schemas = inspector.get_schema_names()
    schema, dot, table = name.partition(".")
    return (schema, table) if dot and schema in schemas and schema != inspector.default_schema_name else (None, name)


def _describe_columns_briefly(inspector: Any, schema: str | None, table: str) -> list[str]:
    from sqlalchemy.exc import DBAPIError

    try:
        columns = inspector.get_columns(table, schema=schema)
    except DBAPIError:  # MySQL requires a separate privilege to show a view
        return ["(not visible to this user)"]
    texts = [f"{each['name']} {_column_type(each, inspector.dialect)}" for each in columns[:_MAX_COLUMNS]]
    return [*texts, "…"] if len(columns) > _MAX_COLUMNS else texts


def _describe_column(column: Any, key: list[str], dialect: Any) -> dict[str, Any]:
    output = {"name": column["name"], "type": _column_type(column, dialect), "nullable": bool(column["nullable"])}
    if column["name"] in key:
        output["primary_key"] = True
    for attribute in ("default", "comment"):
        if column.get(attribute):
            output[attribute] = str(column[attribute])[:_MAX_TEXT]
    return output


def _column_type(column: Any, dialect: Any) -> str:
    try:
        return str(column["type"].compile(dialect=dialect))
    except Exception:  # a type that SQLAlchemy knows but cannot compile
        return type(column["type"]).__name__
