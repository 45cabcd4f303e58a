"""MCP servers in the registry: one tool each, whose actions follow what the server lists.

A server that was listed before is not started until it is called. One that was never listed is started in the
background when the engine starts, because its actions cannot be called or described before they are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.tags import TagTable, add_missing_tags
from ferrule.core.aio import cancel_all, finish_despite_cancellation
from ferrule.core.spec import Tool
from ferrule.errors import CallError, LoadError, SpecError
from ferrule.kinds.mcp.config import McpServerConfig, read_server_config
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import HANDLER, ListingCache, ServerListing, apply_listing, make_server_tool
from ferrule.kinds.mcp.mcp_json import ServersFile, read_servers_file
from ferrule.kinds.mcp.pins import PinTracker, describe_changes
from ferrule.kinds.source import LoadReport, WatchedFolder, make_error_at_origin
from ferrule.store import ToolKnowledgeStore

CONNECT_TIMEOUT = 30.0
"""Seconds `McpFileSource.discover` waits for a server; a slower one continues to start."""
DISCOVERY_TIMEOUT = 20.0
"""Seconds a server has to start and list its actions."""


_NOT_ACCEPTED = (
    "is new or changed since its folder was trusted, so it is not started. Look at its entry, run `ferrule trust`, "
    "and start again"
)


class McpFileSource:
    """The servers of one `mcp.json`, each as a tool. A file that does not exist has none.

    Loading starts nothing: the actions are what the servers listed last time. One bad entry is reported and does not
    affect the others; a broken file keeps its last good servers until it is repaired.
    """

    def __init__(
        self,
        path: str | Path,
        cache_directory: str | Path | None = None,
        *,
        accepted: Collection[str] | None = None,
        executor: McpExecutor | None = None,
    ) -> None:
        """Start only entries whose digests are in `accepted`; None: all.

        What a server lists depends on what its client can do, so listings are stored apart for an `executor` that
        passes on to clients what servers ask.
        """
        self._executor = executor
        self.path, self._accepted = Path(path), accepted
        self._cache = ListingCache(None if cache_directory is None else Path(cache_directory))
        self._last_tools: tuple[Tool, ...] = ()

    def load(self) -> LoadReport:
        """Return all servers as tools, without starting one."""
        if not self.path.exists():
            self._last_tools = ()
            return LoadReport()
        try:
            file = read_servers_file(self.path)
        except LoadError as error:
            return LoadReport(tools=self._last_tools, errors=(error,), files=(self.path,))
        tools: list[Tool] = []
        errors = [self._error(file, name, "is in the file twice; the last entry is used") for name in file.duplicates]
        for name, entry in file.servers.items():
            try:
                config = read_server_config(entry, folder=self.path.absolute().parent)
            except SpecError as error:
                errors.append(self._error(file, name, str(error)))
                continue
            if self._accepted is not None and config.trust_digest not in self._accepted and not config.disabled:
                errors.append(self._error(file, name, _NOT_ACCEPTED))
                continue
            listing = self._cache.read(name, config.digest + self._abilities)
            if listing is None and self._executor is None:  # only to show what was listed
                listing = self._cache.read(name, f"{config.digest}-relayed")
            tools.append(make_server_tool(name, config, origin=f"{self.path}:{file.line(name)}", listing=listing))
        self._last_tools = tuple(tools)
        return LoadReport(tools=self._last_tools, errors=tuple(errors), files=(self.path,))

    async def discover(
        self, executor: McpExecutor, tools: Iterable[Tool], timeout: float = CONNECT_TIMEOUT
    ) -> LoadReport:
        """Start servers concurrently and list their actions. The tool of a server that fails is returned unchanged."""

        async def connect(tool: Tool) -> Tool | LoadError:
            if not tool.spec.enabled:
                return tool
            try:
                async with asyncio.timeout(timeout):
                    return await asyncio.to_thread(self.store_listing, tool, await executor.connect(tool))
            except TimeoutError:
                message = f"MCP server {tool.id!r} has not started within {timeout:g} s; it continues to start"
            except (CallError, SpecError) as error:
                message = str(error)
            is_named = tool.origin in message  # the address of a server that was registered
            return make_error_at_origin("" if is_named else tool.origin, message)

        before = list(tools)
        after = await asyncio.gather(*map(connect, before))
        current = tuple(old if isinstance(new, LoadError) else new for old, new in zip(before, after, strict=True))
        return LoadReport(tools=current, errors=tuple(new for new in after if isinstance(new, LoadError)))

    def store_listing(self, tool: Tool, listing: ServerListing) -> Tool:
        """Store what a server lists for the next start. Return the tool with these actions."""
        if isinstance(tool.target, McpServerConfig):
            self._cache.write(tool.id, tool.target.digest + self._abilities, replace(listing, ttl=None))
        return apply_listing(tool, listing)

    @property
    def _abilities(self) -> str:
        relays = self._executor is not None and self._executor.relays and self._executor.on_elicit is not None
        return "-relayed" if relays else ""

    def _error(self, file: ServersFile, name: str, problem: str) -> LoadError:
        return LoadError(f"MCP server {name!r}: {problem}", path=self.path, line=file.line(name))


class McpServers:
    """The servers of an `mcp.json`, and those a program registered."""

    def __init__(
        self,
        path: str | None,
        executor: McpExecutor,
        registry: ToolRegistry,
        store: ToolKnowledgeStore,
        on_error: Callable[[LoadError], None],
        on_update: Callable[[Tool], None],
        *,
        accepted: Collection[str] | None = None,
        tag_table: TagTable | None = None,
    ) -> None:
        self._path, self._tag_table = path, tag_table
        self._file = McpFileSource(path or "mcp.json", accepted=accepted, executor=executor)
        self._executor, self._registry = executor, registry
        self._on_error, self._on_update = on_error, on_update
        self._discoveries: dict[_ServerKey, asyncio.Task[None]] = {}
        """The servers that are being started and asked for their actions."""
        self._listings: dict[_ServerKey, ServerListing] = {}
        """What servers have listed: reading the file again must not lose it."""
        self._failures: dict[_ServerKey, str] = {}
        """Why servers could not be listed the last time."""
        self._pins = PinTracker(store, self._recheck_pins)
        executor.on_listing = self._store_listing
        executor.check_changed_tool = self._check_changed_tool

    def load(self) -> LoadReport:
        report = LoadReport() if self._path is None else self._file.load()
        tools = tuple(map(self._with_known_listing, report.tools))
        return replace(report, tools=tools, errors=(*report.errors, *_errors_of_actions(tools)))

    def watched_folders(self) -> Sequence[WatchedFolder]:
        return [] if self._path is None else [WatchedFolder.of_file(Path(self._path))]

    async def after_load(self, removed: Sequence[Tool]) -> None:
        for tool in removed:
            if tool.handler == "mcp":
                await self.end_server(tool)
        self.discover()

    def discover(self) -> None:
        """Start servers that have never been listed, in the background; end those that were disabled."""
        for tool in self._registry:
            if tool.handler == HANDLER:
                self._executor.end_if_changed(tool)
        unlisted = [t for t in self._registry if t.spec.metadata.get("listed") is False and t.spec.enabled]
        listed_meanwhile = [tool for tool in unlisted if _make_server_key(tool) in self._listings]
        self._registry.remove_and_add(remove=listed_meanwhile, add=map(self._with_known_listing, listed_meanwhile))
        for tool in unlisted:
            if _make_server_key(tool) not in self._listings:
                self._start_discovery(tool)
        for tool in self._registry:
            if tool.spec.metadata.get("listed") and not self._pins.is_read(tool.id):  # withheld until then
                self._pins.start_reading(tool.id)

    def find_unlisted(self, name: str) -> Tool | None:
        """Return the server that a name stands for, if it has not listed its actions yet."""
        unlisted = (tool for tool in self._registry if tool.spec.metadata.get("listed") is False and tool.spec.enabled)
        return next((tool for tool in unlisted if _is_server_named(tool.id, name)), None)

    def explain_failure(self, name: str) -> str | None:
        """Return why the server that a name stands for has not listed its actions, or None."""
        tool = self.find_unlisted(name)
        return None if tool is None else self._failures.get(_make_server_key(tool))

    def _start_discovery(self, tool: Tool) -> None:
        key = _make_server_key(tool)

        async def discover() -> None:
            report = await self._file.discover(self._executor, [tool], DISCOVERY_TIMEOUT)
            self._failures.pop(key, None)
            for error in report.errors:
                self._failures[key] = error.message
                self._on_error(error)

        if key not in self._discoveries:
            task = asyncio.create_task(discover(), name=f"ferrule-mcp-discovery-{tool.id}")
            self._discoveries[key] = task
            task.add_done_callback(lambda _: self._discoveries.pop(key, None))

    @property
    def is_discovering(self) -> bool:
        """Return whether a server is being started to list its actions, or its accepted actions are being read."""
        return bool(self._discoveries or self._pins.unapplied_servers)

    async def wait_until_listed(self, name: str | None = None) -> None:
        """Wait until servers that are being discovered have listed their actions, or have failed to.

        `name` is what a caller wants to call: the id of a server or `id__action` waits for that server only. Any
        other name that no tool has may be an action of any server: then servers are waited for until one lists it.
        """
        if name is not None and (tool := self.find_unlisted(name)) is not None:
            self._start_discovery(tool)  # it may have been unreachable before
        named = [task for key, task in self._discoveries.items() if name is not None and _is_server_named(key[0], name)]
        pending = set(named or self._discoveries.values())
        while pending and (named or name is None or not self._is_known(name)):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await self.wait_for_pins(name)

    async def wait_for_pins(self, name: str | None = None) -> None:
        """Wait until it is known what the user has accepted of all servers, or of the one that a name stands for."""
        for server in self._pins.unapplied_servers:
            if name is None or _is_server_named(server, name):
                await self._pins.wait_until_applied(server)

    def _is_known(self, name: str) -> bool:
        """Return whether a tool has this name, or an action of a server has it."""
        if name in self._registry:
            return True
        return any(
            _is_server_named(tool.id, name) or tool.spec.capability(name) is not None
            for tool in self._registry
            if tool.handler == HANDLER
        )

    async def end_server(self, tool: Tool) -> None:
        """End the server of a tool that was removed, even when the caller is cancelled."""
        self._listings.pop(_make_server_key(tool), None)
        await finish_despite_cancellation(self._executor.disconnect(tool.id))

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._discoveries.values() if task.get_loop() is loop]
        self._discoveries.clear()
        await cancel_all(tasks)
        await self._pins.aclose()

    def _check_changed_tool(self, tool: Tool) -> Awaitable[Tool] | None:
        async def compare_with_pins() -> Tool:
            await self._pins.wait_until_applied(tool.id)
            await self._recheck_pins(tool.id)
            return self._find_server(tool.id) or tool

        return compare_with_pins() if tool.id in self._pins.unapplied_servers else None

    async def _store_listing(self, tool_id: str, listing: ServerListing) -> None:
        """Put what a server has listed into the registry and into the cache."""
        tool = self._find_server(tool_id)
        if tool is None:
            return
        self._listings[_make_server_key(tool)] = listing

        def apply(tool: Tool) -> Tool:
            return self._pins.apply_pins(add_missing_tags(self._file.store_listing(tool, listing), self._tag_table))

        await self._change(tool, apply)
        self._pins.start_reading(tool_id)

    async def _recheck_pins(self, tool_id: str) -> bool:
        """Compare the actions of a server with what the user accepted. Return whether something is not accepted."""
        tool = self._find_server(tool_id)
        if tool is None or not tool.spec.metadata.get("listed"):
            return False
        current = await self._change(tool, self._pins.apply_pins)
        return bool(describe_changes(current))

    async def _change(self, tool: Tool, change: Callable[[Tool], Tool]) -> Tool:
        """Replace a tool in the registry. `change` runs in a thread: a server may list thousands of actions."""
        key = _make_server_key(tool)
        while True:
            changed = await asyncio.to_thread(change, tool)
            current = self._find_server(tool.id)
            if changed is tool or current is None or _make_server_key(current) != key:
                return changed  # nothing to change, or the server was removed or has another entry meanwhile
            if current is tool:
                break
            tool = current  # loaded again meanwhile
        self._registry.remove_and_add(remove=[tool], add=[changed])
        self._on_update(changed)
        for error in _errors_of_actions([changed]):
            self._on_error(error)
        return changed

    def _find_server(self, tool_id: str) -> Tool | None:
        return next((tool for tool in self._registry.candidates(tool_id) if tool.handler == HANDLER), None)

    def _with_known_listing(self, tool: Tool) -> Tool:
        listing = self._listings.get(_make_server_key(tool))
        tool = tool if listing is None else apply_listing(tool, listing)
        return self._pins.apply_pins(tool) if tool.spec.metadata.get("listed") else tool


def _errors_of_actions(tools: Iterable[Tool]) -> Iterator[LoadError]:
    for tool in tools:
        for action, reason in tool.spec.unavailable_actions.items():
            message = f"MCP server {tool.id!r}: the action {action!r} is unavailable: {reason}"
            yield make_error_at_origin(tool.origin, message)


_ServerKey = tuple[str, str | None]
"""The id of a tool and the digest of its entry: with another entry it is another server."""


def _make_server_key(tool: Tool) -> _ServerKey:
    return tool.id, tool.spec.metadata.get("config_digest")


def _is_server_named(tool_id: str, name: str) -> bool:
    return name == tool_id or name.startswith(f"{tool_id}__")
