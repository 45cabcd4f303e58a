"""MCP servers in the registry: one tool each, whose actions follow what the server lists.

A server that was listed before is not started until it is called. One that never was is started in the background
when the engine starts, because nobody could call what nobody knows; a call of an unknown tool waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ferrule.errors import LoadError
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.executors.mcp.listing import Listing
from ferrule.executors.process_group import to_the_end
from ferrule.registry import ToolRegistry
from ferrule.sources import LoadReport
from ferrule.sources.mcp_file import McpFile
from ferrule.sources.mcp_tool import with_listing
from ferrule.spec import Tool

PATIENCE = 20.0
"""Seconds a server has to start and list its actions."""


class McpServers:
    """The servers of an `mcp.json`, and those a program registered."""

    def __init__(
        self, path: str | None, executor: McpExecutor, registry: ToolRegistry, on_error: Callable[[LoadError], None]
    ) -> None:
        self._path = path
        self._file = McpFile(path or "mcp.json")
        self._executor, self._registry, self._on_error = executor, registry, on_error
        self._asking: dict[asyncio.Task[None], set[str]] = {}
        """Which servers are being asked at the moment, by the digests of their entries."""
        self._listings: dict[str, Listing] = {}
        """What they have listed, by the same digests: reading the file again does not make us forget it."""
        executor.on_catalogue = self._take_in

    def load(self) -> LoadReport:
        report = LoadReport() if self._path is None else self._file.load()
        return replace(report, tools=tuple(map(self._completed, report.tools)))

    def discover(self) -> None:
        """Start, in the background, the servers nobody has asked yet what they can do; end those that were disabled."""
        for tool in self._registry:
            if tool.handler == "mcp":
                self._executor.review(tool)
        asked = {digest for digests in self._asking.values() for digest in digests}
        unlisted = [t for t in self._registry if t.spec.metadata.get("listed") is False and t.spec.enabled]
        listed_meanwhile = [tool for tool in unlisted if _digest(tool) in self._listings]
        self._registry.change(remove=listed_meanwhile, add=[self._completed(tool) for tool in listed_meanwhile])
        new = [tool for tool in unlisted if _digest(tool) not in asked and tool not in listed_meanwhile]
        if new:
            task = asyncio.create_task(self._discover(new), name="ferrule-mcp-discovery")
            self._asking[task] = {_digest(tool) for tool in new}
            task.add_done_callback(lambda task: self._asking.pop(task, None))

    @property
    def is_discovering(self) -> bool:
        return bool(self._asking)

    async def discovered(self) -> None:
        if self._asking:
            await asyncio.wait({*self._asking})

    async def forget(self, tool: Tool) -> None:
        """End the server of a tool that was removed, even if whoever asks for it is stopped meanwhile."""
        self._listings.pop(_digest(tool), None)
        await to_the_end(self._executor.disconnect(tool.id))

    async def aclose(self) -> None:
        tasks = {task for task in self._asking if task.get_loop() is asyncio.get_running_loop()}
        self._asking.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _discover(self, tools: list[Tool]) -> None:
        report = await self._file.discover(self._executor, tools, PATIENCE)
        for error in report.errors:
            self._on_error(error)

    def _take_in(self, tool_id: str, listing: Listing) -> None:
        """The server says what it can do now."""
        old = next((t for t in self._registry.candidates(tool_id) if t.handler == "mcp"), None)
        if old is not None:
            self._listings[_digest(old)] = listing
            self._registry.change(remove=[old], add=[self._file.remember(old, listing)])

    def _completed(self, tool: Tool) -> Tool:
        listing = self._listings.get(_digest(tool))
        return tool if listing is None else with_listing(tool, listing)


def _digest(tool: Tool) -> str:
    return f"{tool.id} {tool.spec.metadata.get('config_digest')}"
