"""The MCP servers of an `mcp.json`: each is one tool, whose actions are what the server lists.

Loading starts nothing: the actions come from what the servers listed last time. `discover` starts them all and asks.
One bad entry is reported and harms nothing; a file that broke keeps its last good servers until it is mended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ferrule.errors import CallError, LoadError, SpecError
from ferrule.executors.mcp.config import McpServerConfig, read_server
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.executors.mcp.listing import Listing
from ferrule.sources.loaded import LoadReport
from ferrule.sources.mcp_catalogue import McpCatalogue
from ferrule.sources.mcp_json import ServersFile, read_servers
from ferrule.sources.mcp_tool import tool_of_server, with_listing
from ferrule.spec import Tool

PATIENCE = 30.0
"""Seconds `discover` waits for servers; slower ones go on starting and are not listed yet."""


class McpFile:
    """The servers of one file. A file that is not there has none."""

    def __init__(self, path: str | Path, cache_directory: str | Path | None = None) -> None:
        self.path = Path(path)
        self._catalogue = McpCatalogue(None if cache_directory is None else Path(cache_directory))
        self._good: tuple[Tool, ...] = ()

    def load(self) -> LoadReport:
        """All servers as tools, without starting one."""
        if not self.path.exists():
            self._good = ()
            return LoadReport()
        try:
            file = read_servers(self.path)
        except LoadError as error:
            return LoadReport(tools=self._good, errors=(error,), files=(self.path,))
        tools: list[Tool] = []
        errors = [self._error(file, name, "stands in the file twice; the last one is used") for name in file.twice]
        for name, entry in file.servers.items():
            try:
                tools.append(self._tool(file, name, read_server(entry, folder=self.path.absolute().parent)))
            except SpecError as error:
                errors.append(self._error(file, name, str(error)))
        self._good = tuple(tools)
        return LoadReport(tools=self._good, errors=tuple(errors), files=(self.path,))

    async def discover(self, executor: McpExecutor, tools: Iterable[Tool], patience: float = PATIENCE) -> LoadReport:
        """Start the servers, all at once, and list their actions.

        The report has every tool that was given, those of servers that cannot be used as they were.
        """

        async def ask(tool: Tool) -> Tool | LoadError:
            if not tool.spec.enabled:
                return tool
            try:
                async with asyncio.timeout(patience):
                    return self.remember(tool, await executor.connect(tool))
            except TimeoutError:
                message = f"MCP server {tool.id!r} has not started within {patience:g} s; it goes on starting"
            except (CallError, SpecError) as error:
                message = str(error)
            path, _, line = tool.origin.rpartition(":")
            return LoadError(message, path=Path(path or tool.origin), line=int(line) if line.isdecimal() else None)

        asked = list(tools)
        answers = await asyncio.gather(*(ask(tool) for tool in asked))
        found = tuple(old if isinstance(new, LoadError) else new for old, new in zip(asked, answers, strict=True))
        return LoadReport(tools=found, errors=tuple(a for a in answers if isinstance(a, LoadError)))

    def remember(self, tool: Tool, listing: Listing) -> Tool:
        """Keep what a server lists for the next start; gives the tool with these actions."""
        if isinstance(tool.target, McpServerConfig):
            self._catalogue.write(tool.id, tool.target.digest, replace(listing, ttl=None))
        return with_listing(tool, listing)

    def _tool(self, file: ServersFile, name: str, config: McpServerConfig) -> Tool:
        origin = f"{self.path}:{file.line(name)}"
        return tool_of_server(name, config, origin=origin, listing=self._catalogue.read(name, config.digest))

    def _error(self, file: ServersFile, name: str, problem: str) -> LoadError:
        return LoadError(f"MCP server {name!r}: {problem}", path=self.path, line=file.line(name))
