"""Limits that hold for all processes of a store together: each process leases a part of them for some seconds.

A process asks for all its buckets in one transaction, so a call costs no round trip to the database: it takes one of
the slots that its process has leased. What a dead process held is free again when its lease has ended.

    slots     `leases` has one row per bucket and process. All slots of a bucket are never more than its limit.
    starts    `leases` has one row per block of starts (a rate limit allows N starts in 60 seconds). A block counts
              until 60 seconds after its last start could be, so no 60 seconds have more than N.
    limits    `adaptive_limits` has one row per bucket whose limit follows what its service can bear. All processes
              report how their calls have gone, and change it together.

The clock of the database's machine decides, so the clocks of the processes need not agree.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf, sqrt
from sys import maxsize
from typing import Any, Final, TypeAlias, TypeVar

from ferrule.store.database import StoreDatabase
from ferrule.store.leases import read_database_clock
from ferrule.store.tables import get_table, sa

LeaseT = TypeVar("LeaseT", "SlotLease", "StartLease")

RATE_PERIOD: Final = 60.0
START_LEASE_SECONDS: Final = 2.0
"""How long a block of starts can be used. Longer blocks would make a rate limit lose more of its starts."""
MAX_LOCK_SECONDS: Final = 2
"""How long a process that says nothing more, in the middle of a renewal, can keep all others from renewing."""
DECREASE: Final = 0.7
DECREASE_INTERVAL: Final = 1.0
"""Seconds between two decreases of an adaptive limit: calls that ran together report the same overload."""
SLOTS_PREFIX: Final = "slots:"
STARTS_PREFIX: Final = "starts:"
_RENEWAL_LOCK: Final = 0x666572  # any number; only this module uses it with a schema
MAX_LEASE_SECONDS: Final = 3600.0
"""A lease that ends later is from before a restart of the machine: SQLite's leases use the time since then."""


@dataclass(slots=True, kw_only=True)
class BucketLoad:
    """How the calls of a bucket with an adaptive limit have gone since the last report."""

    minimum: int
    """The least that the limit can be."""
    good_calls: int = 0
    is_overload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """An adaptive limit: up by one after as many good calls as there are slots, down by a third with an overload
    ("additive increase, multiplicative decrease", as TCP does).
    """

    slots: float
    lowered_at: float = float("-inf")

    def after(self, report: BucketLoad, maximum: int, now: float) -> LimitState:
        slots, lowered_at = self.slots, self.lowered_at
        if not report.is_overload:
            slots = sqrt(slots * slots + 2 * report.good_calls)  # as if each call had added 1 / slots
        elif abs(now - lowered_at) >= DECREASE_INTERVAL:  # a time in the future is from before the clock was set
            slots, lowered_at = slots * DECREASE, now
        return LimitState(slots=min(max(slots, report.minimum), maximum), lowered_at=lowered_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """What a process has of a bucket's slots, and what it wants."""

    limit: int
    """The slots of all processes together; with `load` the most that they can be."""
    slots: int
    """How many it keeps; at most what it was granted before."""
    demand: int
    """How many it could use; `slots` or more."""
    waiting: int = 0
    """Its calls that wait for a slot."""
    load: BucketLoad | None = None
    """For an adaptive limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGrant:
    """The slots of a process until its lease ends."""

    slots: int = 0
    others_waiting: int = 0
    """Calls of other processes that wait for a slot."""
    processes: int = 1
    """How many processes have slots or wait for some."""
    limit: int = maxsize
    """Of all processes together: the lowest that one of them has stated."""
    is_over_limit: bool = False
    """Whether they have more slots than that, because it was lowered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What a process has used of its block of starts, and what it wants."""

    limit: int
    """The starts of all processes together, within any 60 seconds."""
    used: int = 0
    """How many of the starts that it was granted last it has used; the others are given back."""
    demand: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Everything that a process asks for at a time."""

    owner: str
    seconds: float
    """How long the leases of slots hold."""
    slots: Mapping[str, SlotRequest] = field(default_factory=dict)
    starts: Mapping[str, StartRequest] = field(default_factory=dict)


StartGrant: TypeAlias = tuple[int, float]
"""The starts of a process for the next two seconds, and the seconds until more may be free."""
LeaseGrants: TypeAlias = tuple[Mapping[str, SlotGrant], Mapping[str, StartGrant]]
"""What a process gets, by bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLease:
    """The slots of one process in a bucket."""

    owner: str
    slots: int
    waiting: int
    waiting_since: float | None
    """When the process, which has no slot, began to wait for one."""
    slot_limit: int
    """The limit of all processes together, as this one states it."""
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartLease:
    """A block of starts of one process."""

    owner: str
    starts: int
    counts_until: float
    is_open: bool
    """Whether its process may still use it."""


def adapt_limit(state: LimitState | None, request: SlotRequest, now: float) -> tuple[LimitState, SlotRequest]:
    """Return an adaptive limit after a report, and the request with the limit that holds now."""
    assert request.load is not None
    state = (state or LimitState(slots=request.limit)).after(request.load, request.limit, now)
    return state, replace(request, limit=int(state.slots))


def grant_slots(
    leases: Iterable[SlotLease], owner: str, request: SlotRequest, seconds: float, now: float
) -> tuple[SlotLease, SlotGrant]:
    """Return the new lease of a process on a bucket.

    With at least one slot for each process, a process gets its equal share before another gets more than that. With
    fewer slots than processes they take turns: a free slot is for the process that has waited longest.
    """
    current = [lease for lease in leases if now < lease.expires_at <= now + MAX_LEASE_SECONDS]
    mine = next((lease for lease in current if lease.owner == owner), None)
    others = [lease for lease in current if lease.owner != owner]
    limit = min(request.limit, *(lease.slot_limit for lease in others)) if others else request.limit
    unmet = request.demand - request.slots
    waiting_since = now if request.waiting else None
    if request.waiting and mine is not None and not mine.slots and mine.waiting_since is not None:
        waiting_since = mine.waiting_since
    free = limit - request.slots - sum(lease.slots for lease in others)
    processes = 1 + sum(1 for lease in others if lease.slots or lease.waiting)
    share = limit // processes
    if share:
        extra = min(unmet, free, max(0, share - request.slots))
        owed = sum(max(0, min(lease.waiting, share - lease.slots)) for lease in others)
        extra += max(0, min(unmet - extra, free - extra - owed))
    else:
        since = inf if waiting_since is None else waiting_since
        waiting = (lease.waiting_since for lease in others if lease.waiting and not lease.slots)
        ahead = sum(1 for other in waiting if other is not None and other < since)
        extra = min(unmet, free - ahead)
    extra = max(0, extra)
    lease = SlotLease(
        owner=owner,
        slots=request.slots + extra,
        waiting=max(0, request.waiting - extra),
        waiting_since=waiting_since,
        slot_limit=request.limit,
        expires_at=now + seconds,
    )
    grant = SlotGrant(
        slots=lease.slots,
        others_waiting=sum(each.waiting for each in others),
        processes=processes,
        limit=limit,
        is_over_limit=free < 0,
    )
    return lease, grant


def grant_starts(
    leases: Iterable[StartLease], owner: str, request: StartRequest, now: float
) -> tuple[list[StartLease], StartGrant]:
    """Return the leases of a bucket after a process has given back its block and got a new block."""
    counted: list[StartLease] = []
    for lease in leases:
        if lease.owner == owner and lease.is_open:
            lease = replace(
                lease, starts=min(request.used, lease.starts), counts_until=now + RATE_PERIOD, is_open=False
            )
        if lease.starts and now < lease.counts_until <= now + MAX_LEASE_SECONDS:
            counted.append(lease)
    free = request.limit - sum(lease.starts for lease in counted)
    processes = len({lease.owner for lease in counted} | {owner})
    starts = max(0, min(request.demand, free, max(1, free // processes)))
    if starts:
        until = now + START_LEASE_SECONDS + RATE_PERIOD
        counted.append(StartLease(owner=owner, starts=starts, counts_until=until, is_open=True))
    next_at = now if free > starts else inf
    for lease in counted if next_at > now else ():
        # Another process gives back what it does not use of an open block.
        block_end = lease.counts_until - RATE_PERIOD
        is_returned = lease.is_open and lease.owner != owner and block_end > now
        next_at = min(next_at, block_end if is_returned else lease.counts_until)
    return counted, (starts, next_at - now if counted else 0.0)


def renew_leases(database: StoreDatabase, request: LeaseRequest) -> LeaseGrants:
    """Renew all leases of a process in one transaction; a bucket that it no longer mentions is given back."""
    with database.write() as connection:
        now = _lock_leases(connection)
        return _renew_slots(connection, request, now), _renew_starts(connection, request, now)


def _adapt_limits(connection: sa.Connection, slots: Mapping[str, SlotRequest], now: float) -> dict[str, SlotRequest]:
    """Return the requests with the limits that hold now."""
    table, adapted = get_table("adaptive_limits"), dict(slots)
    buckets = [bucket for bucket, wish in slots.items() if wish.load is not None]
    if not buckets:
        return adapted
    rows = connection.execute(table.select().where(table.c.bucket.in_(buckets))).all()
    states = {row.bucket: LimitState(slots=row.slots, lowered_at=row.lowered_at) for row in rows}
    new_rows: list[dict[str, Any]] = []
    for bucket in buckets:
        state, adapted[bucket] = adapt_limit(states.get(bucket), slots[bucket], now)
        if state != states.get(bucket):
            new_rows.append({"bucket": bucket, "slots": state.slots, "lowered_at": state.lowered_at})
    if new_rows:
        connection.execute(table.delete().where(table.c.bucket.in_([row["bucket"] for row in new_rows])))
        connection.execute(table.insert(), new_rows)
    return adapted


def _renew_slots(connection: sa.Connection, request: LeaseRequest, now: float) -> dict[str, SlotGrant]:
    table, leases = get_table("leases"), _read_rows(connection, SLOTS_PREFIX, request.slots, SlotLease)
    grants: dict[str, SlotGrant] = {}
    new_rows: list[dict[str, Any]] = []
    for bucket, wish in _adapt_limits(connection, request.slots, now).items():
        lease, grants[bucket] = grant_slots(leases.get(bucket, ()), request.owner, wish, request.seconds, now)
        if lease.slots or lease.waiting:
            new_rows.append(_make_row(SLOTS_PREFIX + bucket, request.owner, lease, now, lease.expires_at))
    is_own = (table.c.part == request.owner) & table.c.key.startswith(SLOTS_PREFIX)
    has_ended = (table.c.part > "") & ((table.c.expires_at <= now) | (table.c.expires_at > now + MAX_LEASE_SECONDS))
    connection.execute(table.delete().where(is_own | has_ended))
    if new_rows:
        connection.execute(table.insert(), new_rows)
    return grants


def _renew_starts(connection: sa.Connection, request: LeaseRequest, now: float) -> dict[str, StartGrant]:
    if not request.starts:
        return {}
    table, leases = get_table("leases"), _read_rows(connection, STARTS_PREFIX, request.starts, StartLease)
    grants: dict[str, StartGrant] = {}
    new_rows: list[dict[str, Any]] = []
    for bucket, wish in request.starts.items():
        counted, grants[bucket] = grant_starts(leases.get(bucket, ()), request.owner, wish, now)
        for number, lease in enumerate(counted, 1):
            new_rows.append(_make_row(STARTS_PREFIX + bucket, str(number), lease, now, lease.counts_until))
    connection.execute(table.delete().where(table.c.key.in_([STARTS_PREFIX + bucket for bucket in request.starts])))
    if new_rows:
        connection.execute(table.insert(), new_rows)
    return grants


def _read_rows(
    connection: sa.Connection, prefix: str, buckets: Iterable[str], kind: Callable[..., LeaseT]
) -> dict[str, list[LeaseT]]:
    """Return the leases of buckets."""
    table, leases = get_table("leases"), dict[str, list[LeaseT]]()
    for row in connection.execute(table.select().where(table.c.key.in_([prefix + bucket for bucket in buckets]))):
        leases.setdefault(row.key.removeprefix(prefix), []).append(kind(**json.loads(row.details)))
    return leases


def _make_row(key: str, part: str, lease: SlotLease | StartLease, now: float, expires_at: float) -> dict[str, Any]:
    details = json.dumps(asdict(lease))
    values = {"key": key, "part": part, "owner": lease.owner, "details": details}
    return {**values, "taken_at": now, "expires_at": expires_at}


def _lock_leases(connection: sa.Connection) -> float:
    """Wait for other processes that renew their leases; returns the time by which leases end."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_LOCK_SECONDS}s'; "
            f"SELECT pg_advisory_xact_lock({_RENEWAL_LOCK}, hashtext(current_schema()))"
        )
        return read_database_clock(connection)
    # The processes of a SQLite file run on one machine, whose monotonic clock nobody can set.
    return time.monotonic()
