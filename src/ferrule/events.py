"""What happened, and who is told.

Subscribers watch; they cannot change a call, break it or slow it. Async callbacks get their events from a task of
their own. Sync callbacks are called at once, as long as they are quick: one that takes longer than 10 ms is called from
a thread of its own from then on. Each subscriber gets its events in order. One that falls further behind than its
queue is long loses the oldest, which is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias

logger = logging.getLogger("ferrule.events")


class ToolEngineEventType(StrEnum):
    """Everything the engine announces."""

    TOOL_LOADED = "tool_loaded"
    TOOL_ADDED = "tool_added"
    TOOL_UPDATED = "tool_updated"
    TOOL_REMOVED = "tool_removed"
    RELOAD_STARTED = "reload_started"
    RELOAD_COMPLETED = "reload_completed"
    LOAD_ERROR = "load_error"
    VALIDATION_ERROR = "validation_error"
    BEFORE_TOOL_CALL = "before_tool_call"
    """A call arrived; nothing has been checked yet. AFTER_TOOL_CALL always follows."""
    EXECUTION_STARTED = "execution_started"
    EXECUTION_PROGRESS = "execution_progress"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_FAILED = "execution_failed"
    AFTER_TOOL_CALL = "after_tool_call"


@dataclass(slots=True)
class ToolEngineEvent:
    """One thing that happened. `data` holds what belongs to its type (see docs/events.md)."""

    event_type: ToolEngineEventType
    tool_name: str | None = None
    call_id: str | None = None
    error: str | None = None
    error_type: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


EventCallback: TypeAlias = Callable[[ToolEngineEvent], Any]
Predicate: TypeAlias = Callable[[ToolEngineEvent], bool]
EventFilter: TypeAlias = Predicate | Collection[ToolEngineEventType]

SLOW_CALLBACK = 0.010
QUEUE_LENGTH = 10_000


class EventBus:
    """Hands every event to those who asked for it."""

    def __init__(self) -> None:
        self._subscribers: tuple[_Subscriber, ...] = ()
        self._lock = threading.Lock()
        self.watched = False
        """Whether anybody listens: an event nobody hears need not be made."""
        self.has_async_subscribers = False

    def subscribe(self, callback: EventCallback, event_filter: EventFilter | None = None) -> Callable[[], None]:
        """Call `callback` with each event the filter lets through; returns a function that ends it."""
        if not callable(callback):
            raise TypeError(f"a subscriber must be a function that takes an event, not {callback!r}")
        accepts = _as_predicate(event_filter)
        subscriber: _Subscriber
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
            getattr(callback, "__call__", None)  # noqa: B004 (an object with an async __call__)
        ):
            subscriber = _AsyncSubscriber(callback, accepts)
        else:
            subscriber = _SyncSubscriber(callback, accepts)
        with self._lock:
            self._set((*self._subscribers, subscriber))
        return lambda: self._remove(subscriber)

    def unsubscribe(self, callback: EventCallback) -> bool:
        """End every subscription of this callback; False when there was none."""
        found = [s for s in self._subscribers if s.callback == callback]
        for subscriber in found:
            self._remove(subscriber)
        return bool(found)

    def emit(self, event: ToolEngineEvent) -> None:
        for subscriber in self._subscribers:
            subscriber.deliver(event)

    def emit_of_call(
        self,
        event_type: ToolEngineEventType,
        tool_name: str,
        call_id: str,
        data: dict[str, Any],
        error: str | None = None,
        error_type: str | None = None,
    ) -> None:
        """The same for what happens to calls, of which there are many."""
        event = ToolEngineEvent(event_type, tool_name, call_id, error, error_type, data)
        for subscriber in self._subscribers:
            subscriber.deliver(event)

    async def drain(self, timeout: float = 5.0) -> None:
        """Wait until all subscribers have seen all events so far."""
        deadline = time.monotonic() + timeout
        while any(s.pending for s in self._subscribers) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        """Let everybody see what happened so far, and hold no thread or task for them; they stay subscribed."""
        await self.drain()
        for subscriber in self._subscribers:
            subscriber.rest()

    def _remove(self, subscriber: _Subscriber) -> None:
        with self._lock:
            self._set(tuple(s for s in self._subscribers if s is not subscriber))
        subscriber.close()

    def _set(self, subscribers: tuple[_Subscriber, ...]) -> None:
        self._subscribers = subscribers
        self.watched = bool(subscribers)
        self.has_async_subscribers = any(isinstance(s, _AsyncSubscriber) for s in subscribers)


class _Subscriber:
    """Delivers events to one callback, in order."""

    deliver: Callable[[ToolEngineEvent], None]

    def __init__(self, callback: EventCallback, accepts: Predicate | None) -> None:
        self.callback, self._accepts = callback, accepts
        self._queue: deque[ToolEngineEvent] = deque()
        self._busy = False
        self._dropped = 0

    @property
    def pending(self) -> bool:
        return bool(self._queue) or self._busy

    def rest(self) -> None:
        """Hold no thread or task until the next event."""
        raise NotImplementedError

    def close(self) -> None:
        """Deliver nothing more."""
        self._queue.clear()
        self.rest()

    def _complain(self, event: ToolEngineEvent) -> None:
        logger.exception("subscriber=<%r>, event=<%s> | failed", self.callback, event.event_type.value)

    def _enqueue(self, event: ToolEngineEvent) -> None:
        if len(self._queue) >= QUEUE_LENGTH:
            with contextlib.suppress(IndexError):  # the reader may have emptied it just now
                self._queue.popleft()
            self._dropped += 1
            if self._dropped.bit_count() == 1:  # 1, 2, 4, 8 …: say it without flooding the log
                logger.warning(
                    "subscriber=<%r>, dropped=<%d> | too slow, oldest events dropped", self.callback, self._dropped
                )
        self._queue.append(event)


class _SyncSubscriber(_Subscriber):
    """Calls at once; from a thread of its own once it, or its filter, was slow."""

    def __init__(self, callback: EventCallback, accepts: Predicate | None) -> None:
        super().__init__(callback, accepts)
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._resting = False
        self._slow = False
        self.deliver = self._call

    def _deliver_later(self, event: ToolEngineEvent) -> None:
        self._enqueue(event)
        self._wake.set()
        if self._thread is None or not self._thread.is_alive():
            self._start_thread()

    def rest(self) -> None:
        self._resting = True
        self._wake.set()

    def _start_thread(self) -> None:
        self._resting = False
        self._busy = True
        self._thread = threading.Thread(target=self._run, name="ferrule-subscriber", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._busy = True
            while self._queue:
                with contextlib.suppress(IndexError):  # emptied just now by whoever ended the subscription
                    self._call(self._queue.popleft())
            self._busy = False
            if self._resting:
                return
            self._wake.wait()
            self._wake.clear()

    def _call(self, event: ToolEngineEvent) -> None:
        started = time.perf_counter()
        try:
            if self._accepts is None or self._accepts(event):
                told = self.callback(event)
                if told is not None and inspect.iscoroutine(told):
                    told.close()
                    raise TypeError("the subscriber returned a coroutine: subscribe the async function itself")
        except (Exception, asyncio.CancelledError):  # a cancellation of its own is not that of the call it watches
            self._complain(event)
        took = time.perf_counter() - started
        if took > SLOW_CALLBACK and not self._slow:
            logger.info("subscriber=<%r>, took=<%.3f> | slow, gets its own thread", self.callback, took)
            self._slow, self.deliver = True, self._deliver_later


class _AsyncSubscriber(_Subscriber):
    """Awaits the callback in a task that lives as long as there are events."""

    def __init__(self, callback: EventCallback, accepts: Predicate | None) -> None:
        super().__init__(callback, accepts)
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.deliver = self._deliver_in_task

    def _deliver_in_task(self, event: ToolEngineEvent) -> None:
        self._enqueue(event)
        if self._busy and self._loop is not None and self._loop.is_closed():
            self._busy = False  # the task ended with its loop
        if self._busy:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # announced from a thread, such as a file watcher's
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._start, self._loop)
            return
        self._start(loop)

    def rest(self) -> None:
        task, loop = self._task, self._loop
        if task is None or task.done() or loop is None or loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):  # no loop runs here
            if asyncio.current_task() is task:
                return  # it ends its own subscription: let it finish
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            loop.call_soon_threadsafe(task.cancel)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._busy:
            self._busy, self._loop = True, loop
            # In a context of its own: what a subscriber calls is not part of the call it watches.
            self._task = loop.create_task(self._run(), name="ferrule-subscriber", context=contextvars.Context())

    async def _run(self) -> None:
        try:
            while self._queue:
                event = self._queue.popleft()
                try:
                    if self._accepts is None or self._accepts(event):
                        await self.callback(event)
                except Exception:
                    self._complain(event)
        finally:
            self._busy = False


def _as_predicate(event_filter: EventFilter | None) -> Predicate | None:
    if event_filter is None:
        return None
    if isinstance(event_filter, ToolEngineEventType):
        return lambda event: event.event_type is event_filter
    if callable(event_filter):
        return event_filter
    wanted = frozenset(ToolEngineEventType(t) for t in event_filter)
    return lambda event: event.event_type in wanted
