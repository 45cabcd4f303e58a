"""Streams of entries: everything besides call records that must not be lost.

A stream is a named list of JSON values, each under its own key and read in the order of the keys; writing an
existing key again replaces its value. The history of a run is a stream, and so are the failures a run learned from.
Entries take the same path as call records: one line in the journal, then SQL. So writing one costs microseconds and
survives `kill -9`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ferrule.store.encoding import parse_stored_json
from ferrule.store.escapes import ESCAPE_MARK, escape_text, map_texts, unescape_text
from ferrule.store.leases import LOCK_PREFIX
from ferrule.store.tables import sa

if TYPE_CHECKING:
    from ferrule.store.database import StoreDatabase


_WRITER: Final = f"SELECT writer FROM leases WHERE key = '{LOCK_PREFIX}' || (line.value->>1) AND part = ''"


def insert_entries_statement(dialect: sa.Dialect) -> str:
    """Build an `INSERT … SELECT` from lines. A line replaces an older value, or a value after `replaced_after`.

    With 0 it replaces any value: the lines of a living process are new. A line of an abandoned journal may be older
    than the value, but not than one from the future, which was written before the clock was set back.

    In Postgres a stream whose lock has another writer than `owner` gets nothing (see `leases.py`). The row of the
    lease is locked until the transaction ends: the next writer registers before or after it, and reads after it. The
    order is for Postgres too: two processes that write the same keys in different orders would wait for each other.
    """
    condition, order = "true", ""
    if dialect.name == "postgresql":
        condition, order = f"COALESCE(({_WRITER} FOR KEY SHARE), :owner) = :owner", "ORDER BY 1, 2 "
    return (
        f"INSERT INTO entries (stream, key, written_at, value) SELECT line.value->>1, line.value->>2, "
        f"CAST(line.value->>3 AS DOUBLE PRECISION), line.value->4 FROM {json_lines_sql(dialect)} WHERE {condition} "
        f"{order}ON CONFLICT (stream, key) DO UPDATE SET value = excluded.value, written_at = excluded.written_at "
        "WHERE excluded.written_at >= entries.written_at OR entries.written_at > :replaced_after"
    )


def late_streams_statement(dialect: sa.Dialect) -> str:
    """Return SQL for the streams of lines that were not inserted, because their lock has another writer."""
    return (
        f"SELECT DISTINCT line.value->>1 FROM {json_lines_sql(dialect)} WHERE COALESCE(({_WRITER}), :owner) <> :owner "
        "ORDER BY 1"
    )


def json_lines_sql(dialect: sa.Dialect) -> str:
    """Return SQL that reads the parameter `lines`, a JSON array, as the rows `line.value`."""
    if dialect.name == "postgresql":
        return "json_array_elements(CAST(:lines AS json)) AS line(value)"
    # A subquery that SQLite may not flatten: else it would serialize the value again for every column read from it.
    return "(SELECT value FROM json_each(:lines) LIMIT -1) AS line"


def find_entries(database: StoreDatabase, stream: str) -> dict[str, Any]:
    query = "SELECT key, CAST(value AS TEXT) FROM entries WHERE stream = :stream ORDER BY key"
    rows = database.find(query, {"stream": escape_text(stream)})
    document = f"[{','.join([value for _, value in rows])}]"
    values = parse_stored_json(document)  # one by one takes twice as long
    if ESCAPE_MARK in document:
        values = map_texts(unescape_text, values)
    return dict(zip([unescape_text(key) for key, _ in rows], values, strict=True))


def find_streams(database: StoreDatabase, prefix: str) -> dict[str, float]:
    query = (
        "SELECT stream, MAX(written_at) FROM entries WHERE substr(stream, 1, :length) = :prefix GROUP BY stream "
        "ORDER BY MAX(written_at) DESC, stream"
    )
    prefix = escape_text(prefix)
    rows = database.find(query, {"length": len(prefix), "prefix": prefix})
    return {unescape_text(stream): float(written_at) for stream, written_at in rows}


def find_entry_times(database: StoreDatabase, stream: str) -> dict[str, float]:
    """Return when each entry of a stream was written, by key."""
    query = "SELECT key, written_at FROM entries WHERE stream = :stream ORDER BY key"
    rows = database.find(query, {"stream": escape_text(stream)})
    return {unescape_text(key): float(written_at) for key, written_at in rows}


def find_last_key(database: StoreDatabase, stream: str) -> str | None:
    [(key,)] = database.find("SELECT MAX(key) FROM entries WHERE stream = :stream", {"stream": escape_text(stream)})
    return None if key is None else unescape_text(key)


def find_last_entries(database: StoreDatabase, stream: str, limit: int, *, with_children: bool = False) -> list[Any]:
    """Return the values with the greatest keys, descending; `with_children` also of the streams `STREAM:…`."""
    condition, values = "stream = :stream", {"stream": escape_text(stream), "limit": limit}
    if with_children:
        condition += " OR substr(stream, 1, :length) = :prefix"
        values |= {"prefix": f"{values['stream']}:", "length": len(f"{values['stream']}:")}
    query = f"SELECT CAST(value AS TEXT) FROM entries WHERE {condition} ORDER BY key DESC LIMIT :limit"
    rows = database.find(query, values)
    return list(map_texts(unescape_text, parse_stored_json(f"[{','.join(value for (value,) in rows)}]")))


def delete_entries(database: StoreDatabase, stream: str, keys: Sequence[str] | None) -> int:
    stream = escape_text(stream)
    with database.write() as connection:
        if keys is None:
            statement = sa.text("DELETE FROM entries WHERE stream = :stream")
            return connection.execute(statement, {"stream": stream}).rowcount
        statement = sa.text("DELETE FROM entries WHERE stream = :stream AND key = :key")
        return sum(connection.execute(statement, {"stream": stream, "key": escape_text(key)}).rowcount for key in keys)
