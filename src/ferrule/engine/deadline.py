"""The timeouts of running calls, which can be paused; one timer serves all of them.

A call's clock is stopped while the call waits for a nested call's slot or for a person. And an event-loop timer per
call would cost more than the rest of a quick call: nearly all calls end long before their timeout, so their deadlines
are only kept in a set, and a single timer is set to the earliest one. When it fires, the tasks of expired calls are
cancelled, and cancelled again every half second while they ignore it.

A tool that ignores all of that is abandoned: `run_until_abandoned` stands between the task and the tool's coroutine, so
it can end the coroutine where it waits and let the task go on. Nothing of the coroutine runs after that; only tasks and
threads that it started may. It also measures each step of the coroutine: a step that blocks the event loop cannot be
ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from time import perf_counter
from typing import Any

from ferrule.core.aio import CANCEL_INTERVAL
from ferrule.errors import ExecutionFailed, Rejected, TimedOut

logger = logging.getLogger("ferrule.engine")

MAX_ABANDONED_TASKS = 20
"""Tasks of one tool that may run on after it was abandoned; then its calls are rejected until some of them end."""

MAX_STEP = 1.0
"""Seconds that a tool may use the event loop without waiting for anything. Beyond it the tool blocks the loop.

On a busy machine a tool may wait for the processor for a good part of a second.
"""
MIN_CALLBACK = 0.01
"""Seconds of callbacks that are told apart from the work of the tool that they are called by."""


class Deadline:
    """The time by which one call, run in the current task, must have ended."""

    # What most calls do not need is not set for each of them.
    _max_seconds: float | None = None
    _extension = 0.0
    """Seconds that reports of progress may still add."""
    _cancellations = 0
    _pauses = 0
    _has_ended = False
    _stop_timer: asyncio.TimerHandle | None = None
    is_expired = False
    is_abandoned = False
    blocked = 0.0
    """Seconds that its tool has blocked the event loop."""
    is_missed = False
    """Whether it passed while its tool blocked the loop, so that the tool could not be stopped."""
    awaited: Any
    """What its tool waited for when it was abandoned."""

    def __init__(self, deadlines: Deadlines, seconds: float, max_seconds: float | None = None) -> None:
        """`max_seconds`: up to which `restart` gives the call its seconds again; None: not at all."""
        task = asyncio.current_task(deadlines.loop)
        assert task is not None, "a call runs in a task"
        self._deadlines, self._task = deadlines, task
        self._cancellations_before = task.cancelling()
        self._seconds = self._remaining = seconds
        if max_seconds is not None and max_seconds > seconds:
            self._max_seconds, self._extension = max_seconds, max_seconds - seconds
        self.when = deadlines.loop.time() + seconds
        if seconds != math.inf:
            deadlines.watch(self)

    @property
    def is_cancelled_by_caller(self) -> bool:
        """Return whether the task of the call was also cancelled for another reason than the deadline."""
        sent = 0 if self._has_ended else self._cancellations
        return self._task.cancelling() - sent > self._cancellations_before

    def pause(self) -> None:
        """Stop the clock: the call waits for something that is not its own work."""
        self._pauses += 1
        if self._pauses == 1 and self.when != math.inf:
            self._remaining = self.remaining()
            self.when = math.inf
            self._deadlines.active.discard(self)

    def resume(self) -> None:
        """Restart the clock, unless something else has paused it too."""
        self._pauses -= 1
        if self._pauses == 0 and self._remaining != math.inf and not self._has_ended:
            self.when = self._deadlines.loop.time() + self._remaining
            self._deadlines.watch(self)

    def restart(self) -> None:
        """Give the call its whole time again, as far as its longest time allows: it has reported progress."""
        if not self._extension or self._has_ended or self.is_expired:
            return
        left = self._remaining if self._pauses else self.remaining()
        more = min(self._seconds - left, self._extension)
        self._extension -= more
        if self._pauses:
            self._remaining += more
        else:
            self.when += more  # the timer of the earlier time finds that nothing is due

    def is_of_this_loop(self) -> bool:
        return self._deadlines.loop is asyncio.get_running_loop()

    def remaining(self) -> float:
        return self.when - self._deadlines.loop.time()

    def end(self) -> None:
        """Note that the call has ended, and take back the cancellations that the deadline sent."""
        self._has_ended = True
        self._deadlines.active.discard(self)
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        if self._cancellations:
            for _ in range(self._cancellations):
                self._task.uncancel()

    def expire(self) -> None:
        if self._has_ended:
            return
        self.is_expired = True
        if self._cancellations * CANCEL_INTERVAL >= self._deadlines.stop_timeout:
            self.is_abandoned = True
        self.when += CANCEL_INTERVAL
        self._cancel()

    def abandon(self) -> None:
        """Let the task go on without the tool."""
        if not self._has_ended:
            self.is_abandoned = True
            self._cancel()

    def on_cancellation(self) -> None:
        """Note that a cancellation reaches the tool. If its caller sent it and the tool has not ended some time later,
        the tool is abandoned. It may as well come from a timeout of the tool's own, which takes it back.
        """
        if self._stop_timer is None and not self.is_expired:
            deadlines = self._deadlines
            self._stop_timer = deadlines.loop.call_later(deadlines.stop_timeout, self._check_cancellation)

    def add_blocking_step(self, began: float) -> None:
        """Note that a step of the tool has lasted since `began`. What calls inside it have blocked does not count."""
        steps, seconds = self._deadlines.blocking_steps, perf_counter() - began
        own = seconds - sum(nested for start, nested in steps if start >= began)
        if own > MAX_STEP:
            steps.append((began, own))
            self.blocked += own

    def timeout_error(self, tool_name: str) -> TimedOut:
        """Make the error of a call whose time is up, which says whether its tool was stopped."""
        limit, details = f"{self._seconds:g} s", {"timeout": self._seconds}
        if self._max_seconds is not None:
            limit += " (timeout) after its start or its last report of progress"
            limit += f", or within {self._max_seconds:g} s (max_timeout)"
            details["max_timeout"] = self._max_seconds
        if self.is_abandoned:
            return TimedOut(
                f"Tool {tool_name!r} did not finish within {limit} and did not stop when it was cancelled. "
                "It was abandoned: what it did is unknown. Check that before you call it again.",
                **details,
                outcome="unknown",
            )
        if self.is_missed:
            return TimedOut(
                f"Tool {tool_name!r} did not finish within {limit}. It could not be stopped, because its code "
                f"blocked the event loop for {self.blocked:.1f} s, so it ran to its end: what it did has taken effect. "
                "Write it as `def`, which runs in a worker process that can be killed, or await what takes long.",
                **details,
            )
        return TimedOut(
            f"Tool {tool_name!r} did not finish within {limit} and was stopped. "
            "Ask for less in one call, or allow it more time.",
            **details,
        )

    def note_success(self) -> None:
        """Note that the tool has succeeded: if its time passed while the tool blocked the loop, this came too late."""
        if self.blocked and not self.is_expired and self.remaining() <= 0:
            self.is_expired = self.is_missed = True

    def exclude_callbacks(self, began: float) -> None:
        """Let the time since `began`, of callbacks that a report of the tool has called, not count as its own."""
        if (seconds := perf_counter() - began) > MIN_CALLBACK:
            self._deadlines.blocking_steps.append((began, seconds))
            if not self._pauses:
                self.when += seconds  # the timer of the earlier time finds that nothing is due

    def tasks_left(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that still run and that the tool waited for when it was abandoned."""
        awaited = (self.awaited, *getattr(self.awaited, "_children", ()))  # `_children`: of `asyncio.gather`
        return [task for task in awaited if isinstance(task, asyncio.Task) and not task.done()]

    def _check_cancellation(self) -> None:
        self._stop_timer = None
        if not self._has_ended and self.is_cancelled_by_caller:
            self.abandon()

    def _cancel(self) -> None:
        self._cancellations += 1
        self._task.cancel()


class Deadlines:
    """Every deadline of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop_timeout: float = 5.0) -> None:
        self.loop = loop
        self.stop_timeout = stop_timeout
        """Seconds after the first cancellation, when a call is abandoned."""
        self.active: set[Deadline] = set()
        self.blocking_steps: deque[tuple[float, float]] = deque(maxlen=16)
        """The last steps that blocked the loop: when each began, and its seconds."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_time = math.inf

    def watch(self, deadline: Deadline) -> None:
        self.active.add(deadline)
        if deadline.when < self._timer_time:
            self._set_timer(deadline.when)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_time = when
        self._timer = self.loop.call_at(when, self._on_timer) if when != math.inf else None

    def _on_timer(self) -> None:
        now = max(self.loop.time(), self._timer_time)  # the loop may run a timer one clock tick early
        for deadline in [d for d in self.active if d.when <= now]:
            deadline.expire()
        self._timer = None
        self._set_timer(min((d.when for d in self.active), default=math.inf))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


# Running a tool so that it can be abandoned


@types.coroutine
def run_until_abandoned(coroutine: Coroutine[Any, Any, Any], deadline: Deadline) -> Generator[Any, Any, Any]:
    """Return the coroutine's value. If the deadline abandons the coroutine, close it."""
    try:
        resume: Callable[[Any], Any] = coroutine.send
    except AttributeError:  # an executor of the user's may return any awaitable
        return (yield from coroutine.__await__())
    argument: Any = None
    while True:
        began = perf_counter()
        try:
            awaited = resume(argument)
        except StopIteration as stop:
            return stop.value
        except GeneratorExit as error:  # its own: a real one, of a caller that is closed, arrives at a `yield`
            raise ExecutionFailed("The tool raised GeneratorExit.") from error
        finally:
            if perf_counter() - began > MAX_STEP:
                deadline.add_blocking_step(began)
        try:
            if awaited is None or type(awaited) is asyncio.Future:
                argument = yield awaited
            else:
                argument = yield from _wait_for(awaited, deadline)
            resume = coroutine.send
        except GeneratorExit:
            _close(coroutine)
            raise
        except BaseException as error:
            if deadline.is_abandoned:
                deadline.awaited = awaited
                _close(coroutine)
                raise
            deadline.on_cancellation()
            resume, argument = coroutine.throw, error


def _wait_for(awaited: Any, deadline: Deadline) -> Generator[Any, Any, Any]:
    """Wait for a task, or a future that stands for tasks, as asyncio does, but such that the wait can be abandoned:
    cancelling the waiting task cancels the other one, which may ignore that.
    """
    if not asyncio.isfuture(awaited):
        return (yield awaited)  # asyncio says what is wrong with it
    awaited._asyncio_future_blocking = False  # what asyncio does with a future that it gets
    while not awaited.done():
        waiter: asyncio.Future[None] = awaited.get_loop().create_future()

        def wake(_: Any, waiter: asyncio.Future[None] = waiter) -> None:
            if not waiter.done():
                waiter.set_result(None)

        awaited.add_done_callback(wake)
        try:
            yield from waiter
        except asyncio.CancelledError:
            awaited.remove_done_callback(wake)
            if deadline.is_abandoned or not awaited.cancel():
                raise
            deadline.on_cancellation()
    return None


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    with suppress(BaseException):  # it waits for something even now: it is never continued
        coroutine.close()


class AbandonedTasks:
    """Tasks that abandoned tools have started, while they run."""

    def __init__(self) -> None:
        self._tool_names: dict[asyncio.Task[Any], str] = {}

    def __bool__(self) -> bool:
        return bool(self._tool_names)

    @property
    def tool_names(self) -> list[str]:
        """Return the name of the tool that started each task."""
        return list(self._tool_names.values())

    def add(self, tool_name: str, call_id: str, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Keep track of tasks that a tool waited for when it was abandoned, and that still run."""
        for task in tasks:
            logger.warning("tool=<%s>, call=<%s> | abandoned, but a task that it started runs on", tool_name, call_id)
            self._tool_names[task] = tool_name
            task.add_done_callback(lambda task: self._tool_names.pop(task, None))

    def check(self, tool_name: str) -> None:
        """Refuse to call a tool of which too many tasks still run."""
        if (count := self.tool_names.count(tool_name)) >= MAX_ABANDONED_TASKS:
            raise Rejected(
                f"Tool {tool_name!r} was abandoned {count} times, and tasks that it started still run. "
                "It must end its tasks when it is cancelled.",
                reason="abandoned_calls",
            )

    async def cancel(self) -> None:
        """Cancel the tasks of this event loop; those that ignore it run on."""
        for _ in range(3):
            if tasks := [task for task in self._tool_names if task.get_loop() is asyncio.get_running_loop()]:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=CANCEL_INTERVAL)
