"""The scheduler: which calls run, which wait, and which one starts next.

All of it is plain bookkeeping that never awaits, so it needs no locks. A slot changes hands when it is assigned, not
when its new owner wakes up: the state of a `Slot` always says who has it. A waiting call that is cancelled just after
it was given its slot therefore finds the slot in the state `ACTIVE` and passes it on.

One rule holds after every public method: *no waiting call could run*. So a new call that finds room overtakes no other.

Waiting calls stand in queues sorted by rank. A bucket with its own limit has its own queue; all others share
one. Only the head of a queue can start, and of several heads that could run the one with the best rank does. So a
full bucket delays no other bucket.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from sys import maxsize
from typing import Final, Literal, TypeAlias

from ferrule.concurrency.config import ConcurrencyConfig
from ferrule.store.shared_limits import BucketLoad, LimitState

SlotState: TypeAlias = Literal["waiting", "active", "suspended", "reclaiming", "released"]
WAITING: Final = "waiting"
"""In a queue."""
ACTIVE: Final = "active"
"""Counted against the limits."""
SUSPENDED: Final = "suspended"
"""Not counted while nested calls wait or run; see `controller.py`."""
RECLAIMING: Final = "reclaiming"
"""The nested calls have ended, and the call waits until it is counted again."""
RELEASED: Final = "released"

MINUTE: Final = 60.0
# A rate limit that allows the next call in a billionth of a second must not keep the event loop spinning.
MIN_TIMER_SECONDS: Final = 0.001
MIN_LEASE_WAIT: Final = 0.05
"""How long a call waits at least when this process has no starts left: the database has to be asked for more."""


@dataclass(slots=True, eq=False, repr=False)
class Slot:
    """Permission to run one call: `acquire` gives it, `release` or `release_and_wait` takes it back."""

    bucket: Bucket
    outer: Slot | None
    """The slot of the call that made this one, until this one ends."""
    state: SlotState = WAITING
    acquired_at: float = 0.0
    nested: int = 0
    """Calls made by this one that wait or run now."""
    rank: tuple[float, int] = (0.0, 0)
    """The position in the queue; the smaller starts first."""
    futures: list[asyncio.Future[str]] | None = None
    """What the tasks of `wait_for_change` wait for."""

    async def wait_for_change(self) -> str:
        """Wait until the state changes; returns the reason if the call was rejected, else an empty text."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self.futures is None:
            self.futures = []
        self.futures.append(future)
        return await future

    def notify(self, rejection: str = "") -> None:
        futures, self.futures = self.futures, None
        for future in futures or ():
            # The tasks of a closed event loop cannot be woken; they end when they are garbage-collected.
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(rejection)


_RANK = attrgetter("rank")


@dataclass(slots=True, eq=False)
class Bucket:
    """Calls that share a limit."""

    name: str
    scheduler: SlotScheduler
    queue: list[Slot]
    limit: int = maxsize
    rate: CallRate | LeasedRate | None = None
    adaptive: AdaptiveLimit | None = None
    is_leased: bool = False
    """Whether the limit holds for several processes; then `limit` is the part that this one has leased."""
    usable_until: float = inf
    """When the lease ends for this process: from then on no call starts, even if nobody could lower the limit."""
    current: int = 0
    waiting: int = 0
    timer: asyncio.TimerHandle | None = None
    """Runs while the head of the queue waits for the rate limit."""

    def has_room(self) -> bool:
        return self.current < self.limit and (not self.is_leased or self.scheduler.clock() < self.usable_until)


class SlotScheduler:
    """The slots of one event loop."""

    def __init__(self, config: ConcurrencyConfig, clock: Callable[[], float], on_demand: Callable[[], None]) -> None:
        """Call `on_demand` when a call has to wait in a bucket whose limit is leased."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.clock = clock
        self.on_demand = on_demand
        self.limit, self._is_shared = config.max_concurrent, config.shared
        self.running = 0
        self.waiting = 0
        self.reclaiming: dict[Slot, None] = {}
        """Calls that want their suspended slot back, in order (a dict, because it removes any of them quickly)."""
        self.queues: list[list[Slot]] = [[]]
        """The first is for all buckets without limits."""
        self.buckets: dict[str, Bucket] = {}
        self.rate_limited: list[Bucket] = []

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.waiting or self.reclaiming)

    def add_bucket(self, name: str) -> Bucket:
        """Add a bucket without configured limits, when it is first used."""
        bucket = self.buckets[name] = Bucket(name, self, self.queues[0])
        return bucket

    def add_limited_bucket(
        self, name: str, limit: int | None, rate: CallRate | LeasedRate | None, adaptive: AdaptiveLimit | None
    ) -> None:
        """Add a bucket with separate limits, and so with a separate queue."""
        bucket = self.buckets[name] = Bucket(name, self, [], maxsize if limit is None else limit, rate, adaptive)
        bucket.is_leased = self._is_shared
        if bucket.is_leased and limit is not None:
            bucket.limit, bucket.usable_until = 0, 0.0
        elif adaptive is not None:
            bucket.limit = adaptive.slots
        self.queues.append(bucket.queue)
        if rate is not None:
            self.rate_limited.append(bucket)

    def try_start(self, slot: Slot) -> bool:
        """Start the call if there is room and no waiting call is ahead of it."""
        if slot.outer is not None:
            return self._try_start_nested(slot, slot.outer)
        return self._try_start(slot)

    def enqueue(self, slot: Slot) -> bool:
        """Put the call into its queue, which suspends the outer slot; True if it is next after all and runs now."""
        if slot.outer is not None:
            self._begin_nested(slot.outer)
        bucket = slot.bucket
        insort(bucket.queue, slot, key=_RANK)
        bucket.waiting += 1
        self.waiting += 1
        self.start_ready()
        if bucket.is_leased and slot.state is not ACTIVE:
            self.on_demand()
        return slot.state is ACTIVE

    def count_ahead_of(self, slot: Slot) -> int:
        """Count the calls in the queue before this one."""
        return bisect_left(slot.bucket.queue, slot.rank, key=_RANK)

    def withdraw(self, slot: Slot) -> None:
        """Remove a call that will not run from its queue, or pass on the slot that it was just given."""
        if slot.state is ACTIVE:
            if slot.bucket.rate is not None:
                slot.bucket.rate.cancel_start(slot.acquired_at)
            self.release(slot)
        elif slot.state is WAITING:
            self._dequeue(slot)
            self.release(slot)

    def expire(self, slot: Slot, reason: str) -> None:
        """Reject a call that has waited too long, unless its rate limit allows it just now."""
        self.start_ready()
        self.reject(slot, reason)

    def reject(self, slot: Slot, reason: str) -> None:
        if slot.state is WAITING:
            self.withdraw(slot)
            slot.notify(reason)

    def release(self, slot: Slot) -> None:
        """End a slot in any state, and start the calls that can run now."""
        if slot.state is ACTIVE:
            self._deactivate(slot, RELEASED)
        elif slot.state is RECLAIMING:
            del self.reclaiming[slot]
            slot.notify()
        slot.state = RELEASED
        if slot.outer is not None:
            self._end_nested(slot.outer)
            # Else tasks that start tasks would build an ever longer chain of released slots.
            slot.outer = None
        if self.waiting or self.reclaiming:
            self.start_ready()

    def suspend(self, slot: Slot) -> None:
        """Stop counting the slot until `resume`: its call only waits."""
        self._begin_nested(slot)
        self.start_ready()

    def resume(self, slot: Slot) -> None:
        """Reclaim the slot of a call, unless nested calls still run or the slot was released."""
        self._end_nested(slot)
        self.start_ready()

    def start_ready(self) -> None:
        """Start every call that can run, in order."""
        while (slot := self.next()) is not None:
            if slot.state is WAITING:
                self._dequeue(slot)
                slot.acquired_at = self.clock()
                if slot.bucket.rate is not None:
                    slot.bucket.rate.add_start(slot.acquired_at)
            else:
                del self.reclaiming[slot]
            self._activate(slot)
            slot.notify()
        for bucket in self.rate_limited:
            self._start_rate_timer(bucket)

    def next(self) -> Slot | None:
        """Return the call that starts next: one that reclaims its suspended slot, else the best head of a queue."""
        if self.running >= self.limit:
            return None
        for slot in self.reclaiming:
            if slot.bucket.has_room():
                return slot
        best: Slot | None = None
        for queue in self.queues:
            if queue:
                head = queue[0]
                bucket = head.bucket
                if (best is None or head.rank < best.rank) and bucket.has_room():
                    best = head if bucket.rate is None or bucket.rate.allows(self.clock()) else best
        return best

    def list_waiting_slots(self) -> list[Slot]:
        return [slot for queue in self.queues for slot in queue]

    def abandon(self) -> None:
        """Forget all calls: the event loop is closed, so none can be woken."""
        for slot in (*self.list_waiting_slots(), *self.reclaiming):
            slot.state = RELEASED
        for queue in self.queues:
            queue.clear()
        self.reclaiming.clear()
        self.waiting = 0

    def _try_start(self, slot: Slot) -> bool:
        # Every call passes here, so `next` is asked only when there is anything it could return.
        bucket = slot.bucket
        if self.running >= self.limit or bucket.current >= bucket.limit:
            return False
        if (self.waiting or self.reclaiming) and self.next() is not None:
            return False
        slot.acquired_at = now = self.clock()
        if now >= bucket.usable_until:
            return False
        if bucket.rate is not None:
            if not bucket.rate.allows(now):
                return False
            bucket.rate.add_start(now)
        self._activate(slot)
        return True

    def _try_start_nested(self, slot: Slot, outer: Slot) -> bool:
        """Start a nested call if there is room; it may use the room that its outer slot gives up."""
        if outer.state is RECLAIMING:
            return False
        was_active = outer.state is ACTIVE
        if was_active:
            self._deactivate(outer, SUSPENDED)
        started = self._try_start(slot)
        if started:
            outer.nested += 1
        elif was_active:
            self._activate(outer)
        return started

    def _activate(self, slot: Slot) -> None:
        self.running += 1
        slot.bucket.current += 1
        slot.state = ACTIVE

    def _deactivate(self, slot: Slot, state: SlotState) -> None:
        self.running -= 1
        slot.bucket.current -= 1
        slot.state = state

    def _dequeue(self, slot: Slot) -> None:
        bucket = slot.bucket
        del bucket.queue[bisect_left(bucket.queue, slot.rank, key=_RANK)]
        bucket.waiting -= 1
        self.waiting -= 1

    def _begin_nested(self, outer: Slot) -> None:
        outer.nested += 1
        if outer.state is ACTIVE:
            self._deactivate(outer, SUSPENDED)
        elif outer.state is RECLAIMING:
            del self.reclaiming[outer]
            outer.state = SUSPENDED
            outer.notify()

    def _end_nested(self, outer: Slot) -> None:
        outer.nested -= 1
        if outer.nested == 0 and outer.state is SUSPENDED:
            outer.state = RECLAIMING
            self.reclaiming[outer] = None
            if outer.bucket.is_leased:
                self.on_demand()

    def _start_rate_timer(self, bucket: Bucket) -> None:
        if not bucket.queue or bucket.timer is not None or bucket.rate is None:
            return
        seconds = bucket.rate.seconds_until_start(self.clock())
        if seconds > 0 and self.loop is not None and not self.loop.is_closed():
            bucket.timer = self.loop.call_later(max(seconds, MIN_TIMER_SECONDS), self._on_rate_timer, bucket)

    def _on_rate_timer(self, bucket: Bucket) -> None:
        bucket.timer = None
        self.start_ready()


class CallRate:
    """Limits the calls of one bucket per minute.

    The limit is exact: no more than N calls start within any 60 seconds, wherever these begin. So the start times of
    the last 60 seconds are kept, and a call may start when there are fewer than N of them. A bucket that was quiet may
    start N calls in one burst; the next call then starts 60 seconds after the first of them did.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.starts: deque[float] = deque()

    def allows(self, now: float) -> bool:
        self._drop_old(now)
        return len(self.starts) < self.limit

    def add_start(self, now: float) -> None:
        self.starts.append(now)

    def cancel_start(self, started_at: float) -> None:
        """Take back the start of a call that never ran."""
        with suppress(ValueError):  # it may be older than a minute
            self.starts.remove(started_at)

    def seconds_until_start(self, now: float, ahead: int = 0) -> float:
        """Return the seconds that a call must wait when `ahead` other calls start before it."""
        self._drop_old(now)
        behind = ahead - (self.limit - len(self.starts))
        if behind < 0:
            return 0.0
        rounds, index = divmod(behind, self.limit)
        # Calls ahead that can start now will be the newest starts of the window that later calls wait for.
        start = self.starts[index] if index < len(self.starts) else now
        return start + MINUTE * (rounds + 1) - now

    def _drop_old(self, now: float) -> None:
        starts = self.starts
        while starts and now - starts[0] >= MINUTE:
            starts.popleft()


@dataclass(slots=True)
class LeasedRate:
    """The part of a rate limit that this process has leased: a block of starts, to be used within a short time."""

    limit: int
    """Of all processes together."""
    starts: int = 0
    """How many starts of the block are left."""
    used: int = 0
    expires_at: float = 0.0
    next_at: float = 0.0
    """When more starts may be free for this process."""

    def allows(self, now: float) -> bool:
        return self.starts > 0 and now < self.expires_at

    def add_start(self, now: float) -> None:
        self.starts -= 1
        self.used += 1

    def cancel_start(self, started_at: float) -> None:
        """Give up the start of a call that never ran. The start is lost: another process may have counted it."""

    def seconds_until_start(self, now: float, ahead: int = 0) -> float:
        if self.allows(now) and ahead < self.starts:
            return 0.0
        return max(self.next_at - now, MIN_LEASE_WAIT)


class AdaptiveLimit:
    """The slots of one bucket, which follow what its service can bear by the rule of `LimitState`.

    Without a fleet each report changes the limit here. With a fleet, reports are collected for the next renewal of the
    leases: the store has the limit, and all processes change it together.
    """

    def __init__(self, maximum: int, minimum: int, max_latency: float) -> None:
        self.maximum, self.max_latency = maximum, max_latency
        self._state, self._load = LimitState(slots=maximum), BucketLoad(minimum=min(minimum, maximum))

    @property
    def slots(self) -> int:
        return int(self._state.slots)

    def report(self, now: float, *, seconds: float, is_overload: bool) -> None:
        """Change the limit by how a call has gone: its duration, and whether the service was overloaded."""
        self.collect(seconds=seconds, is_overload=is_overload)
        self._state = self._state.after(self.take_report(), self.maximum, now)

    def collect(self, *, seconds: float, is_overload: bool) -> None:
        """Keep how a call has gone for the next report to the fleet."""
        if is_overload or seconds > self.max_latency:
            self._load.is_overload = True
        else:
            self._load.good_calls += 1

    def take_report(self) -> BucketLoad:
        """Return what was collected since the last report."""
        report, self._load = self._load, BucketLoad(minimum=self._load.minimum)
        return report

    def return_report(self, report: BucketLoad) -> None:
        """Add a report that may not have arrived to the next one."""
        self._load.good_calls += report.good_calls
        self._load.is_overload |= report.is_overload

    def follow(self, slots: int) -> None:
        """Set the limit that the fleet has found."""
        self._state = LimitState(slots=slots)
