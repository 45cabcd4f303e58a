"""The calls of other tools that a running function has made."""

from __future__ import annotations

import asyncio

from ferrule.executors.process_group import to_the_end

_CANCEL_AGAIN_AFTER = 0.5


class NestedCalls:
    """They end with the function at the latest."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Cancel those that still run, and wait for them; being cancelled meanwhile does not cut that short."""
        if self._tasks:
            await to_the_end(self._end())

    async def _end(self) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_AFTER)
