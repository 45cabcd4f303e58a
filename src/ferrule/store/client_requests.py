"""The table of requests with an idempotency key: each is executed once, and its response is given to every repetition.

`claim_request` is one statement, so that of two servers with the same request only one executes it. Keys have the time
of the database's machine: a server whose clock is wrong must not forget the keys of the others.
"""

from __future__ import annotations

from typing import Any

from ferrule.store.database import StoreDatabase
from ferrule.store.leases import read_database_clock
from ferrule.store.tables import get_table, sa


def claim_request(
    database: StoreDatabase, principal: str, key: str, digest: str, claim_id: str, *, lifetime: float
) -> dict[str, Any] | None:
    """Reserve a key for the caller; or return the row of the request that already has it.

    A claim whose answer was lost with the connection can be made again with the same id. Keys are forgotten after their
    lifetime, in seconds.
    """
    table = get_table("requests")
    is_same = (table.c.principal == principal) & (table.c.key == key)
    with database.write() as connection:
        now = read_database_clock(connection)
        values = {"principal": principal, "key": key, "digest": digest, "created_at": now, "claim_id": claim_id}
        connection.execute(table.delete().where(table.c.created_at < now - lifetime))
        is_first = connection.execute(
            sa.text(
                "INSERT INTO requests (principal, key, digest, created_at, claim_id) "
                "VALUES (:principal, :key, :digest, :created_at, :claim_id) ON CONFLICT DO NOTHING"
            ),
            values,
        ).rowcount
        if is_first:
            return None
        row = connection.execute(table.select().where(is_same)).mappings().first()
        if row is not None and row["claim_id"] == claim_id:
            return None
        # Without a row, the other request has just released the key: the caller may try again.
        return {"digest": digest, "status": None, "response": None} if row is None else dict(row)


def complete_request(database: StoreDatabase, principal: str, key: str, status: int, response: str) -> None:
    table = get_table("requests")
    is_same = (table.c.principal == principal) & (table.c.key == key)
    database.change(table.update().where(is_same).values(status=status, response=response))


def release_request(database: StoreDatabase, principal: str, key: str, claim_id: str) -> None:
    """Give a key back whose request was not executed."""
    table = get_table("requests")
    is_same = (table.c.principal == principal) & (table.c.key == key) & (table.c.claim_id == claim_id)
    database.change(table.delete().where(is_same & table.c.response.is_(None)))
