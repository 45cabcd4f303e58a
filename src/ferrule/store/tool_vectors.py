"""The table of tool vectors: what descriptions of tools mean, so that no process computes it again.

A vector belongs to a text, not to a tool: rows are named by the digest of the text. So processes with different tools
share the table, two that write the same row write the same bytes, and a changed description is simply another row.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from ferrule.store.database import StoreDatabase
from ferrule.store.tables import get_table, sa, upsert_statement

_DIGESTS_PER_QUERY = 500
_SECONDS_BETWEEN_MARKS = 24 * 3600
"""How exactly is recorded when a vector was last used."""


class ToolVectors:
    """The vectors in one store: a `VectorStorage` for `RegistryIndex`."""

    def __init__(self, query: Callable[..., Awaitable[Any]]) -> None:
        """Take a `query` that runs a function of the database in a thread."""
        self._query = query

    async def load(self, encoder: str, digests: Collection[str], /) -> dict[str, bytes]:
        """Return the vectors by digest. They count as used today."""
        vectors: dict[str, bytes] = await self._query(_find_vectors, encoder, list(digests))
        return vectors

    async def save(self, encoder: str, vectors: Mapping[str, bytes], /) -> None:
        """Save vectors; those of the same digests are replaced."""
        # In one order, so that two processes that insert the same rows do not wait for each other.
        rows = [
            {"encoder": encoder, "digest": digest, "vector": vector, "used_at": time.time()}
            for digest, vector in sorted(vectors.items())
        ]

        def insert(database: StoreDatabase) -> None:
            with database.write() as connection:
                connection.execute(sa.text(upsert_statement("tool_vectors")), rows)

        await self._query(insert)


def _find_vectors(database: StoreDatabase, encoder: str, digests: list[str]) -> dict[str, bytes]:
    table = get_table("tool_vectors")
    limit = time.time() - _SECONDS_BETWEEN_MARKS
    vectors: dict[str, bytes] = {}
    for start in range(0, len(digests), _DIGESTS_PER_QUERY):
        part = (table.c.encoder == encoder) & table.c.digest.in_(digests[start : start + _DIGESTS_PER_QUERY])
        rows = database.find(table.select().where(part))
        vectors |= {row.digest: bytes(row.vector) for row in rows if isinstance(row.vector, bytes)}
        if any(row.used_at < limit for row in rows):
            database.change(table.update().where(part).values(used_at=time.time()))
    return vectors
