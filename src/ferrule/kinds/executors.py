"""The executors of an engine, by the names that tools use for them; each is loaded when first used.

Other packages add executors through the entry-point group `ferrule.kinds` (see docs/plugins.md). The installed
packages are searched only for a name that is not built in, so plugins cost nothing at start.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, ValuesView
from typing import Any

from ferrule.core.call import ToolExecutor
from ferrule.core.names import did_you_mean
from ferrule.core.spec import Limits, Tool
from ferrule.errors import ExecutorNotFound, LoadError
from ferrule.http.guard import AddressGuard
from ferrule.kinds.function.executor import FunctionExecutor
from ferrule.kinds.function.targets import ImportedTarget
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.source import make_error_at_origin
from ferrule.process.pool import WorkerPool

ENTRY_POINT_GROUP = "ferrule.kinds"
CLUSTER = "cluster"
"""The executor of functions that declare a place or resources on a cluster; only an engine with a cluster has it."""

_BUILT_IN = {
    "echo": "ferrule.kinds.builtin:EchoExecutor",
    "calculator": "ferrule.kinds.builtin:CalculatorExecutor",
    "command": "ferrule.kinds.command:CommandExecutor",
    "skill": "ferrule.kinds.skill.directory:SkillExecutor",
}
_BUILT_IN_WITH_GUARD = {
    "http_request": "ferrule.kinds.http_request:HttpRequestExecutor",
    "http": "ferrule.kinds.http_request:HttpEndpointExecutor",
    "openapi": "ferrule.kinds.openapi.executor:OpenApiExecutor",
}
"""Constructed with the engine's address guard."""


class Executors:
    """The executors of one engine."""

    def __init__(self, guard: AddressGuard, mcp: McpExecutor) -> None:
        self._guard = guard
        self._instances: dict[str, ToolExecutor] = {"mcp": mcp, "function": FunctionExecutor(WorkerPool())}

    def get(self, name: str) -> ToolExecutor | None:
        """Return the executor with this name, or None. Raises ExecutorNotFound when a plugin cannot be loaded."""
        if name not in self._instances:
            if name in _BUILT_IN:
                self._instances[name] = _import_class(_BUILT_IN[name])()
            elif name in _BUILT_IN_WITH_GUARD:
                self._instances[name] = _import_class(_BUILT_IN_WITH_GUARD[name])(self._guard)
            elif (executor := load_plugin_executor(name)) is not None:
                self._instances[name] = executor
        return self._instances.get(name)

    def choose(self, handler: str, limits: Limits) -> ToolExecutor | None:
        """Return the executor of an action with these limits, whose tool names the executor `handler`."""
        if handler == "function" and limits.is_for_cluster and CLUSTER in self._instances:
            return self._instances[CLUSTER]
        return self.get(handler)

    def __setitem__(self, name: str, executor: ToolExecutor) -> None:
        self._instances[name] = executor

    def __iter__(self) -> Iterator[str]:
        return iter({**_BUILT_IN, **_BUILT_IN_WITH_GUARD, **self._instances})

    def instances(self) -> ValuesView[ToolExecutor]:
        """Return the executors that were used, which may have something to close."""
        return self._instances.values()


def _import_class(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def find_code_problem(tool: Tool, executors: Executors | None = None) -> LoadError | None:
    """Return why the tool of a file cannot be run: nothing has the name of its executor, or its code cannot be loaded.

    Code that a YAML file names is imported for this. `executors` are those of an engine, which may have more.
    """
    try:
        handlers = [*_BUILT_IN, *_BUILT_IN_WITH_GUARD, "function", "mcp"] if executors is None else [*executors]
        if tool.handler not in handlers and load_plugin_executor(tool.handler) is None:
            hint = did_you_mean(tool.handler, handlers).strip() or f"there are {', '.join(sorted(handlers))}"
            return make_error_at_origin(tool.origin, f"there is no executor {tool.handler!r}", hint)
        if isinstance(tool.target, ImportedTarget) and not tool.needs:  # of a folder that is trusted
            for capability in tool.spec.capabilities:
                tool.target.function(capability.name)
    except ExecutorNotFound as error:
        return make_error_at_origin(tool.origin, str(error))
    except LoadError as error:
        return error
    return None


def load_plugin_executor(name: str, *arguments: Any, **options: Any) -> ToolExecutor | None:
    """Make the executor of an installed package. Return None when no package has an executor of this name."""
    from importlib.metadata import entry_points  # takes milliseconds to import

    plugin = next(iter(entry_points(group=ENTRY_POINT_GROUP, name=name)), None)
    if plugin is None:
        return None
    try:
        executor: ToolExecutor = plugin.load()(*arguments, **options)
    except Exception as error:  # the code of another package
        package = plugin.dist.name if plugin.dist is not None else "an installed package"
        reason = f"{type(error).__name__}: {error}"
        raise ExecutorNotFound(
            f"executor {plugin.name!r} ({plugin.value} of {package}) cannot be loaded: {reason}. "
            "Repair or reinstall the package."
        ) from error
    return executor
