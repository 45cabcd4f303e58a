"""Tells the pages of a server that something in the store has changed, whichever process changed it.

While anybody listens, one small query a second compares the store with what it was; nobody listens, nothing is asked.
Another server may say that something has changed; then the query is made immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ferrule.core.aio import wait_at_most
from ferrule.errors import FerruleError
from ferrule.store import ToolKnowledgeStore

if TYPE_CHECKING:
    from ferrule.store.database import StoreDatabase

logger = logging.getLogger("ferrule.server")

CHANGED: Final = "changed"
"""The name of the event: a page then reads again what it shows."""
POLL_INTERVAL: Final = 1.0
Part: TypeAlias = Literal["approvals", "runs", "calls"]
Marks: TypeAlias = dict[Part, object]
"""A value for each part of the store that differs after every change of the part."""
Listener: TypeAlias = Callable[[list[Part]], None]


class StoreChanges:
    """Compares the store with what it was, for all listeners together."""

    def __init__(self, store: ToolKnowledgeStore) -> None:
        self._store = store
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def look_now(self) -> None:
        """Ask the store now, because another server has said that something has changed."""
        self._news.set()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the parts that have changed; returns a function that ends the subscription."""
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

        def unsubscribe() -> None:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

        return unsubscribe

    async def _watch(self) -> None:
        before: Marks = {}
        while True:
            try:
                marks = await self._store.query(read_change_markers)
            except FerruleError as error:  # the store is away: look again
                logger.warning("error=<%s> | the store could not be asked for changes", error)
            else:
                if changed := [part for part, mark in marks.items() if before.get(part, mark) != mark]:
                    for listener in list(self._listeners):
                        listener(changed)
                before = marks
            await wait_at_most(self._news, POLL_INTERVAL)
            self._news.clear()


def read_change_markers(database: StoreDatabase) -> Marks:
    """Read values that differ after every change, from indexes and small tables."""
    import sqlalchemy as sa

    queries = (
        "SELECT COUNT(*) FROM tool_calls WHERE status = 'running'",
        "SELECT MAX(started_at) FROM tool_calls",
        "SELECT MAX(written_at) FROM entries",
        "SELECT COUNT(*) FROM approvals",
        "SELECT MAX(decided_at) FROM approvals",
        "SELECT MAX(used_at) FROM approvals",
    )
    with database.read() as connection:
        values = [connection.execute(sa.text(query)).scalar() for query in queries]
    running, started_at, written_at, *approvals = values
    return {"approvals": approvals, "runs": written_at, "calls": (started_at, running)}
