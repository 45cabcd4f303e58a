"""Places and queues: the door every call passes.

A call takes a place with `acquire` and gives it back with `release` (or `leave`, see below). With room that costs a
microsecond; without room it waits in line, or is refused with `Rejected`, whose details tell the reason.

**A tool that calls a tool.** If a call kept its place while the calls it makes wait for theirs, a few such calls would
fill all places and wait for each other for ever. So *nobody holds a place while waiting for one*: a call made inside
another (the context of the running task tells) is *nested*, and lends:

- The outer place is given back as soon as a nested call arrives, once however many nested calls there are.
- When the last of them has ended, or was refused, the outer call takes its place back: ahead of all waiters, whatever
  the queue size, without a time-out, and before it goes on. As this may have to wait, nested calls end with
  `await leave(place)`; `release(place)` only asks for the outer place and does not wait for it.
- Under cancellation nobody waits: the outer place comes back by itself, or not at all if the outer call ends first.
- An outer call that ends before its nested ones (they run in background tasks) takes nothing back, and calls made after
  its end are ordinary ones.

What a task acquires is the outer place of whatever this task, and the tasks it starts, acquire before it is released.
So two calls side by side need two tasks, and a place is released by the task that acquired it. An outer call is taken
to wait while any of its nested calls is under way; if it does something else meanwhile, that is not counted.

A controller belongs to one event loop at a time. All but the metrics must be used from that loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from itertools import count
from typing import Any

from ferrule.call import CALLER_WORKFLOW_NODE
from ferrule.concurrency.config import ConcurrencyConfig, ConcurrencyMetrics
from ferrule.concurrency.floor import RELEASED, RETURNING, Bucket, Floor, Place
from ferrule.concurrency.rate import CallRate
from ferrule.concurrency.refusals import (
    CLOSED,
    CONCURRENCY_LIMIT,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    rate_limited,
    refusal,
)
from ferrule.errors import Rejected, SetupError

logger = logging.getLogger("ferrule.concurrency")


class ToolConcurrencyController:
    """Lets in as many calls as may run at once; the others wait or are refused."""

    def __init__(self, config: ConcurrencyConfig | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = ConcurrencyConfig() if config is None else config
        self._clock = clock
        self._rates = {bucket: CallRate(limit) for bucket, limit in self.config.rate_limits.items()}
        self._floor = Floor(self.config, self._rates, clock)
        # Not at module level as usual: the places of two controllers know nothing of each other.
        self._current: ContextVar[Place | None] = ContextVar("ferrule_place", default=None)
        self._bypass = Place(Bucket("", self._floor, None, None, []), None)
        self._bypass.state = RELEASED
        self._arrivals = count()
        self._total_acquired = 0
        self._total_rejected = 0
        self._total_timeout = 0
        self._total_ended = 0
        self._total_time = 0.0

    async def acquire(
        self,
        bucket: str = "general",
        *,
        priority: int = 0,
        caller_type: str = "unknown",
        timeout: float | None = None,
    ) -> Place:
        """Wait for a place, at most `timeout` seconds (None: the configured time); raises `Rejected`."""
        if caller_type == CALLER_WORKFLOW_NODE:
            return self._bypass
        place = self._newcomer(bucket)
        if not place.bucket.floor.enter(place):
            await self._wait(place, priority, self.config.default_timeout if timeout is None else timeout)
        self._total_acquired += 1
        self._current.set(place)
        return place

    def try_acquire(self, bucket: str = "general", *, caller_type: str = "unknown") -> Place | None:
        """A place, if there is room and nobody is ahead; for callers who save themselves an await."""
        if caller_type == CALLER_WORKFLOW_NODE:
            return self._bypass
        place = self._newcomer(bucket)
        if not place.bucket.floor.enter(place):
            return None
        self._total_acquired += 1
        self._current.set(place)
        return place

    def release(self, place: Place) -> None:
        """Give a place back; a second time does nothing."""
        if place.state is RELEASED:
            return
        self._total_ended += 1
        self._total_time += self._clock() - place.since
        # An ordinary place stays behind in the context, where it counts for nothing: setting the variable is slow.
        if place.outer is not None and self._current.get() is place:
            self._current.set(place.outer)
        place.bucket.floor.leave(place)

    async def leave(self, place: Place) -> None:
        """Give a place back and, if the call was nested, go on when the outer call has its place again."""
        outer = place.outer
        self.release(place)
        if outer is not None:
            await _taken_back(outer)

    def place(
        self,
        bucket: str = "general",
        *,
        priority: int = 0,
        caller_type: str = "unknown",
        timeout: float | None = None,
    ) -> _Stay:
        """`async with controller.place("http"):` holds a place for the block."""
        return _Stay(self, bucket, priority, caller_type, timeout)

    def refuse_waiting(self) -> None:
        """Refuse all who wait now, with the reason `closed`: for shutting down."""
        for place in self._floor.waiters():
            self._floor.refuse(place, CLOSED)

    def get_metrics(self) -> ConcurrencyMetrics:
        return ConcurrencyMetrics(
            current_concurrent=self._floor.running,
            queue_length=self._floor.waiting,
            total_acquired=self._total_acquired,
            total_rejected=self._total_rejected,
            total_timeout=self._total_timeout,
            avg_execution_time=self._total_time / self._total_ended if self._total_ended else 0.0,
        )

    def get_bucket_metrics(self) -> dict[str, dict[str, int | None]]:
        """Calls that run, may run at once (None: no limit) and wait, per bucket that has a limit or was used."""
        return {
            name: {"current": bucket.current, "limit": self.config.bucket_limits.get(name), "queue": bucket.waiting}
            for name, bucket in self._floor.buckets.copy().items()
        }

    def _newcomer(self, bucket: str) -> Place:
        floor = self._floor
        # Cheaper than asking for the running loop; a second one beside the first is noticed when something must wait.
        if floor.loop is None or not floor.loop.is_running():
            floor = self._floor_of_running_loop()
        outer = self._current.get()
        if outer is not None and (outer.state is RELEASED or outer.bucket.floor is not floor):
            outer = None
        try:
            return Place(floor.buckets[bucket], outer)
        except KeyError:
            return Place(floor.add_bucket(bucket), outer)

    async def _wait(self, place: Place, priority: int, timeout: float) -> None:
        """Return when the place is held; a call that is refused takes its outer place back before it says so."""
        floor, outer = place.bucket.floor, place.outer
        if asyncio.get_running_loop() is not floor.loop:
            raise _used_by_two_loops(floor)
        place.rank = self._rank(priority)
        self._refuse_what_rate_forbids(place, timeout)
        if floor.join(place):
            return
        reason = self._reason_not_to_wait() or await self._stand_in_line(place, timeout)
        if reason:
            floor.withdraw(place)
            refused = self._refusal(reason, place, timeout)
            if outer is not None:
                await _taken_back(outer)
            raise refused

    def _rank(self, priority: int) -> tuple[float, int]:
        """The smaller goes first. As all grow old at the same speed, the order of two waiters never changes."""
        arrival = next(self._arrivals)
        if self.config.strategy == "priority":
            return (self._clock() - priority * self.config.ageing, arrival)
        return (0.0, arrival)

    def _refuse_what_rate_forbids(self, place: Place, timeout: float) -> None:
        rate = place.bucket.rate
        if rate is None:
            return
        retry_after = rate.wait(self._clock(), place.bucket.floor.ahead_of(place))
        if retry_after > (0.0 if self.config.strategy == "reject" else timeout):
            self._total_rejected += 1
            raise rate_limited(place.bucket.name, rate.limit, retry_after)

    def _reason_not_to_wait(self) -> str:
        if self.config.strategy == "reject":
            return CONCURRENCY_LIMIT
        return QUEUE_FULL if self._floor.waiting > self.config.queue_size else ""

    async def _stand_in_line(self, place: Place, timeout: float) -> str:
        """The reason of a refusal, or nothing when the place is held."""
        floor = place.bucket.floor
        timer = asyncio.get_running_loop().call_later(timeout, floor.expire, place)
        try:
            return await place.changed()
        except BaseException:
            floor.withdraw(place)
            raise
        finally:
            timer.cancel()

    def _refusal(self, reason: str, place: Place, timeout: float) -> Rejected:
        if reason == QUEUE_TIMEOUT:
            self._total_timeout += 1
        else:
            self._total_rejected += 1
        return refusal(reason, place.bucket.name, self.config, timeout)

    def _floor_of_running_loop(self) -> Floor:
        """Move to another event loop, with nothing left over from the last one but its rates."""
        floor, loop = self._floor, asyncio._get_running_loop()
        if loop is None or loop is floor.loop:
            return floor
        if floor.loop is None:
            floor.loop = loop
            return floor
        if not floor.is_idle:
            _abandon(floor, floor.loop)
        self._floor = Floor(self.config, self._rates, self._clock)
        self._floor.loop = loop
        return self._floor


class _Stay:
    """One `async with`: a place from entry to exit."""

    __slots__ = ("_arguments", "_controller", "_place")

    def __init__(self, controller: ToolConcurrencyController, *arguments: Any) -> None:
        self._controller, self._arguments = controller, arguments

    async def __aenter__(self) -> Place:
        bucket, priority, caller_type, timeout = self._arguments
        self._place = await self._controller.acquire(
            bucket, priority=priority, caller_type=caller_type, timeout=timeout
        )
        return self._place

    def __aexit__(self, *exc_info: object) -> Coroutine[Any, Any, None]:
        return self._controller.leave(self._place)


async def _taken_back(outer: Place) -> None:
    """Wait until the outer call has its place again; under cancellation go on at once."""
    task = asyncio.current_task()
    while outer.state is RETURNING and not (task is not None and task.cancelling()):
        await outer.changed()


def _abandon(floor: Floor, loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        raise _used_by_two_loops(floor)
    logger.warning(
        "running=<%d>, waiting=<%d> | event loop was closed under these calls, their places are free again",
        floor.running,
        floor.waiting,
    )
    floor.abandon()


def _used_by_two_loops(floor: Floor) -> SetupError:
    return SetupError(
        f"this controller still serves another event loop ({floor.running} running, {floor.waiting} waiting):"
        " let these calls end first, or give each loop a controller of its own"
    )
