"""Finding elements, and saying what is there instead when they are not."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ferrule.errors import CallError, ExecutionFailed, Retry
from ferrule.executors.http.guarded_client import shown_url
from ferrule.tools.browser.failures import hindrance, is_bad_selector
from ferrule.tools.browser.outline import in_words, nearest, outline_of
from ferrule.tools.browser.tabs import Tab

if TYPE_CHECKING:
    from playwright.async_api import Locator


async def find(tab: Tab, selector: str, seconds: float) -> Locator:
    """The elements of a selector, as soon as there is one."""
    from playwright.async_api import Error, TimeoutError

    found = tab.page.locator(selector)
    try:
        await found.first.wait_for(state="attached", timeout=_milliseconds(seconds))
    except TimeoutError:
        if not await found.count():  # a slow page may have it and yet not say so in time
            raise await _missing(tab, selector) from None
    except Error as error:
        if not is_bad_selector(error):
            raise
        raise Retry(f"'{selector}' cannot be read as a selector: {str(error).splitlines()[0]}") from error
    return found


async def find_one(tab: Tab, selector: str, seconds: float) -> Locator:
    """The only element of a selector, or the only one that can be seen."""
    found = await find(tab, selector, seconds)
    count = await found.count()
    if count == 1:
        return found.first
    shown = found.filter(visible=True)
    if await shown.count() != 1:
        raise Retry(
            f"'{selector}' matches {count} elements on {shown_url(tab.page.url)}. Use a selector that matches one, "
            f"or add >> nth=0 for the first.{await _on_the_page(tab, selector)}",
            untrusted=True,
        )
    return shown.first


async def see(tab: Tab, selector: str, seconds: float) -> None:
    """Wait until an element can be seen."""
    from playwright.async_api import TimeoutError

    found = await find(tab, selector, seconds)
    try:
        await found.filter(visible=True).first.wait_for(timeout=_milliseconds(seconds))
    except TimeoutError:
        raise ExecutionFailed(
            f"'{selector}' is on {shown_url(tab.page.url)}, but could not be seen within {seconds:g} seconds."
        ) from None


async def use(tab: Tab, selector: str, work: Awaitable[Any]) -> None:
    """Do something to an element, or say why that cannot be done."""
    from playwright.async_api import Error

    try:
        await work
    except Error as error:
        reason = hindrance(error)
        if reason is None:
            raise
        raise ExecutionFailed(
            f"'{selector}' is on {shown_url(tab.page.url)}, but cannot be used: {reason}."
            f"{await _on_the_page(tab, selector)}",
            untrusted=True,
        ) from error


async def _missing(tab: Tab, selector: str) -> CallError:
    return ExecutionFailed(
        f"No element matches '{selector}' on {shown_url(tab.page.url)}.{await _on_the_page(tab, selector)}",
        status=404,  # so that what stands on the page ("429 stars") is not taken for the kind of failure
        untrusted=True,
    )


async def _on_the_page(tab: Tab, selector: str) -> str:
    try:
        seen = nearest((await outline_of(tab.world))["elements"], selector)
    except Exception:  # the page is in no state to be read: the error is told without it
        return ""
    return f" On the page: {in_words(seen, selector)}." if seen else " There is nothing on the page that could be used."


def _milliseconds(seconds: float) -> float:
    return max(seconds * 1000, 1.0)  # to Playwright 0 means without end
