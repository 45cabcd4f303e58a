"""Pages on this machine, and a library that reads them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ferrule import AddressGuard, ToolExecutionResult, UnifiedToolLibrary
from ferrule_tools.web.web_scraper import ScraperConfig, scraper_tools
from tests.support.http_servers import AnyAnswer, HttpServer, serve_http

HTML = {"Content-Type": "text/html; charset=utf-8"}


Pages = dict[str, str | bytes | AnyAnswer]
"""By their paths: HTML, a whole answer, or none ever."""


@dataclass
class Site:
    library: UnifiedToolLibrary
    server: HttpServer
    pages: Pages

    async def show(self, page: str | bytes | AnyAnswer, **params: Any) -> ToolExecutionResult:
        """What is read of a page."""
        self.pages["/"] = page
        return await self.read("/", **params)

    async def read(self, path: str = "/", **params: Any) -> ToolExecutionResult:
        url = path if "://" in path else f"{self.server.url}{path}"
        return await self.library.execute_tool("web_scraper", parameters={"url": url, **params})

    def asked(self, path: str) -> int:
        return sum(request.path == path for request in self.server.requests)


@asynccontextmanager
async def site(pages: Pages, **config: Any) -> AsyncIterator[Site]:
    def answer(path: str) -> AnyAnswer:
        page = pages.get(path, (404, HTML, b"<h1>Nothing here</h1>"))
        if isinstance(page, str | bytes):
            return 200, HTML, page.encode() if isinstance(page, str) else page
        return page

    async with serve_http(lambda request: answer(request.path)) as server, UnifiedToolLibrary() as library:
        guard = AddressGuard(allowed_hosts=["127.0.0.1"])
        library.register(*scraper_tools(ScraperConfig(**config), guard=guard))
        yield Site(library, server, pages)
