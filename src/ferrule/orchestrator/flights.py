"""One run for all who ask the same at the same time.

Whoever stops waiting leaves the run to the others; when the last one leaves, it is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

from ferrule.errors import SetupError

logger = logging.getLogger("ferrule.orchestrator")

T = TypeVar("T")
Tell: TypeAlias = Callable[[Any], None]


class Flight(Generic[T]):
    """A run on its way, and those who wait for it."""

    def __init__(self, work: Callable[[Tell], Awaitable[T]]) -> None:
        self._listeners: list[Tell] = []
        self._told: list[Any] = []
        self._waiting = 0
        self._is_given_up = False
        self._task: asyncio.Future[T] = asyncio.ensure_future(work(self._tell))
        self._task.add_done_callback(_look_at)

    @property
    def is_over(self) -> bool:
        """Whether it is too late to join."""
        return self._is_given_up or self._task.done()

    def when_over(self, call: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: call())

    async def join(self, listener: Tell | None = None) -> T:
        """Wait for it. Who joins late is told first what has happened so far."""
        if listener is not None:
            for event in self._told:
                listener(event)
            self._listeners.append(listener)
        self._waiting += 1
        try:
            # Not awaited itself: then a cancelled asker would cancel it for all.
            await asyncio.wait({self._task})
        finally:
            self._waiting -= 1
            if listener is not None:
                self._listeners.remove(listener)
            if not self._waiting and not self._task.done():
                await self.end()
        if self._task.cancelled():
            raise SetupError("The question was given up, because the orchestrator was closed.")
        return self._task.result()

    async def end(self) -> None:
        """Stop it, and wait until it has stopped."""
        self._is_given_up = True
        self._task.cancel()
        await asyncio.wait({self._task})

    def _tell(self, event: Any) -> None:
        self._told.append(event)
        for listener in self._listeners:
            listener(event)


class Flights(Generic[T]):
    """The runs on their way, by what was asked and by whom."""

    def __init__(self) -> None:
        self._flying: dict[str, dict[str, Flight[T]]] = {}

    def find(self, key: str, asker: str) -> Flight[T] | None:
        """The run of this very asker."""
        flight = self._flying.get(key, {}).get(asker)
        return None if flight is None or flight.is_over else flight

    def find_any(self, key: str) -> Flight[T] | None:
        """A run of anybody."""
        return next((flight for flight in self._flying.get(key, {}).values() if not flight.is_over), None)

    def start(self, key: str, asker: str, work: Callable[[Tell], Awaitable[T]]) -> Flight[T]:
        flight = self._flying.setdefault(key, {})[asker] = Flight(work)
        flight.when_over(lambda: self._forget(key, asker, flight))
        return flight

    async def aclose(self) -> None:
        """End all of them."""
        for flight in [flight for flights in self._flying.values() for flight in flights.values()]:
            await flight.end()

    def _forget(self, key: str, asker: str, flight: Flight[T]) -> None:
        flights = self._flying.get(key, {})
        if flights.get(asker) is flight:  # else there is a newer one
            del flights[asker]
        if not flights:
            self._flying.pop(key, None)


def patient(listener: Tell | None) -> Tell | None:
    """A face that fails must not take the run with it. Nobody stays nobody: some models answer faster unwatched."""
    if listener is None:
        return None

    def tell(event: Any) -> None:
        try:
            listener(event)
        except Exception:
            logger.exception("event=<%s> | whoever watches the question failed", type(event).__name__)

    return tell


def _look_at(task: asyncio.Future[Any]) -> None:
    """An exception that nobody waits for any more is not worth a warning."""
    if not task.cancelled():
        task.exception()
