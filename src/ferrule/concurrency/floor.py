"""The floor: who runs, who waits, who goes next.

All of this is plain bookkeeping between two awaits, so there are no locks. A place changes hands in the moment it is
given, not when its new owner wakes up: the state of a `Place` always tells who has it, and a waiter who is cancelled
while waking up sees that the place is his already and passes it on.

One rule holds after every step: *nobody who waits could run*. So a newcomer who finds room overtakes no one.

Waiters stand in lines sorted by rank. A bucket with a limit of its own has its own line, all others share one. Only the
head of a line can go next, and of several heads who could run the one with the best rank does; so a full bucket holds
up nobody else.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from operator import attrgetter
from sys import maxsize
from typing import Final, Literal, TypeAlias

from ferrule.concurrency.config import ConcurrencyConfig
from ferrule.concurrency.rate import CallRate
from ferrule.concurrency.refusals import QUEUE_TIMEOUT

State: TypeAlias = Literal["waiting", "held", "lent", "returning", "released"]
WAITING: Final = "waiting"
HELD: Final = "held"
LENT: Final = "lent"
RETURNING: Final = "returning"
RELEASED: Final = "released"

# A token that is due in a billionth of a second must not keep the loop spinning.
SHORTEST_TIMER: Final = 0.001


class Place:
    """Leave to run: `acquire` gives it, `release` or `leave` takes it back."""

    __slots__ = ("bucket", "nested", "outer", "rank", "since", "state", "wakers")

    bucket: Bucket
    outer: Place | None
    """The place of the call that made this one, until this one ends."""
    state: State
    since: float
    """When the call got its place."""
    nested: int
    """Calls made by this one that wait or run now."""
    rank: tuple[float, int]
    """Where the call stands in line; the smaller goes first."""
    wakers: list[asyncio.Future[str]] | None

    def __init__(self, bucket: Bucket, outer: Place | None) -> None:
        self.bucket = bucket
        self.outer = outer
        self.state = WAITING
        self.nested = 0
        self.wakers = None

    async def changed(self) -> str:
        """Sleep until the state has changed; gives the reason if the call was refused."""
        waker: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self.wakers is None:
            self.wakers = []
        self.wakers.append(waker)
        return await waker

    def wake(self, refusal: str = "") -> None:
        wakers, self.wakers = self.wakers, None
        for waker in wakers or ():
            # A loop that was closed under its calls wakes nobody; they end when they are collected.
            if not waker.done() and not waker.get_loop().is_closed():
                waker.set_result(refusal)


_RANK = attrgetter("rank")


class Bucket:
    """Calls that share a limit."""

    __slots__ = ("current", "floor", "limit", "line", "name", "rate", "token_timer", "waiting")

    def __init__(self, name: str, floor: Floor, limit: int | None, rate: CallRate | None, line: list[Place]) -> None:
        self.name, self.floor, self.rate, self.line = name, floor, rate, line
        self.limit = maxsize if limit is None else limit
        self.current = 0
        self.waiting = 0
        self.token_timer: asyncio.TimerHandle | None = None

    def has_token(self) -> bool:
        return self.rate is None or self.rate.ready(self.floor.clock())


class Floor:
    """The places of one event loop."""

    __slots__ = ("buckets", "clock", "limit", "lines", "loop", "rated", "returning", "running", "waiting")

    def __init__(self, config: ConcurrencyConfig, rates: Mapping[str, CallRate], clock: Callable[[], float]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.clock = clock
        self.limit = config.max_concurrent
        self.running = 0
        self.waiting = 0
        self.returning: dict[Place, None] = {}
        """Calls that want their lent place back, in order (a dict, as it forgets any of them at once)."""
        self.lines: list[list[Place]] = [[]]
        """The first is for all buckets without limits."""
        self.buckets: dict[str, Bucket] = {}
        self.rated: list[Bucket] = []
        for name in dict.fromkeys((*config.bucket_limits, *rates)):
            bucket = Bucket(name, self, config.bucket_limits.get(name), rates.get(name), [])
            self.buckets[name] = bucket
            self.lines.append(bucket.line)
            if bucket.rate is not None:
                self.rated.append(bucket)

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.waiting or self.returning)

    def add_bucket(self, name: str) -> Bucket:
        """A bucket nobody set limits for, when it is first used."""
        bucket = self.buckets[name] = Bucket(name, self, None, None, self.lines[0])
        return bucket

    def enter(self, place: Place) -> bool:
        """Take a place at once; False if there is none or somebody is ahead."""
        if place.outer is not None:
            return self._enter_nested(place, place.outer)
        return self._enter(place)

    def join(self, place: Place) -> bool:
        """Stand in line, which lends the outer place; True if the call turns out to be next and may run."""
        if place.outer is not None:
            self._begin_nested(place.outer)
        bucket = place.bucket
        insort(bucket.line, place, key=_RANK)
        bucket.waiting += 1
        self.waiting += 1
        self.admit()
        return place.state is HELD

    def ahead_of(self, place: Place) -> int:
        """How many stand in line before this one."""
        return bisect_left(place.bucket.line, place.rank, key=_RANK)

    def withdraw(self, place: Place) -> None:
        """The call behind this place will not run: out of the line, or pass on what it was just given."""
        if place.state is HELD:
            if place.bucket.rate is not None:
                place.bucket.rate.give_back(place.since)
            self.leave(place)
        elif place.state is WAITING:
            self._leave_line(place)
            self.leave(place)

    def expire(self, place: Place) -> None:
        """The time to wait is up, unless a token came in this very moment."""
        self.admit()
        self.refuse(place, QUEUE_TIMEOUT)

    def refuse(self, place: Place, reason: str) -> None:
        if place.state is WAITING:
            self.withdraw(place)
            place.wake(reason)

    def leave(self, place: Place) -> None:
        """End a place in any state, and let in who can run now."""
        if place.state is HELD:
            self.running -= 1
            place.bucket.current -= 1
        elif place.state is RETURNING:
            del self.returning[place]
            place.wake()
        place.state = RELEASED
        if place.outer is not None:
            self._end_nested(place.outer)
            # Cut, or tasks that start tasks would hang a chain of ended places on the newest one.
            place.outer = None
        if self.waiting or self.returning:
            self.admit()

    def admit(self) -> None:
        """Let in everybody who can run, in order."""
        while (place := self.next()) is not None:
            if place.state is WAITING:
                self._leave_line(place)
                self._let_in(place)
            else:
                del self.returning[place]
                self._step_in(place)
            place.wake()
        for bucket in self.rated:
            self._wait_for_token(bucket)

    def next(self) -> Place | None:
        """Who goes next: calls that want their lent place back, then the best head of a line."""
        if self.running >= self.limit:
            return None
        for place in self.returning:
            if place.bucket.current < place.bucket.limit:
                return place
        best: Place | None = None
        for line in self.lines:
            if line:
                head = line[0]
                bucket = head.bucket
                if (best is None or head.rank < best.rank) and bucket.current < bucket.limit and bucket.has_token():
                    best = head
        return best

    def waiters(self) -> list[Place]:
        return [place for line in self.lines for place in line]

    def abandon(self) -> None:
        """The loop is closed: nobody here can be woken any more."""
        for place in (*self.waiters(), *self.returning):
            place.state = RELEASED
        for line in self.lines:
            line.clear()
        self.returning.clear()
        self.waiting = 0

    def _enter(self, place: Place) -> bool:
        # Each call comes through here: these lines are written out rather than shared with `next` and `_let_in`.
        bucket = place.bucket
        if self.running >= self.limit or bucket.current >= bucket.limit:
            return False
        if (self.waiting or self.returning) and self.next() is not None:
            return False
        place.since = now = self.clock()
        if bucket.rate is not None:
            if not bucket.rate.ready(now):
                return False
            bucket.rate.take(now)
        self.running += 1
        bucket.current += 1
        place.state = HELD
        return True

    def _enter_nested(self, place: Place, outer: Place) -> bool:
        """The same for a nested call, which finds the room its outer place leaves."""
        if outer.state is RETURNING:
            return False
        was_held = outer.state is HELD
        if was_held:
            self._step_out(outer, LENT)
        entered = self._enter(place)
        if entered:
            outer.nested += 1
        elif was_held:
            self._step_in(outer)
        return entered

    def _let_in(self, place: Place) -> None:
        place.since = self.clock()
        if place.bucket.rate is not None:
            place.bucket.rate.take(place.since)
        self._step_in(place)

    def _step_in(self, place: Place) -> None:
        self.running += 1
        place.bucket.current += 1
        place.state = HELD

    def _step_out(self, place: Place, state: State) -> None:
        self.running -= 1
        place.bucket.current -= 1
        place.state = state

    def _leave_line(self, place: Place) -> None:
        bucket = place.bucket
        del bucket.line[bisect_left(bucket.line, place.rank, key=_RANK)]
        bucket.waiting -= 1
        self.waiting -= 1

    def _begin_nested(self, outer: Place) -> None:
        outer.nested += 1
        if outer.state is HELD:
            self._step_out(outer, LENT)
        elif outer.state is RETURNING:
            del self.returning[outer]
            outer.state = LENT
            outer.wake()

    def _end_nested(self, outer: Place) -> None:
        outer.nested -= 1
        if outer.nested == 0 and outer.state is LENT:
            outer.state = RETURNING
            self.returning[outer] = None

    def _wait_for_token(self, bucket: Bucket) -> None:
        if not bucket.line or bucket.token_timer is not None or bucket.rate is None:
            return
        wait = bucket.rate.wait(self.clock())
        if wait > 0 and self.loop is not None and not self.loop.is_closed():
            bucket.token_timer = self.loop.call_later(max(wait, SHORTEST_TIMER), self._token_came, bucket)

    def _token_came(self, bucket: Bucket) -> None:
        bucket.token_timer = None
        self.admit()
