"""Slots and queues: every call passes here before it runs.

A call takes a slot with `acquire` and gives it back with `release` (or `release_and_wait`, see below). With room that
costs about a microsecond; without room the call waits in a queue, or is rejected with `Rejected`, whose details hold
the reason.

**A tool that calls a tool.** If a call kept its slot while the calls it makes wait for theirs, a few such calls would
fill all slots and wait for each other. So *no call holds a slot while it waits for another one*. A call made inside
another is *nested* (known from a context variable of the running task), and then:

- The outer slot is suspended as soon as the first nested call arrives, and stays so while any nested call waits or
  runs.
- When the last of them has ended, or was rejected, the outer call reclaims its slot: ahead of all queues, whatever
  their size, without a timeout, and before it goes on. As this may have to wait, nested calls end with `await
  release_and_wait(slot)`; `release(slot)` only requests the outer slot and does not wait for it.
- Under cancellation nothing waits: the outer slot is reclaimed later, or not at all if the outer call ends first.
- An outer call that ends before its nested ones (they run in background tasks) reclaims nothing, and calls made after
  its end are ordinary ones.

The slot that a task acquires is the outer slot of whatever this task, and the tasks it starts, acquire before it is
released. So two calls side by side need two tasks, and a slot is released by the task that acquired it. An outer call
is taken to be waiting while any of its nested calls is in progress; if it does other work meanwhile, that is not
counted.

A controller belongs to one event loop at a time. Everything except the metrics must be used from that loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from itertools import count
from typing import Final

from ferrule.concurrency.config import ConcurrencyConfig, ConcurrencyMetrics
from ferrule.concurrency.fleet import FleetLimits, RenewLeases
from ferrule.concurrency.scheduler import (
    ACTIVE,
    RECLAIMING,
    RELEASED,
    AdaptiveLimit,
    Bucket,
    CallRate,
    LeasedRate,
    Slot,
    SlotScheduler,
)
from ferrule.core.call import CALLER_WORKFLOW_NODE
from ferrule.errors import Rejected, SetupError

logger = logging.getLogger("ferrule.concurrency")

# Reasons of a rejection
CONCURRENCY_LIMIT: Final = "concurrency_limit"
QUEUE_FULL: Final = "queue_full"
QUEUE_TIMEOUT: Final = "queue_timeout"
RATE_LIMIT: Final = "rate_limit"
CLOSED: Final = "closed"


class ToolConcurrencyController:
    """Lets as many calls run as the configuration allows; the others wait or are rejected."""

    def __init__(self, config: ConcurrencyConfig | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = ConcurrencyConfig() if config is None else config
        self._clock = clock
        self._limits: dict[str, int] = {}
        self._rates: dict[str, CallRate | LeasedRate] = {}
        self._adaptive = {
            bucket: AdaptiveLimit(
                self.config.bucket_limits[bucket], minimum, self.config.adaptive_latency.get(bucket, math.inf)
            )
            for bucket, minimum in self.config.adaptive_limits.items()
        }
        self._fleet = FleetLimits(self.config, lambda: self._scheduler, clock=clock) if self.config.shared else None
        self._scheduler = self._make_scheduler()
        for name in dict.fromkeys((*self.config.bucket_limits, *self.config.rate_limits)):
            rate = self.config.rate_limits.get(name)
            self.add_bucket(name, slots=self.config.bucket_limits.get(name), calls_per_minute=rate)
        # Not at module level as usual: the slots of two controllers must not be taken for nested ones of each other.
        self._current: ContextVar[Slot | None] = ContextVar("ferrule_slot", default=None)
        # Calls of workflow nodes are not limited: they get this slot, which is never counted.
        self._unlimited = Slot(Bucket("", self._scheduler, []), None)
        self._unlimited.state = RELEASED
        self._arrivals = count()
        self._total_acquired = 0
        self._total_rejected = 0
        self._total_timeout = 0
        self._total_ended = 0
        self._total_time = 0.0

    def add_bucket(self, name: str, *, slots: int | None = None, calls_per_minute: int | None = None) -> None:
        """Limit one more bucket, before it is used. A bucket that exists is not changed."""
        if name in self._scheduler.buckets:
            return
        if slots is not None:
            self._limits[name] = slots
        if calls_per_minute is not None and self._fleet is None:
            self._rates[name] = CallRate(calls_per_minute)
        if self._fleet is not None:
            leased_rate = None if calls_per_minute is None else LeasedRate(calls_per_minute)
            self._fleet.add_bucket(name, slots, leased_rate)
            if leased_rate is not None:
                self._rates[name] = leased_rate
        self._scheduler.add_limited_bucket(name, slots, self._rates.get(name), self._adaptive.get(name))

    def yield_to_others(self) -> None:
        """Let the calls of other processes go first where limits are shared: for batches beside live traffic."""
        if self._fleet is not None:
            self._fleet.yields_to_others = True

    async def acquire(
        self,
        bucket: str = "general",
        *,
        priority: int = 0,
        caller_type: str = "unknown",
        timeout: float | None = None,
    ) -> Slot:
        """Wait for a slot, at most `timeout` seconds (None: the configured time); raises `Rejected`."""
        if caller_type == CALLER_WORKFLOW_NODE:
            return self._unlimited
        slot = self._new_slot(bucket)
        if not slot.bucket.scheduler.try_start(slot):
            await self._wait_for_slot(slot, priority, self.config.default_timeout if timeout is None else timeout)
        self._total_acquired += 1
        self._current.set(slot)
        return slot

    def try_acquire(self, bucket: str = "general", *, caller_type: str = "unknown") -> Slot | None:
        """Return a slot, or None without room or with a call ahead in the queue. Saves the caller an await."""
        if caller_type == CALLER_WORKFLOW_NODE:
            return self._unlimited
        slot = self._new_slot(bucket)
        if not slot.bucket.scheduler.try_start(slot):
            return None
        self._total_acquired += 1
        self._current.set(slot)
        return slot

    async def acquire_separately(self, bucket: str) -> Slot:
        """Wait for a slot that belongs to no call of this task: what the task acquires is not nested in it."""
        slot = Slot(self._find_bucket(bucket), None)
        if not slot.bucket.scheduler.try_start(slot):
            await self._wait_for_slot(slot, 0, self.config.default_timeout)
        self._total_acquired += 1
        return slot

    def try_acquire_separately(self, bucket: str) -> Slot | None:
        """Return a separate slot, or None without room or with a call ahead in the queue."""
        slot = Slot(self._find_bucket(bucket), None)
        if not slot.bucket.scheduler.try_start(slot):
            return None
        self._total_acquired += 1
        return slot

    def release(self, slot: Slot) -> None:
        """Give a slot back; a second time does nothing."""
        if slot.state is RELEASED:
            return
        self._total_ended += 1
        self._total_time += self._clock() - slot.acquired_at
        # A slot that is not nested may stay in the context variable, where it is ignored: setting it would be slow.
        if slot.outer is not None and self._current.get() is slot:
            self._current.set(slot.outer)
        slot.bucket.scheduler.release(slot)

    async def release_and_wait(self, slot: Slot) -> None:
        """Give a slot back and, if the call was nested, wait until the outer call has its slot again."""
        outer = slot.outer
        self.release(slot)
        if outer is not None:
            await _wait_until_reclaimed(outer)

    @asynccontextmanager
    async def slot(
        self,
        bucket: str = "general",
        *,
        priority: int = 0,
        caller_type: str = "unknown",
        timeout: float | None = None,
    ) -> AsyncIterator[Slot]:
        """Hold a slot for the block: `async with controller.slot("http"):`."""
        slot = await self.acquire(bucket, priority=priority, caller_type=caller_type, timeout=timeout)
        try:
            yield slot
        finally:
            await self.release_and_wait(slot)

    def report_load(self, slot: Slot | None, *, seconds: float = 0.0, is_overload: bool = False) -> None:
        """Report how a call of an adaptive bucket has gone. `is_overload` means a timeout or an answer 429."""
        if slot is None or (adaptive := slot.bucket.adaptive) is None:
            return
        bucket = slot.bucket
        if bucket.is_leased:  # the next renewal reports it
            adaptive.collect(seconds=seconds, is_overload=is_overload)
            return
        adaptive.report(self._clock(), seconds=seconds, is_overload=is_overload)
        bucket.limit = adaptive.slots
        bucket.scheduler.start_ready()

    def join_fleet(self, renew: RenewLeases) -> None:
        """Share the limits with the other processes that lease from the same table. Without `shared` do nothing."""
        if self._fleet is not None:
            self._fleet.start(renew)

    async def leave_fleet(self) -> None:
        """Give all leases back, when no call runs any more."""
        if self._fleet is not None:
            await self._fleet.aclose()

    def reject_waiting(self) -> None:
        """Reject all calls that wait now, with the reason `closed`: for shutting down."""
        for slot in self._scheduler.list_waiting_slots():
            self._scheduler.reject(slot, CLOSED)

    def get_metrics(self) -> ConcurrencyMetrics:
        return ConcurrencyMetrics(
            current_concurrent=self._scheduler.running,
            queue_length=self._scheduler.waiting,
            total_acquired=self._total_acquired,
            total_rejected=self._total_rejected,
            total_timeout=self._total_timeout,
            avg_execution_time=self._total_time / self._total_ended if self._total_ended else 0.0,
        )

    def get_bucket_metrics(self) -> dict[str, dict[str, int | None]]:
        """Return running calls, the limit (None: no own limit) and waiting calls of each bucket with a limit or in use.

        With a shared limit also `leased`, the slots that this process has of it now; with an adaptive one also
        `adaptive_limit`, how many slots the service can bear now.
        """
        metrics: dict[str, dict[str, int | None]] = {}
        for name, bucket in self._scheduler.buckets.copy().items():
            limit = self._limits.get(name)
            metrics[name] = {"current": bucket.current, "limit": limit, "queue": bucket.waiting}
            if bucket.adaptive is not None:
                metrics[name]["adaptive_limit"] = bucket.adaptive.slots
            if self._fleet is not None and limit is not None:
                metrics[name]["leased"] = self._fleet.get_leased(name)
        return metrics

    def _find_bucket(self, name: str) -> Bucket:
        scheduler = self._scheduler_of_running_loop()
        return scheduler.buckets.get(name) or scheduler.add_bucket(name)

    def _new_slot(self, bucket: str) -> Slot:
        scheduler = self._scheduler
        # Cheaper than asking for the running loop; a second loop beside the first is noticed when a call must wait.
        if scheduler.loop is None or not scheduler.loop.is_running():
            scheduler = self._scheduler_of_running_loop()
        outer = self._current.get()
        if outer is not None and (outer.state is RELEASED or outer.bucket.scheduler is not scheduler):
            outer = None
        try:
            return Slot(scheduler.buckets[bucket], outer)
        except KeyError:
            return Slot(scheduler.add_bucket(bucket), outer)

    async def _wait_for_slot(self, slot: Slot, priority: int, timeout: float) -> None:
        """Return when the call may run; a rejected call waits until its outer call has its slot again."""
        scheduler, outer = slot.bucket.scheduler, slot.outer
        if asyncio.get_running_loop() is not scheduler.loop:
            raise _two_loops_error(scheduler)
        if slot.bucket.is_leased and self._fleet is not None and self.config.strategy == "reject":
            await self._fleet.renew_for(slot.bucket.name)  # other processes may have room
            if scheduler.try_start(slot):
                return
        # The smallest rank starts first. Calls age at one speed, so their order is fixed.
        since = self._clock() - priority * self.config.ageing if self.config.strategy == "priority" else 0.0
        slot.rank = (since, next(self._arrivals))
        self._check_rate(slot, timeout)
        if scheduler.enqueue(slot):
            return
        if self.config.strategy == "reject":
            reason = CONCURRENCY_LIMIT
        elif self._scheduler.waiting > self.config.queue_size:
            reason = QUEUE_FULL
        else:
            reason = await self._wait_in_queue(slot, timeout)
        if reason:
            scheduler.withdraw(slot)
            error = self._make_rejection(reason, slot.bucket.name, timeout)
            if outer is not None:
                await _wait_until_reclaimed(outer)
            raise error

    def _check_rate(self, slot: Slot, timeout: float) -> None:
        """Reject a call immediately when the rate limit cannot let it start in time."""
        rate, bucket = slot.bucket.rate, slot.bucket.name
        if rate is None:
            return
        retry_after = rate.seconds_until_start(self._clock(), slot.bucket.scheduler.count_ahead_of(slot))
        if retry_after > (0.0 if self.config.strategy == "reject" else timeout):
            self._total_rejected += 1
            raise Rejected(
                f"Bucket {bucket!r} is limited to {_format_call_count(rate.limit)} per minute. "
                f"Call again in {retry_after:.1f} s.",
                reason=RATE_LIMIT,
                bucket=bucket,
                retry_after=retry_after,
            )

    async def _wait_in_queue(self, slot: Slot, timeout: float) -> str:
        """Wait, and return the reason of a rejection, or an empty text when the call may run."""
        scheduler = slot.bucket.scheduler
        timer = asyncio.get_running_loop().call_later(timeout, scheduler.expire, slot, QUEUE_TIMEOUT)
        try:
            return await slot.wait_for_change()
        except BaseException:
            scheduler.withdraw(slot)
            raise
        finally:
            timer.cancel()

    def _make_rejection(self, reason: str, bucket: str, timeout: float) -> Rejected:
        if reason == QUEUE_TIMEOUT:
            self._total_timeout += 1
        else:
            self._total_rejected += 1
        limit = f"limit: {_format_call_count(self.config.max_concurrent)}"
        if (own := self._limits.get(bucket)) is not None:
            limit = f"limit: {_format_call_count(own)} in this bucket, {self.config.max_concurrent} in total"
        no_slot = f"No slot for a call in bucket {bucket!r} ({limit})"
        messages = {
            CONCURRENCY_LIMIT: f"{no_slot}, and calls do not wait for one (strategy 'reject')."
            " Call again when another call has ended.",
            QUEUE_FULL: f"{no_slot}, and the queue of {self.config.queue_size} is full. Call again later.",
            QUEUE_TIMEOUT: f"{no_slot} within {timeout:g} s. Call again later, with fewer concurrent calls.",
            CLOSED: f"{no_slot} before the engine closed, which starts no more calls. Call again after a restart.",
        }
        return Rejected(messages[reason], reason=reason, bucket=bucket)

    def _scheduler_of_running_loop(self) -> SlotScheduler:
        """Move to another event loop; only the start times of the rate limits come along."""
        scheduler, loop = self._scheduler, asyncio._get_running_loop()
        if loop is None or loop is scheduler.loop:
            return scheduler
        if scheduler.loop is None:
            scheduler.loop = loop
            return scheduler
        if not scheduler.is_idle:
            if not scheduler.loop.is_closed():
                raise _two_loops_error(scheduler)
            logger.warning(
                "running=<%d>, waiting=<%d> | the event loop of these calls was closed, their slots are free again",
                scheduler.running,
                scheduler.waiting,
            )
            scheduler.abandon()
        self._scheduler = self._make_scheduler()
        self._scheduler.loop = loop
        return self._scheduler

    def _make_scheduler(self) -> SlotScheduler:
        on_demand = self._fleet.wake if self._fleet is not None else lambda: None
        scheduler = SlotScheduler(self.config, self._clock, on_demand)
        for name in dict.fromkeys((*self._limits, *self._rates)):
            scheduler.add_limited_bucket(name, self._limits.get(name), self._rates.get(name), self._adaptive.get(name))
        return scheduler


@asynccontextmanager
async def suspend_slots(slots: Sequence[Slot], *, of_calls: Sequence[Slot]) -> AsyncIterator[None]:
    """Let others use the slots while their calls wait for something else than work, such as a person.

    `of_calls` are the slots of the calls of which one continues when the block is left: then one of them is counted
    again. Waiting for all of them would never end where they are more than the limit, because each needs its answer to
    release its slot.
    """
    unreleased_slots = [slot for slot in slots if slot.state is not RELEASED]
    for slot in unreleased_slots:
        slot.bucket.scheduler.suspend(slot)
    try:
        yield
    finally:
        for slot in unreleased_slots:
            slot.bucket.scheduler.resume(slot)
        await _wait_until_one_is_reclaimed(of_calls)


async def _wait_until_reclaimed(outer: Slot) -> None:
    """Wait until the outer call has its slot again; return immediately under cancellation."""
    task = asyncio.current_task()
    while outer.state is RECLAIMING and not (task is not None and task.cancelling()):
        await outer.wait_for_change()


async def _wait_until_one_is_reclaimed(slots: Sequence[Slot]) -> None:
    task = asyncio.current_task()
    while not (task is not None and task.cancelling()):
        reclaiming = [slot for slot in slots if slot.state is RECLAIMING]
        if not reclaiming or any(slot.state is ACTIVE for slot in slots):
            return
        changes = [asyncio.ensure_future(slot.wait_for_change()) for slot in reclaiming]
        try:
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for change in changes:
                change.cancel()


def _two_loops_error(scheduler: SlotScheduler) -> SetupError:
    return SetupError(
        "this controller is still in use by another event loop"
        f" ({scheduler.running} running, {scheduler.waiting} waiting):"
        " let these calls end first, or create a controller for each loop"
    )


def _format_call_count(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"
