"""Events of the engine and their delivery to subscribers.

Subscribers watch; they cannot change a call or break it. Sync callbacks are called by the task that emits: one that
takes longer than 10 ms is named in a warning. Async callbacks receive their events in a task of their own, which slows
nothing down. Each subscriber receives its events in order. When its queue is full, the oldest events are dropped, which
is logged.
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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import uuid4

from ferrule.core.permission import Principal
from ferrule.errors import error_text

logger = logging.getLogger("ferrule.core.events")


class ToolEngineEventType(StrEnum):
    """Everything the engine reports. "Data:" names what `data` contains."""

    TOOL_LOADED = "tool_loaded"
    """A tool was read when the engine started. Data: `origin`, `source`, `tool`."""
    TOOL_ADDED = "tool_added"
    """A tool was added later. Data: `origin`, `source`, `tool`."""
    TOOL_UPDATED = "tool_updated"
    """A tool was changed. Data: `origin`, `source`, `tool`."""
    TOOL_REMOVED = "tool_removed"
    """A tool was removed. Data: `origin`, `source`, `tool`."""
    RELOAD_STARTED = "reload_started"
    """Changed files are being loaded again. Data: `paths`."""
    RELOAD_COMPLETED = "reload_completed"
    """Changed files have been loaded again. Data: `paths`, `added`, `updated`, `removed`, `errors`."""
    LOAD_ERROR = "load_error"
    """A file could not be loaded; `error` has the reason. Data: `path`, `line`, `hint`."""
    VALIDATION_ERROR = "validation_error"
    """The arguments of a call are invalid. Data: `result`, `action`."""
    BEFORE_TOOL_CALL = "before_tool_call"
    """A call arrived; nothing has been checked yet. AFTER_TOOL_CALL always follows.
    Data: `params`, `action`, `context`.
    """
    EXECUTION_STARTED = "execution_started"
    """The tool starts. Data: `params`, `action`."""
    EXECUTION_PROGRESS = "execution_progress"
    """The tool reported progress, yielded a value or called `emit_event`.
    Data: `progress`, whose `event` is the name of an event; `action`.
    """
    EXECUTION_COMPLETED = "execution_completed"
    """The tool succeeded. Data: `result`, `action`."""
    EXECUTION_FAILED = "execution_failed"
    """The call failed, was refused, timed out or was cancelled; see `error` and `error_type`.
    Data: `result`, `action`.
    """
    AFTER_TOOL_CALL = "after_tool_call"
    """The last event of every call. Data: `params`, `action`, `context`, `result`."""
    QUESTION_STARTED = "question_started"
    """A question arrived. QUESTION_ENDED always follows, as the other ENDED events follow their STARTED.
    Data: `question`, `conversation_id`.
    """
    QUESTION_ENDED = "question_ended"
    """The orchestrator has answered a question. Data: `question`, `conversation_id`, `result`."""
    PLANNING_STARTED = "planning_started"
    """A plan is being made. Data: `run_id`, `task`."""
    PLANNING_ENDED = "planning_ended"
    """A plan has been made. Data: `run_id`, `task`, `plan`."""
    AGENT_STARTED = "agent_started"
    """An agent starts a task, or the step of a plan. Data: `run_id`, `agent`, `task`."""
    AGENT_ENDED = "agent_ended"
    """An agent has finished a task, or the step of a plan. Data: `run_id`, `agent`, `task`, `answer`."""
    MODEL_STARTED = "model_started"
    """A model is asked for a reply. Data: `run_id`, `model`, `request`."""
    MODEL_ENDED = "model_ended"
    """A model has replied. Data: `run_id`, `model`, `request`, `reply`."""
    APPROVAL_REQUESTED = "approval_requested"
    """A call needs an approval. Data: `request`."""
    APPROVAL_DECIDED = "approval_decided"
    """A person has decided about a call in this process. Data: `request`."""


@dataclass(slots=True)
class ToolEngineEvent:
    """One event. What `data` contains depends on its type (see docs/events.md)."""

    event_type: ToolEngineEventType
    tool_name: str | None = None
    call_id: str | None = None
    error: str | None = None
    error_type: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)
    principal: Principal | None = None
    """Who made the call that the event is about."""

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


EventCallback: TypeAlias = Callable[[ToolEngineEvent], Any]
Predicate: TypeAlias = Callable[[ToolEngineEvent], bool]
EventFilter: TypeAlias = Predicate | Collection[ToolEngineEventType]

SLOW_CALLBACK_SECONDS = 0.010
MAX_QUEUE_LENGTH = 10_000


class EventBus:
    """Delivers every event to its subscribers."""

    def __init__(self) -> None:
        self._subscribers: tuple[_Subscriber, ...] = ()
        self._async_subscribers: tuple[_AsyncSubscriber, ...] = ()
        self._lock = threading.Lock()
        self.has_subscribers = False
        """Without subscribers, events need not be created at all."""
        self._subscribers_of: dict[ToolEngineEventType, tuple[_Subscriber, ...]] = {}
        """Those that may get events of a type: their filters name it, or are functions, or there is none."""
        self.has_async_subscribers = False

    def subscribe(self, callback: EventCallback, event_filter: EventFilter | None = None) -> Callable[[], None]:
        """Call `callback` with each event the filter accepts; returns a function that ends the subscription.

        A sync callback is called by the task that emits, an async one in a task of its own.
        """
        if not callable(callback):
            raise TypeError(f"a subscriber must be a function that takes an event, not {callback!r}")
        accepts, types = None, None
        if isinstance(event_filter, ToolEngineEventType):
            types = frozenset({event_filter})
        elif callable(event_filter):
            accepts = event_filter
        elif event_filter is not None:
            types = frozenset(map(ToolEngineEventType, event_filter))
        call = getattr(callback, "__call__", None)  # noqa: B004 (an object with an async __call__)
        is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call)
        subscriber = (_AsyncSubscriber if is_async else _Subscriber)(callback, accepts, types)
        with self._lock:
            self._set((*self._subscribers, subscriber))
        return lambda: self._remove(subscriber)

    def unsubscribe(self, callback: EventCallback) -> bool:
        """End every subscription of this callback; False when there was none."""
        subscribers = [s for s in self._subscribers if s.callback == callback]
        for subscriber in subscribers:
            self._remove(subscriber)
        return bool(subscribers)

    def has_subscriber_for(self, event_type: ToolEngineEventType) -> bool:
        """Return whether some subscriber may get events of this type; others need not be created."""
        return event_type in self._subscribers_of

    def emit(self, event: ToolEngineEvent) -> None:
        for subscriber in self._subscribers_of.get(event.event_type, ()):
            subscriber.deliver(event)

    @contextlib.contextmanager
    def emit_start_and_end(
        self,
        started: ToolEngineEventType,
        ended: ToolEngineEventType,
        principal: Principal | None = None,
        **data: Any,
    ) -> Iterator[dict[str, Any]]:
        """Emit an event before and one after a block, with the same data; the block may add to those of the second."""
        if not self.has_subscribers:
            yield data
            return
        data["operation_id"] = uuid4().hex
        self.emit(ToolEngineEvent(started, data=dict(data), principal=principal))
        error: BaseException | None = None
        try:
            yield data
        except BaseException as failure:
            error = failure
            raise
        finally:
            text, kind = (None, None) if error is None else (error_text(error), type(error).__name__)
            self.emit(ToolEngineEvent(ended, error=text, error_type=kind, data=data, principal=principal))

    async def drain(self, timeout: float = 5.0) -> None:
        """Wait until all events so far have been delivered."""
        deadline = time.monotonic() + timeout
        while any(s.has_pending for s in self._async_subscribers) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        """Deliver all events so far, then end the tasks of subscribers, which stay subscribed."""
        await self.drain()
        for subscriber in self._async_subscribers:
            subscriber.end_task()

    def _remove(self, subscriber: _Subscriber) -> None:
        with self._lock:
            self._set(tuple(s for s in self._subscribers if s is not subscriber))
        if isinstance(subscriber, _AsyncSubscriber):
            subscriber.queue.clear()
            subscriber.end_task()

    def _set(self, subscribers: tuple[_Subscriber, ...]) -> None:
        self._subscribers = subscribers
        self.has_subscribers = bool(subscribers)
        by_type = {
            event_type: tuple(s for s in subscribers if s.types is None or event_type in s.types)
            for event_type in ToolEngineEventType
        }
        self._subscribers_of = {event_type: some for event_type, some in by_type.items() if some}
        self._async_subscribers = tuple(s for s in subscribers if isinstance(s, _AsyncSubscriber))
        self.has_async_subscribers = bool(self._async_subscribers)


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Reports what a run does."""

    bus: EventBus
    principal: Principal
    run_id: str

    def emit_start_and_end(
        self, started: ToolEngineEventType, ended: ToolEngineEventType, **data: Any
    ) -> contextlib.AbstractContextManager[dict[str, Any]]:
        """See `EventBus.emit_start_and_end`."""
        return self.bus.emit_start_and_end(started, ended, self.principal, run_id=self.run_id, **data)

    def emit_agent_start_and_end(self, name: str, task: str) -> contextlib.AbstractContextManager[dict[str, Any]]:
        """Emit the start and the end of the work of one agent."""
        types = ToolEngineEventType.AGENT_STARTED, ToolEngineEventType.AGENT_ENDED
        return self.emit_start_and_end(*types, agent=name, task=task)


class _Subscriber:
    """Calls one callback with the events that it gets."""

    def __init__(
        self, callback: EventCallback, accepts: Predicate | None, types: frozenset[ToolEngineEventType] | None
    ) -> None:
        """`types` are the only ones that the bus delivers here; None: all."""
        self.callback, self._accepts, self.types = callback, accepts, types
        self._is_slow = False

    def deliver(self, event: ToolEngineEvent) -> None:
        started = time.perf_counter()
        try:
            if self._accepts is None or self._accepts(event):
                result = self.callback(event)
                if result is not None and inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("the subscriber returned a coroutine: subscribe the async function itself")
        except KeyboardInterrupt:
            raise
        except BaseException:  # its own cancellation or SystemExit does not end the call it watches
            self._log_failure(event)
        seconds = time.perf_counter() - started
        if seconds > SLOW_CALLBACK_SECONDS and not self._is_slow:
            self._is_slow = True
            logger.warning(
                "subscriber=<%r>, seconds=<%.3f> | slow, and every call waits for it: subscribe an async function",
                self.callback,
                seconds,
            )

    def _log_failure(self, event: ToolEngineEvent) -> None:
        logger.exception("subscriber=<%r>, event=<%s> | failed", self.callback, event.event_type.value)


class _AsyncSubscriber(_Subscriber):
    """Awaits the callback in a task that runs while there are events."""

    _is_busy = False
    _dropped = 0
    _task: asyncio.Task[None] | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self, callback: EventCallback, accepts: Predicate | None, types: frozenset[ToolEngineEventType] | None
    ) -> None:
        super().__init__(callback, accepts, types)
        self.queue: deque[ToolEngineEvent] = deque()

    @property
    def has_pending(self) -> bool:
        return bool(self.queue) or self._is_busy

    def deliver(self, event: ToolEngineEvent) -> None:
        if len(self.queue) >= MAX_QUEUE_LENGTH:
            self.queue.popleft()
            self._dropped += 1
            if self._dropped.bit_count() == 1:  # 1, 2, 4, 8 …: does not flood the log
                logger.warning(
                    "subscriber=<%r>, dropped=<%d> | too slow, oldest events dropped", self.callback, self._dropped
                )
        self.queue.append(event)
        has_loop = self._loop is not None and not self._loop.is_closed()
        if self._is_busy and has_loop:
            return
        self._is_busy = False  # a task that was running has ended with its loop
        try:
            self._start(asyncio.get_running_loop())
        except RuntimeError:  # emitted from a thread, such as a file watcher's
            if self._loop is not None and has_loop:
                self._loop.call_soon_threadsafe(self._start, self._loop)

    def end_task(self) -> None:
        """End the task until the next event comes."""
        task, loop = self._task, self._loop
        if task is None or task.done() or loop is None or loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):  # no loop runs here
            if asyncio.current_task() is task:
                return  # it ends its own subscription: let it finish
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            loop.call_soon_threadsafe(task.cancel)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_busy:
            self._is_busy, self._loop = True, loop
            # In a context of its own: calls that a subscriber makes are not part of the call it watches.
            self._task = loop.create_task(self._run(), name="ferrule-subscriber", context=contextvars.Context())

    async def _run(self) -> None:
        try:
            while self.queue:
                event = self.queue.popleft()
                try:
                    if self._accepts is None or self._accepts(event):
                        await self.callback(event)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    if isinstance(error, (asyncio.CancelledError, GeneratorExit)) and self._is_ending():
                        raise
                    self._log_failure(event)
        finally:
            self._is_busy = False

    def _is_ending(self) -> bool:
        """Return whether the task is being ended from outside; the callback may raise the same exceptions itself."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # its loop has ended
            return True
        return task is None or task is not self._task or task.cancelling() > 0
