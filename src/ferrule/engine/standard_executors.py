"""The executors every engine has, by the names tools know them by."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, ValuesView

from ferrule.call import ToolExecutor
from ferrule.executors.function.executor import FunctionExecutor
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.executors.worker.pool import WorkerPool

_PLAIN = {
    "echo": "ferrule.executors.echo:EchoExecutor",
    "calculator": "ferrule.executors.calculator.executor:CalculatorExecutor",
    "command": "ferrule.executors.command.executor:CommandExecutor",
    "skill": "ferrule.executors.skill.executor:SkillExecutor",
}
_GUARDED = {
    "http_request": "ferrule.executors.http.request:HttpRequestExecutor",
    "http": "ferrule.executors.http.endpoint:HttpEndpointExecutor",
    "openapi": "ferrule.executors.openapi.executor:OpenApiExecutor",
}
"""Those that are told which addresses are forbidden."""


class Executors:
    """The executors of one engine. Programs use one or two of them, so each is loaded with the first tool for it."""

    def __init__(self, guard: AddressGuard, mcp: McpExecutor) -> None:
        self._guard = guard
        self._made: dict[str, ToolExecutor] = {"mcp": mcp, "function": FunctionExecutor(WorkerPool())}

    def get(self, name: str) -> ToolExecutor | None:
        if name not in self._made and name in _PLAIN:
            self._made[name] = _class_at(_PLAIN[name])()
        elif name not in self._made and name in _GUARDED:
            self._made[name] = _class_at(_GUARDED[name])(self._guard)
        return self._made.get(name)

    def __setitem__(self, name: str, executor: ToolExecutor) -> None:
        self._made[name] = executor

    def __iter__(self) -> Iterator[str]:
        return iter({**_PLAIN, **_GUARDED, **self._made})

    def made(self) -> ValuesView[ToolExecutor]:
        """Those that may have something to close."""
        return self._made.values()


def _class_at(place: str) -> type:
    module, _, name = place.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found
