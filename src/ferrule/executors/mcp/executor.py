"""The `mcp` executor: a tool that is an MCP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from ferrule.call import Invocation
from ferrule.content import Output
from ferrule.errors import SpecError
from ferrule.executors.mcp.config import McpServerConfig, config_of_spec
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.executors.mcp.link import Link
from ferrule.executors.mcp.listing import Listing
from ferrule.executors.mcp.results import output_of
from ferrule.spec import MCPServerSpec, Tool

logger = logging.getLogger("ferrule.mcp")

OnCatalogue: TypeAlias = Callable[[str, Listing], None]
"""Told the id of a tool and what its server lists, whenever that may have changed."""


class McpExecutor:
    """Runs the actions of MCP servers. A server is started by its first call, and lives until `aclose`."""

    def __init__(self, *, on_elicit: OnElicit | None = None, on_catalogue: OnCatalogue | None = None) -> None:
        self.on_elicit = on_elicit
        """Asks the user on behalf of a server; without it servers are told that nobody can be asked."""
        self.on_catalogue = on_catalogue
        self._links: dict[str, Link] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    async def execute(self, invocation: Invocation, /) -> Output:
        link = self._link(invocation.tool)
        result = await link.call(invocation)
        with link.secrets.hidden_in_errors():
            output = output_of(result)
        return Output(data=link.secrets.hide(output.data), parts=link.secrets.hide(output.parts))

    async def connect(self, tool: Tool) -> Listing:
        """Start a tool's server now, if it does not run, and give what it lists."""
        return (await self._link(tool).connect()).listing

    async def ping(self, tool: Tool) -> float:
        """Seconds a tool's server takes to answer; it is started if it does not run."""
        return await self._link(tool).ping()

    def is_connected(self, tool_id: str) -> bool:
        link = self._links.get(tool_id)
        return link is not None and link.is_connected

    async def disconnect(self, tool_id: str) -> None:
        """End a server; its next call starts it again."""
        link = self._links.pop(tool_id, None)
        if link is not None:
            await link.aclose()

    def review(self, tool: Tool) -> None:
        """End the server of a tool that was disabled, or is reached in another way now. Calls in flight may finish."""
        link = self._links.get(tool.id)
        if link is not None and not (tool.spec.enabled and link.config == config_of(tool)):
            del self._links[tool.id]
            self._retire(link)

    async def aclose(self) -> None:
        """End all servers; when this returns none of them runs any more."""
        while self._links:  # calls that still come in may make new ones
            links = [*self._links.values()]
            self._links.clear()
            await asyncio.gather(*(link.aclose() for link in links))
        for task in self._retiring:
            task.cancel()
        if self._retiring:
            await asyncio.wait(self._retiring)

    def _link(self, tool: Tool) -> Link:
        config = config_of(tool)
        known = self._links.get(tool.id)
        if known is not None and (known.config is config or known.config == config):
            return known
        if known is not None:  # its file was changed: calls in flight finish where they started
            self._retire(known)
        link = self._links[tool.id] = Link(
            tool.id, config, on_elicit=self.on_elicit, on_listing=lambda listing: self._announce(link, listing)
        )
        return link

    def _announce(self, link: Link, listing: Listing) -> None:
        tool_id = link.tool_id
        if self.on_catalogue is None or self._links.get(tool_id) is not link:  # another server has its name by now
            return
        try:
            self.on_catalogue(tool_id, listing)
        except Exception:
            logger.exception("tool=<%s> | what it lists could not be taken in", tool_id)

    def _retire(self, link: Link) -> None:
        task = asyncio.create_task(_close_when_idle(link))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def config_of(tool: Tool) -> McpServerConfig:
    """How to reach the server of a tool."""
    if isinstance(tool.target, McpServerConfig):
        return tool.target
    if isinstance(tool.spec, MCPServerSpec):
        return config_of_spec(tool.spec)
    raise SpecError(f"tool {tool.id!r} is no MCP server: it needs an MCPServerSpec")


async def _close_when_idle(link: Link) -> None:
    try:
        await link.when_idle()
    finally:
        await link.aclose()
