"""The entry point for tools: register them, find them, describe them, call them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

from ferrule.catalog.descriptions import DescriptionEngine, make_usage_examples
from ferrule.catalog.model_schemas import NamedAction
from ferrule.catalog.search import RegistryIndex
from ferrule.catalog.search.index import CategoryIndex
from ferrule.concurrency import ConcurrencyConfig
from ferrule.core.call import Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import as_text, copy_json
from ferrule.core.elicitation import OnElicit
from ferrule.core.json_schema import properties_of, resolve_schema
from ferrule.core.model import Model
from ferrule.core.permission import LOCAL_USER, CallPolicy, Principal
from ferrule.core.prices import PriceList
from ferrule.core.spec import FunctionToolSpec, MCPServerSpec, Tool, ToolCapability, ToolSpec, ToolType
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.engine.plugins import PluginContext, ToolPlugins
from ferrule.errors import CallError, SetupError
from ferrule.http.guard import AddressGuard
from ferrule.hub import HubConfig, Synthesizer, ToolHub
from ferrule.kinds.function.tools import make_tool_per_action, tool_of
from ferrule.kinds.openapi.tool import read_openapi
from ferrule.library.health import check_health
from ferrule.memory import ExecutionContext, RunMemory
from ferrule.memory.adjustments import suggest_adjustments
from ferrule.memory.advice import FailureAdvisor, alternative_tools
from ferrule.memory.call_identity import LOCATORS
from ferrule.memory.failure_history import FailureHistory
from ferrule.policy.budgets import Budget
from ferrule.policy.policy import Permissions
from ferrule.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.library")

CONVERSATION_TOOLS = ("ask_user", "finish_task", "get_conversation_history")
"""Tools of a conversation: agents and orchestrators bring their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResult:
    """Whether a tool was registered, and if not, why."""

    success: bool
    tool_id: str
    error: str | None = None


_SELECT: Final = ToolCapability("select", "Find an element.", {"selector": {"type": "string", "required": True}})


class FailureAnalytics:
    """The failures of tools in all runs, as the design documents read and write them."""

    def __init__(self, library: UnifiedToolLibrary) -> None:
        self._library = library

    async def get_tool_failure_patterns(
        self, tool_id: str, context: ExecutionContext | None = None
    ) -> dict[str, list[Any]]:
        """Return how a tool has failed in all runs, most important first: how often, and what helped, in general words.

        The values that failed, and the error texts, come from the run with this context.
        """
        history = self._library.failures
        await history.load()
        patterns = history.patterns(tool_id)
        memory = None if context is None else context.memory
        of_run = [failure for failure in (memory.failures if memory is not None else ()) if failure.tool_id == tool_id]
        return {
            "patterns": [{**asdict(pattern), "what_helped": pattern.what_helped} for pattern in patterns],
            "failed_actions": sorted({pattern.action for pattern in patterns}),
            "failed_selectors": sorted(
                {str(f.parameters[name]) for f in of_run for name in LOCATORS if name in f.parameters}
            ),
            "error_patterns": list(dict.fromkeys(failure.error for failure in of_run)),
        }

    async def record_failure_pattern(self, failure_record: Mapping[str, Any]) -> None:
        """Add a failed call: `tool_id`, `action`, `parameters`, `error_message` and `error_type`."""
        error = failure_record.get("error_message") or failure_record.get("error")
        memory = await self._library.create_run_memory(ExecutionContext(task_description=""))
        self._library.add_failure(memory, {**failure_record, "error": error})


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
        address_guard: AddressGuard | None = None,
        policy: CallPolicy | None = None,
        prices: PriceList | None = None,
        budgets: Sequence[Budget] = (),
        tenant: str = "",
        hub: HubConfig | None = None,
        model: Model | Synthesizer | None = None,
        language: str = "en",
    ) -> None:
        """`policy` decides about every call whose caller has no policy. `tenant` is whose failures the runs
        of this library learn from; an agent may have its own. `model` combines the answers where several tools do one
        job; an agent uses its own. `hub` configures that. `address_guard` says which addresses tools may reach.
        Tools are described in the `language`: `en` or `zh`.
        """
        if engine is not None and (policy or prices or budgets or address_guard):
            raise SetupError(
                "Give policy, prices, budgets and address_guard to the engine: this library uses an engine that exists "
                "already."
            )
        self.engine = engine or ToolEngine(
            config,
            store=store,
            concurrency=concurrency,
            on_elicit=on_elicit,
            address_guard=address_guard,
            policy=policy,
            prices=prices,
            budgets=budgets,
        )
        self._plugins: ToolPlugins | None = None
        """Loaded by `initialize`; an engine that exists already brings its own."""
        self._bundled: set[str] = set()
        if engine is None and self.engine.config.builtin_tools:
            self._plugins = ToolPlugins(PluginContext(engine=self.engine), excluded=CONVERSATION_TOOLS)
        self.hub = ToolHub(self.engine, model=model, config=hub)
        self.index = RegistryIndex(self.engine.registry, self.engine.store.vectors)
        self.descriptions = DescriptionEngine(self.engine.registry, self.index, language=language)
        self.tenant = tenant
        self._failures: dict[str, FailureHistory] = {}
        self._categories: CategoryIndex | None = None

    @classmethod
    def open(cls, path: str | PathLike[str] = ".", *, on_elicit: OnElicit | None = None) -> UnifiedToolLibrary:
        """Open the tools of a project: of its folder, which must be trusted (`ferrule trust`) if it has anything to
        run, or of the `ferrule.toml` that is named here.
        """
        from ferrule.folder_trust import read_trusted_project  # it loads pydantic, which other programs do not need

        config = read_trusted_project(Path(path))
        return cls(engine=config.engine(on_elicit=on_elicit), hub=config.hub)

    async def initialize(self) -> None:
        """Load the tools, bundled ones included, and open the store. `async with` does it too."""
        if self._plugins is not None:
            self.engine.use_plugins(self._plugins)
            self._bundled = {entry.name for entry in self._plugins.entries}
            self._replace_bundled(list(self.engine.registry))
        await self.engine.start()

    async def aclose(self) -> None:
        await self.index.aclose()
        await self.engine.aclose()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def require_open(self) -> None:
        """Raise SetupError if the library is not open: its files, bundled tools and store are not loaded then."""
        if not self.engine.is_open:
            state = "not open" if self.engine.loop is None else "closed"
            raise SetupError(
                f"This library is {state}. Use it inside `async with UnifiedToolLibrary(…) as library:`, "
                "or call `await library.initialize()` first and `await library.aclose()` at the end."
            )

    def with_tenant(self, principal: Principal) -> Principal:
        """Return the principal with the tenant of this library, unless it has its own."""
        return principal if principal.tenant else replace(principal, tenant=self.tenant)

    # Registering

    def register(self, *tools: Any, per_method: bool = False) -> list[ToolSpec]:
        """Register functions, objects with several methods, or specs; each becomes a tool.

        With `per_method` each method of an object becomes a separate tool; they work on the same object.
        """
        if per_method:
            tools = tuple(
                each for tool in tools for each in ([tool] if isinstance(tool, Tool) else make_tool_per_action(tool))
            )
        return [tool.spec for tool in self._register(*tools)]

    async def register_function_tool(self, tool_spec: FunctionToolSpec) -> RegistrationResult:
        """Register a class by its module path and name; it is imported when it is first called."""
        return self._register_spec(tool_spec)

    async def register_mcp_server(self, server_spec: MCPServerSpec) -> RegistrationResult:
        """Register a server by its endpoint or command; it is started when it is first called.

        A program that is not installed is an error of the registration. If the server's actions are not declared, the
        server is started in the background to list them. Calls, and methods that list or describe tools, wait for that.
        """
        result = self._register_spec(server_spec)
        self.engine.discover_servers()
        return result

    async def register_openapi(self, source: str, **options: Any) -> ToolSpec:
        """Register an API by its OpenAPI document (a path, a URL or its text): a tool with an action per operation.

        `ferrule.kinds.openapi.tool.read_openapi` takes the `options`. The `guard` is the library's.
        Raises SetupError for a document that cannot be read.
        """
        options.setdefault("guard", self.engine.address_guard)
        tool = await asyncio.to_thread(partial(read_openapi, source, **options))
        return self.engine.register(tool)[0].spec

    async def unregister_tool(self, tool_id: str) -> bool:
        """Remove a tool; False when there was none."""
        return self.engine.unregister(tool_id)

    def _register(self, *tools: Any) -> list[Tool]:
        added = self.engine.register(*tools)
        self._replace_bundled(added)
        return added

    def _replace_bundled(self, tools: Sequence[Tool]) -> None:
        """Let tools that the program registers take the place of bundled ones: their answers are not combined."""
        for tool in tools:
            if tool.id in self._bundled and tool.source != "builtin":
                self.engine.registry.remove(tool.id, "builtin")

    def _register_spec(self, spec: ToolSpec) -> RegistrationResult:
        try:
            self._register(tool_of(spec))
        except SetupError as error:
            return RegistrationResult(success=False, tool_id=spec.tool_id, error=str(error))
        return RegistrationResult(success=True, tool_id=spec.tool_id)

    # Finding: every method lists what its `principal` may call; by default this is the local user

    async def get_all_tools(self, *, principal: Principal = LOCAL_USER) -> list[ToolSpec]:
        """Return the tools that can be called."""
        await self.engine.wait_for_listings()
        return self._callable_specs(self.engine.registry, principal)

    async def get_tools_by_type(self, tool_type: ToolType, *, principal: Principal = LOCAL_USER) -> list[ToolSpec]:
        await self.engine.wait_for_listings()
        return self._callable_specs(self.engine.registry.by_type(tool_type), principal)

    async def get_tool_by_id(self, tool_id: str, *, principal: Principal = LOCAL_USER) -> ToolSpec | None:
        await self.engine.wait_for_listings(tool_id)
        permissions = self.engine.permissions(principal)
        tool = permissions.select_tool(self.engine.registry.snapshot(), tool_id)
        return None if tool is None else permissions.permitted_spec(tool)

    async def search_tools_by_tags(self, tags: list[str], *, principal: Principal = LOCAL_USER) -> list[ToolSpec]:
        """Return tools that have any of the tags, the ones with most of them first."""
        await self.engine.wait_for_pins()
        return self._permitted_specs(self.index.search_by_tags(tags), principal)

    async def search_tools_by_requirements(
        self, requirements: list[str], *, principal: Principal = LOCAL_USER
    ) -> list[ToolSpec]:
        """Return tools whose tags, words or actions meet any of the requirements, the ones that meet most first."""
        await self.engine.wait_for_pins()
        return self._permitted_specs(self.index.search_by_requirements(requirements), principal)

    async def search_tools(self, text: str, limit: int = 10, *, principal: Principal = LOCAL_USER) -> list[ToolSpec]:
        """Return tools that match the text, best first: by its words and, with the extra `semantic`, by its meaning."""
        await self.engine.wait_for_pins()
        permissions = self.engine.permissions(principal)
        await self.index.prepare(text)
        hits = self.index.search(text, limit, is_visible=permissions.may_find)
        return [permissions.permitted_spec(hit.tool) for hit in hits]

    async def get_unavailable_tools(self) -> dict[str, str]:
        """Return the tools that are enabled but cannot be called, and why: they are not set up, or depend on others."""
        now = self.engine.registry.snapshot()
        return {tool.id: now.why_unavailable(tool) or "" for tool in now.unavailable}

    # Categories

    async def enable_category_management(self) -> None:
        """Let tools be listed by category: for when there are many. Those that miss another tool are logged."""
        self._categories = CategoryIndex(self.engine.registry)
        now = self.engine.registry.snapshot()
        for tool in now.unavailable:
            if not tool.needs:
                logger.warning("tool=<%s> | unavailable: %s", tool.id, now.why_unavailable(tool))

    async def get_tools_by_category(
        self, category: str, subcategory: str | None = None, *, principal: Principal = LOCAL_USER
    ) -> list[ToolSpec]:
        """Return the tools of a category, the highest priority first."""
        return self._permitted_specs(self._require_categories().tools(category, subcategory), principal)

    async def get_category_tree(self, *, principal: Principal = LOCAL_USER) -> dict[str, dict[str, list[str]]]:
        """Return categories, their subcategories, and the ids of the tools in each, the highest priority first."""
        return self._require_categories().tree(self.engine.permissions(principal).may_use)

    def _require_categories(self) -> CategoryIndex:
        if self._categories is None:
            raise SetupError("Categories are not managed yet. Call await library.enable_category_management() first.")
        return self._categories

    # Describing: in the language of the library unless another one is given

    async def get_tool_description_for_agent(
        self, tool_id: str, *, principal: Principal = LOCAL_USER, language: str | None = None
    ) -> str:
        await self.engine.wait_for_listings(tool_id)
        return self.descriptions.describe(self._find_permitted_spec(tool_id, principal), language=language)

    async def get_all_tools_description_for_agent(
        self, *, principal: Principal = LOCAL_USER, language: str | None = None
    ) -> str:
        await self.engine.wait_for_listings()
        permissions = self.engine.permissions(principal)
        tools = permissions.select_tools(self.engine.registry.snapshot()).values()
        return self.descriptions.describe_all(map(permissions.permitted_spec, tools), language=language)

    async def get_tool_usage_examples(self, tool_id: str, *, principal: Principal = LOCAL_USER) -> list[dict[str, Any]]:
        """Return calls of the tool that would be valid, as `execute_tool` takes them."""
        await self.engine.wait_for_listings(tool_id)
        return make_usage_examples(self._find_permitted_spec(tool_id, principal))

    def schemas(self, *, principal: Principal = LOCAL_USER) -> list[dict[str, Any]]:
        """Return every action as a function schema for model APIs, in a fixed order."""
        return [copy_json(action.openai_schema) for action in self.select_actions(self.engine.permissions(principal))]

    def select_actions(self, permissions: Permissions) -> list[NamedAction]:
        """Return what can and may be called, by the names for models."""
        snapshot = self.engine.registry.snapshot()
        tools = permissions.select_tools(snapshot)
        named = self.descriptions.actions_by_name(tools.values())
        named = [each for each in named if not snapshot.is_hidden(each.spec.tool_id, each.capability.name)]
        return [each for each in named if permissions.may_call(tools[each.spec.tool_id], each.capability)]

    def _find_permitted_spec(self, tool_id: str, principal: Principal) -> ToolSpec:
        permissions = self.engine.permissions(principal)
        return permissions.permitted_spec(permissions.find_tool(self.engine.registry.snapshot(), tool_id))

    # Calling

    async def execute_tool(
        self,
        tool_id: str,
        action: str | Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        context: ToolExecutionContext | None = None,
    ) -> ToolExecutionResult:
        """Call an action of a tool: `("files", "read", {"path": "a"})`, or `("add", {"a": 1})` if it has only one.

        Where several tools have the name, the hub decides: they race, back each other up or are combined.
        """
        if action is not None:
            action, parameters = _split_action(tool_id, action, parameters)
        self.require_open()
        return await self.hub.execute(tool_id, parameters, context, action=action)

    async def execute(
        self,
        tool_name: str,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
        *,
        action: str | None = None,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ToolExecutionResult:
        """Do the same as `execute_tool`, in the form that hub and engine have too: the `Caller` protocol."""
        self.require_open()
        return await self.hub.execute(
            tool_name, params, context, action=action, timeout=timeout, on_progress=on_progress
        )

    async def execute_tool_with_context(
        self,
        tool_id: str,
        action: str | Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        execution_context: ExecutionContext | None = None,
    ) -> ToolExecutionResult:
        """Call an action as part of a run: a call that the run knows to fail is not repeated.

        Where the tool's spec allows it (`metadata={"auto_adjust": True}`), parameters known to fail are replaced by
        the best suggestion; elsewhere suggestions come with the failure.
        """
        action, parameters = _split_action(tool_id, action, parameters)
        if execution_context is None:
            return await self.execute_tool(tool_id, action, parameters)
        memory = await self._memory_of(execution_context)
        parameters = await self._adjust_parameters_based_on_context(
            tool_id, action, parameters or {}, execution_context
        )
        return await self.execute_tool(tool_id, action, parameters, context=ToolExecutionContext(memory=memory))

    async def get_alternative_tools(
        self,
        failed_tool_id: str,
        task_context: str,
        execution_context: ExecutionContext,
        *,
        principal: Principal = LOCAL_USER,
    ) -> list[ToolSpec]:
        """Return tools that could do what one could not, best first, without the tools that failed in the run."""
        failed = {str(attempt["tool_id"]) for attempt in execution_context.failed_attempts}
        spec = await self.get_tool_by_id(failed_tool_id, principal=principal)
        if spec is None or not spec.capabilities:
            tools = await self.search_tools(task_context, principal=principal)
            return [tool for tool in tools if tool.tool_id not in failed]
        last: Mapping[str, Any] = next(
            (a for a in reversed(execution_context.failed_attempts) if a["tool_id"] == failed_tool_id), {}
        )
        capability = spec.capability(last.get("action")) or spec.capabilities[0]
        alternatives = alternative_tools(
            spec,
            capability,
            last.get("parameters") or {},
            await self.get_all_tools(principal=principal),
            failed=failed,
            task=task_context,
        )
        return [alternative.spec for alternative in alternatives]

    async def suggest_parameter_adjustments(
        self,
        tool_id: str,
        action: str | None,
        failed_parameters: Mapping[str, Any],
        error_message: str,
        observations: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return other parameters for a call that failed; the same ones when there is nothing to suggest.

        `ferrule.memory.adjustments.suggest_adjustments` gives all suggestions, and why.
        """
        spec = await self.get_tool_by_id(tool_id)
        capability = spec.capability(action) if spec is not None else None
        if capability is None:
            return dict(failed_parameters)
        suggestions = suggest_adjustments(capability, failed_parameters, error_message, observations)
        return suggestions[0].parameters if suggestions else dict(failed_parameters)

    @property
    def analytics_service(self) -> FailureAnalytics:
        return FailureAnalytics(self)

    @property
    def failures(self) -> FailureHistory:
        """Return how tools failed in all runs of the library's tenant, and what helped."""
        return self.get_failure_history(self.tenant)

    def get_failure_history(self, tenant: str) -> FailureHistory:
        """Return how tools failed in all runs of a tenant, and what helped."""
        return self._failures.setdefault(tenant, FailureHistory(self.engine.store, tenant=tenant))

    async def get_tool_failure_patterns(
        self, tool_id: str, context: ExecutionContext | None = None
    ) -> dict[str, list[Any]]:
        """Return how a tool has failed in all runs, as `analytics_service` says it."""
        return await self.analytics_service.get_tool_failure_patterns(tool_id, context)

    async def create_run_memory(
        self, context: ExecutionContext, *, max_retries: int = 3, permissions: Permissions | None = None
    ) -> RunMemory:
        """Create a memory for a new run, which suggests alternatives and learns from earlier runs of the tenant.

        After `max_retries` failures of a tool it suggests others too. `permissions`: of the run, or the local user.
        """
        history = self.get_failure_history(self.tenant if permissions is None else permissions.principal.tenant)
        await history.load()
        permissions = permissions or self.engine.permissions()
        advisor = FailureAdvisor(context, self.engine.registry, history, permissions, max_retries=max_retries)
        return RunMemory(suggest=advisor, listener=history)

    async def _memory_of(self, context: ExecutionContext) -> RunMemory:
        """Return the memory that goes with a context. A new memory starts with what the caller put into the context."""
        if context.memory is None:
            context.memory = await self.create_run_memory(context)
            for attempt in context.failed_attempts:
                self.add_failure(context.memory, attempt)
            for tool_id, patterns in context.learned_patterns.items():  # each selector of these found nothing
                tool = self.engine.registry.get(tool_id)
                for capability in tool.spec.capabilities if tool is not None and isinstance(patterns, dict) else ():
                    properties = properties_of(resolve_schema(capability.schema, capability.schema))
                    locators = [name for name in LOCATORS if name in properties]
                    for name, value in product(locators, patterns.get("failed_selectors") or ()):
                        attempt = {"tool_id": tool_id, "action": capability.name, "parameters": {name: value}}
                        attempt["error"] = f"{name} {value!r} not found"
                        self.add_failure(context.memory, attempt, is_new=False)
        return context.memory

    def add_failure(self, memory: RunMemory, attempt: Mapping[str, Any], *, is_new: bool = True) -> None:
        """Let a memory know of a failed call, as `ExecutionContext.failed_attempts` describes it.

        One that is not new does not count as another failure in the history of all runs.
        """
        try:
            tool, capability = self.engine.registry.find(str(attempt["tool_id"]), attempt.get("action"))
        except CallError:
            return
        error, kind = str(attempt.get("error") or "failed"), attempt.get("error_type")
        failed = ToolExecutionResult(is_success=False, tool_name=tool.id, error=error, error_type=kind)
        record = memory.record_result if is_new else memory.restore_call
        record(tool, capability, dict(attempt.get("parameters") or {}), failed)

    async def _adjust_parameters_based_on_context(
        self, tool_id: str, action: str | None, parameters: Mapping[str, Any], context: ExecutionContext
    ) -> dict[str, Any]:
        """Return the parameters; where the spec allows it and they are known to fail, better ones."""
        unchanged = dict(parameters)
        try:
            tool, capability = self.engine.registry.find(tool_id, action)
        except CallError:
            return unchanged
        if context.memory is None or not tool.spec.metadata.get("auto_adjust"):
            return unchanged
        failure = context.memory.known_failure(tool, capability, unchanged)
        patterns = context.learned_patterns.get(tool.id, {})
        if failure is not None:
            error = failure.error
        elif "timeout" in unchanged and "timeout" in str(patterns.get("error_patterns", "")).casefold():
            error = "timeout"
        else:
            return unchanged
        avoid = patterns.get("failed_selectors", ())
        suggestions = suggest_adjustments(capability, unchanged, error, context.observation_texts, avoid=avoid)
        return suggestions[0].parameters if suggestions else unchanged

    # What the sample of 001 §5.5 calls: other selectors, and whether a tool fits a task.

    async def _suggest_alternative_selectors(self, selector: str, tool_spec: ToolSpec) -> dict[str, Any]:
        """Return a selector that may match where this one did not; the same one if nothing else is known."""
        return {"selector": await self._get_alternative_selector(selector, ()) or selector}

    async def _get_alternative_selector(self, selector: str, observations: Sequence[Any]) -> str | None:
        texts = [as_text(observation) for observation in observations]
        suggestions = suggest_adjustments(_SELECT, {"selector": selector}, f"selector {selector} not found", texts)
        return str(suggestions[0].parameters["selector"]) if suggestions else None

    async def _is_tool_suitable_for_context(self, tool: ToolSpec, task_context: str) -> bool:
        """Return whether the tool is among the tools that fit the task best."""
        return tool.tool_id in {spec.tool_id for spec in await self.search_tools(task_context)}

    async def batch_execute_tools(self, tool_calls: list[dict[str, Any]]) -> list[ToolExecutionResult]:
        """Make concurrent calls like `{"tool_id": …, "action": …, "parameters": …}`; return results in their order."""
        for call in tool_calls:
            if not call.get("tool_id") or call.keys() - {"tool_id", "action", "parameters"}:
                form = "{'tool_id': …, 'action': …, 'parameters': …}"
                raise SetupError(f"A call of a batch needs a tool_id, and takes no other keys than {form}: {call!r}")
        slots = asyncio.Semaphore(self.engine.concurrency.config.max_concurrent)

        async def execute(tool_id: str, action: str | None = None, parameters: Any = None) -> ToolExecutionResult:
            async with slots:
                return await self.execute_tool(tool_id, action, parameters)

        return list(await asyncio.gather(*(execute(**call) for call in tool_calls)))

    def _callable_specs(self, tools: Iterable[Tool], principal: Principal) -> list[ToolSpec]:
        now = self.engine.registry.snapshot()
        return self._permitted_specs((tool for tool in tools if now.is_callable(tool)), principal)

    def _permitted_specs(self, tools: Iterable[Tool], principal: Principal) -> list[ToolSpec]:
        permissions = self.engine.permissions(principal)
        return [permissions.permitted_spec(tool) for tool in tools if permissions.may_use(tool)]

    async def get_tool_health_status(self, tool_id: str) -> dict[str, Any]:
        """Return the health of a tool: whether it responds, its circuit, and the outcome of its latest calls."""
        return await check_health(self.engine, tool_id)


def _split_action(
    tool_id: str, action: str | Mapping[str, Any] | None, parameters: Mapping[str, Any] | None
) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return the action and the parameters, where the parameters may be in the place of the action."""
    if not isinstance(action, Mapping):
        return action, parameters
    if parameters is not None:
        raise SetupError(
            f"The call of {tool_id!r} has two sets of parameters. Write execute_tool({tool_id!r}, {{…}}), "
            f"or execute_tool({tool_id!r}, 'its action', {{…}})."
        )
    return None, action
