"""What went wrong in the browser, in the words of our errors."""

from __future__ import annotations

import re
from typing import Final

from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, Retry, Transient, TransportFault
from ferrule.executors.http.guarded_client import shown_url
from ferrule.tools.browser.chromium import Chromium
from ferrule.tools.browser.tabs import Tabs

_NET = re.compile(r"net::(ERR_[A-Z_]+)")
_DOWNLOAD = re.compile(r"Download is starting")
_BY_CODE: Final[dict[str, tuple[type[CallError], str]]] = {
    "ERR_TOO_MANY_REDIRECTS": (ExecutionFailed, "it redirects without end. Use the address it should lead to"),
    "ERR_ABORTED": (ExecutionFailed, "it leads to no page that can be shown"),
    "ERR_INVALID_URL": (Retry, "it is not a valid URL"),
    "ERR_UNSAFE_PORT": (ExecutionFailed, "browsers do not connect to this port"),
    "ERR_INVALID_RESPONSE": (ExecutionFailed, "the server did not answer with valid HTTP"),
}
_GONE = re.compile(r"has been closed|connection closed|target crashed|page crashed|browser.*closed", re.I)
_HINDRANCES: Final = (
    (re.compile(r"<[^>]{1,200}>[^\n]{0,80} intercepts pointer events"), "something lies over it: {found}"),
    (re.compile(r"element is not visible"), "it is not visible"),
    (re.compile(r"element is not enabled"), "it is disabled"),
    (re.compile(r"element is not editable|not an <input>|not editable"), "nothing can be typed into it"),
    (re.compile(r"did not find some options"), "it has no such option"),
    (re.compile(r"element is not stable"), "it keeps moving"),
    (re.compile(r"outside of the viewport"), "it lies outside of the page"),
)


async def failure_of(error: Exception, tabs: Tabs, url: str) -> CallError:
    """Our error for one of Playwright. `url` is where it happened, or was to lead."""
    text = str(error)
    if (code := _NET.search(text)) is not None:
        return _unreachable(code[1], tabs, url)
    if _DOWNLOAD.search(text):
        return ExecutionFailed(f"{shown_url(url)} is a file to download, not a page.")
    if _GONE.search(text):
        return await gone(tabs.chromium) or ExecutionFailed(
            f"The page {shown_url(url)} was closed or has crashed. Navigate again."
        )
    return ExecutionFailed(f"On {shown_url(url)}: {_first_line(text)}")


async def gone(chromium: Chromium) -> CallError | None:
    """That the browser has ended, if it has."""
    await chromium.check()
    if chromium.is_alive:
        return None
    return TransportFault("The browser has ended. It is started anew with the next call; navigate again.")


def refused_navigation(tabs: Tabs, url: str) -> CallError:
    """A page that came to nothing after a click."""
    return _unreachable("ERR_FAILED", tabs, url)


def hindrance(error: Exception) -> str | None:
    """Why an element that is there cannot be used, as far as Playwright tells."""
    for pattern, words in _HINDRANCES:
        if (found := pattern.search(str(error))) is not None:
            return words.format(found=found[0])
    return None


def is_bad_selector(error: Exception) -> bool:
    return (
        re.search(r"parsing (?:css |)selector|unexpected token|unknown engine|not a valid|malformed", str(error), re.I)
        is not None
    )


def is_interrupted(error: Exception) -> bool:
    """Whether a navigation made way for another."""
    return "interrupted by another navigation" in str(error) or "net::ERR_ABORTED" in str(error)


def _unreachable(code: str, tabs: Tabs, url: str) -> CallError:
    where = shown_url(url)
    refusal = tabs.chromium.proxy.refusal(url)
    if isinstance(refusal, PermissionDenied):
        return PermissionDenied(f"{where} was not opened: {refusal}")
    if refusal is not None:
        # Not a fault of the way to the tool: the browser works, and other sites are there.
        kind: type[CallError] = Retry if refusal.details.get("unknown_host") else Transient
        return kind(f"{where} was not opened: {refusal}")
    if code.startswith(("ERR_CERT", "ERR_SSL")):
        return ExecutionFailed(f"{where} was not opened: its certificate cannot be trusted ({code}).")
    kind, words = _BY_CODE.get(code, (Transient, f"the connection failed ({code})"))
    return kind(f"{where} was not opened: {words}.")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
