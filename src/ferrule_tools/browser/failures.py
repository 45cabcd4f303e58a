"""Converts errors of Playwright and Chromium into errors of a tool call."""

from __future__ import annotations

import re
from typing import Final

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, Retry, Transient, TransportFault
from ferrule.http.client import format_url
from ferrule_tools.browser.chromium import Chromium
from ferrule_tools.browser.tabs import BrowserTabs

_NET_ERROR = lazy_pattern(r"net::(ERR_[A-Z_]+)")
_DOWNLOAD_MESSAGE = lazy_pattern(r"Download is starting")
_ERRORS_BY_CODE: Final[dict[str, tuple[type[CallError], str]]] = {
    "ERR_TOO_MANY_REDIRECTS": (ExecutionFailed, "it redirects without end. Use the address it should lead to"),
    "ERR_ABORTED": (ExecutionFailed, "it leads to no page that can be shown"),
    "ERR_INVALID_URL": (Retry, "it is not a valid URL"),
    "ERR_UNSAFE_PORT": (ExecutionFailed, "browsers do not connect to this port"),
    "ERR_INVALID_RESPONSE": (ExecutionFailed, "the server did not answer with valid HTTP"),
}
_CLOSED_MESSAGE = lazy_pattern(r"has been closed|connection closed|target crashed|page crashed|browser.*closed", re.I)
_USABILITY_PROBLEMS: Final = (
    (lazy_pattern(r"<[^>]{1,200}>[^\n]{0,80} intercepts pointer events"), "something lies over it: {found}"),
    (lazy_pattern(r"element is not visible"), "it is not visible"),
    (lazy_pattern(r"element is not enabled"), "it is disabled"),
    (lazy_pattern(r"element is not editable|not an <input>|not editable"), "nothing can be typed into it"),
    (lazy_pattern(r"did not find some options"), "it has no such option"),
    (lazy_pattern(r"element is not stable"), "it keeps moving"),
    (lazy_pattern(r"outside of the viewport"), "it lies outside of the page"),
)


async def convert_browser_error(error: Exception, tabs: BrowserTabs, url: str) -> CallError:
    """Convert an error of Playwright. `url` is the current page, or the page that was being opened."""
    text = str(error)
    if (code := _NET_ERROR.search(text)) is not None:
        return _unreachable_error(code[1], tabs, url)
    if _DOWNLOAD_MESSAGE.search(text):
        return ExecutionFailed(f"{format_url(url)} is a file to download, not a page.")
    if _CLOSED_MESSAGE.search(text):
        return await browser_ended_error(tabs.chromium) or ExecutionFailed(
            f"The page {format_url(url)} was closed or has crashed. Navigate again."
        )
    return ExecutionFailed(f"On {format_url(url)}: {_first_line(text)}")


async def browser_ended_error(chromium: Chromium) -> CallError | None:
    """The error to raise if the browser has ended; None if it is still running."""
    await chromium.check()
    if chromium.is_alive:
        return None
    return TransportFault("The browser has ended. The next call starts it again; navigate again.")


def navigation_error(tabs: BrowserTabs, url: str) -> CallError:
    """The error for a page that could not be opened after a click."""
    return _unreachable_error("ERR_FAILED", tabs, url)


def explain_unusable_element(error: Exception) -> str | None:
    """Why an existing element cannot be used; None if Playwright does not report a reason."""
    for pattern, words in _USABILITY_PROBLEMS:
        if (match := pattern.search(str(error))) is not None:
            return words.format(found=match[0])
    return None


def is_selector_error(error: Exception) -> bool:
    return (
        re.search(r"parsing (?:css |)selector|unexpected token|unknown engine|not a valid|malformed", str(error), re.I)
        is not None
    )


def is_page_replaced(error: Exception) -> bool:
    """Whether another document was loaded while this one was being read."""
    return "context was destroyed" in str(error)


def is_navigation_interrupted(error: Exception) -> bool:
    """Whether a navigation was interrupted by another one."""
    return "interrupted by another navigation" in str(error) or "net::ERR_ABORTED" in str(error)


def _unreachable_error(code: str, tabs: BrowserTabs, url: str) -> CallError:
    where = format_url(url)
    refusal = tabs.chromium.proxy.refusal(url)
    if isinstance(refusal, PermissionDenied):
        return PermissionDenied(f"{where} was not opened: {refusal}")
    if refusal is not None:
        # Not a TransportFault: the browser itself works, and other sites may be reachable.
        kind: type[CallError] = Retry if refusal.details.get("unknown_host") else Transient
        return kind(f"{where} was not opened: {refusal}")
    if code.startswith(("ERR_CERT", "ERR_SSL")):
        return ExecutionFailed(f"{where} was not opened: its certificate cannot be trusted ({code}).")
    kind, words = _ERRORS_BY_CODE.get(code, (Transient, f"the connection failed ({code})"))
    return kind(f"{where} was not opened: {words}.")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
