"""Tasks that have really ended when their block is left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

_T = TypeVar("_T")

CANCEL_AGAIN_AFTER = 0.5
"""Seconds; a tool may swallow a cancellation, so it gets another."""


class Runners:
    """Starts tasks; leaving the block cancels those that still run and waits for their end, whatever happens."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        interrupted = False
        while running := [task for task in self._tasks if not task.done()]:
            for task in running:
                task.cancel()
            interrupted |= await _wait(running, CANCEL_AGAIN_AFTER)
        for task in self._tasks:
            _see(task)
        if interrupted:
            raise asyncio.CancelledError


async def to_the_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Await something that must not be left half-way: a cancellation takes effect after it."""
    task, interrupted = asyncio.create_task(work), False
    while not task.done():
        interrupted |= await _wait([task], None)
    if interrupted:
        _see(task)
        raise asyncio.CancelledError
    return task.result()


async def _wait(tasks: list[asyncio.Task[Any]], timeout: float | None) -> bool:
    """Wait for tasks; whether the waiting itself was cancelled."""
    try:
        await asyncio.wait(tasks, timeout=timeout)
    except asyncio.CancelledError:
        return True
    return False


def _see(task: asyncio.Task[Any]) -> None:
    """Look at a failure nobody needs, or asyncio complains that nobody did."""
    if not task.cancelled():
        task.exception()
