"""Pages for a browser, served on this machine, and a browser to look at them."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from ferrule import ToolEngine, ToolExecutionContext, ToolExecutionResult
from ferrule.kinds.function.tools import tool_of
from ferrule_tools.browser import BrowserNavigator
from tests.support.http_servers import AnyAnswer, HttpServer, Request, serve_http

Page = str | bytes | AnyAnswer | Callable[[Request], AnyAnswer]
"""HTML, a whole answer, none ever, or a function that says."""


class Site:
    """A browser in an engine, before pages of ours."""

    def __init__(self, engine: ToolEngine, server: HttpServer, browser: BrowserNavigator) -> None:
        self.engine, self.server, self.browser = engine, server, browser

    async def do(
        self, action: str, *, run: str | None = None, timeout: float = 120, **params: Any
    ) -> ToolExecutionResult:
        context = ToolExecutionContext(conversation_id=run, timeout=timeout)
        return await self.engine.execute("browser_navigator", params, context, action=action)

    async def open(self, path: str, *, run: str | None = None) -> ToolExecutionResult:
        result = await self.do("navigate", url=f"{self.server.url}{path}", run=run)
        assert result.is_success, result.error
        return result

    def asked(self, path: str) -> int:
        return sum(request.path == path for request in self.server.requests)


@contextmanager
def site(runner: asyncio.Runner, pages: Mapping[str, Page], browser: BrowserNavigator) -> Iterator[Site]:
    stack = AsyncExitStack()

    async def open_it() -> Site:
        server = await stack.enter_async_context(serve_http(lambda request: answer(pages, request)))
        engine = await stack.enter_async_context(ToolEngine())
        engine.register(tool_of(browser, timeout=120))
        return Site(engine, server, browser)

    opened = runner.run(open_it())
    try:
        yield opened
    finally:
        runner.run(stack.aclose())


def answer(pages: Mapping[str, Page], request: Request) -> AnyAnswer:
    page = pages.get(request.path.partition("?")[0], (404, {"Content-Type": "text/html"}, b"<h1>Nothing here</h1>"))
    if callable(page):
        return page(request)
    if isinstance(page, (str, bytes)):
        body = page.encode() if isinstance(page, str) else page
        return 200, {"Content-Type": "text/html; charset=utf-8"}, body
    return page


def browsers_of(process: int, marks: tuple[bytes, ...] = (b"--headless", b"playwright")) -> list[int]:
    """The processes of browsers, and of what drives them, that descend from a process."""
    parents, found = {}, []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", "rb") as file:
                said = file.read()
            if any(mark in said for mark in marks):
                found.append(int(name))
        except OSError:
            continue
    return [one for one in found if process in ancestors(one, parents)]


def ancestors(process: int, parents: Mapping[int, int]) -> list[int]:
    line = []
    while process in parents:
        process = parents[process]
        line.append(process)
    return line
