"""Waiting for asyncio tasks so that nothing is left half done or still running.

Cancelling a task only asks it to stop: it may be cleaning up, and a tool may even swallow the cancellation. Code that
promises "when this returns, the work has ended" uses these functions instead of a bare `task.cancel()`. While they
wait, a cancellation of the waiting task itself is remembered and raised afterwards.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any, Final, Generic, Self, TypeVar

T = TypeVar("T")

CANCEL_INTERVAL: Final = 0.5
"""Seconds after which a task that ignored a cancellation is cancelled again."""
MAX_QUEUED_PROGRESS: Final = 10_000
"""Reports of one call that wait for a program that reads them."""


def backoff_delay(attempt: int, *, first: float, longest: float, jitter: Callable[[], float] | None = None) -> float:
    """Return the seconds to wait after an attempt (1, 2, …): twice as long each time, with jitter to spread callers."""
    if jitter is None:
        import random  # here, because worker processes load this module and need no jitter

        jitter = random.random
    return min(first * 2.0 ** (attempt - 1), longest) * (0.5 + jitter() / 2)


async def finish_despite_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Await work that must not stop half way; a cancellation meanwhile is raised when the work has ended."""
    task = asyncio.create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        cancellation = await _wait_for_tasks([task], None) or cancellation
    if cancellation is not None:
        retrieve_exception(task)
        raise cancellation
    return task.result()


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended, including those added meanwhile. Their results and errors are ignored."""
    cancellation: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        cancellation = await _wait_for_tasks(running, CANCEL_INTERVAL) or cancellation
    for task in tasks:
        retrieve_exception(task)
    if cancellation is not None:
        raise cancellation


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; returns whether it happened in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class TaskScope:
    """Starts tasks; leaving the block cancels those that still run and waits until they have ended.

    Unlike `asyncio.TaskGroup`, the failure of one task does not stop the others, and results are read from the tasks.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await cancel_all(self._tasks)


class ProgressQueue(Generic[T]):
    """Items for one reader, who may be slow. Progress that does not fit is dropped, the oldest first."""

    def __init__(self, max_size: int, size_of: Callable[[T], int] = lambda _: 1) -> None:
        """`max_size` is for the progress that waits; its newest item is kept, whatever its size."""
        self._max_size, self._size_of = max_size, size_of
        self._items: OrderedDict[int, tuple[T, int]] = OrderedDict()
        """By their numbers, with the sizes of progress."""
        self._numbers, self._progress, self._size = count(), deque[int](), 0
        self._has_items = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._items

    def add(self, item: T, /, *, is_progress: bool = False) -> None:
        number, size = next(self._numbers), 0
        if is_progress:
            size = self._size_of(item)
            self._size += size
            while self._progress and self._size > self._max_size:
                self._size -= self._items.pop(self._progress.popleft())[1]
            self._progress.append(number)
        self._items[number] = item, size
        self._has_items.set()

    async def get(self) -> T:
        while not self._items:
            self._has_items.clear()
            await self._has_items.wait()
        number, (item, size) = self._items.popitem(last=False)
        if self._progress and self._progress[0] == number:
            self._progress.popleft()
            self._size -= size
        return item


async def _wait_for_tasks(tasks: Collection[asyncio.Task[Any]], timeout: float | None) -> asyncio.CancelledError | None:
    """Wait for tasks; returns the cancellation if the waiting itself was cancelled."""
    try:
        await asyncio.wait(tasks, timeout=timeout)
    except asyncio.CancelledError as cancellation:
        return cancellation
    return None


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Otherwise asyncio logs "Task exception was never retrieved" for a failure that does not matter any more."""
    if not task.cancelled():
        task.exception()
