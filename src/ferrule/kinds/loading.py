"""Loading tools from sources into the registry, and loading them again when a file changes.

Every load builds a whole new list of tools, compares it with the one before and swaps in the difference in one step.
Running calls finish on the tool they started with. A file that is broken now keeps the tools of its last valid
version; the tools of a deleted file are removed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.tags import TagTable, add_missing_tags
from ferrule.core.events import EventBus, ToolEngineEvent, ToolEngineEventType
from ferrule.core.spec import Tool
from ferrule.errors import LoadError
from ferrule.kinds.function.tools import read_python_file
from ferrule.kinds.source import (
    PYTHON_SUFFIXES,
    YAML_SUFFIXES,
    LiveSource,
    LoadedFile,
    LoadReport,
    Source,
    WatchedFolder,
    combine_into_report,
    load_or_report,
    make_duplicate_error,
    tool_files,
)
from ferrule.kinds.watching import FileWatcher
from ferrule.kinds.yaml.tool_file import read_tool_file

logger = logging.getLogger("ferrule.kinds")

_BUNDLED_TOOLS = Path(__file__).parents[2] / "ferrule_tools"


def read_yaml_or_python_file(path: Path) -> LoadedFile:
    return read_python_file(path) if path.suffix.lower() in PYTHON_SUFFIXES else read_tool_file(path)


class DirectorySource:
    """The tools of one folder. A folder that does not exist has none.

    Files that have not changed are not read again and give the very same `Tool` objects.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        files: Callable[[Path], list[Path]] = tool_files,
        read: Callable[[Path], LoadedFile] = read_yaml_or_python_file,
    ) -> None:
        """`files` lists the files of the folder that describe tools, `read` returns the tools of one."""
        self.directory = Path(directory)
        self._files, self._read = files, read
        self._last_valid: dict[Path, LoadedFile] = {}
        self._lock = threading.Lock()

    def load(self) -> LoadReport:
        """Load all tools as the files are now. Python files are executed, so call this in a thread."""
        with self._lock:
            try:
                files = self._files(self.directory)
            except OSError as error:
                report = combine_into_report(self._last_valid.items())
                unreadable = LoadError(f"the folder cannot be read: {error.strerror or error}", path=self.directory)
                return replace(report, errors=(*report.errors, unreadable))
            loaded = [(path, self._load_file(path)) for path in files]
            # A class below the folder, such as `browser/navigator.py`, may be one that a spec names as its module.
            loaded = [(p, each if p.parent == self.directory else replace(each, unused=())) for p, each in loaded]
            self._last_valid = {path: self._last_valid[path] for path in files if path in self._last_valid}
            return combine_into_report(loaded)

    def watched_folders(self) -> Sequence[WatchedFolder]:
        return [WatchedFolder(self.directory)]

    def _load_file(self, path: Path) -> LoadedFile:
        last_valid = self._last_valid.get(path)
        if last_valid is not None and last_valid.is_current:
            return last_valid
        loaded = load_or_report(self._read, path)
        if not loaded.errors:
            self._last_valid[path] = loaded
            return loaded
        return replace(loaded, tools=last_valid.tools if last_valid else ())


@cache
def bundled_yaml_tools() -> DirectorySource:
    """Return the bundled tools that every engine has. The others are plugins, which are Python and loaded when needed.

    All engines of the process share the source: its files are read once.
    """
    return DirectorySource(_BUNDLED_TOOLS, files=partial(tool_files, suffixes=YAML_SUFFIXES))


class UntrustedYamlFolder(DirectorySource):
    """The YAML tools of a folder that is not trusted. They can be listed; nothing of the folder is run."""

    def __init__(self, directory: str | Path) -> None:
        super().__init__(directory, files=partial(tool_files, suffixes=YAML_SUFFIXES))

    def load(self) -> LoadReport:
        report = super().load()
        needs = "its folder to be trusted: look at its files, then run `ferrule trust`"
        return replace(report, tools=tuple(replace(tool, needs=needs) for tool in report.tools))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChanges:
    """The differences between an old and a new list of tools."""

    added: tuple[Tool, ...] = ()
    updated: tuple[Tool, ...] = ()
    """The new versions."""
    removed: tuple[Tool, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.updated or self.removed)


def compare_tools(old_tools: Iterable[Tool], new_tools: Iterable[Tool]) -> ToolChanges:
    """Compare two lists of tools by id. A tool is unchanged if a caller would notice no difference."""
    old = {tool.id: tool for tool in old_tools}
    new = {tool.id: tool for tool in new_tools}
    pairs = ((tool, old[tool.id]) for tool in new.values() if tool.id in old and tool is not old[tool.id])
    return ToolChanges(
        added=tuple(tool for tool in new.values() if tool.id not in old),
        updated=tuple(tool for tool, before in pairs if _noticeable_parts(tool) != _noticeable_parts(before)),
        removed=tuple(tool for tool in old.values() if tool.id not in new),
    )


def _noticeable_parts(tool: Tool) -> tuple[object, ...]:
    return tool.spec.fingerprint, tool.spec.enabled, tool.spec.tags, tool.handler


class ToolLoader:
    """Keeps the registry in step with the sources, and tells subscribers what changed."""

    def __init__(
        self,
        sources: Iterable[Source],
        registry: ToolRegistry,
        events: EventBus,
        *,
        tag_table: TagTable,
        bundled: Source | None = None,
        watch: bool = False,
        interval: float = 5.0,
        instant: bool = False,
        find_problem: Callable[[Tool], LoadError | None] = lambda tool: None,
    ) -> None:
        """`bundled` is loaded once. A changed tool for which `find_problem` returns one is not taken.

        With `watch`, files are checked every `interval` seconds, or, when `instant`, several times a second.
        """
        self._sources, self._registry, self._events = tuple(sources), registry, events
        self._tag_table, self._bundled, self._find_problem = tag_table, bundled, find_problem
        self._watch, self._interval, self._instant = watch, interval, instant
        self._tools: tuple[Tool, ...] = ()
        self._enabled: set[tuple[str, str, str]] = set()
        """The tools that their files enable."""
        self._watcher: FileWatcher | None = None
        self._lock = asyncio.Lock()
        self.errors: Sequence[LoadError] = ()

    async def start(self) -> None:
        if self._watch and self._watcher is None:  # before the first load, so that no change is missed in between
            folders = [folder for source in self._sources for folder in source.watched_folders()]
            self._watcher = FileWatcher(folders, self.reload, interval=self._interval, instant=self._instant)
        if self._bundled is not None:
            bundled, self._bundled = self._bundled, None
            tools = [replace(tool, source="builtin") for tool in bundled.load().tools]
            self._registry.replace(*tools)
            self._emit_tool_events(ToolEngineEventType.TOOL_LOADED, tools)
        before = {_tool_identity(tool) for tool in self._tools}
        await self._load()
        new = [tool for tool in self._tools if _tool_identity(tool) not in before]
        self._emit_tool_events(ToolEngineEventType.TOOL_LOADED, new)
        await self._after_load(removed=())
        if self._watcher is not None:
            self._watcher.start()

    async def aclose(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            await watcher.aclose()
        for source in self._sources:
            if isinstance(source, LiveSource):
                await source.aclose()

    async def reload(self, paths: Collection[Path] = ()) -> LoadReport:
        """Load all sources again and swap in what changed. `paths` are the changed files, for the event."""
        async with self._lock:
            self._emit(ToolEngineEventType.RELOAD_STARTED, paths=sorted(map(str, paths)))
            before = self._tools
            report = await self._load()
            changes = compare_tools(before, self._tools)
            self._emit_tool_events(ToolEngineEventType.TOOL_ADDED, changes.added)
            self._emit_tool_events(ToolEngineEventType.TOOL_UPDATED, changes.updated)
            self._emit_tool_events(ToolEngineEventType.TOOL_REMOVED, changes.removed)
            await self._after_load(changes.removed)
            self._emit(
                ToolEngineEventType.RELOAD_COMPLETED,
                added=[tool.id for tool in changes.added],
                updated=[tool.id for tool in changes.updated],
                removed=[tool.id for tool in changes.removed],
                errors=[str(error) for error in self.errors],
            )
            return report

    def add_error(self, error: LoadError) -> None:
        """Report a problem that showed after loading, such as a server that does not start."""
        if str(error) not in map(str, self.errors):
            self.errors = (*self.errors, error)
            self._report_error(error)

    async def _load(self) -> LoadReport:
        report = await asyncio.to_thread(self._load_sources)
        current = self._registered_tools()
        tools, errors = self._without_duplicates(report.tools)
        tools, problems = await asyncio.to_thread(self._keep_runnable, tools, current)
        # A tool that a user disabled stays disabled in its new version; one that its file disabled follows its file.
        disabled_by_user = {
            identity for identity, tool in current.items() if not tool.spec.enabled and identity in self._enabled
        }
        self._enabled = {_tool_identity(tool) for tool in tools if tool.spec.enabled}
        tools = tuple(
            replace(tool, spec=replace(tool.spec, enabled=False)) if _tool_identity(tool) in disabled_by_user else tool
            for tool in tools
        )
        self._registry.remove_and_add(remove=current.values(), add=tools)
        self._tools = tools
        reported = {str(error) for error in self.errors}
        self.errors = (*report.errors, *errors, *problems)
        for error in self.errors:
            if str(error) not in reported:
                self._report_error(error)
        return replace(report, tools=tools, errors=tuple(self.errors))

    def _load_sources(self) -> LoadReport:
        reports = [source.load() for source in self._sources]
        return LoadReport(
            tools=tuple(add_missing_tags(tool, self._tag_table) for report in reports for tool in report.tools),
            errors=tuple(error for report in reports for error in report.errors),
            files=tuple(path for report in reports for path in report.files),
        )

    async def _after_load(self, removed: Sequence[Tool]) -> None:
        for source in self._sources:
            if isinstance(source, LiveSource):
                await source.after_load(removed)

    def _keep_runnable(
        self, tools: Sequence[Tool], current: Mapping[tuple[str, str, str], Tool]
    ) -> tuple[tuple[Tool, ...], list[LoadError]]:
        """Keep the version of a tool that is registered where the code of its new version cannot be run."""
        accepted, problems = [], []
        for tool in tools:
            before, problem = current.get(_tool_identity(tool)), None
            if before is not None and _noticeable_parts(tool) != _noticeable_parts(before):
                problem = self._find_problem(tool)
            accepted.append(tool if before is None or problem is None else before)
            problems += [problem] if problem is not None else []
        return tuple(accepted), problems

    def _without_duplicates(self, tools: Iterable[Tool]) -> tuple[tuple[Tool, ...], list[LoadError]]:
        """Refuse tools of files whose name a registered tool, or a tool of another file, has already."""
        ours = set(self._registered_tools().values())
        accepted: dict[tuple[str, str], Tool] = {}
        errors = []
        for tool in tools:
            registered = (t for t in self._registry.candidates(tool.id) if t.source == tool.source and t not in ours)
            owner = accepted.get((tool.source, tool.id)) or next(registered, None)
            if owner is None:
                accepted[tool.source, tool.id] = tool
            else:
                errors.append(make_duplicate_error(tool, owner))
        return tuple(accepted.values()), errors

    def _registered_tools(self) -> dict[tuple[str, str, str], Tool]:
        """Return the loaded tools as the registry has them now: a user may have disabled some."""
        identities = {_tool_identity(tool) for tool in self._tools}
        return {_tool_identity(tool): tool for tool in self._registry if _tool_identity(tool) in identities}

    # Events

    def emit_tool_event(self, event_type: ToolEngineEventType, tool: Tool) -> None:
        self._emit(event_type, tool_name=tool.id, origin=tool.origin, source=tool.source, tool=tool)

    def _emit_tool_events(self, event_type: ToolEngineEventType, tools: Iterable[Tool]) -> None:
        for tool in tools:
            self.emit_tool_event(event_type, tool)

    def _report_error(self, error: LoadError) -> None:
        logger.warning("not loaded: %s", error)
        self._emit(
            ToolEngineEventType.LOAD_ERROR, error=str(error), path=str(error.path), line=error.line, hint=error.hint
        )

    def _emit(
        self, event_type: ToolEngineEventType, *, tool_name: str | None = None, error: str | None = None, **data: Any
    ) -> None:
        if self._events.has_subscribers:
            self._events.emit(ToolEngineEvent(event_type=event_type, tool_name=tool_name, error=error, data=data))


def _tool_identity(tool: Tool) -> tuple[str, str, str]:
    """Return a key that all versions of a tool share. The line is left out, because any edit may change it."""
    return tool.source, tool.id, tool.origin.rpartition(":")[0]
