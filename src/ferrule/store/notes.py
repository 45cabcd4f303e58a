"""Notes: whatever else must not be lost, in books, under keys.

A book is a named list of JSON values, each under a key of its own and read in the order of the keys; a later note
under the same key takes the place of the earlier one. The history of a run is a book, and so is what was learned from
failures. Notes go the way of the records: one line in the journal, then SQL. So writing one costs microseconds and
survives `kill -9`.

    ["!note", "book", "key", moment, value]
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from ferrule.redaction import Redaction, storable_text

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect

    from ferrule.store.database import Database

_MARK: Final = b'["!note",'
_UNENCODABLE = (TypeError, ValueError, RecursionError)


def note_line(book: str, key: str, value: Any, redaction: Redaction) -> bytes:
    """`value` is anything JSON can say; what looks like a secret in it is blanked."""
    said = ["!note", storable_text(book), storable_text(key), time.time(), value]
    try:
        encoded = orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE)
        if not redaction.suspects(encoded.decode()):
            return encoded
    except _UNENCODABLE:
        pass
    said[4] = redaction.clean(value, ())
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def split_notes(lines: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The lines of notes, and the others."""
    notes: list[bytes] = []
    others: list[bytes] = []
    for line in lines:
        (notes if line.startswith(_MARK) else others).append(line)
    return notes, others


def newest_notes(lines: Sequence[bytes]) -> list[bytes]:
    """The last line of each key. A line that cannot be read stays, for the database to refuse."""
    newest: dict[Any, bytes] = {}
    for line in lines:
        try:
            _, book, key, *_ = orjson.loads(line)
        except (orjson.JSONDecodeError, ValueError):
            book = key = line
        newest[book, key] = line
    return list(newest.values())


def insert_notes_statement(dialect: Dialect) -> str:
    """`INSERT … SELECT` from a JSON array of lines. What an old journal says does not replace what is newer."""
    lines = "(SELECT value FROM json_each(:lines) LIMIT -1) AS line"
    if dialect.name == "postgresql":
        lines = "json_array_elements(CAST(:lines AS json)) AS line(value)"
    return (
        f"INSERT INTO notes (book, key, written_at, value) SELECT line.value->>1, line.value->>2, "
        f"CAST(line.value->>3 AS DOUBLE PRECISION), line.value->4 FROM {lines} WHERE true "
        "ON CONFLICT (book, key) DO UPDATE SET value = excluded.value, written_at = excluded.written_at "
        "WHERE excluded.written_at >= notes.written_at"
    )


CREATE_NOTES: Final = """\
CREATE TABLE notes (
    book TEXT NOT NULL, key TEXT NOT NULL, written_at DOUBLE PRECISION NOT NULL, value {json} NOT NULL,
    PRIMARY KEY (book, key)
)"""


def create_notes(connection: Connection) -> None:
    kind = "JSON" if connection.dialect.name == "postgresql" else "TEXT"
    connection.exec_driver_sql(CREATE_NOTES.format(json=kind))


# What can be asked of them


def find_notes(database: Database, book: str) -> dict[str, Any]:
    import sqlalchemy as sa

    query = sa.text("SELECT key, CAST(value AS TEXT) FROM notes WHERE book = :book ORDER BY key")
    with database.read() as connection:
        found = connection.execute(query, {"book": book}).all()
    values = json.loads(f"[{','.join([value for _, value in found])}]")  # one by one takes twice as long
    return dict(zip([key for key, _ in found], values, strict=True))


def find_books(database: Database, prefix: str) -> dict[str, float]:
    """The books whose names begin so, and when each was last written in; the latest first."""
    import sqlalchemy as sa

    query = sa.text(
        "SELECT book, MAX(written_at) FROM notes WHERE substr(book, 1, :length) = :prefix GROUP BY book "
        "ORDER BY MAX(written_at) DESC, book"
    )
    with database.read() as connection:
        found = connection.execute(query, {"length": len(prefix), "prefix": prefix})
        return {book: float(moment) for book, moment in found}


def forget_notes(database: Database, book: str, keys: Sequence[str] | None) -> int:
    import sqlalchemy as sa

    with database.write() as connection:
        if keys is None:
            return connection.execute(sa.text("DELETE FROM notes WHERE book = :book"), {"book": book}).rowcount
        one = sa.text("DELETE FROM notes WHERE book = :book AND key = :key")
        return sum(connection.execute(one, {"book": book, "key": key}).rowcount for key in keys)
