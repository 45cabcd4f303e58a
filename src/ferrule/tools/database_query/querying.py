"""`database_query`: databases that a project names, asked in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from ferrule.call import DefaultTimeout, ToolExecutionContext
from ferrule.errors import Refuse, Retry
from ferrule.names import did_you_mean
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.data_analyzer.memory_limit import limited_memory
from ferrule.tools.data_analyzer.rows import told_rows
from ferrule.tools.database_query.address import Address
from ferrule.tools.database_query.other import open_other
from ferrule.tools.database_query.placeholders import is_question, values_for
from ferrule.tools.database_query.postgres import open_postgres
from ferrule.tools.database_query.schema import table_of, tables_of
from ferrule.tools.database_query.session import TOO_LARGE, Clock, Session
from ferrule.tools.database_query.sqlite import open_sqlite

_MEMORY_MB: Final = 512
_SHARE: Final = 0.9
"""Of the time of a call, for the database: the rest is for saying what happened."""
_FEWER: Final = "Ask for others with LIMIT and OFFSET, or for less with WHERE and GROUP BY."
_LONGEST: Final = 50_000
_TAGS: Final = ["database", "sql", "query", "table", "schema", "sqlite", "postgres", "数据库", "查询", "表"]


@tool(
    name="database_query",
    category=ToolCategory.DATABASE,
    tags=_TAGS,
    # A query may bring more than memory holds, and only a process can be ended and bounded.
    isolation="process",
    max_output=400_000,
)
class DatabaseReader:
    """Ask the databases of the project in SQL, and look at their tables. Nothing is changed. 只读查询数据库。"""

    def __init__(self, addresses: Mapping[str, Address]) -> None:
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
        """Ask a database: one SELECT. 用一条 SELECT 查询数据库。

        Args:
            sql: one SELECT statement in the dialect of the database; values stand as :name
            parameters: the values for each :name in the sql; never write values into the sql itself
            database: which one; left out where there is only one
            limit: how many rows to give at most
        """
        address = self._address(database)
        most = min(max(limit, 1), address.config.max_rows)
        if not is_question(sql):
            raise Refuse("only queries are allowed here, which change nothing: give one SELECT.")
        with self._open(address, context, sql) as session:
            answer = session.ask(sql, values_for(sql, parameters or {}))
            if not answer.columns:
                raise Retry("the statement gives no rows: give one SELECT.")
            return told_rows(answer.columns, answer.rows, most, less=_FEWER)

    @tool(read_only=True, idempotent=True, examples=[{}, {"table": "orders"}])
    def schema(
        self, table: str | None = None, database: str | None = None, context: ToolExecutionContext | None = None
    ) -> dict[str, Any]:
        """Tell the tables of a database, or the columns, types and keys of one. 查看数据库的表和列。

        Args:
            table: the name of a table; left out, all tables are told
            database: which one; left out where there is only one
        """
        address = self._address(database)
        with self._open(address, context) as session, session.inspected() as connection:
            told = table_of(connection, table) if table else tables_of(connection)
        return {"database": address.name, **told}

    # Steps

    def _address(self, name: str | None) -> Address:
        known = list(self._addresses)
        if name is None and len(known) == 1:
            name = known[0]
        if name is None or name not in self._addresses:
            asked = f"there is no database {name!r}.{did_you_mean(name, known)}" if name else "say which database."
            raise Retry(f"{asked} The databases are: {', '.join(map(repr, known))}.")
        return self._addresses[name]

    @contextmanager
    def _open(
        self, address: Address, context: ToolExecutionContext | None, sql: str = "", *, writes: bool = False
    ) -> Iterator[Session]:
        """A session in which nothing takes too long or too much, and of which nothing secret is told."""
        if len(sql) > _LONGEST or "\0" in sql:
            raise Retry(f"the SQL is too long, or has a character in it that ends texts: up to {_LONGEST:,} are read.")
        clock = Clock(_seconds(address, context))
        with address.secrets().hidden_in_errors(), limited_memory(_MEMORY_MB):
            try:
                with _opened(address, clock, writes=writes) as session:
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
    """Ask the databases of the project in SQL, look at their tables, and change them. 查询和修改数据库。"""

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
        """Change a database: one INSERT, UPDATE, DELETE or other statement, kept at once. 执行一条修改数据库的语句。

        Args:
            sql: one statement in the dialect of the database; values stand as :name
            parameters: the values for each :name in the sql; never write values into the sql itself
            database: which one; left out where there is only one
        """
        address = self._address(database)
        if address.config.read_only:
            raise Refuse(f"the database {address.name!r} is read-only: nothing in it can be changed.")
        with self._open(address, context, sql, writes=True) as session:
            answer = session.ask(sql, values_for(sql, parameters or {}))
            rows = list(answer.rows)
        said: dict[str, Any] = {"database": address.name}
        if answer.changed is not None:
            said["changed"] = answer.changed
        if answer.columns:
            said |= told_rows(answer.columns, rows, address.config.max_rows, less="They were changed all the same.")
        return said


def _opened(address: Address, clock: Clock, *, writes: bool) -> AbstractContextManager[Session]:
    if address.kind == "sqlite":
        return open_sqlite(address, clock, writes=writes)
    if address.kind == "postgresql":
        return open_postgres(address, clock, writes=writes)
    return open_other(address, clock, writes=writes)


def _seconds(address: Address, context: ToolExecutionContext | None) -> float:
    """What a database may take, or less if its caller has less time."""
    if context is None or isinstance(context.timeout, DefaultTimeout):
        return address.config.timeout
    return min(address.config.timeout, context.timeout * _SHARE)
