"""The table of approval requests. Each function is one transaction.

An approval is used at most once, by whichever process is first, because one `UPDATE` both checks and changes its state.
The same transaction records the start of the call: whatever is killed, an approval that was used has its call.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from ferrule.store.database import StoreDatabase
from ferrule.store.tables import BINDING_COLUMNS, get_table, sa

OPEN_STATES: Final = ("pending", "approved")
"""Of requests that expire."""


def insert_approval(database: StoreDatabase, values: Mapping[str, Any]) -> dict[str, Any]:
    """Insert a request, unless the same call already has a pending one; returns the row that there is then."""
    table = get_table("approvals")
    same_call = [table.c[name] == values[name] for name in BINDING_COLUMNS]
    pending = table.select().where(*same_call, table.c.state == "pending", table.c.expires_at > values["created_at"])
    with database.write() as connection:
        if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
            key = sha256(repr([values[name] for name in BINDING_COLUMNS]).encode()).digest()[:8]
            lock = sa.select(sa.func.pg_advisory_xact_lock(int.from_bytes(key, signed=True)))
            connection.execute(lock)  # two processes must not insert a request for the same call
        row = connection.execute(pending.limit(1)).mappings().first()
        if row is None:
            row = connection.execute(table.insert().values(values).returning(*table.c)).mappings().first()
        assert row is not None, "a row that was just inserted is returned"
        return dict(row)


def find_approval(database: StoreDatabase, approval_id: str) -> dict[str, Any] | None:
    table = get_table("approvals")
    return database.find_first(table.select().where(table.c.approval_id == approval_id))


def find_decision(
    database: StoreDatabase, binding: Mapping[str, str], approval_id: str | None, now: float
) -> dict[str, Any] | None:
    """Return the request about a call that a person has decided: by its id, or else the latest of the run.

    With an id that covers nothing, only a refusal of the same call in the run is returned.
    """
    table = get_table("approvals")
    in_run = table.c.run_id != ""
    is_named = table.c.approval_id == approval_id
    is_relevant = in_run if approval_id is None else is_named | (in_run & (table.c.state == "refused"))
    is_decided = table.c.state.in_(("approved", "refused"))
    query = table.select().where(*_covers(binding, now), is_decided, is_relevant)
    return database.find_first(query.order_by(is_named.desc(), table.c.decided_at.desc()))


def list_approvals(
    database: StoreDatabase, state: str | None, run_id: str | None, tenant: str | None, limit: int, now: float
) -> tuple[list[dict[str, Any]], int]:
    """Return the newest requests in a state (or any), of one run and tenant or of all, and their number."""
    table = get_table("approvals")
    conditions = [] if run_id is None else [table.c.run_id == run_id]
    if tenant is not None:
        conditions.append(table.c.tenant == tenant)
    if state == "expired":
        conditions += [table.c.state.in_(OPEN_STATES), table.c.expires_at <= now]
    elif state is not None:
        conditions.append(table.c.state == state)
        if state in OPEN_STATES:
            conditions.append(table.c.expires_at > now)
    query = table.select().where(*conditions).order_by(table.c.created_at.desc()).limit(limit)
    with database.read() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
        if len(rows) < limit:
            return rows, len(rows)
        count = connection.execute(sa.select(sa.func.count()).select_from(table).where(*conditions)).scalar_one()
        return rows, int(count)


def list_decided_runs(database: StoreDatabase, since: float, now: float) -> list[tuple[str, str, float]]:
    """Return the requests of runs decided since a time: their ids, runs and times of the decision."""
    table = get_table("approvals")
    query = sa.select(table.c.approval_id, table.c.run_id, table.c.decided_at).where(
        table.c.run_id != "", table.c.decided_at >= since, table.c.expires_at > now
    )
    return [(row[0], row[1], row[2]) for row in database.find(query)]


def decide_approval(
    database: StoreDatabase, approval_id: str, values: Mapping[str, Any], from_states: tuple[str, ...], now: float
) -> bool:
    """Change the state of a request; False when it has another state by now, or has expired."""
    table = get_table("approvals")
    is_open = (table.c.approval_id == approval_id) & table.c.state.in_(from_states) & (table.c.expires_at > now)
    return database.change(table.update().where(is_open).values(values)) == 1


def use_approval(
    database: StoreDatabase,
    approval_id: str,
    binding: Mapping[str, str],
    record_id: str,
    *,
    line: bytes,
    owner: str,
    now: float,
) -> bool:
    """Use an approval and record the start of its call; False when another call was first or it covers another one."""
    table = get_table("approvals")
    conditions = [*_covers(binding, now), table.c.state == "approved", table.c.approval_id == approval_id]
    values = {"state": "used", "used_by": record_id, "used_at": now}
    with database.write() as connection:
        is_used = connection.execute(table.update().where(*conditions).values(values)).rowcount == 1
        if is_used:
            database.insert_start(connection, line, owner)
        return is_used


def _covers(binding: Mapping[str, str], now: float) -> list[sa.ColumnElement[bool]]:
    table = get_table("approvals")
    return [*(table.c[name] == binding[name] for name in BINDING_COLUMNS), table.c.expires_at > now]
