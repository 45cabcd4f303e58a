"""MCP servers in the registry: one tool each, whose actions follow what the server lists.

A server that was listed before is not started until it is called. One that never was is started in the background
when the engine starts, because nobody could call what nobody knows; a call of an unknown tool waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ferrule.errors import LoadError
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.executors.mcp.listing import Listing
from ferrule.executors.process_group import to_the_end
from ferrule.registry import ToolRegistry
from ferrule.sources import LoadReport
from ferrule.sources.mcp_file import McpFile
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
        self._discovery: asyncio.Task[None] | None = None
        executor.on_catalogue = self._take_in

    def load(self) -> LoadReport:
        return LoadReport() if self._path is None else self._file.load()

    def discover(self) -> None:
        """Start, in the background, the servers nobody has asked yet what they can do."""
        unlisted = [t for t in self._registry if t.spec.metadata.get("listed") is False and t.spec.enabled]
        if unlisted and not self.is_discovering:
            self._discovery = asyncio.create_task(self._discover(unlisted), name="ferrule-mcp-discovery")

    @property
    def is_discovering(self) -> bool:
        return self._discovery is not None and not self._discovery.done()

    async def discovered(self) -> None:
        if self._discovery is not None:
            await asyncio.wait({self._discovery})

    async def forget(self, tool: Tool) -> None:
        """End the server of a tool that was removed, even if whoever asks for it is stopped meanwhile."""
        await to_the_end(self._executor.disconnect(tool.id))

    async def aclose(self) -> None:
        task, self._discovery = self._discovery, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _discover(self, tools: list[Tool]) -> None:
        report = await self._file.discover(self._executor, tools, PATIENCE)
        for error in report.errors:
            self._on_error(error)

    def _take_in(self, tool_id: str, listing: Listing) -> None:
        """The server says what it can do now."""
        old = next((t for t in self._registry.candidates(tool_id) if t.handler == "mcp"), None)
        if old is not None:
            self._registry.change(remove=[old], add=[self._file.remember(old, listing)])
