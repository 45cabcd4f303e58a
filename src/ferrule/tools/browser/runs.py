"""One browser for all runs, and for each run what it has open."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from ferrule.executors.http.address_guard import AddressGuard
from ferrule.tools.browser.chromium import Chromium, find_chromium
from ferrule.tools.browser.failures import gone
from ferrule.tools.browser.tabs import Tabs

MOST_RUNS: Final = 16
"""Runs that nobody ends are ended when there are more, the longest unused first."""


class Runs:
    """Starts the browser when it is first needed, or needed again, and ends it."""

    def __init__(self, guard: AddressGuard, path: str | None) -> None:
        self._guard, self._path = guard, path
        self._starting: asyncio.Task[Chromium] | None = None
        self._tabs: OrderedDict[str, Tabs] = OrderedDict()
        self._lost = ""
        self._door = asyncio.Lock()

    async def tabs_of(self, run_id: str) -> Tabs:
        async with self._door:
            chromium = await self._running()
            tabs = self._tabs.get(run_id)
            if tabs is None:
                try:
                    tabs = self._tabs[run_id] = await Tabs.open(chromium, self._lost)
                except Exception as error:
                    raise await gone(chromium) or error from error
                await self._make_room()
            self._tabs.move_to_end(run_id)
            return tabs

    async def end(self, run_id: str) -> None:
        tabs = self._tabs.pop(run_id, None)
        if tabs is not None:
            await tabs.close()

    async def end_all(self) -> None:
        """Nothing is left running; it may be used again, also in another event loop."""
        starting, self._starting = self._starting, None
        open_tabs, self._tabs, self._lost = list(self._tabs.values()), OrderedDict(), ""
        self._door = asyncio.Lock()
        for tabs in open_tabs:
            await tabs.close()
        if starting is not None:
            await asyncio.wait({starting})
            if (chromium := _started(starting)) is not None:
                await chromium.close()

    async def _running(self) -> Chromium:
        if self._starting is not None and self._starting.done():
            chromium = _started(self._starting)
            if chromium is not None and chromium.is_alive:
                return chromium
            self._starting, self._tabs = None, OrderedDict()
            if chromium is not None:
                self._lost = " (the browser ended and was started anew)"
                await chromium.close()
        if self._starting is None:
            # A task of its own: a caller who goes away meanwhile must not leave half a browser.
            self._starting = asyncio.create_task(Chromium.start(find_chromium(self._path), self._guard))
        return await asyncio.shield(self._starting)

    async def _make_room(self) -> None:
        idle = [run_id for run_id, tabs in self._tabs.items() if not tabs.turn.locked()]
        for run_id in idle[:-MOST_RUNS]:
            await self._tabs.pop(run_id).close()


def _started(starting: asyncio.Task[Chromium]) -> Chromium | None:
    return None if starting.cancelled() or starting.exception() is not None else starting.result()
