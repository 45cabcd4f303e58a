"""The door for tools: register them, find them, describe them, call them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.hub import ToolHub
from ferrule.memory import ExecutionContext, RunMemory
from ferrule.memory.adjustments import suggest_adjustments
from ferrule.memory.alternatives import alternative_tools
from ferrule.memory.counsel import Counsel
from ferrule.memory.parameters import LOCATORS
from ferrule.memory.patterns import FailureBook
from ferrule.search import RegistryIndex
from ferrule.search.categories import CategoryIndex
from ferrule.sources import tool_of
from ferrule.sources.function import tools_of
from ferrule.sources.openapi_tool import read_openapi
from ferrule.spec import FunctionToolSpec, MCPServerSpec, Tool, ToolSpec, ToolType
from ferrule.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.library")

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
        on_elicit: OnElicit | None = None,
    ) -> None:
        self.engine = engine or ToolEngine(config, store=store, concurrency=concurrency, on_elicit=on_elicit)
        self.hub = ToolHub(self.engine)
        self.index = RegistryIndex(self.engine.registry)
        self.descriptions = DescriptionEngine(self.engine.registry, self.index)
        self.failures = FailureBook(self.engine.store)
        """What failed in all runs, and what cured it."""
        self._categories: CategoryIndex | None = None

    @classmethod
    def open(
        cls, path: str | PathLike[str] = "ferrule.toml", *, on_elicit: OnElicit | None = None
    ) -> UnifiedToolLibrary:
        """A library as a configuration file describes it."""
        config = FerruleConfig.read(Path(path))
        return cls(engine=config.engine(on_elicit=on_elicit))

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

    def register(self, *things: Any, per_method: bool = False) -> list[ToolSpec]:
        """Functions, objects with several methods, or specs; each becomes a tool.

        With `per_method` each method of an object becomes a tool of its own; they work on the same object.
        """
        if per_method:
            things = tuple(t for thing in things for t in ([thing] if isinstance(thing, Tool) else tools_of(thing)))
        return [tool.spec for tool in self.engine.register(*things)]

    async def register_function_tool(self, tool_spec: FunctionToolSpec) -> RegistrationResult:
        """Register a class by its module path and name; it is imported when it is first called."""
        return self._register(tool_spec)

    async def register_mcp_server(self, server_spec: MCPServerSpec) -> RegistrationResult:
        """Register a server by its endpoint or command; it is started when it is first called."""
        return self._register(server_spec)

    async def register_openapi(self, source: str, **options: Any) -> RegistrationResult:
        """Register an API by its OpenAPI document (a path, a URL or its text): a tool with an action per operation.

        `options` are those of `ferrule.sources.openapi_tool.read_openapi`. The `guard` is the configuration's.
        """
        try:
            tool = await asyncio.to_thread(
                partial(read_openapi, source, **{"guard": self.engine.address_guard, **options})
            )
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
        """The tools that can be called."""
        return self._callable(self.engine.registry)

    async def get_tools_by_type(self, tool_type: ToolType) -> list[ToolSpec]:
        return self._callable(self.engine.registry.by_type(tool_type))

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

    async def get_unavailable_tools(self) -> dict[str, str]:
        """The tools that are enabled but cannot be called, and why: they are not set up, or depend on others."""
        now = self.engine.registry.snapshot()
        return {tool.id: now.why_unavailable(tool) or "" for tool in now.unmet}

    # Categories

    async def enable_category_management(self) -> None:
        """Let tools be listed by category: for when there are many. Those that miss another tool are logged."""
        self._categories = CategoryIndex(self.engine.registry)
        now = self.engine.registry.snapshot()
        for tool in now.unmet:
            if not tool.needs:
                logger.warning("tool=<%s> | unavailable: %s", tool.id, now.why_unavailable(tool))

    async def get_tools_by_category(self, category: str, subcategory: str | None = None) -> list[ToolSpec]:
        """The tools of a category, those of the highest priority first."""
        return _specs(self._categorized().tools(category, subcategory))

    async def get_category_tree(self) -> dict[str, dict[str, list[str]]]:
        """Categories, their subcategories, and the ids of the tools in each, those of the highest priority first."""
        return self._categorized().tree()

    def _categorized(self) -> CategoryIndex:
        if self._categories is None:
            raise SetupError("Categories are not managed yet. Say first: await library.enable_category_management()")
        return self._categories

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

    async def execute_tool_with_context(
        self,
        tool_id: str,
        action: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        execution_context: ExecutionContext | None = None,
    ) -> ToolExecutionResult:
        """Call an action as part of a run: what the run knows to fail is not made again.

        Where the tool's spec allows it (`metadata={"auto_adjust": True}`), parameters known to fail are replaced by
        the best suggestion; elsewhere suggestions come with the failure.
        """
        if execution_context is None:
            return await self.execute_tool(tool_id, action, parameters)
        memory = await self._memory_of(execution_context)
        parameters = await self._adjust_parameters_based_on_context(
            tool_id, action, parameters or {}, execution_context
        )
        return await self.execute_tool(tool_id, action, parameters, context=ToolExecutionContext(memory=memory))

    async def get_alternative_tools(
        self, failed_tool_id: str, task_context: str, execution_context: ExecutionContext
    ) -> list[ToolSpec]:
        """Tools that could do what one could not, best first, without those that failed in the run."""
        failed = {str(attempt["tool_id"]) for attempt in execution_context.failed_attempts}
        spec = await self.get_tool_by_id(failed_tool_id)
        if spec is None or not spec.capabilities:
            return [tool for tool in await self.search_tools(task_context) if tool.tool_id not in failed]
        last: Mapping[str, Any] = next(
            (a for a in reversed(execution_context.failed_attempts) if a["tool_id"] == failed_tool_id), {}
        )
        capability = spec.capability(last.get("action")) or spec.capabilities[0]
        found = alternative_tools(
            spec,
            capability,
            last.get("parameters") or {},
            await self.get_all_tools(),
            failed=failed,
            task=task_context,
        )
        return [one.spec for one in found]

    async def suggest_parameter_adjustments(
        self,
        tool_id: str,
        action: str | None,
        failed_parameters: Mapping[str, Any],
        error_message: str,
        observations: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Other parameters for a call that failed; the same ones when there is nothing to suggest.

        `ferrule.memory.adjustments.suggest_adjustments` gives all suggestions, and why.
        """
        spec = await self.get_tool_by_id(tool_id)
        capability = spec.capability(action) if spec is not None else None
        if capability is None:
            return dict(failed_parameters)
        found = suggest_adjustments(capability, failed_parameters, error_message, observations)
        return found[0].parameters if found else dict(failed_parameters)

    async def get_tool_failure_patterns(self, tool_id: str) -> dict[str, list[Any]]:
        """How a tool has failed in all runs so far, the weightiest first: what with, how often, what cured it."""
        await self.failures.load()
        found = self.failures.patterns(tool_id)
        return {
            "patterns": [asdict(pattern) for pattern in found],
            "failed_actions": sorted({pattern.action for pattern in found}),
            "failed_selectors": sorted(
                {str(p.parameters[name]) for p in found for name in LOCATORS if name in p.parameters}
            ),
            "error_patterns": list(dict.fromkeys(pattern.error for pattern in found)),
        }

    async def _memory_of(self, context: ExecutionContext) -> RunMemory:
        """The memory that goes with a context; a context made by hand brings its failures with it."""
        if context.memory is None:
            await self.failures.load()
            counsel = Counsel(context, self.engine.registry, self.failures)
            context.memory = RunMemory(adviser=counsel, listener=self.failures)
            for attempt in context.failed_attempts:
                self._remember(context.memory, attempt)
        return context.memory

    def _remember(self, memory: RunMemory, attempt: Mapping[str, Any]) -> None:
        try:
            tool, capability = self.engine.registry.find(str(attempt["tool_id"]), attempt.get("action"))
        except CallError:
            return
        error, kind = str(attempt.get("error") or "failed"), attempt.get("error_type")
        failed = ToolExecutionResult(is_success=False, tool_name=tool.id, error=error, error_type=kind)
        memory.learn(tool, capability, dict(attempt.get("parameters") or {}), failed)

    async def _adjust_parameters_based_on_context(
        self, tool_id: str, action: str | None, parameters: Mapping[str, Any], context: ExecutionContext
    ) -> dict[str, Any]:
        """The parameters; where the spec allows it and they are known to fail, better ones."""
        given = dict(parameters)
        try:
            tool, capability = self.engine.registry.find(tool_id, action)
        except CallError:
            return given
        if context.memory is None or not tool.spec.metadata.get("auto_adjust"):
            return given
        failure = context.memory.known_failure(tool, capability, given)
        if failure is None:
            return given
        avoid = context.learned_patterns.get(tool.id, {}).get("failed_selectors", ())
        found = suggest_adjustments(capability, given, failure.error, context.current_observations, avoid=avoid)
        return found[0].parameters if found else given

    async def batch_execute_tools(self, tool_calls: list[dict[str, Any]]) -> list[ToolExecutionResult]:
        """Calls like `{"tool_id": …, "action": …, "parameters": …}` at once; results in their order."""
        for call in tool_calls:
            if not call.get("tool_id") or call.keys() - {"tool_id", "action", "parameters"}:
                wanted = "{'tool_id': …, 'action': …, 'parameters': …}"
                raise SetupError(f"A call of a batch needs a tool_id, and takes nothing else than {wanted}: {call!r}")
        places = asyncio.Semaphore(self.engine.concurrency.config.max_concurrent)

        async def one(tool_id: str, action: str | None = None, parameters: Any = None) -> ToolExecutionResult:
            async with places:
                return await self.execute_tool(tool_id, action, parameters)

        return list(await asyncio.gather(*(one(**call) for call in tool_calls)))

    def _callable(self, tools: Iterable[Tool]) -> list[ToolSpec]:
        now = self.engine.registry.snapshot()
        return [tool.spec for tool in tools if now.is_callable(tool)]

    async def _answers(self, tool: Tool) -> bool | str:
        """Whether a tool can be reached, as far as that can be asked; else why not."""
        if not tool.spec.enabled:
            return "disabled"
        if (reason := self.engine.registry.snapshot().why_unavailable(tool)) is not None:
            return f"unavailable: {reason}"
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
            "reason": None if callable_now else _why_not(tool_id, answers),
            "enabled": any(tool.spec.enabled for tool in candidates),
            "circuit": circuits,
            "answers": answers,
            "recent_calls": len(ended),
            "recent_failures": len(failed),
            "last_error": failed[0].error if failed else None,
            "last_called": records[0].created_at.isoformat() if records else None,
        }


def _specs(tools: Iterable[Tool]) -> list[ToolSpec]:
    return [tool.spec for tool in tools]


def _why_not(tool_id: str, answers: Mapping[str, bool | str]) -> str:
    """Why a tool that is asked after cannot be called."""
    if not answers:
        return f"there is no tool {tool_id!r}"
    told = [said for said in answers.values() if isinstance(said, str)]
    return told[0] if told else "its circuit is open: it failed too often"
