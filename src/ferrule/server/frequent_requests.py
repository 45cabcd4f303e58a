"""Answers frequent requests in front of the application, whose routing and layers take longer than they do."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from ferrule.server.call_routes import ToolCallApp
from ferrule.server.mcp.http import McpHttpApp
from ferrule.server.problems import Problem


class FrequentRequests:
    """Between access control and the application: single calls over HTTP, plain calls and lists over MCP."""

    def __init__(self, app: ASGIApp, tool_calls: ToolCallApp, mcp_apps: Mapping[str, McpHttpApp]) -> None:
        """`mcp_apps` by their paths."""
        self._app, self._tool_calls, self._mcp_apps = app, tool_calls, mcp_apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            rest = await self._answer(scope, receive, send)
        except Problem as error:  # the body is too long or not complete
            await error.to_response()(scope, receive, send)
            return
        if rest is not None:
            await self._app(scope, rest, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """None when the request is answered, else from where the application is to read it."""
        if (name := self._tool_calls.find_name(scope["path"])) is not None:
            scope["endpoint"], scope["path_params"] = self._tool_calls, {"name": name}  # for traces
            await self._tool_calls(scope, receive, send)
            return None
        mcp_app = self._mcp_apps.get(scope["path"])
        if mcp_app is None:
            return receive
        scope["endpoint"], scope["path_params"] = mcp_app, {}
        return await mcp_app.answer_directly(scope, receive, send)
