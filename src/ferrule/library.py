"""The door for tools: register them, find them, describe them, call them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self

from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.concurrency import ConcurrencyConfig
from ferrule.config import FerruleConfig
from ferrule.describe import DescriptionEngine
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.errors import CallError, SetupError
from ferrule.hub import ToolHub
from ferrule.search import RegistryIndex
from ferrule.sources import tool_of
from ferrule.sources.openapi_tool import read_openapi
from ferrule.spec import FunctionToolSpec, MCPServerSpec, Tool, ToolSpec, ToolType
from ferrule.store import ToolKnowledgeStore

HEALTH_PATIENCE = 10.0
"""Seconds an MCP server has to answer a question after its health."""


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
        self.hub = ToolHub(self.engine)
        self.index = RegistryIndex(self.engine.registry)
        self.descriptions = DescriptionEngine(self.engine.registry, self.index)

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

    async def register_mcp_server(self, server_spec: MCPServerSpec) -> RegistrationResult:
        """Register a server by its endpoint or command; it is started when it is first called."""
        return self._register(server_spec)

    async def register_openapi(self, source: str, **options: Any) -> RegistrationResult:
        """Register an API by its OpenAPI document (a path, a URL or its text): a tool with an action per operation.

        `options` are those of `ferrule.sources.openapi_tool.read_openapi`.
        """
        try:
            tool = await asyncio.to_thread(partial(read_openapi, source, **options))
            self.engine.register(tool)
        except SetupError as error:
            return RegistrationResult(success=False, tool_id=str(options.get("name") or ""), error=str(error))
        return RegistrationResult(success=True, tool_id=tool.id)

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
        """Tools that have any of the tags, those with most of them first."""
        return _specs(self.index.search_by_tags(tags))

    async def search_tools_by_requirements(self, requirements: list[str]) -> list[ToolSpec]:
        """Tools whose tags, words or actions meet any of the requirements, those that meet most first."""
        return _specs(self.index.search_by_requirements(requirements))

    async def search_tools(self, text: str, limit: int = 10) -> list[ToolSpec]:
        """Tools that speak of what the text says, best first."""
        return _specs(hit.tool for hit in self.index.search(text, limit))

    # Describing

    async def get_tool_description_for_agent(self, tool_id: str) -> str:
        return await self.descriptions.generate_tool_description_for_agent(tool_id)

    async def get_all_tools_description_for_agent(self) -> str:
        return await self.descriptions.generate_all_tools_description_for_agent()

    async def get_tool_usage_examples(self, tool_id: str) -> list[dict[str, Any]]:
        """Calls of the tool that would be valid, as `execute_tool` takes them."""
        return await self.descriptions.get_tool_usage_examples(tool_id)

    def schemas(self) -> list[dict[str, Any]]:
        """Every action as a function schema for model APIs, in a fixed order."""
        return self.descriptions.openai_schemas()

    # Calling

    async def execute_tool(
        self,
        tool_id: str,
        action: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        context: ToolExecutionContext | None = None,
    ) -> ToolExecutionResult:
        """Call an action of a tool; a tool with one action needs no action named.

        Where several tools have the name, the hub decides: they race, back each other up or are combined.
        """
        return await self.hub.execute(tool_id, parameters, context, action=action)

    async def batch_execute_tools(self, tool_calls: list[dict[str, Any]]) -> list[ToolExecutionResult]:
        """Calls like `{"tool_id": …, "action": …, "parameters": …}` at once; results in their order."""
        places = asyncio.Semaphore(self.engine.concurrency.config.max_concurrent)

        async def one(tool_id: str, action: str | None = None, parameters: Any = None) -> ToolExecutionResult:
            async with places:
                return await self.execute_tool(tool_id, action, parameters)

        for call in tool_calls:
            if not call.get("tool_id"):
                raise SetupError(f"A call of a batch needs a tool_id: {{'tool_id': …, 'parameters': …}}, not {call!r}")
        return list(await asyncio.gather(*(one(**call) for call in tool_calls)))

    async def _answers(self, tool: Tool) -> bool | str:
        """Whether a tool can be reached, as far as that can be asked; else why not."""
        if not tool.spec.enabled:
            return "disabled"
        try:
            async with asyncio.timeout(HEALTH_PATIENCE):
                await self.engine.ping(tool)
        except TimeoutError:
            return f"no answer within {HEALTH_PATIENCE:g} s"
        except CallError as error:
            return str(error)
        return True

    async def get_tool_health_status(self, tool_id: str) -> dict[str, Any]:
        """How a tool is doing: whether it answers, its circuit, and how its latest calls went."""
        candidates = self.engine.registry.candidates(tool_id)
        answers = {tool.source: await self._answers(tool) for tool in candidates}
        records = await self.engine.query_call_records(tool_name=tool_id, limit=20)
        ended = [record for record in records if record.status in ("success", "failed")]
        failed = [record for record in ended if not record.is_success]
        circuits = {tool.source: self.engine.circuit_state(tool) for tool in candidates}
        callable_now = [
            t for t in candidates if t.spec.enabled and circuits[t.source] != "open" and answers[t.source] is True
        ]
        return {
            "tool_id": tool_id,
            "status": "unknown" if not candidates else "healthy" if callable_now else "unavailable",
            "enabled": any(tool.spec.enabled for tool in candidates),
            "circuit": circuits,
            "answers": answers,
            "recent_calls": len(ended),
            "recent_failures": len(failed),
            "last_error": failed[0].error if failed else None,
            "last_called": records[0].created_at.isoformat() if records else None,
        }


def _specs(tools: Iterable[Tool]) -> list[ToolSpec]:
    return [tool.spec for tool in tools if tool.spec.enabled]
