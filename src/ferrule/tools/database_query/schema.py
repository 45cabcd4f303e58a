"""What a database is made of: its tables, their columns and keys."""

from __future__ import annotations

from typing import Any, Final

from ferrule.errors import Retry
from ferrule.names import did_you_mean

_WITH_COLUMNS: Final = 30
"""Tables up to which the columns of each are told at once."""
_MOST_TABLES: Final = 500
_MOST_COLUMNS: Final = 300
_LONGEST: Final = 200
_OF_THE_SYSTEM: Final = frozenset({"information_schema", "mysql", "performance_schema", "sys"})


def tables_of(connection: Any) -> dict[str, Any]:
    """All tables and views; with their columns where they are few."""
    from sqlalchemy import inspect

    inspector = inspect(connection)
    found = _names(inspector)
    told = [
        {"name": name, "kind": kind, **({"columns": _brief(inspector, *_split(inspector, name))} if few else {})}
        for few in (len(found) <= _WITH_COLUMNS,)
        for name, kind in list(found.items())[:_MOST_TABLES]
    ]
    said: dict[str, Any] = {"dialect": inspector.dialect.name, "tables": told}
    if len(found) > _MOST_TABLES:
        said["left_out"] = f"{len(found) - _MOST_TABLES:,} more tables"
    elif len(found) > _WITH_COLUMNS:
        said["columns"] = "name a table to see its columns"
    return said


def table_of(connection: Any, wanted: str) -> dict[str, Any]:
    """One table, with its columns, keys and indexes."""
    from sqlalchemy import inspect

    inspector = inspect(connection)
    found = _names(inspector)
    name = wanted if wanted in found else next((each for each in found if each.lower() == wanted.lower()), None)
    if name is None:
        listed = ", ".join(map(repr, list(found)[:_WITH_COLUMNS]))
        raise Retry(f"there is no table {wanted!r}.{did_you_mean(wanted, found)} The tables are: {listed or 'none'}.")
    schema, table = _split(inspector, name)
    key = inspector.get_pk_constraint(table, schema=schema).get("constrained_columns") or []
    columns = inspector.get_columns(table, schema=schema)
    said: dict[str, Any] = {
        "name": name,
        "kind": found[name],
        "columns": [_column(each, key, inspector.dialect) for each in columns[:_MOST_COLUMNS]],
        "primary_key": key,
        "foreign_keys": [_foreign_key(each) for each in inspector.get_foreign_keys(table, schema=schema)],
        "indexes": [
            {"columns": each["column_names"], "unique": bool(each["unique"])}
            for each in inspector.get_indexes(table, schema=schema)
        ],
    }
    if len(columns) > _MOST_COLUMNS:
        said["left_out"] = f"{len(columns) - _MOST_COLUMNS:,} more columns"
    return said


def _names(inspector: Any) -> dict[str, str]:
    """Those of the schema that needs no naming by their own names, others with their schema before them."""
    usual = inspector.default_schema_name
    found: dict[str, str] = {}
    for schema in sorted(inspector.get_schema_names(), key=lambda each: (each != usual, each)):
        if schema in _OF_THE_SYSTEM or schema.startswith("pg_"):
            continue
        before = "" if schema == usual else f"{schema}."
        found |= {f"{before}{name}": "table" for name in sorted(inspector.get_table_names(schema=schema))}
        found |= {f"{before}{name}": "view" for name in sorted(inspector.get_view_names(schema=schema))}
        if hasattr(inspector.dialect, "get_materialized_view_names") and inspector.dialect.name == "postgresql":
            views = inspector.get_materialized_view_names(schema=schema)
            found |= {f"{before}{name}": "materialized view" for name in sorted(views)}
    return found


def _split(inspector: Any, name: str) -> tuple[str | None, str]:
    schemas = inspector.get_schema_names()
    schema, dot, table = name.partition(".")
    return (schema, table) if dot and schema in schemas and schema != inspector.default_schema_name else (None, name)


def _brief(inspector: Any, schema: str | None, table: str) -> list[str]:
    from sqlalchemy.exc import DBAPIError

    try:
        columns = inspector.get_columns(table, schema=schema)
    except DBAPIError:  # MySQL shows a view only to those with a right of its own
        return ["(not to be seen by this user)"]
    brief = [f"{each['name']} {_type(each, inspector.dialect)}" for each in columns[:_MOST_COLUMNS]]
    return [*brief, "…"] if len(columns) > _MOST_COLUMNS else brief


def _column(said: Any, key: list[str], dialect: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"name": said["name"], "type": _type(said, dialect), "nullable": bool(said["nullable"])}
    if said["name"] in key:
        told["primary_key"] = True
    for fact in ("default", "comment"):
        if said.get(fact):
            told[fact] = str(said[fact])[:_LONGEST]
    return told


def _type(said: Any, dialect: Any) -> str:
    try:
        return str(said["type"].compile(dialect=dialect))
    except Exception:  # a type that SQLAlchemy found but cannot write
        return type(said["type"]).__name__


def _foreign_key(said: Any) -> dict[str, Any]:
    schema = f"{said['referred_schema']}." if said.get("referred_schema") else ""
    return {
        "columns": said["constrained_columns"],
        "references": f"{schema}{said['referred_table']}",
        "referenced_columns": said["referred_columns"],
    }
