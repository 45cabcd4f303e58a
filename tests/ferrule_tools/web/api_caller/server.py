"""An API on this machine, and a library that calls it by name."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ferrule import ToolExecutionResult, UnifiedToolLibrary
from ferrule_tools.web.api_caller import ApiCallerConfig, ApiConfig, api_tools
from tests.support.approving import execute_approved
from tests.support.http_servers import HttpServer, Request, serve_http

TOKEN = "token-0123456789"
ALL = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def says(answer: Any, status: int = 200, **headers: str) -> Any:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return lambda request: (status, {"Content-Type": "application/json", **headers}, body)


@dataclass
class ProviderApi:
    library: UnifiedToolLibrary
    server: HttpServer

    @property
    def requests(self) -> list[Request]:
        return self.server.requests

    async def call(self, path: str = "users/7", *, approved: bool = False, **params: Any) -> ToolExecutionResult:
        arguments = {"api": "shop", "path": path, **params}
        if approved:
            return await execute_approved(self.library, "api_caller", arguments)
        return await self.library.execute_tool("api_caller", parameters=arguments)


@asynccontextmanager
async def api(
    answer: Any, base: str = "/v1", environ: dict[str, str] | None = None, **config: Any
) -> AsyncIterator[ProviderApi]:
    """The API `shop`, with an answer to everything."""
    async with serve_http(answer) as server, UnifiedToolLibrary() as library:
        config = {"headers": {"Authorization": "Bearer ${SHOP_TOKEN}"}, **config}
        apis = ApiCallerConfig(apis={"shop": ApiConfig(base_url=f"{server.url}{base}", **config)})
        library.register(*api_tools(apis, environ={"SHOP_TOKEN": TOKEN} if environ is None else environ))
        yield ProviderApi(library, server)
