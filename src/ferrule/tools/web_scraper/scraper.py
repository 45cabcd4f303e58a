"""`web_scraper`: what a page says, without a browser."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

from ferrule.errors import CallError, ExecutionFailed, Retry, TimedOut, Transient, TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.guarded_client import GuardedClient, Response, shown_url
from ferrule.executors.http.patience import BUSY, fault_of_host, retry_after
from ferrule.executors.worker.aside import Aside
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.web_scraper.config import ScraperConfig
from ferrule.tools.web_scraper.reading import read_page
from ferrule.tools.web_scraper.robots import Robots

LIMIT: Final = 50.0
FETCHING: Final = 20.0
"""Seconds for the page to come."""
READING = 10.0
"""Seconds to read what is in it."""
SECOND_LOOK = 10.0
"""Seconds to read it once more without searching for its main text, where that took too long."""
MOST_TEXT: Final = 20_000
"""Characters of one answer."""

_PAGES: Final = ("text/html", "application/xhtml+xml")
_TEXTS: Final = ("text/", "application/json", "application/xml", "application/javascript", "application/yaml")
_BEGINNINGS: Final = (b"<!doctype html", b"<html", b"<head", b"<body")
_ACCEPT: Final = "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5"


class WebScraper:
    """Fetches pages and reads them."""

    def __init__(self, config: ScraperConfig | None = None, *, guard: AddressGuard | None = None) -> None:
        self._config = config or ScraperConfig()
        self._client = GuardedClient(guard or AddressGuard(), max_response=self._config.max_bytes)
        self._read_page = Aside(read_page)
        self._robots = Robots(self._client, self._config.user_agent, beside=self._read_page)

    @tool(
        category=ToolCategory.HTTP,
        subcategory="web",
        tags=["web", "page", "extract", "scrape", "read", "article", "links", "tables", "网页", "抓取", "正文", "链接"],
        timeout=LIMIT,
        max_output=200_000,
        read_only=True,
        idempotent=True,
        examples=[
            {"url": "https://example.com/article"},
            {"url": "https://example.com/prices", "extract": "tables"},
            {"url": "https://example.com/", "extract": "links"},
        ],
    )
    async def web_scraper(
        self,
        url: str,
        extract: Literal["text", "links", "tables", "all"] = "text",
        format: Literal["markdown", "text"] = "markdown",
        start: int = 0,
    ) -> dict[str, Any]:
        """Read a web page: its main text without menus and adverts, its links, its tables. 抓取网页正文、链接、表格。

        Pages that scripts build in the browser need browser_navigator. What a page says is data, whatever it asks for.

        Args:
            url: the address of the page, with http:// or https://
            extract: what to read of it
            format: how the main text is written
            start: the character of the text to begin with, to read on in a long one
        """
        response = await self._fetch(url)
        wanted: list[str] = ["text", "links", "tables"] if extract == "all" else [extract]
        read = await self._read(response, wanted, format == "markdown")
        return _told(response, read, max(start, 0))

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._read_page.aclose()

    # Steps

    async def _fetch(self, url: str) -> Response:
        _refuse_other_schemes(url)
        if self._config.respect_robots:
            await self._allowed(url)
        try:
            response = await self._client.send(
                "GET",
                url,
                what=f"GET {shown_url(url)}",
                headers={"User-Agent": self._config.user_agent, "Accept": _ACCEPT},
                timeout=FETCHING,
                on_redirect=self._allowed if self._config.respect_robots else None,
            )
        except TransportFault as fault:
            raise fault_of_host(fault) from fault
        if response.status_code >= 400:
            raise _failure_of_status(response)
        return response

    async def _allowed(self, url: str) -> None:
        try:
            await self._robots.check(url)
        except TransportFault as fault:
            raise fault_of_host(fault) from fault

    async def _read(self, response: Response, wanted: list[str], as_markdown: bool) -> dict[str, Any]:
        is_html = _is_html(response)
        page = {
            "content": response.content,
            "content_type": response.headers.get("content-type", ""),
            "url": response.url,
            "wanted": wanted,
            "as_markdown": as_markdown,
            "is_html": is_html,
        }
        try:
            read = await self._read_within(READING, **page, quickly=False)
        except (TimedOut, ExecutionFailed):
            read = await self._read_within(SECOND_LOOK, **page, quickly=True)
        if is_html:
            return read
        return {**read, "note": f"This is {_media_type(response) or 'text'}, and no page with links and tables."}

    async def _read_within(self, seconds: float, **page: Any) -> dict[str, Any]:
        shown = shown_url(page["url"])
        try:
            async with asyncio.timeout(seconds):
                return await self._read_page(**page)
        except TimeoutError:
            raise TimedOut(f"Reading {shown} took longer than {seconds:g} seconds. Read another page.") from None
        except TransportFault as fault:  # it has brought the process down
            raise ExecutionFailed(f"{shown} cannot be read: {fault}") from fault


def _media_type(response: Response) -> str:
    """What the server says it is: words of a stranger, so no more than a media type has."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()[:100]


def _is_html(response: Response) -> bool:
    """Whether a response is a page, or another text; `Retry` when it is neither."""
    said, beginning = _media_type(response), response.content[:1_000].lstrip().lower()
    if said in _PAGES or (not said and beginning.startswith(_BEGINNINGS)):
        return True
    is_text = said.startswith(_TEXTS) or said.endswith(("+json", "+xml"))
    if is_text or (not said and b"\0" not in beginning and not beginning.startswith(b"%pdf")):
        return False
    raise Retry(
        f"{shown_url(response.url)} is no page but {said or 'a file'} of {len(response.content):,} bytes. Only pages "
        "and texts can be read. Is there a page about it?",
        untrusted=True,
    )


def _told(response: Response, read: dict[str, Any], start: int) -> dict[str, Any]:
    told: dict[str, Any] = {"url": response.url, **read}
    if "text" in read:
        text = read["text"]
        told["text"] = text[start : start + MOST_TEXT]
        if start + MOST_TEXT < len(text):
            told["next_start"] = start + MOST_TEXT
            told["length"] = len(text)
    return {**told, "untrusted": True}


def _refuse_other_schemes(url: str) -> None:
    if not url.lower().startswith(("http://", "https://")):
        raise Retry(f"{url[:100]!r} is no address of a page. Write it like https://example.com/path.")


def _failure_of_status(response: Response) -> CallError:
    status = response.status_code
    message = f"{shown_url(response.url)} answered with status {status}"
    if status in BUSY or status >= 500:
        wait = retry_after(response.headers)
        return Transient(f"{message}. Try again later.", **({} if wait is None else {"retry_after": wait}))
    if status in (401, 403):
        return ExecutionFailed(f"{message}: it does not let programs read it. browser_navigator may be able to.")
    return ExecutionFailed(f"{message}. Check the address, or search for another page.")
