"""The door for tools: register them, find them, describe them, call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.concurrency import ConcurrencyConfig
from ferrule.config import FerruleConfig
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.errors import SetupError
from ferrule.sources import tool_of
from ferrule.spec import FunctionToolSpec, Tool, ToolSpec, ToolType
from ferrule.store import ToolKnowledgeStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResult:
    """What came of registering a tool."""

    success: bool
    tool_id: str
    error: str | None = None


class UnifiedToolLibrary:
    """Every tool in one place, behind one engine."""

    def __init__(
        self,
        config: ToolEngineConfig | None = None,
        *,
        store: ToolKnowledgeStore | str | None = None,
        concurrency: ConcurrencyConfig | None = None,
        engine: ToolEngine | None = None,
    ) -> None:
        self.engine = engine or ToolEngine(config, store=store, concurrency=concurrency)

    @classmethod
    def open(cls, path: str | PathLike[str] = "ferrule.toml") -> UnifiedToolLibrary:
        """A library as a configuration file describes it."""
        return cls(engine=FerruleConfig.read(Path(path)).engine())

    async def initialize(self) -> None:
        """Load the tools and open the store. `async with` does it too."""
        await self.engine.start()

    async def aclose(self) -> None:
        await self.engine.aclose()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # Registering

    def register(self, *things: Any) -> list[ToolSpec]:
        """Functions, objects with several methods, or specs; each becomes a tool."""
        return [tool.spec for tool in self.engine.register(*things)]

    async def register_function_tool(self, tool_spec: FunctionToolSpec) -> RegistrationResult:
        """Register a class by its module path and name; it is imported when it is first called."""
        return self._register(tool_spec)

    async def unregister_tool(self, tool_id: str) -> bool:
        """Take a tool out; False when there was none."""
        return self.engine.unregister(tool_id)

    def _register(self, spec: ToolSpec) -> RegistrationResult:
        try:
            self.engine.register(tool_of(spec))
        except SetupError as error:
            return RegistrationResult(success=False, tool_id=spec.tool_id, error=str(error))
        return RegistrationResult(success=True, tool_id=spec.tool_id)

    # Finding

    async def get_all_tools(self) -> list[ToolSpec]:
        return _specs(self.engine.registry)

    async def get_tools_by_type(self, tool_type: ToolType) -> list[ToolSpec]:
        return _specs(self.engine.registry.by_type(tool_type))

    async def get_tool_by_id(self, tool_id: str) -> ToolSpec | None:
        tool = self.engine.registry.get(tool_id)
        return tool.spec if tool is not None else None

    async def search_tools_by_tags(self, tags: list[str]) -> list[ToolSpec]:
        """Tools that have any of the tags."""
        return _specs(self.engine.registry.by_tag(*tags))

    def schemas(self) -> list[dict[str, Any]]:
        """Every action as a function schema for model APIs, in a fixed order."""
        found: dict[str, dict[str, Any]] = {}
        for tool in self.engine.registry:
            for capability in tool.spec.capabilities if tool.spec.enabled else ():
                name = tool.spec.model_name(capability)
                function = {
                    "name": name,
                    "description": capability.description or tool.spec.description,
                    "parameters": capability.schema,
                }
                found.setdefault(name, {"type": "function", "function": function})
        return [found[name] for name in sorted(found)]

    # Calling

    async def execute_tool(
        self,
        tool_id: str,
        action: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        context: ToolExecutionContext | None = None,
    ) -> ToolExecutionResult:
        """Call an action of a tool; a tool with one action needs no action named."""
        return await self.engine.execute(tool_id, parameters, context, action=action)

    async def batch_execute_tools(self, tool_calls: list[dict[str, Any]]) -> list[ToolExecutionResult]:
        """Calls like `{"tool_id": …, "action": …, "parameters": …}` at once; results in their order."""
        return await self.engine.execute_batch(
            {"tool_name": call.get("tool_id"), "action": call.get("action"), "params": call.get("parameters")}
            for call in tool_calls
        )


def _specs(tools: Iterable[Tool]) -> list[ToolSpec]:
    return [tool.spec for tool in tools if tool.spec.enabled]
