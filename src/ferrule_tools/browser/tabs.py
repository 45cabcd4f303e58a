"""The open pages of a run: one browser context, with the front page and the pages it was opened from.

A page that a click opens becomes the front page, as in a normal browser. Pages that open by themselves are closed.
Dialogs are dismissed, and the next result contains their messages. A dialog that asks whether to leave is accepted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ferrule.errors import Retry, Transient, TransportFault
from ferrule.http.guard import AddressGuard
from ferrule_tools.browser.chromium import Chromium

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Dialog, Frame, Page, Request

# Pages are read by scripts in an isolated JavaScript world, which the page's own scripts cannot reach: there
# `document.querySelectorAll` is the browser's, even if the page has replaced its own, and the browser ends a script
# that takes too long.

WORLD_NAME: Final = "ferrule"
SCRIPT_TIMEOUT_MS: Final = 5_000
"""Milliseconds."""


class PageScripts:
    """Runs Ferrule's scripts on one page, isolated from the page's own."""

    def __init__(self, page: Page, session: CDPSession) -> None:
        self._page, self._session = page, session

    async def run(self, function: str, *arguments: Any) -> Any:
        """Run a JavaScript function. Return its result as JSON."""
        from playwright.async_api import Error

        try:
            return await self._run(function, arguments)
        except Error as error:
            if "context" not in str(error).lower():
                raise
            # The page was being replaced by another one.
            await self._page.wait_for_load_state("domcontentloaded")
            return await self._run(function, arguments)

    async def _run(self, function: str, arguments: tuple[Any, ...]) -> Any:
        tree = await self._session.send("Page.getFrameTree")
        scripts = await self._session.send(
            "Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"], "worldName": WORLD_NAME}
        )
        parameters = ", ".join(json.dumps(argument) for argument in arguments)
        answer = await self._session.send(
            "Runtime.evaluate",
            {
                "expression": f"({function})({parameters})",
                "contextId": scripts["executionContextId"],
                "returnByValue": True,
                "timeout": SCRIPT_TIMEOUT_MS,
            },
        )
        if "exceptionDetails" in answer:
            from playwright.async_api import Error

            raise Error(f"the page cannot be read: {answer['exceptionDetails'].get('text', '')}")
        return answer["result"].get("value")


MAX_PAGES: Final = 5
MAX_DIALOGS: Final = 5
MAX_DIALOG_LENGTH: Final = 200
CLOSE_TIMEOUT: Final = 10.0
"""Seconds that pages have to close: longer than the engine waits for a tool, which then says that it has not ended."""


class BrowserTab:
    def __init__(self, page: Page, scripts: PageScripts) -> None:
        self.page, self.scripts = page, scripts
        self.failed_url: str | None = None
        """The target of the last navigation that failed."""
        self.navigations = 0
        """How often another document was loaded."""

    def record_navigation(self, frame: Frame) -> None:
        self.navigations += frame == self.page.main_frame

    def record_failed_request(self, request: Request) -> None:
        with suppress(Exception):  # the frame of the request may be gone
            if request.is_navigation_request() and request.frame == self.page.main_frame:
                self.failed_url = request.url


class BrowserTabs:
    """The pages of one run."""

    def __init__(self, chromium: Chromium, context: BrowserContext, lost: str) -> None:
        self.chromium, self._context = chromium, context
        self.turn = asyncio.Lock()
        """Calls of one run are serialized: each may change the page."""
        self.follows_new_pages = False
        """Whether a page that opens now becomes the front page."""
        self.new_page = asyncio.Event()
        """Set when that has happened."""
        self._tabs: list[BrowserTab] = []
        self._dialogs: list[str] = []
        self._is_opening = False
        self._lost = lost
        """Why no page is open, for the message that says so."""
        self._tasks: set[asyncio.Task[None]] = set()
        context.on("page", self._on_page_opened)

    @property
    def front(self) -> BrowserTab:
        while self._tabs and self._tabs[-1].page.is_closed():
            self._tabs.pop()
        if not self._tabs:
            raise Retry(f"No page is open{self._lost}. Call navigate with a URL first.")
        return self._tabs[-1]

    async def front_or_new(self) -> BrowserTab:
        with suppress(Retry):
            return self.front
        self._is_opening, self._lost = True, ""
        try:
            return await self._add_tab(await self._context.new_page())
        finally:
            self._is_opening = False

    def follow_new_page(self) -> None:
        """Let the next page that opens become the front page."""
        self.follows_new_pages = True
        self.new_page.clear()

    async def wait_for_pages(self) -> None:
        """Wait for pages that are just being opened or closed."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CLOSE_TIMEOUT)

    def clear_failures(self) -> None:
        for tab in self._tabs:
            tab.failed_url = None

    async def close_front(self) -> bool:
        """Close the front page if another page opened it, and return to that one."""
        if len(self._tabs) < 2:
            return False
        await self._tabs.pop().page.close()
        return True

    def take_dialogs(self) -> list[str]:
        dialogs, self._dialogs = self._dialogs, []
        return dialogs

    async def close_pages(self, why: str) -> None:
        """Close the pages, so that nothing they were doing completes later. Cookies stay."""
        tabs, self._tabs = self._tabs, []
        self._lost = f" ({why})"
        for tab in tabs:
            self._run(_close_page(tab.page))
        await self.wait_for_pages()

    async def close(self) -> None:
        with suppress(Exception):  # the browser may be gone
            await asyncio.wait_for(self._context.close(), CLOSE_TIMEOUT)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _add_tab(self, page: Page) -> BrowserTab:
        tab = BrowserTab(page, PageScripts(page, await self._context.new_cdp_session(page)))
        page.on("dialog", lambda dialog: self._run(self._dismiss_dialog(dialog)))
        page.on("requestfailed", tab.record_failed_request)
        page.on("framenavigated", tab.record_navigation)
        self._tabs.append(tab)
        return tab

    def _on_page_opened(self, page: Page) -> None:
        if self.follows_new_pages and len(self._tabs) < MAX_PAGES:
            self.follows_new_pages = False
            self._run(self._add_opened_page(page))
            self.new_page.set()
        elif not self._is_opening:
            self._run(_close_page(page))

    async def _add_opened_page(self, page: Page) -> None:
        with suppress(Exception):  # the page may close itself immediately
            await self._add_tab(page)

    async def _dismiss_dialog(self, dialog: Dialog) -> None:
        wants_to_stay = dialog.type == "beforeunload"
        if len(self._dialogs) < MAX_DIALOGS and not wants_to_stay:
            self._dialogs.append(f"{dialog.type}: {dialog.message[:MAX_DIALOG_LENGTH]}")
        with suppress(Exception):  # the page may be gone
            await (dialog.accept() if wants_to_stay else dialog.dismiss())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _close_page(page: Page) -> None:
    with suppress(Exception):
        await page.close()


async def check_url(url: str, guard: AddressGuard) -> str:
    """Check that a URL may be opened. The proxy checks each connection again."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Retry(f"{url!r} is not a valid URL ({error}). Write it like https://example.com/path.") from None
    if parts.scheme not in ("http", "https"):
        raise Retry(f"The URL must begin with http:// or https://, not {parts.scheme or url[:20]!r}.")
    if not host:
        raise Retry(f"The URL {url!r} has no host. Write it like https://example.com/path.")
    try:
        await guard.addresses(host, port or (443 if parts.scheme == "https" else 80))
    except TransportFault as error:
        # Not a TransportFault: the browser itself works, and other hosts may be reachable.
        kind = Retry if error.details.get("unknown_host") else Transient
        raise kind(f"{url} was not opened: {error}") from error
    return url
