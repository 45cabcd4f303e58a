"""The servers that use a store, and where they reach each other. Each renews its row; one that stops doing so is dead.

The time is that of the database's machine, so the clocks of the servers need not agree.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from ferrule.store.tables import get_table

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ferrule.store.database import StoreDatabase


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server can be reached by the others."""

    server_id: str
    url: str
    """Empty for one that only the workers of the same `ferrule serve` reach."""
    machine: str
    """The name of its machine: an address of the loopback interface is of use there alone."""
    socket: str = ""
    """Where the workers of the same `ferrule serve` reach this one, which shares its port with them."""
    secret: str = field(default="", repr=False)
    """What a server must know to let this one make calls for it: whoever reads the store may."""


def renew_server(database: StoreDatabase, address: ServerAddress, seconds: float) -> None:
    """Register a server for some seconds, and forget those that are dead."""
    table = get_table("servers")
    with database.write() as connection:
        now = read_database_clock(connection)
        values = {**asdict(address), "expires_at": now + seconds}
        is_own = table.c.server_id == address.server_id
        if connection.execute(table.update().where(is_own).values(values)).rowcount != 1:
            connection.execute(table.insert().values(values))
        connection.execute(table.delete().where(table.c.expires_at <= now))


def remove_server(database: StoreDatabase, server_id: str) -> None:
    table = get_table("servers")
    with database.write() as connection:
        connection.execute(table.delete().where(table.c.server_id == server_id))


def list_servers(database: StoreDatabase) -> dict[str, ServerAddress]:
    """The servers that live, by their ids."""
    table = get_table("servers")
    with database.read() as connection:
        rows = connection.execute(table.select().where(table.c.expires_at > read_database_clock(connection))).all()
    names = [each.name for each in fields(ServerAddress)]
    addresses = [ServerAddress(**{name: getattr(row, name) for name in names}) for row in rows]
    return {address.server_id: address for address in addresses}


def claim_mcp_server(
    database: StoreDatabase, name: str, server_id: str, dead_server: str = "", seconds_left: float = math.inf
) -> str:
    """The server that has the process of a stateful MCP server: the one that claimed it first and lives.

    `dead_server` is dead already if its row is valid for `seconds_left` at most: it has not renewed it lately.
    """
    import sqlalchemy as sa

    claim = sa.text(
        "INSERT INTO mcp_owners (name, server_id) VALUES (:name, :server_id) "
        "ON CONFLICT (name) DO UPDATE SET server_id = excluded.server_id WHERE mcp_owners.server_id NOT IN "
        "(SELECT server_id FROM servers WHERE expires_at > :now AND (server_id <> :dead_server OR expires_at > :until))"
    )
    with database.write() as connection:
        now = read_database_clock(connection)
        values = {"name": name, "server_id": server_id, "dead_server": dead_server, "now": now}
        connection.execute(claim, {**values, "until": now + seconds_left})
        owner = connection.scalar(sa.text("SELECT server_id FROM mcp_owners WHERE name = :name"), {"name": name})
    return str(owner)


# Tools that a server cannot reach


def store_open_circuit(database: StoreDatabase, source: str, tool_id: str) -> None:
    """A server cannot reach a tool; what is older than an hour is of no use to anybody."""
    import sqlalchemy as sa

    with database.write() as connection:
        values = {"source": source, "tool_id": tool_id, "now": read_database_clock(connection)}
        connection.execute(sa.text("DELETE FROM open_circuits WHERE opened_at < :now - 3600"), values)
        connection.execute(
            sa.text(
                "INSERT INTO open_circuits (source, tool_id, opened_at) VALUES (:source, :tool_id, :now) "
                "ON CONFLICT (source, tool_id) DO UPDATE SET opened_at = excluded.opened_at"
            ),
            values,
        )


def list_open_circuits(database: StoreDatabase) -> list[tuple[str, str, float]]:
    """The source and id of each tool that a server could not reach, and how many seconds ago."""
    with database.read() as connection:
        now = read_database_clock(connection)
        rows = connection.exec_driver_sql("SELECT source, tool_id, opened_at FROM open_circuits").all()
    return [(source, tool_id, max(now - opened_at, 0.0)) for source, tool_id, opened_at in rows]


def read_database_clock(connection: Connection) -> float:
    """The time for what several servers must agree on, whatever their own clocks say."""
    if connection.dialect.name == "postgresql":
        return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
    return time.time()
