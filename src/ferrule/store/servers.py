"""The servers that use a store, and where they reach each other. A server has a lease while it lives (`leases.py`)."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Final

from ferrule.errors import StoreError
from ferrule.store.database import StoreDatabase
from ferrule.store.leases import ATTEMPT_INTERVAL, MAX_ATTEMPTS, Leases, read_database_clock, take_patiently
from ferrule.store.tables import get_table, sa, upsert_statement

SERVER_PREFIX: Final = "server:"
PROCESS_PREFIX: Final = "mcp:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """An address by which the other servers reach a server."""

    server_id: str
    url: str
    """Empty for a server that only the workers of the same `ferrule serve` reach."""
    machine: str
    """The name of its machine: an address of the loopback interface is of use there alone."""
    socket: str = ""
    """Where the workers of the same `ferrule serve` reach this one, which shares its port with them."""
    secret: str = field(default="", repr=False)
    """What another server must know to let this server make calls: every process that reads the store knows it."""


def register_server(leases: Leases, address: ServerAddress) -> None:
    """Tell the other servers where a server is, until its lease ends. Blocks."""
    key = SERVER_PREFIX + address.server_id
    if not leases.is_confirmed(key):
        take_patiently(leases, key, json.dumps(asdict(address)))


def remove_server(leases: Leases) -> None:
    """Give back the lease of a server and of the processes that it has. Blocks."""
    failure: StoreError | None = None
    for key in leases.held_keys:
        if key.startswith((SERVER_PREFIX, PROCESS_PREFIX)):
            try:
                leases.release(key)
            except StoreError as error:  # none of them is renewed any more, so each ends soon
                failure = error
    if failure is not None:
        raise failure


def list_servers(leases: Leases) -> dict[str, ServerAddress]:
    """Return the servers that live, by their ids. Blocks."""
    addresses = [
        ServerAddress(**json.loads(lease.details)) for lease in leases.find_all(SERVER_PREFIX) if lease.details
    ]
    return {address.server_id: address for address in addresses}


def claim_process(leases: Leases, name: str, server_id: str) -> str:
    """Return the server that has the process of a stateful MCP server: the first that claimed it and lives. Blocks."""
    key = PROCESS_PREFIX + name
    for _ in range(MAX_ATTEMPTS):
        if leases.take(key, server_id) is not None:
            return server_id
        lease = leases.find(key)
        if lease is not None and lease.owner:
            return lease.details
        time.sleep(ATTEMPT_INTERVAL)
    raise StoreError(f"the server that has the process of {name!r} cannot be found")


# Tools that a server cannot reach


def store_open_circuit(database: StoreDatabase, source: str, tool_id: str) -> None:
    """Record that this server cannot reach a tool. Entries older than an hour are deleted."""
    table = get_table("open_circuits")
    with database.write() as connection:
        now = read_database_clock(connection)
        connection.execute(table.delete().where(table.c.opened_at < now - 3600))
        values = {"source": source, "tool_id": tool_id, "opened_at": now}
        connection.execute(sa.text(upsert_statement(table.name)), values)


def list_open_circuits(database: StoreDatabase) -> list[tuple[str, str, float]]:
    """Return the source and the id of each tool that a server could not reach, and how many seconds ago."""
    with database.read() as connection:
        now = read_database_clock(connection)
        rows = connection.exec_driver_sql("SELECT source, tool_id, opened_at FROM open_circuits").all()
    return [(source, tool_id, max(now - opened_at, 0.0)) for source, tool_id, opened_at in rows]
