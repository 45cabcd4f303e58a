"""The time-out of running calls: one timer for all of them.

An event-loop timer per call costs more than the rest of a quick call. Nearly all calls end long before their time,
so their deadlines only stand in a set; a single timer is set to the earliest one it knows. When it rings, the
tasks of expired calls are cancelled, and cancelled again every half second while they refuse to end.
"""

from __future__ import annotations

import asyncio
import math

CANCEL_AGAIN_AFTER = 0.5


class Deadline:
    """The moment by which one call, run in the current task, must have ended."""

    __slots__ = ("_before", "_cancelled", "_ended", "_keeper", "_pauses", "_remaining", "_task", "when")

    def __init__(self, keeper: Deadlines, seconds: float) -> None:
        task = asyncio.current_task(keeper.loop)
        assert task is not None, "a call runs in a task"
        self._keeper, self._task = keeper, task
        self._before = task.cancelling()
        self._cancelled = self._pauses = 0
        self._ended = False
        self._remaining = seconds
        self.when = keeper.loop.time() + seconds
        if seconds != math.inf:
            keeper.watch(self)

    @property
    def expired(self) -> bool:
        return self._cancelled > 0

    @property
    def cancelled_by_others(self) -> bool:
        """Whether, now that it has ended, somebody else wants its task to stop."""
        return self._task.cancelling() > self._before

    def pause(self) -> None:
        """Stop the clock: the call waits for something that is not its own work."""
        self._pauses += 1
        if self._pauses == 1 and self.when != math.inf:
            self._remaining = self.remaining()
            self.when = math.inf
            self._keeper.active.discard(self)

    def resume(self) -> None:
        """Let the clock go on, when nothing else it waits for is left."""
        self._pauses -= 1
        if self._pauses == 0 and self._remaining != math.inf and not self._ended:
            self.when = self._keeper.loop.time() + self._remaining
            self._keeper.watch(self)

    def is_of_this_loop(self) -> bool:
        return self._keeper.loop is asyncio.get_running_loop()

    def remaining(self) -> float:
        return self.when - self._keeper.loop.time()

    def end(self) -> None:
        """The call has ended; take back the cancellations it was sent."""
        self._ended = True
        self._keeper.active.discard(self)
        if self._cancelled:
            for _ in range(self._cancelled):
                self._task.uncancel()

    def expire(self) -> None:
        if not self._ended:
            self._cancelled += 1
            self.when += CANCEL_AGAIN_AFTER
            self._task.cancel()


class Deadlines:
    """Every deadline of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.active: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def watch(self, deadline: Deadline) -> None:
        self.active.add(deadline)
        if deadline.when < self._next:
            self._ring_at(deadline.when)

    def _ring_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = self.loop.call_at(when, self._ring) if when != math.inf else None

    def _ring(self) -> None:
        # The loop may ring a clock tick early.
        now = max(self.loop.time(), self._next)
        for deadline in [d for d in self.active if d.when <= now]:
            deadline.expire()
        self._timer = None
        self._ring_at(min((d.when for d in self.active), default=math.inf))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
