"""Servers that answer as the providers do, and a library that asks them."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ferrule import ToolExecutionResult, UnifiedToolLibrary
from ferrule_tools.web.search_web import SearchConfig, search_tools
from tests.support.http_servers import HttpServer, Request, serve_http

KEY = "brave-key-0123456789"
KEYS = {"BRAVE_API_KEY": KEY, "TAVILY_API_KEY": "tvly-key-0123456789"}
JSON = {"Content-Type": "application/json"}
TEA: dict[str, Any] = {"title": "Tea", "url": "https://tea.example/", "text": "Leaves in water.", "date": None}


def brave(*pages: dict[str, Any]) -> Any:
    """As api.search.brave.com answers; a search without results has no `web`."""
    results = [{"title": p["title"], "url": p["url"], "description": p["text"], "page_age": p["date"]} for p in pages]
    web = {"web": {"type": "search", "results": results}} if results else {}
    return says({"type": "search", "query": {"original": "tea"}, "mixed": {}, **web})


def tavily(*pages: dict[str, Any]) -> Any:
    results = [
        {"title": p["title"], "url": p["url"], "content": p["text"], "score": 0.9, "raw_content": None} for p in pages
    ]
    return says({"query": "tea", "answer": None, "images": [], "results": results, "response_time": 0.4})


def searxng(*pages: dict[str, Any], **more: Any) -> Any:
    results = [
        {"title": p["title"], "url": p["url"], "content": p["text"], "publishedDate": p["date"], "engines": ["bing"]}
        for p in pages
    ]
    return says({"query": "tea", "results": results, "answers": [], "unresponsive_engines": [], **more})


def says(answer: Any, status: int = 200, **headers: str) -> Any:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return lambda request: (status, {**JSON, **headers}, body)


def page(**said: Any) -> dict[str, Any]:
    return {**TEA, **said}


def asked(request: Request) -> dict[str, str]:
    """The query of a request."""
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


def never(request: Request) -> None:
    """No answer at all."""


@dataclass
class Asking:
    """A library whose providers are servers of ours."""

    library: UnifiedToolLibrary
    servers: dict[str, HttpServer]

    @property
    def requests(self) -> list[Request]:
        """What a provider was asked, where there is only one."""
        [server] = self.servers.values()
        return server.requests

    async def search(self, **params: Any) -> ToolExecutionResult:
        return await self.library.execute_tool("advanced_web_search", parameters={"query": "tea", **params})


@asynccontextmanager
async def asking(combine: bool = False, **answers: Any) -> AsyncIterator[Asking]:
    """With a provider for each answer."""
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(serve_http(answers[name])) for name in answers}
        library = await stack.enter_async_context(UnifiedToolLibrary())
        environ = {name: key for name, key in KEYS.items() if name.split("_")[0].lower() in answers}
        urls: dict[str, Any] = {
            name if name == "searxng" else f"{name}_url": server.url for name, server in servers.items()
        }
        library.register(*search_tools(SearchConfig(combine=combine, **urls), environ=environ))
        yield Asking(library, servers)
