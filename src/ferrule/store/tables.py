"""All tables of the store, and the version of their form. They are made when a database is opened."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import StoreError

if TYPE_CHECKING:
    import sqlalchemy

    sa = sqlalchemy
else:

    class _SqlAlchemy:
        """SQLAlchemy, imported with its first use: importing it takes longer than importing the rest of Ferrule."""

        def __getattr__(self, name: str) -> Any:
            value = self.__dict__[name] = getattr(import_module("sqlalchemy"), name)
            return value

    sa = _SqlAlchemy()

SCHEMA_VERSION: Final = 25
"""Raise it with every change of a table, or of the entries of runs."""
BINDING_COLUMNS: Final = ("principal", "tenant", "run_id", "tool_id", "action", "fingerprint", "digest")
"""What a call must have in common with a request for approval: an approval covers exactly this call."""
IS_FAILURE: Final = "status NOT IN ('success', 'running')"
IS_UNSUCCESSFUL: Final = "status <> 'success'"
"""Must be the same text in the index and in the queries that use it, or the database does not use the index."""
_TABLES: Final = {
    "ferrule_migrations": "number integer key, name text",
    # One row per call. The columns have the order of a journal line (see `encoding.py`), except `owner` at the end.
    "tool_calls": """
        record_id text key, started_at number, tool_name text, action text?, caller_id text?, caller_type text?,
        conversation_id text?, workflow_id text?, fingerprint text?, source text?, parent_id text?, params json?,
        status text, execution_time number?, wait_time number?, attempts integer?, error_type text?, artifact_id text?,
        error text?, result json?, metadata json?, principal text?, tenant text?, cost number?, owner text?
    """,
    "entries": "stream text key, key text key, written_at number, value json",
    "approvals": f"""
        approval_id text key, state text, created_at number, expires_at number,
        {" text, ".join(BINDING_COLUMNS)} text,
        call_id text, arguments text, reason text, origins text =, decided_at number?, decided_by text =,
        decision_reason text =, edited_arguments text?, used_at number?, used_by text =
    """,
    "tokens": """
        token_id text key, hash text unique, parent_id text?, name text, grants text, created_at number,
        expires_at number?, revoked_at number?
    """,
    "requests": """
        principal text key, key text key, digest text, created_at number, status integer?, response text?,
        claim_id text?
    """,
    "tool_vectors": "encoder text key, digest text key, vector bytes, used_at number index",
    # One row per lease; of a shared limit, one row per `part` of it (see `leases.py`).
    "leases": """
        key text key, part text key =, owner text, writer text?, details text =, taken_at number, expires_at number
    """,
    "adaptive_limits": "bucket text key, slots number, lowered_at number",
    "credentials": "account text key, name text key, ciphertext text, updated_at number",
    "budget_spending": """
        budget text key, scope text key, period text key, spent number, extension number =0, changed_at number
    """,
    "open_circuits": "source text key, tool_id text key, opened_at number",
}
"""The columns of each table: a name and a type (with `?`: may be NULL), then `key` for a column of the primary key,
`unique`, `index`, or `=` with a default."""
_INDEXES: Final = {
    "entries_by_time": ("entries", "written_at"),
    "leases_by_end": ("leases", "part", "expires_at"),
    "approvals_by_state": ("approvals", "state", "created_at"),
    "approvals_by_run": ("approvals", "run_id", "created_at"),
}
"""The table and the columns of each index that those words do not describe."""
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


def get_table(name: str) -> sa.Table:
    return _metadata().tables[name]


def upsert_statement(name: str) -> str:
    """Return SQL that inserts a row with values for all columns, or changes the row with the same key."""
    keys = ", ".join(get_table(name).primary_key.columns.keys())
    names = get_table(name).columns.keys()
    changes = ", ".join(f"{column} = excluded.{column}" for column in names)
    values = ", ".join(f":{column}" for column in names)
    return f"INSERT INTO {name} ({', '.join(names)}) VALUES ({values}) ON CONFLICT ({keys}) DO UPDATE SET {changes}"


def has_tables(connection: sa.Connection) -> bool:
    """Return whether the database has the tables. Raises StoreError if they have another version."""
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


def create_tables(connection: sa.Connection) -> None:
    """Create everything in an empty database. The caller holds a lock, so that two processes do not both do it."""
    _metadata().create_all(connection, checkfirst=False)
    for name, (columns, condition) in _CALL_INDEXES.items():
        where = f" WHERE {condition}" if condition else ""
        connection.exec_driver_sql(f"CREATE INDEX tool_calls_by_{name} ON tool_calls ({columns}){where}")
    version = get_table("ferrule_migrations").insert()
    connection.execute(version.values(number=SCHEMA_VERSION, name="create all tables"))


@cache
def _metadata() -> sa.MetaData:
    types: dict[str, Any] = {
        "text": sa.Text,
        "json": sa.Text().with_variant(sa.JSON(), "postgresql"),
        "number": sa.Double,
        "integer": sa.Integer,
        "boolean": sa.Boolean,
        "bytes": sa.LargeBinary,
    }

    def make_column(description: str) -> sa.Column[Any]:
        name, kind, *words = description.split()
        default = next((word.removeprefix("=") for word in words if word.startswith("=")), None)
        return sa.Column(
            name,
            types[kind.removesuffix("?")],
            primary_key="key" in words,
            nullable=kind.endswith("?"),
            unique="unique" in words or None,
            index="index" in words or None,
            server_default=default,
            autoincrement=False,
        )

    metadata = sa.MetaData()
    for name, columns in _TABLES.items():
        sa.Table(name, metadata, *map(make_column, columns.split(",")))
    for name, (table, *indexed) in _INDEXES.items():
        sa.Index(name, *(metadata.tables[table].c[column] for column in indexed))
    return metadata
