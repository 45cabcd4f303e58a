"""What a run has open: one context of the browser, and in it the page in front and those it was opened from.

A click may open a new page: that one is then in front, as for a person. What pages open by themselves is closed.
Dialogs are dismissed, and what they said is told with the next answer; pages that ask to be stayed on are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import Retry
from ferrule.tools.browser.chromium import Chromium
from ferrule.tools.browser.world import World

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Frame, Page, Request

MOST_PAGES: Final = 5
MOST_DIALOGS: Final = 5
LONGEST_DIALOG: Final = 200
TIME_TO_CLOSE: Final = 2.0


class Tab:
    """A page with what is known about it."""

    def __init__(self, page: Page, world: World) -> None:
        self.page, self.world = page, world
        self.failed_url: str | None = None
        """Where the last navigation that came to nothing was to lead."""
        self.moves = 0
        """How often another document came."""


class Tabs:
    """The pages of one run."""

    def __init__(self, chromium: Chromium, context: BrowserContext, lost: str) -> None:
        self.chromium, self._context = chromium, context
        self.turn = asyncio.Lock()
        """Calls of one run are made one after the other: each may change the page."""
        self.follows_new_pages = False
        """Whether a page that is opened now comes to the front."""
        self._tabs: list[Tab] = []
        self._dialogs: list[str] = []
        self._is_opening = False
        self._lost = lost
        """Why no page is open, for the message that says so."""
        self._tasks: set[asyncio.Task[None]] = set()
        context.on("page", self._opened)

    @classmethod
    async def open(cls, chromium: Chromium, lost: str) -> Tabs:
        return cls(chromium, await chromium.new_context(), lost)

    @property
    def front(self) -> Tab:
        while self._tabs and self._tabs[-1].page.is_closed():
            self._tabs.pop()
        if not self._tabs:
            raise Retry(f"No page is open{self._lost}. Call navigate with a URL first.")
        return self._tabs[-1]

    async def front_or_new(self) -> Tab:
        with suppress(Retry):
            return self.front
        self._is_opening, self._lost = True, ""
        try:
            return await self._adopt(await self._context.new_page())
        finally:
            self._is_opening = False

    async def settled(self) -> None:
        """Wait for pages that are just being opened or closed."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=TIME_TO_CLOSE)

    def forget_failures(self) -> None:
        for tab in self._tabs:
            tab.failed_url = None

    async def leave_front(self) -> bool:
        """Go back to the page that the one in front was opened from, if there is one."""
        if len(self._tabs) < 2:
            return False
        await self._tabs.pop().page.close()
        return True

    def take_dialogs(self) -> list[str]:
        said, self._dialogs = self._dialogs, []
        return said

    async def drop(self, why: str) -> None:
        """Close the pages: what they are still doing must not come to an end later. Cookies stay."""
        tabs, self._tabs = self._tabs, []
        self._lost = f" ({why})"
        for tab in tabs:
            self._run(_close(tab.page))
        await self.settled()

    async def close(self) -> None:
        with suppress(Exception):  # the browser may be gone
            await asyncio.wait_for(self._context.close(), TIME_TO_CLOSE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _adopt(self, page: Page) -> Tab:
        tab = Tab(page, await World.of(self._context, page))
        page.on("dialog", lambda dialog: self._run(self._dismiss(dialog)))
        page.on("requestfailed", lambda request: _note_failure(tab, request))
        page.on("framenavigated", lambda frame: _note_move(tab, frame))
        self._tabs.append(tab)
        return tab

    def _opened(self, page: Page) -> None:
        if self.follows_new_pages and len(self._tabs) < MOST_PAGES:
            self.follows_new_pages = False
            self._run(self._follow(page))
        elif not self._is_opening:
            self._run(_close(page))

    async def _follow(self, page: Page) -> None:
        with suppress(Exception):  # it may close itself at once
            await self._adopt(page)

    async def _dismiss(self, dialog: Dialog) -> None:
        wants_to_stay = dialog.type == "beforeunload"
        if len(self._dialogs) < MOST_DIALOGS and not wants_to_stay:
            self._dialogs.append(f"{dialog.type}: {dialog.message[:LONGEST_DIALOG]}")
        with suppress(Exception):  # the page may be gone
            await (dialog.accept() if wants_to_stay else dialog.dismiss())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _close(page: Page) -> None:
    with suppress(Exception):
        await page.close()


def _note_move(tab: Tab, frame: Frame) -> None:
    if frame == tab.page.main_frame:
        tab.moves += 1


def _note_failure(tab: Tab, request: Request) -> None:
    with suppress(Exception):  # a request of a frame that is gone has none to tell
        if request.is_navigation_request() and request.frame == tab.page.main_frame:
            tab.failed_url = request.url
