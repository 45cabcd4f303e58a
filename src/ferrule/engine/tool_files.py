"""The tools of files: those that come in the box, and those of folders, which are loaded again whenever one changes.

A reload builds the folders' tools anew, compares them with those that are there, and swaps the difference in at once.
Calls in flight finish on the tool they started with. A file that broke keeps its last good tools until it is mended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.mcp_servers import McpServers
from ferrule.errors import LoadError
from ferrule.events import EventBus, ToolEngineEvent, ToolEngineEventType
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.registry import ToolRegistry
from ferrule.sources import DirectorySource, FileWatcher, LoadReport, diff
from ferrule.sources.loaded import error_at
from ferrule.sources.openapi_source import OpenApiDocuments
from ferrule.sources.skill_directory import SkillsDirectory
from ferrule.sources.skill_paths import skill_folders, watched_skill_files
from ferrule.spec import Tool
from ferrule.tags import with_tags

logger = logging.getLogger("ferrule.engine")

IN_THE_BOX = Path(__file__).parents[1] / "tools"


class ToolFiles:
    """Keeps the registry true to the files of tools."""

    def __init__(
        self,
        config: ToolEngineConfig,
        registry: ToolRegistry,
        events: EventBus,
        mcp_executor: McpExecutor,
        guard: AddressGuard,
    ) -> None:
        self._config, self._registry, self._events = config, registry, events
        self.servers = McpServers(config.mcp_file, mcp_executor, registry, self._complain)
        self._documents = OpenApiDocuments(config.openapi, guard)
        self._sources = (
            DirectorySource(config.tools_directory),
            self._documents,
            SkillsDirectory(*config.skills_directories),
            self.servers,
        )
        self._tag_table = config.tag_table
        self._loaded: tuple[Tool, ...] = ()
        self._box: tuple[Tool, ...] = ()
        self._watchers: tuple[FileWatcher, ...] = ()
        self._turn = asyncio.Lock()
        self.errors: Sequence[LoadError] = ()

    async def start(self) -> None:
        watched = self._config.auto_reload or self._config.watch_for_changes
        if watched and not self._watchers:  # before the first load: what is saved meanwhile is not missed
            self._watchers = self._make_watchers()
        if self._config.builtin_tools and not self._box:
            self._box = tuple(replace(tool, source="builtin") for tool in DirectorySource(IN_THE_BOX).load().tools)
            self._registry.replace(*self._box)
            self._announce_all(ToolEngineEventType.TOOL_LOADED, self._box)
        already = {_home(tool) for tool in self._loaded}
        await self._load()
        fresh = [tool for tool in self._loaded if _home(tool) not in already]
        self._announce_all(ToolEngineEventType.TOOL_LOADED, fresh)
        self.servers.discover()
        for watcher in self._watchers:
            watcher.start()

    async def aclose(self) -> None:
        watchers, self._watchers = self._watchers, ()
        for watcher in watchers:
            await watcher.aclose()
        await self.servers.aclose()

    async def reload(self, paths: Collection[Path] = ()) -> LoadReport:
        """Read the folders again and swap in what changed."""
        async with self._turn:
            self._emit(ToolEngineEventType.RELOAD_STARTED, paths=sorted(map(str, paths)))
            before = self._loaded
            report = await self._load()
            changes = diff(before, self._loaded)
            self._announce_all(ToolEngineEventType.TOOL_ADDED, changes.added)
            self._announce_all(ToolEngineEventType.TOOL_UPDATED, changes.updated)
            self._announce_all(ToolEngineEventType.TOOL_REMOVED, changes.removed)
            for tool in changes.removed:
                if tool.handler == "mcp":
                    await self.servers.forget(tool)
            self.servers.discover()
            self._emit(
                ToolEngineEventType.RELOAD_COMPLETED,
                added=[tool.id for tool in changes.added],
                updated=[tool.id for tool in changes.updated],
                removed=[tool.id for tool in changes.removed],
                errors=[str(error) for error in self.errors],
            )
            return report

    async def _load(self) -> LoadReport:
        report = await asyncio.to_thread(self._read)
        there = self._there()
        tools, errors = self._without_taken(report.tools)
        # Whoever disabled a tool means all its versions.
        tools = tuple(_with_enabled(tool, there.get(_home(tool))) for tool in tools)
        self._registry.change(remove=there.values(), add=tools)
        self._loaded = tools
        told = {str(error) for error in self.errors}
        self.errors = (*report.errors, *errors)
        for error in self.errors:
            if str(error) not in told:  # else it is still as it was
                self._tell(error)
        return replace(report, tools=tools, errors=tuple(self.errors))

    def _make_watchers(self) -> tuple[FileWatcher, ...]:
        watch = partial(
            FileWatcher,
            on_change=self.reload,
            interval=self._config.reload_interval,
            instant=self._config.watch_for_changes,
        )
        watchers = [watch([self._config.tools_directory])]
        if self._config.skills_directories:
            skills = self._config.skills_directories
            watchers.append(watch(skills, files=watched_skill_files, folders=skill_folders))
        single = (*self._documents.files, *([Path(self._config.mcp_file)] if self._config.mcp_file else ()))
        if single:
            folders = list(dict.fromkeys(file.parent for file in single))
            watchers.append(
                watch(
                    folders,
                    files=lambda folder: [file for file in single if file.parent == folder and file.exists()],
                    folders=lambda folder: [folder],
                )
            )
        return tuple(watchers)

    def _read(self) -> LoadReport:
        reports = [source.load() for source in self._sources]
        return LoadReport(
            tools=tuple(with_tags(tool, self._tag_table) for report in reports for tool in report.tools),
            errors=tuple(error for report in reports for error in report.errors),
            files=tuple(path for report in reports for path in report.files),
        )

    def _without_taken(self, tools: Iterable[Tool]) -> tuple[tuple[Tool, ...], list[LoadError]]:
        """A file cannot take the name of a tool that a program registered, nor that of another file."""
        ours = set(self._there().values())
        kept: dict[tuple[str, str], Tool] = {}
        errors = []
        for tool in tools:
            registered = (t for t in self._registry.candidates(tool.id) if t.source == tool.source and t not in ours)
            owner = kept.get((tool.source, tool.id)) or next(registered, None)
            if owner is None:
                kept[tool.source, tool.id] = tool
            else:
                message = f"there is a tool {tool.id!r} already, from {owner.origin}; this one is left out"
                errors.append(error_at(tool.origin, message, hint="rename one of them"))
        return tuple(kept.values()), errors

    def _complain(self, error: LoadError) -> None:
        """Something that turned out later: a server that does not start, say."""
        self.errors = (*self.errors, error)
        self._tell(error)

    def _tell(self, error: LoadError) -> None:
        logger.warning("path=<%s>, line=<%s> | not loaded: %s", error.path, error.line, error.message)
        self._emit(
            ToolEngineEventType.LOAD_ERROR, error=str(error), path=str(error.path), line=error.line, hint=error.hint
        )

    def _there(self) -> dict[tuple[str, str, str], Tool]:
        """The folder's tools as the registry has them now: it may have disabled some."""
        homes = {_home(tool) for tool in self._loaded}
        return {_home(tool): tool for tool in self._registry if _home(tool) in homes}

    # Announcing

    def announce(self, event_type: ToolEngineEventType, tool: Tool) -> None:
        self._emit(event_type, tool_name=tool.id, origin=tool.origin, source=tool.source)

    def _announce_all(self, event_type: ToolEngineEventType, tools: Iterable[Tool]) -> None:
        for tool in tools:
            self.announce(event_type, tool)

    def _emit(
        self,
        event_type: ToolEngineEventType,
        *,
        tool_name: str | None = None,
        error: str | None = None,
        **data: Any,
    ) -> None:
        if self._events.watched:
            self._events.emit(ToolEngineEvent(event_type=event_type, tool_name=tool_name, error=error, data=data))


def _home(tool: Tool) -> tuple[str, str, str]:
    """Which tool it is, whatever its version. The line in a file may change with every edit."""
    return tool.source, tool.id, tool.origin.rpartition(":")[0]


def _with_enabled(tool: Tool, before: Tool | None) -> Tool:
    if before is None or before.spec.enabled or not tool.spec.enabled:
        return tool
    return replace(tool, spec=replace(tool.spec, enabled=False))
