"""The tables, and the numbered steps that lead to them from any older database.

SQLAlchemy takes longer to import than the rest of Ferrule together, so it is imported when a database is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from ferrule.errors import StoreError
from ferrule.store.notes import create_notes

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

JSON_COLUMNS = frozenset({"params", "result", "metadata"})
ENDED_BADLY = "status NOT IN ('success', 'running')"
"""Stands word for word in an index and in the queries that want to use it."""


@cache
def calls_table() -> Table:
    """One row per call. The columns stand in the order of a journal's line; `owner` is not part of it."""
    import sqlalchemy as sa
    from sqlalchemy.dialects.postgresql import JSON

    json_text = sa.Text().with_variant(JSON(), "postgresql")
    calls = sa.Table(
        "tool_calls",
        sa.MetaData(),
        sa.Column("record_id", sa.Text, primary_key=True),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("tool_name", sa.Text, nullable=False),
        sa.Column("action", sa.Text),
        sa.Column("caller_id", sa.Text),
        sa.Column("caller_type", sa.Text),
        sa.Column("conversation_id", sa.Text),
        sa.Column("workflow_id", sa.Text),
        sa.Column("fingerprint", sa.Text),
        sa.Column("source", sa.Text),
        sa.Column("parent_id", sa.Text),
        sa.Column("params", json_text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("execution_time", sa.Double),
        sa.Column("wait_time", sa.Double),
        sa.Column("attempts", sa.Integer),
        sa.Column("error_type", sa.Text),
        sa.Column("artifact_id", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("result", json_text),
        sa.Column("metadata", json_text),
        sa.Column("owner", sa.Text),
    )
    _index_calls(calls)
    return calls


def _index_calls(calls: Table) -> None:
    import sqlalchemy as sa

    column = calls.c

    def index(name: str, *columns: sa.Column[object], where: sa.ColumnElement[bool] | None = None) -> None:
        sa.Index(f"tool_calls_by_{name}", *columns, sqlite_where=where, postgresql_where=where)

    index("time", column.started_at)
    # The last two are read by statistics, which then need not look at the rows.
    index("tool", column.tool_name, column.started_at, column.status, column.execution_time)
    index("status", column.status, column.started_at)
    index("caller_type", column.caller_type, column.started_at)
    index("failure", column.started_at, where=sa.text(ENDED_BADLY))  # type: ignore[arg-type]
    for name in ("conversation_id", "workflow_id", "caller_id", "error_type", "artifact_id"):
        index(name, column[name], column.started_at, where=column[name].is_not(None))


def _create_calls(connection: Connection) -> None:
    calls_table().metadata.create_all(connection)


MIGRATIONS: tuple[tuple[str, Callable[[Connection], None]], ...] = (
    ("create tool_calls", _create_calls),
    ("create notes", create_notes),
)
"""Applied in order, once each. Add to the end, never change one that was released."""


def is_current(connection: Connection) -> bool:
    """Whether the database has the newest schema already, which is found out without locking it."""
    import sqlalchemy as sa

    steps = _steps_table()
    return sa.inspect(connection).has_table(steps.name) and _last_step(connection) == len(MIGRATIONS)


def migrate(connection: Connection) -> None:
    """Bring the database to the newest schema. The caller holds a lock, so that two processes do not both do it."""
    steps = _steps_table()
    steps.create(connection, checkfirst=True)
    done = _last_step(connection)
    if done > len(MIGRATIONS):
        raise StoreError(
            f"the database was made by a newer ferrule (schema {done}). Install that version or a later one."
        )
    for number, (name, apply) in enumerate(MIGRATIONS[done:], done + 1):
        apply(connection)
        connection.execute(steps.insert().values(number=number, name=name))


@cache
def _steps_table() -> Table:
    import sqlalchemy as sa

    return sa.Table(
        "ferrule_migrations",
        sa.MetaData(),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
    )


def _last_step(connection: Connection) -> int:
    import sqlalchemy as sa

    return connection.scalar(sa.select(sa.func.max(_steps_table().c.number))) or 0
