"""Tools of installed packages, found through the entry-point group `ferrule.tools`.

An entry is named like the tool that it provides, so the tools are known without importing any package:

    [project.entry-points."ferrule.tools"]
    weather = "acme_weather:build"

Its value is a function that gets a `PluginContext` and returns tools, or a tool itself: anything that `engine.register`
takes. A package is imported only when one of its tools is wanted.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.core.spec import Tool
from ferrule.errors import LoadError, SetupError, error_text
from ferrule.kinds.function.decorator import options_of
from ferrule.kinds.function.tools import collect_tools
from ferrule.kinds.mcp.servers import McpServers

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

    from ferrule.engine.engine import ToolEngine

T = TypeVar("T")

ENTRY_POINT_GROUP = "ferrule.tools"
DISTRIBUTION = "ferrule"
"""The distribution whose tools have the source `builtin`; the source of others is the distribution's name."""

logger = logging.getLogger("ferrule.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """What a plugin can use to set up its tools."""

    engine: ToolEngine
    root: Path = field(default_factory=Path)
    """The folder of the project; relative paths start here."""
    workspace: str | None = None
    """The folder whose files tools may read and change, as `ferrule.toml` names it."""
    protected: Sequence[str] = ()
    """Paths that no tool may change, even in its workspace: they decide what is run."""
    secret: Sequence[str] = ("ferrule.toml",)
    """Paths that no tool may read or change, with all files whose names begin like them: settings, keys, the store."""
    protected_paths: Sequence[str] | None = None
    """Patterns of further paths that cannot be changed, as `[tools]` names them; None: the default ones."""
    secret_paths: Sequence[str] | None = None
    """Patterns of further paths that cannot be read either; None: the default ones."""
    default_model: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    read_section: Callable[[str, type[Any]], Any] = lambda name, config_type: config_type()

    def config(self, name: str, config_type: type[T]) -> T:
        """Return the section `[tools.NAME]` of `ferrule.toml` as a config. Raises SetupError for mistakes."""
        config: T = self.read_section(name, config_type)
        return config


class ToolPlugins:
    """The plugins of one engine, each of which is loaded at most once."""

    def __init__(self, context: PluginContext, *, excluded: Collection[str] = ()) -> None:
        """`excluded` are names of tools that are not loaded."""
        self._context, self._excluded = context, excluded
        self._loaded: set[str] = set()
        self.errors: list[LoadError] = []

    @cached_property
    def entries(self) -> Sequence[EntryPoint]:
        return [entry for entry in find_plugin_entries() if entry.name not in self._excluded]

    @property
    def is_complete(self) -> bool:
        return all(entry.value in self._loaded for entry in self.entries)

    def load(self, name: str) -> None:
        """Add the tools of the entries with this name, and the tools that they depend on."""
        for entry in self.entries:
            if entry.name == name and entry.value not in self._loaded:
                for tool in self._load_entry(entry):
                    for dependency in tool.spec.dependencies:
                        self.load(dependency)

    def load_all(self) -> None:
        for entry in self.entries:
            if entry.value not in self._loaded:  # several tools may come from one function
                self._load_entry(entry)

    def _load_entry(self, entry: EntryPoint) -> list[Tool]:
        self._loaded.add(entry.value)
        try:
            tools = entry.load()
            if isinstance(tools, FunctionType) and options_of(tools) is None:  # not decorated with @tool
                tools = list(tools(self._context))
            tools = collect_tools(tools)
            source = _source_of(entry.dist) if any(tool.source == "tools" for tool in tools) else ""
            return self._context.engine.register(
                *(replace(tool, source=source) if tool.source == "tools" else tool for tool in tools)
            )
        except SetupError:  # a mistake in ferrule.toml, or two tools of one name
            raise
        except Exception as error:
            message = f"the tools of the plugin {entry.value!r} cannot be loaded: {error_text(error)}"
            problem = LoadError(message, hint="repair or uninstall its package")
            logger.warning("not loaded: %s", problem)
            logger.debug("plugin=<%s> | not loaded", entry.value, exc_info=True)
            self.errors.append(problem)
            return []


class Discovery:
    """Tools that are not in the registry yet: of MCP servers that are being listed, and of plugins not yet loaded."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers
        self.plugins: ToolPlugins | None = None

    @property
    def is_pending(self) -> bool:
        return self._servers.is_discovering or (self.plugins is not None and not self.plugins.is_complete)

    def may_discover(self, tool_name: str) -> bool:
        """Return whether waiting may bring the tool or its actions."""
        return self.is_pending or self._servers.find_unlisted(tool_name) is not None

    def explain_failure(self, tool_name: str) -> str | None:
        """Return why the MCP server that a name stands for has not listed its actions."""
        return self._servers.explain_failure(tool_name)

    async def wait(self, tool_name: str | None = None) -> None:
        """Load all plugins and wait for the servers, or for the server with this name."""
        if self.plugins is not None:
            self.plugins.load_all()
        await self._servers.wait_until_listed(tool_name)


def find_plugin_entries() -> Sequence[EntryPoint]:
    """Return the entry points of plugins, which are read once per path: there is a file of each installed package."""
    return _read_plugin_entries(tuple(sys.path))


@lru_cache(maxsize=1)
def _read_plugin_entries(path: Sequence[str]) -> Sequence[EntryPoint]:
    from importlib.metadata import entry_points  # takes 20 ms to import

    return tuple(entry_points(group=ENTRY_POINT_GROUP))


@lru_cache(maxsize=100)
def _source_of(distribution: Distribution | None) -> str:
    """Tools of one name from several packages are candidates for the same job, told apart by their sources.

    Kept, because the metadata of a distribution is parsed each time it is asked for its name.
    """
    return "builtin" if distribution is None or distribution.name == DISTRIBUTION else distribution.name
