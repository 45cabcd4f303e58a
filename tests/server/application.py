"""The application of the server in this process, with clients for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from ferrule import Orchestrator, Policy, ToolEngineConfig, UnifiedToolLibrary
from ferrule.concurrency import ConcurrencyConfig
from ferrule.config import OAuthSection
from ferrule.core.prices import PriceList
from ferrule.policy.budgets import Budget
from ferrule.server.tokens import Tokens
from ferrule.store import ToolKnowledgeStore
from tests.server.documented import DocumentedResponses


class TaskTransport(httpx.ASGITransport):
    """Answers each request in a task of its own, as a server does: a run counts as in progress until its task ends."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.create_task(super().handle_async_request(request))


class Site:
    """The application in this process."""

    def __init__(self, library: UnifiedToolLibrary, app: Any) -> None:
        self.library, self._app = library, app

    async def ask(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Make a request that no client makes."""
        await self._app({"state": {}, **scope}, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start and stop the application as a server does: without it, the MCP SDK cannot answer."""
        messages: asyncio.Queue[Any] = asyncio.Queue()
        replies: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.create_task(self._app({"type": "lifespan", "state": {}}, messages.get, replies.put))
        for message in ("lifespan.startup", "lifespan.shutdown"):
            messages.put_nowait({"type": message})
            assert (await replies.get())["type"] == f"{message}.complete"
            if message == "lifespan.startup":
                yield
        await task

    @asynccontextmanager
    async def client(self, name: str, **grants: Any) -> AsyncIterator[httpx.AsyncClient]:
        _, text = await Tokens(self.library.engine.store).create(name, **grants)
        async with self.anonymous_client(Authorization=f"Bearer {text}") as http:
            documented = DocumentedResponses((await http.get("/openapi.json")).json())

            async def check(response: httpx.Response) -> None:
                if response.headers.get("content-type") == "application/json":
                    await response.aread()
                    documented.check(response)

            http.event_hooks = {"response": [check]}
            yield http

    def anonymous_client(self, **headers: str) -> httpx.AsyncClient:
        transport = TaskTransport(app=self._app)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@asynccontextmanager
async def serve(
    *things: Any,
    config: ToolEngineConfig | None = None,
    policy: Policy | None = None,
    server_policy: Policy | None = None,
    model: Any = None,
    models: Mapping[str, Any] | None = None,
    store: str | ToolKnowledgeStore = "sqlite://",
    prices: PriceList | None = None,
    budgets: Sequence[Budget] = (),
    concurrency: ConcurrencyConfig | None = None,
    oauth: OAuthSection | None = None,
    is_open: bool = False,
    **options: Any,
) -> AsyncIterator[Site]:
    from ferrule.server.app import create_app

    library = UnifiedToolLibrary(
        config, policy=policy, store=store, prices=prices, budgets=budgets, concurrency=concurrency
    )

    def answer_with(model: Any) -> Callable[[Any], Orchestrator]:
        return lambda principal: Orchestrator(library, model, principal=principal, **options)

    choices = {name: answer_with(each) for name, each in (models or {}).items()}
    make_orchestrator = answer_with(model) if model is not None else None
    app = create_app(library, make_orchestrator, models=choices, policy=server_policy, oauth=oauth, is_open=is_open)
    async with library:
        library.register(*things)
        yield Site(library, app)
