"""All tables of the store, and the version of their form.

SQLAlchemy takes longer to import than the rest of Ferrule together, so the tables are made when a database is opened.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from ferrule.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table

SCHEMA_VERSION: Final = 22
"""Raise it with every change of a table."""
BINDING_COLUMNS: Final = ("principal", "tenant", "run_id", "tool_id", "action", "fingerprint", "digest")
"""What a call must have in common with a request for approval: an approval covers exactly this call."""
IS_FAILURE: Final = "status NOT IN ('success', 'running')"
IS_UNSUCCESSFUL: Final = "status <> 'success'"
"""Must be the same text in the index and in the queries that use it, or the database does not use the index."""
_CALL_INDEXES: Final = {
    "time": ("started_at", ""),
    # The last two columns let statistics of some calls be computed from the index alone; the two after it are for those
    # of all calls.
    "tool": ("tool_name, started_at, status, execution_time", ""),
    "tool_and_time": ("tool_name, execution_time", ""),
    "tool_and_status": ("tool_name, status, started_at", IS_UNSUCCESSFUL),
    "status": ("status, started_at", ""),
    "caller_type": ("caller_type, started_at", ""),
    "failure": ("started_at", IS_FAILURE),
    **{
        name: (f"{name}, started_at", f"{name} IS NOT NULL")
        for name in ("conversation_id", "workflow_id", "caller_id", "error_type", "artifact_id", "principal", "tenant")
    },
}
"""Columns and condition of each. SQL, because SQLAlchemy loads both dialects for an index with a condition."""


def get_table(name: str) -> Table:
    return _metadata().tables[name]


def has_tables(connection: Connection) -> bool:
    """Whether the database has the tables; StoreError if it has those of another version."""
    import sqlalchemy as sa

    table = get_table("ferrule_migrations")
    if not sa.inspect(connection).has_table(table.name):
        return False
    version = connection.scalar(sa.select(sa.func.max(table.c.number)))
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the store was written by another version of ferrule (its tables have version {version}, not "
            f"{SCHEMA_VERSION}): export it with that version (`ferrule calls --json`, `ferrule runs export`), or name "
            "another place in [store] url to begin with an empty store"
        )
    return True


def create_tables(connection: Connection) -> None:
    """Create everything in an empty database. The caller holds a lock, so that two processes do not both do it."""
    _metadata().create_all(connection, checkfirst=False)
    for name, (columns, condition) in _CALL_INDEXES.items():
        where = f" WHERE {condition}" if condition else ""
        connection.exec_driver_sql(f"CREATE INDEX tool_calls_by_{name} ON tool_calls ({columns}){where}")
    version = get_table("ferrule_migrations").insert()
    connection.execute(version.values(number=SCHEMA_VERSION, name="create all tables"))


@cache
def _metadata() -> MetaData:
    import sqlalchemy as sa

    json_text = sa.Text().with_variant(sa.JSON(), "postgresql")
    metadata = sa.MetaData()
    sa.Table(
        "ferrule_migrations",
        metadata,
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
    )
    # One row per call. The columns have the order of a journal line (see `encoding.py`), except `owner` at the end.
    sa.Table(
        "tool_calls",
        metadata,
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
        sa.Column("principal", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("cost", sa.Double),
        sa.Column("owner", sa.Text),
    )
    sa.Table(
        "entries",
        metadata,
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("written_at", sa.Double, nullable=False),
        sa.Column("value", json_text, nullable=False),
        sa.Index("entries_by_time", "written_at"),
    )
    sa.Table(
        "approvals",
        metadata,
        sa.Column("approval_id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in BINDING_COLUMNS),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("decided_at", sa.Double),
        sa.Column("decided_by", sa.Text, nullable=False, server_default=""),
        sa.Column("decision_reason", sa.Text, nullable=False, server_default=""),
        sa.Column("edited_arguments", sa.Text),
        sa.Column("used_at", sa.Double),
        sa.Column("used_by", sa.Text, nullable=False, server_default=""),
        sa.Index("approvals_by_state", "state", "created_at"),
        sa.Index("approvals_by_run", "run_id", "created_at"),
    )
    sa.Table(
        "tokens",
        metadata,
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("hash", sa.Text, nullable=False, unique=True),
        sa.Column("parent_id", sa.Text),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("grants", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
    )
    sa.Table(
        "requests",
        metadata,
        sa.Column("principal", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("response", sa.Text),
        sa.Column("claim_id", sa.Text),
    )
    sa.Table(
        "tool_vectors",
        metadata,
        sa.Column("encoder", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("vector", sa.LargeBinary, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False, index=True),
    )
    sa.Table(
        "slot_leases",
        metadata,
        sa.Column("bucket", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("waiting", sa.Integer, nullable=False),
        sa.Column("waiting_since", sa.Double),
        sa.Column("slot_limit", sa.Integer, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
    sa.Table(
        "start_leases",
        metadata,
        sa.Column("bucket", sa.Text, nullable=False, index=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False),
        sa.Column("counts_until", sa.Double, nullable=False),
        sa.Column("is_open", sa.Boolean, nullable=False),
    )
    sa.Table(
        "adaptive_limits",
        metadata,
        sa.Column("bucket", sa.Text, primary_key=True),
        sa.Column("slots", sa.Double, nullable=False),
        sa.Column("lowered_at", sa.Double, nullable=False),
    )
    sa.Table(
        "credentials",
        metadata,
        sa.Column("account", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("ciphertext", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    sa.Table(
        "budget_spending",
        metadata,
        sa.Column("budget", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("period", sa.Text, primary_key=True),
        sa.Column("spent", sa.Double, nullable=False),
        sa.Column("extension", sa.Double, nullable=False, server_default="0"),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    sa.Table(
        "servers",
        metadata,
        sa.Column("server_id", sa.Text, primary_key=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("socket", sa.Text, nullable=False, server_default=""),
        sa.Column("secret", sa.Text, nullable=False, server_default=""),
    )
    sa.Table(
        "mcp_owners",
        metadata,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("server_id", sa.Text, nullable=False),
    )
    sa.Table(
        "open_circuits",
        metadata,
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("tool_id", sa.Text, primary_key=True),
        sa.Column("opened_at", sa.Double, nullable=False),
    )
    sa.Table(
        "lock_holders",
        metadata,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("registered_at", sa.Double, nullable=False),
    )
    return metadata
