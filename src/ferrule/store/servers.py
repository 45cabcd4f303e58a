"""The servers that use a store, and where they reach each other. Each renews its row; one that stops doing so is dead.

The time is that of the database's machine, so the clocks of the servers need not agree.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    from ferrule.store.database import StoreDatabase


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server can be reached by the others."""

    server_id: str
    url: str
    machine: str
    """The name of its machine: an address of the loopback interface is of use there alone."""


@cache
def servers_table() -> Table:
    import sqlalchemy as sa

    return sa.Table(
        "servers",
        sa.MetaData(),
        sa.Column("server_id", sa.Text, primary_key=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
    )


def create_servers_table(connection: Connection) -> None:
    servers_table().metadata.create_all(connection)


def renew_server(database: StoreDatabase, address: ServerAddress, seconds: float) -> None:
    """Register a server for some seconds, and forget those that are dead."""
    table = servers_table()
    with database.write() as connection:
        now = read_database_clock(connection)
        values = {**asdict(address), "expires_at": now + seconds}
        is_own = table.c.server_id == address.server_id
        if connection.execute(table.update().where(is_own).values(values)).rowcount != 1:
            connection.execute(table.insert().values(values))
        connection.execute(table.delete().where(table.c.expires_at <= now))


def remove_server(database: StoreDatabase, server_id: str) -> None:
    table = servers_table()
    with database.write() as connection:
        connection.execute(table.delete().where(table.c.server_id == server_id))


def list_servers(database: StoreDatabase) -> dict[str, ServerAddress]:
    """The servers that live, by their ids."""
    table = servers_table()
    with database.read() as connection:
        rows = connection.execute(table.select().where(table.c.expires_at > read_database_clock(connection))).all()
    addresses = [ServerAddress(server_id=row.server_id, url=row.url, machine=row.machine) for row in rows]
    return {address.server_id: address for address in addresses}


def create_mcp_owners_table(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE mcp_owners (name TEXT PRIMARY KEY, server_id TEXT NOT NULL)")


def claim_mcp_server(database: StoreDatabase, name: str, server_id: str, dead_server: str = "") -> str:
    """The server that has the process of a stateful MCP server: the one that claimed it first and lives.

    `dead_server` could not be reached, whatever its row says.
    """
    import sqlalchemy as sa

    claim = sa.text(
        "INSERT INTO mcp_owners (name, server_id) VALUES (:name, :server_id) "
        "ON CONFLICT (name) DO UPDATE SET server_id = excluded.server_id WHERE mcp_owners.server_id = :dead_server "
        "OR mcp_owners.server_id NOT IN (SELECT server_id FROM servers WHERE expires_at > :now)"
    )
    with database.write() as connection:
        now = read_database_clock(connection)
        connection.execute(claim, {"name": name, "server_id": server_id, "dead_server": dead_server, "now": now})
        owner = connection.scalar(sa.text("SELECT server_id FROM mcp_owners WHERE name = :name"), {"name": name})
    return str(owner)


def read_database_clock(connection: Connection) -> float:
    """The time for what several servers must agree on, whatever their own clocks say."""
    if connection.dialect.name == "postgresql":
        return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
    return time.time()
