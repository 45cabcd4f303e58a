"""From one page to another, and where that has led."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from ferrule.errors import Retry
from ferrule.executors.http.guarded_client import shown_url
from ferrule.tools.browser.failures import is_interrupted, refused_navigation
from ferrule.tools.browser.tabs import Tab, Tabs

TIME_TO_LOAD: Final = 3.0
"""Seconds a page that can be read already is given for its pictures and scripts."""
A_MOMENT: Final = 0.1
"""What a click sets off begins a moment later."""
LONGEST_TITLE: Final = 200


async def go(tab: Tab, url: str) -> int | None:
    """Open a page, and tell its status. One that goes on by itself interrupts that; so may the one that is left."""
    from playwright.async_api import Error

    moves = tab.moves
    for is_last in (False, True):
        try:
            answer = await tab.page.goto(url, wait_until="domcontentloaded", timeout=0)
            break
        except Error as error:
            if not is_interrupted(error):
                raise
            await _loaded(tab)
            if is_last and tab.moves == moves:  # it has led nowhere
                raise
            answer = None
    await _loaded(tab)
    return answer.status if answer is not None else None


async def go_back(tabs: Tabs) -> None:
    """To the page before, or to the one that this one was opened from."""
    page = tabs.front.page
    before = page.url
    await page.go_back(wait_until="domcontentloaded", timeout=0)
    if page.url not in (before, "about:blank") or await tabs.leave_front():
        return
    if page.url == "about:blank":
        await page.go_forward(wait_until="domcontentloaded", timeout=0)
    raise Retry(f"There is no page before {shown_url(before)}.")


async def after(tabs: Tabs) -> dict[str, Any]:
    """Where an action has led."""
    await asyncio.sleep(A_MOMENT)
    await tabs.settled()
    tab = tabs.front
    await _loaded(tab)
    if tab.page.url.startswith("chrome-error:"):
        raise refused_navigation(tabs, tab.failed_url or tab.page.url)
    return await where(tabs)


async def where(tabs: Tabs) -> dict[str, Any]:
    """What every answer says: where the run is, and that what stands there is not to be trusted."""
    page = tabs.front.page
    told: dict[str, Any] = {"url": page.url, "title": (await page.title())[:LONGEST_TITLE]}
    if dialogs := tabs.take_dialogs():
        told["dialogs"] = dialogs
    return {**told, "untrusted": True}


async def _loaded(tab: Tab) -> None:
    from playwright.async_api import TimeoutError

    with suppress(TimeoutError):  # it can be read as it is
        await tab.page.wait_for_load_state("load", timeout=TIME_TO_LOAD * 1000)
