"""Limits of all processes that use one store: this process leases slots and starts, and hands them out by itself.

A background task renews the leases of all buckets in one transaction: twice a second while calls run, more often while
calls wait for slots that other processes have, not at all while nothing happens. So a call for which a slot is leased
costs what it costs without a fleet.

The limit holds because of two rules. While a request is on its way, this process uses no more than the request says it
keeps. And it hands out slots only until `USABLE_PART` of its lease is over, counted from *before* the request was sent:
whatever delays the answer, other processes get the slots later than this one has stopped. Each start of a call compares
the time itself, so it holds as well while a request hangs, and after the process was stopped (SIGSTOP). What is not
covered: a call that was running when the database became unreachable, or when the process was stopped, and that still
runs after the lease has ended. It is counted again with the next renewal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import uuid4

from ferrule.concurrency.config import ConcurrencyConfig
from ferrule.concurrency.scheduler import LeasedRate, SlotScheduler
from ferrule.core.aio import cancel_all
from ferrule.errors import StoreError
from ferrule.store.shared_limits import (
    START_LEASE_SECONDS,
    LeaseGrants,
    LeaseRequest,
    SlotGrant,
    SlotRequest,
    StartRequest,
    renew_leases,
)
from ferrule.store.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.concurrency")

USABLE_PART: Final = 0.6
RENEW_INTERVAL: Final = 0.5
POLL_INTERVAL: Final = 0.05
"""Between two requests while calls wait, or while slots are given to other processes."""
KEEP_SECONDS: Final = 1.0
"""How long the slots of a bucket without calls are kept."""
TURN_SECONDS: Final = 0.5
"""How long slots are kept while other processes wait for them."""
MAX_RETRY_INTERVAL: Final = 2.0


RenewLeases: TypeAlias = Callable[[LeaseRequest], Awaitable[LeaseGrants]]
"""Where the processes of a fleet lease their parts of the limits."""


def renew_in(store: ToolKnowledgeStore) -> RenewLeases:
    """Lease from the database of a store."""
    return lambda request: store.query_without_records(renew_leases, request)


@dataclass(slots=True)
class _LeasedSlots:
    """What this process has of the slots of one bucket."""

    slots: int = 0
    grant: SlotGrant = SlotGrant()
    """The last one. An adaptive limit in it is as it is now."""
    held_since: float = 0.0
    used_at: float = 0.0
    is_yielding: bool = False
    """Whether slots are given to other processes as soon as their calls have ended."""


class FleetLimits:
    """Keeps one controller within what its process has leased."""

    def __init__(
        self,
        config: ConcurrencyConfig,
        get_scheduler: Callable[[], SlotScheduler],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._get_scheduler, self._clock = config, get_scheduler, clock
        self._owner = uuid4().hex
        self._limits: dict[str, int] = {}
        self._rates: dict[str, LeasedRate] = {}
        self._slots: dict[str, _LeasedSlots] = {}
        self._requested: dict[str, int] = {}
        """Calls that are not in a queue and need a slot now, by bucket."""
        self._renew_leases: RenewLeases | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None
        self.failures = 0
        """Renewals in a row that failed."""
        self.yields_to_others = False
        """Whether this process keeps only one slot of a bucket while calls of others wait for slots of it."""

    def add_bucket(self, name: str, limit: int | None, rate: LeasedRate | None) -> None:
        if limit is not None:
            self._limits[name], self._slots[name] = limit, _LeasedSlots()
        if rate is not None:
            self._rates[name] = rate

    def get_leased(self, bucket: str) -> int | None:
        """Return the slots of a bucket that this process has leased now, or None without a shared limit."""
        lease = self._slots.get(bucket)
        return None if lease is None else lease.slots

    def start(self, renew: RenewLeases) -> None:
        self._renew_leases = renew
        if self._task is None or self._task.done():
            self._wake = asyncio.Event()
            self._task = asyncio.create_task(self._renew_forever())

    async def aclose(self) -> None:
        """Give everything back. No call runs any more."""
        if self._task is not None:
            await cancel_all([self._task])
            self._task = None
        if self._renewal is not None:
            with suppress(StoreError):
                await self._renewal
        for lease in self._slots.values():
            lease.slots = 0
        for name in self._slots:
            self._get_scheduler().buckets[name].limit = 0
        if self._renew_leases is not None:
            starts = {
                name: StartRequest(limit=rate.limit, used=rate.used)
                for name, rate in self._rates.items()
                if rate.expires_at
            }
            for rate in self._rates.values():
                rate.starts = 0
            with suppress(StoreError):  # then the leases end by themselves
                await self._renew_leases(LeaseRequest(owner=self._owner, seconds=0.0, starts=starts))

    def wake(self) -> None:
        """Ask for more, because a call waits."""
        self._wake.set()

    async def renew_for(self, bucket: str) -> None:
        """Ask immediately for a slot of a bucket, for a call that does not wait in a queue."""
        self._requested[bucket] = self._requested.get(bucket, 0) + 1
        try:
            if self._renewal is not None:  # that request does not know of this call
                await asyncio.shield(self._renewal)
            await self._renew_once()
        finally:
            self._requested[bucket] -= 1
            self.wake()  # from now on the lease is renewed

    async def _renew_forever(self) -> None:
        while True:
            self._wake.clear()
            interval = self._interval()
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._wake.wait()
            if interval is None or interval > POLL_INTERVAL:
                await asyncio.sleep(0)  # calls that arrive together ask together
            else:
                await asyncio.sleep(POLL_INTERVAL)
            await self._renew_once()

    def _interval(self) -> float | None:
        """Return the seconds until the next request, or None when nothing is leased and no call waits."""
        if self.failures:
            return float(min(MAX_RETRY_INTERVAL, POLL_INTERVAL * 2**self.failures))
        now, scheduler = self._clock(), self._get_scheduler()
        intervals: list[float] = []
        for name, lease in self._slots.items():
            bucket, demand = scheduler.buckets[name], self._demand(name)
            is_unused = lease.slots and lease.grant.others_waiting and not demand
            if lease.is_yielding or is_unused or (demand > bucket.current and bucket.current >= bucket.limit):
                intervals.append(POLL_INTERVAL)
            elif lease.slots:
                intervals.append(RENEW_INTERVAL)
        for name, rate in self._rates.items():
            if scheduler.buckets[name].waiting and not rate.allows(now):
                intervals.append(min(1.0, max(POLL_INTERVAL, rate.next_at - now)))
            elif rate.expires_at:
                intervals.append(max(POLL_INTERVAL, rate.expires_at - now))
        return min(intervals, default=None)

    async def _renew_once(self) -> None:
        """Send one request, which several callers share."""
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew())
            self._renewal.add_done_callback(self._forget_renewal)
        await asyncio.shield(self._renewal)

    def _forget_renewal(self, task: asyncio.Task[None]) -> None:
        self._renewal = None
        if not task.cancelled():
            task.exception()

    async def _renew(self) -> None:
        assert self._renew_leases is not None, "it was started"
        self._stop_expired()
        sent_at = now = self._clock()
        wanted_slots = {name: slot for name in self._slots if (slot := self._request_slots(name, now)) is not None}
        wanted_starts = {name: start for name in self._rates if (start := self._request_starts(name, now)) is not None}
        if not wanted_slots and not wanted_starts:
            return
        seconds = self._config.lease_seconds
        request = LeaseRequest(owner=self._owner, seconds=seconds, slots=wanted_slots, starts=wanted_starts)
        try:
            slots, starts = await self._renew_leases(request)
        except Exception as error:  # whatever it is, calls wait for the next try
            self.failures += 1
            if self.failures == 1:
                logger.warning("error=<%r> | shared limits: the leases could not be renewed, trying again", error)
            for name, wish in request.slots.items():  # the answer may be lost, and what was given back with it
                self._slots[name].slots = min(self._slots[name].slots, wish.slots)
                if wish.load is not None and (adaptive := self._get_scheduler().buckets[name].adaptive) is not None:
                    adaptive.return_report(wish.load)
            self._stop_expired()
            return
        self.failures = 0
        for name, grant in slots.items():
            self._accept_slots(name, grant, sent_at)
        for name, (number, next_in) in starts.items():
            rate = self._rates[name]
            rate.starts, rate.used = number, 0
            rate.expires_at = sent_at + START_LEASE_SECONDS * USABLE_PART if number else 0.0
            rate.next_at = self._clock() + next_in
        self._stop_expired()
        self._get_scheduler().start_ready()

    def _request_slots(self, name: str, now: float) -> SlotRequest | None:
        """Return what to ask for a bucket. From here until the answer, the bucket uses only what it keeps."""
        lease, bucket = self._slots[name], self._get_scheduler().buckets[name]
        limit, demand = self._limits[name], self._demand(name)
        if demand:
            lease.used_at = now
        if not (lease.slots or demand):
            lease.is_yielding = False
            return None
        load = None if bucket.adaptive is None else bucket.adaptive.take_report()
        share = min(limit, lease.grant.limit) // lease.grant.processes
        # What is not used is given back immediately.
        waited = lease.grant.others_waiting and (not demand or now - lease.held_since >= TURN_SECONDS)
        is_last = self.yields_to_others and lease.grant.others_waiting > 0
        if is_last:
            share, waited = min(share, 1), True
        lease.is_yielding = lease.slots > share and bool(waited or lease.grant.is_over_limit)
        bucket.limit = lease.slots
        if lease.is_yielding:
            bucket.limit = share
        elif not demand and now - lease.used_at >= KEEP_SECONDS:
            bucket.limit = 0
        slots = max(bucket.limit, bucket.current)
        spare = 1 + demand // 4
        target = slots if lease.is_yielding or not demand else max(slots, min(limit, demand + spare))
        target = max(slots, min(target, self._config.max_concurrent))
        waiting = max(0, demand - self._requested.get(name, 0) - slots)
        if is_last and slots:
            target, waiting = slots, 0
        return SlotRequest(limit=limit, slots=slots, demand=target, waiting=waiting, load=load)

    def _demand(self, name: str) -> int:
        """Count the calls of a bucket that run or want to run."""
        scheduler = self._get_scheduler()
        bucket = scheduler.buckets[name]
        reclaiming = sum(1 for slot in scheduler.reclaiming if slot.bucket is bucket)
        return bucket.current + bucket.waiting + reclaiming + self._requested.get(name, 0)

    def _accept_slots(self, name: str, grant: SlotGrant, sent_at: float) -> None:
        lease, bucket = self._slots[name], self._get_scheduler().buckets[name]
        if grant.slots > lease.slots:
            lease.held_since = self._clock()
        lease.slots, lease.grant = grant.slots, grant
        if bucket.adaptive is not None:
            bucket.adaptive.follow(grant.limit)
        bucket.usable_until = sent_at + self._config.lease_seconds * USABLE_PART
        bucket.limit = min(bucket.limit, grant.slots) if lease.is_yielding else grant.slots

    def _request_starts(self, name: str, now: float) -> StartRequest | None:
        rate, bucket = self._rates[name], self._get_scheduler().buckets[name]
        demand = bucket.waiting + self._requested.get(name, 0)
        if rate.allows(now) and not demand:
            return None  # the block is used up first
        if not (demand or rate.expires_at):
            return None
        request = StartRequest(limit=rate.limit, used=rate.used, demand=demand + rate.used if demand else 0)
        rate.starts = 0  # they are given back, and new ones come with the answer
        return request

    def _stop_expired(self) -> None:
        """Forget leases that could not be renewed in time. Their buckets have handed out nothing since then."""
        now, scheduler = self._clock(), self._get_scheduler()
        for name, lease in self._slots.items():
            if now >= scheduler.buckets[name].usable_until:
                lease.slots = scheduler.buckets[name].limit = 0
