"""The engine: its tools, its parts, and the queries of its calls. The steps of a call are in `pipeline`."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from ferrule.catalog.registry import ToolRegistry, find_action
from ferrule.catalog.tags import add_missing_tags
from ferrule.concurrency import ConcurrencyConfig, ToolConcurrencyController
from ferrule.concurrency.fleet import renew_in
from ferrule.core.aio import MAX_QUEUED_PROGRESS, ProgressQueue
from ferrule.core.call import (
    CALLER_WORKFLOW_NODE,
    DEFAULT_TIMEOUT,
    Progress,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolExecutor,
    ValidationResult,
)
from ferrule.core.content import as_text
from ferrule.core.elicitation import OnElicit
from ferrule.core.events import EventBus, EventCallback, EventFilter, ToolEngineEvent, ToolEngineEventType
from ferrule.core.names import ACTION_SEPARATOR
from ferrule.core.permission import LOCAL_USER, CallPolicy, Principal
from ferrule.core.prices import PriceList
from ferrule.core.spec import Tool, ToolCapability
from ferrule.engine.authorization import Authorizer
from ferrule.engine.call_state import ActionTable, RunningCall, keep_names, pause_calls_while_asking
from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.pipeline import CallPipeline
from ferrule.engine.plugins import Discovery, ToolPlugins
from ferrule.engine.resilience import ResultCache
from ferrule.errors import TOOL_NOT_FOUND, CallError, FerruleError, LoadError, SetupError, ToolNotFound
from ferrule.http.guard import AddressGuard
from ferrule.kinds.executors import Executors, find_code_problem
from ferrule.kinds.function.tools import collect_tools
from ferrule.kinds.loading import DirectorySource, ToolLoader, UntrustedYamlFolder, bundled_yaml_tools
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.servers import McpServers
from ferrule.kinds.openapi.source import OpenApiDocuments
from ferrule.kinds.skill.directory import SkillsDirectory
from ferrule.kinds.source import LoadReport, Source
from ferrule.policy.approvals import ApprovalRequest, Approvals
from ferrule.policy.budgets import Budget, CostControl
from ferrule.policy.policy import Permissions, Policy, check_policy
from ferrule.store import CallStatistics, ToolCallRecord, ToolCallSummary, ToolKnowledgeStore

logger = logging.getLogger("ferrule.engine")

LISTING_TIMEOUT = 5.0
"""How long a list of all tools waits for servers that are being started: one that is silent must not hold it up."""


class ToolEngine:
    """Runs calls of tools: validates, limits, times out and records them, and emits events."""

    def __init__(
        self,
        config: ToolEngineConfig | None = None,
        *,
        registry: ToolRegistry | None = None,
        concurrency: ToolConcurrencyController | ConcurrencyConfig | None = None,
        store: ToolKnowledgeStore | str | None = None,
        address_guard: AddressGuard | None = None,
        on_elicit: OnElicit | None = None,
        policy: CallPolicy | None = None,
        prices: PriceList | None = None,
        budgets: Sequence[Budget] = (),
    ) -> None:
        """`policy` decides about every call whose context has no policy.

        Without a `config`, no folder is read: `./tools` may belong to any user. A config that a program passes is the
        program's word, and its folders are read.

        `on_elicit` asks the user what an MCP server wants to know; without it, such questions are declined.
        """
        self.config = config or ToolEngineConfig()
        self._has_own_config = config is not None
        self.registry = registry if registry is not None else ToolRegistry()
        self.concurrency = (
            concurrency
            if isinstance(concurrency, ToolConcurrencyController)
            else ToolConcurrencyController(concurrency or ConcurrencyConfig())
        )
        self.store = store if isinstance(store, ToolKnowledgeStore) else ToolKnowledgeStore(store)
        check_policy(policy)
        self.policy: CallPolicy = Policy() if policy is None else policy
        self.approvals = Approvals(
            self.store, expiry=self.config.approval_expiry, on_change=lambda request: self._emit_approval_event(request)
        )
        """The requests for approvals, and people's decisions about them."""
        self.costs = CostControl(self.store, self.approvals, prices, budgets)
        """What calls and models cost, and the budgets that they are held to."""
        self._authorizer = Authorizer(self.policy, self.approvals, self.store)
        self.events = EventBus()
        self.cache = ResultCache()
        self.address_guard = address_guard or AddressGuard()
        """Which addresses tools may reach."""
        running: dict[str, RunningCall] = {}
        self.on_elicit = None if on_elicit is None else pause_calls_while_asking(on_elicit, running)
        """Asks the user; meanwhile the calls need no slots, and their timeouts are paused. None if nobody is there."""
        self._tag_table = self.config.tag_table
        self.mcp = McpExecutor(on_elicit=self.on_elicit, store=self.store)
        """The MCP servers, for interfaces that pass on what else these offer."""
        self._executors = Executors(self.address_guard, self.mcp)
        self._actions = ActionTable(self.config, self.registry, self._executors, self.costs)
        self._servers = McpServers(
            None if self.config.for_untrusted_folder else self.config.mcp_file,
            self.mcp,
            self.registry,
            self.store,
            lambda error: self._loader.add_error(error),
            lambda tool: self._loader.emit_tool_event(ToolEngineEventType.TOOL_UPDATED, tool),
            accepted=self.config.accepted_servers,
            tag_table=self._tag_table,
        )
        self._discovery = Discovery(self._servers)
        self._loader = self._make_loader()
        self._pipeline = CallPipeline(
            config=self.config,
            running=running,
            actions=self._actions,
            executors=self._executors,
            discovery=self._discovery,
            concurrency=self.concurrency,
            cache=self.cache,
            store=self.store,
            events=self.events,
            authorizer=self._authorizer,
            costs=self.costs,
        )
        self._removed: list[Tool] = []
        """Tools that were unregistered: calls of them may still run, so their targets are closed with the engine."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop it was last started in; other threads make their calls there."""

    def _make_loader(self) -> ToolLoader:
        config = self.config
        sources: tuple[Source, ...] = (
            *((DirectorySource(config.tools_directory),) if self._has_own_config else ()),
            OpenApiDocuments(config.openapi, self.address_guard),
            SkillsDirectory(*config.skills_directories),
            self._servers,
        )
        if config.for_untrusted_folder:
            sources = (UntrustedYamlFolder(config.tools_directory),)
        return ToolLoader(
            sources,
            self.registry,
            self.events,
            tag_table=self._tag_table,
            bundled=bundled_yaml_tools() if config.builtin_tools else None,
            watch=config.auto_reload or config.watch_for_changes,
            interval=config.reload_interval,
            instant=config.watch_for_changes,
            find_problem=partial(find_code_problem, executors=self._executors),
        )

    # Starting and closing

    async def start(self) -> None:
        """Load the tools, open the store, watch the files. `async with` does it too."""
        self._pipeline.is_closed = False
        self.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.store.start)  # it may have to wait for a database
        self.concurrency.join_fleet(renew_in(self.store))
        if not self._has_own_config and Path(self.config.tools_directory).is_dir():
            logger.warning("folder=<%s> | not read, because no config names it", Path(self.config.tools_directory))
        await self._loader.start()

    async def aclose(self, grace: float = 5.0) -> None:
        """Take no more calls, give running ones some seconds, stop the rest, and close what was opened."""
        self._pipeline.is_closed = True
        await _close_if_closable(self._loader)
        self.concurrency.reject_waiting()
        await self._pipeline.end_running(grace)
        await self.concurrency.leave_fleet()
        for closable in (*self._executors.instances(), *(tool.target for tool in (*self.registry, *self._removed))):
            await _close_if_closable(closable)
        self._removed.clear()
        await self.events.aclose()
        await self.store.aclose()

    @property
    def is_open(self) -> bool:
        """Return whether the engine was started and is not closed."""
        return self.loop is not None and not self._pipeline.is_closed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # Tools

    def register(self, *tools: Any) -> list[Tool]:
        """Make tools of functions, objects with methods, specs, other frameworks' tools or lists, and add them."""
        added = [add_missing_tags(tool, self._tag_table) for each in tools for tool in collect_tools(each)]
        self.registry.add(*added)
        for tool in added if self.events.has_subscribers else ():
            self._loader.emit_tool_event(ToolEngineEventType.TOOL_ADDED, tool)
        return added

    def unregister(self, tool_id: str) -> bool:
        """Remove a tool; its running calls continue. False when there was none."""
        removed = self.registry.remove(tool_id)
        self._removed += removed
        for tool in removed:
            self._loader.emit_tool_event(ToolEngineEventType.TOOL_REMOVED, tool)
        return bool(removed)

    def register_executor(self, name: str, executor: ToolExecutor) -> None:
        """Let tools whose handler has this name be run by an executor of yours."""
        self._executors[name] = executor
        self._actions.clear()

    async def reload(self) -> LoadReport:
        """Read changed files of tools now."""
        return await self._loader.reload()

    def use_plugins(self, plugins: ToolPlugins, tool_name: str | None = None) -> None:
        """Add the tools of installed packages: all, or first only `tool_name` and the others when they are needed."""
        self._discovery.plugins = plugins
        if tool_name is None:
            plugins.load_all()
        else:
            plugins.load(tool_name.partition(ACTION_SEPARATOR)[0])

    def load_plugins(self) -> None:
        """Load the plugins that are not loaded yet: for tools that may call all others."""
        if self._discovery.plugins is not None:
            self._discovery.plugins.load_all()

    @property
    def is_discovering(self) -> bool:
        """Return whether there may be more tools soon: MCP servers are being listed, or plugins are not loaded yet."""
        return self._discovery.is_pending

    def discover_servers(self) -> None:
        """Ask MCP servers that have not listed their actions yet for them, in the background, if the engine runs."""
        if self.is_open:
            self._servers.discover()

    def may_discover(self, tool_name: str) -> bool:
        """Return whether waiting for the discovery may bring this tool, or its actions."""
        return self._discovery.may_discover(tool_name)

    async def wait_for_discovery(self, tool_name: str | None = None) -> None:
        """Load all plugins, and wait until the MCP servers that are being listed (or the one named) have responded."""
        await self._discovery.wait(tool_name)

    def explain_missing_listing(self, tool_id: str) -> str | None:
        """Return why an MCP server has not listed its actions; None if it has."""
        return self._servers.explain_failure(tool_id)

    async def wait_for_listings(self, tool_id: str | None = None) -> None:
        """Wait until the server of this id, if it is being started, has listed its actions; else a while for all."""
        tool = None if tool_id is None else self.registry.get(tool_id)
        is_concerned = tool_id is None or (tool is not None and tool.spec.metadata.get("listed") is False)
        if is_concerned and self.is_open and self.is_discovering:
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTING_TIMEOUT if tool_id is None else None):
                    await self.wait_for_discovery(tool_id)
        await self.wait_for_pins(tool_id)

    async def wait_for_pins(self, tool_id: str | None = None) -> None:
        """Wait until it is known what the user has accepted of MCP servers: nothing else is passed on."""
        await self._servers.wait_for_pins(tool_id)

    async def discover_action(self, name: str) -> tuple[Tool, ToolCapability]:
        """Return the tool and action that a call of this name would use, once discovered. Raises ToolNotFound for other
        names.

        What has changed in an action of an MCP server since the user accepted it is known then.
        """
        await self.wait_for_discovery(name)
        tool, capability = self.registry.find(name)
        prepare = self._actions.get(tool, capability.name).prepare
        if prepare is not None and (prepared_tool := prepare(tool, capability)) is not None:
            tool = await prepared_tool
        return tool, find_action(tool, capability.name)

    @property
    def load_errors(self) -> Sequence[LoadError]:
        """Return what could not be loaded when files were last read."""
        plugins = self._discovery.plugins
        return (*self._loader.errors, *(plugins.errors if plugins is not None else ()))

    async def ping(self, tool: Tool) -> float | None:
        """Return the seconds that a tool's server takes to answer; None for a tool without a server."""
        ping = getattr(self._executors.get(tool.handler), "ping", None)
        return None if ping is None else await ping(tool)

    @property
    def abandoned_calls(self) -> list[str]:
        """Return the tools that did not stop when they were cancelled, once for each task that still runs."""
        return self._pipeline.abandoned_tasks.tool_names

    def circuit_state(self, tool: Tool) -> str:
        """Return `closed` (calls go through), `open` (the tool cannot be reached) or `half_open` (one call may try)."""
        return self._actions.breaker(tool.source, tool.id).state

    def share_circuits(self, on_open: Callable[[str, str], None]) -> Callable[[str, str, float], None]:
        """Tell other processes which tools cannot be reached, by source and id; returns the way to tell this one.

        That also takes how many seconds ago it was.
        """
        self._actions.on_circuit_open = on_open
        return lambda source, tool_id, age: self._actions.breaker(source, tool_id).open(age)

    # Calls

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
        """Call a tool. Whatever goes wrong with the call is in the result."""
        context = _context_with_timeout(context, timeout)
        result = await self._pipeline.run(self._pipeline.start_call(tool_name, action, params, context, on_progress))
        if result.error_type == TOOL_NOT_FOUND and self.loop is None:
            result.error = f"{result.error} The engine was not started: write `async with engine`."
        return result

    async def execute_candidate(
        self,
        tool: Tool,
        action: str | None = None,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ToolExecutionResult:
        """Call this very tool, where several have its name."""
        context = _context_with_timeout(context, timeout)
        call = self._pipeline.start_call(tool.spec.tool_id, action, params, context, on_progress)
        return await self._pipeline.run(call, tool)

    def reject(
        self,
        failure: CallError,
        tool_name: str,
        action: str | None,
        params: Any,
        context: ToolExecutionContext | None,
        candidates: Iterable[Tool],
    ) -> str:
        """Record and emit a call that none of the candidates can make, with the names of its arguments. Return its id.

        An argument is secret if one of the candidates declares that.
        """
        params, context = params if isinstance(params, dict) else {}, _context_with_timeout(context, None)
        declared = (action.secret_names for tool in candidates for action in tool.spec.capabilities)
        redaction = self.store.redaction
        text = redaction.redact_text(str(failure), redaction.find_secrets(params, frozenset().union(*declared)))
        call = self._pipeline.start_call(tool_name, action, keep_names(params), context)
        return self._pipeline.end_early(call, type(failure)(text)).call_id

    async def execute_batch(
        self,
        calls: Iterable[tuple[str, Mapping[str, Any]] | Mapping[str, Any]],
        context: ToolExecutionContext | None = None,
        *,
        timeout: float | None = None,
    ) -> list[ToolExecutionResult]:
        """Make many calls, as many concurrently as there are slots; return their results in the order of the calls.

        A call is `(tool_name, params)` or `{"tool_name": …, "params": …, "action": …}`.
        """
        batch = [_parse_batch_call(call) for call in calls]
        context = _context_with_timeout(context, timeout)
        results: list[ToolExecutionResult | None] = [None] * len(batch)
        waiting = iter(range(len(batch)))

        async def work() -> None:
            for index in waiting:
                name, params, action = batch[index]
                results[index] = await self._pipeline.run(self._pipeline.start_call(name, action, params, context))

        is_limited = context.caller_type != CALLER_WORKFLOW_NODE
        workers = self.concurrency.config.max_concurrent if is_limited else len(batch)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(batch), workers)):
                group.create_task(work())
        return [result for result in results if result is not None]

    async def stream(
        self,
        tool_name: str,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
        *,
        action: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Progress | ToolExecutionResult]:
        """Call a tool and get its progress as it comes; the result is the last item. Leaving early ends the call."""
        items = ProgressQueue[Progress | None](MAX_QUEUED_PROGRESS)
        report = partial(items.add, is_progress=True)
        task = asyncio.create_task(
            self.execute(tool_name, params, context, action=action, timeout=timeout, on_progress=report)
        )
        task.add_done_callback(lambda _: items.add(None))
        try:
            while (item := await items.get()) is not None:
                yield item
            yield task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})  # unlike `await task`, this does not confuse its cancellation with ours

    def cancel(self, call_id: str) -> bool:
        """Stop a running call: its caller gets the error `cancelled`. False when it does not run here."""
        return self._pipeline.cancel(call_id)

    def check(self, tool: Tool, params: Mapping[str, Any], action: str | None = None) -> ValidationResult:
        """Check arguments without calling the tool: what is wrong with them, and what the tool would get."""
        return self._actions.get(tool, action).check.check(params)

    async def is_approval_of(self, approval_id: str, tool: Tool) -> bool:
        """Return whether an approval is for this very tool; True for an approval that cannot be read."""
        try:
            return (await self.approvals.get(approval_id)).fingerprint == tool.fingerprint
        except FerruleError:  # the call reports why
            return True

    def permissions(self, principal: Principal = LOCAL_USER, policy: CallPolicy | None = None) -> Permissions:
        """Return what a principal may call, and so may see, under its own policy or else the engine's."""
        return self._authorizer.permissions(principal, policy)

    def redact_arguments(self, tool_name: str, params: Any, action: str | None = None) -> dict[str, Any]:
        """Return the arguments of a call that has no result yet, without secrets. A result has its own `arguments`."""
        tools, secret_names = self.registry.snapshot(), frozenset[str]()
        if isinstance(tool_name, str) and tools.may_contain(tool_name):
            with suppress(ToolNotFound):
                secret_names = tools.find(tool_name, action)[1].secret_names
        return self.store.redact_arguments(params, secret_names)

    # Events and records

    def subscribe(self, callback: EventCallback, event_filter: EventFilter | None = None) -> Callable[[], None]:
        """Call `callback` with every event (or those that pass the filter); returns a function that unsubscribes."""
        return self.events.subscribe(callback, event_filter)

    def unsubscribe(self, callback: EventCallback) -> bool:
        return self.events.unsubscribe(callback)

    def _emit_approval_event(self, request: ApprovalRequest) -> None:
        is_new = request.state == "pending"
        event_type = ToolEngineEventType.APPROVAL_REQUESTED if is_new else ToolEngineEventType.APPROVAL_DECIDED
        principal = Principal(name=request.principal, tenant=request.tenant)
        self.events.emit(ToolEngineEvent(event_type, request.tool_id, data={"request": request}, principal=principal))

    async def query_call_records(self, **filters: Any) -> list[ToolCallRecord]:
        """Return records of calls, newest first; see `ToolKnowledgeStore.query_call_records`."""
        return await self.store.query_call_records(**filters)

    async def get_call_summary(self, conversation_id: str) -> ToolCallSummary:
        return await self.store.get_call_summary(conversation_id)

    async def get_call_statistics(self, **filters: Any) -> CallStatistics:
        return await self.store.get_call_statistics(**filters)

    def get_artifact(self, artifact_id: str) -> bytes:
        """Return the whole of a result that was too long to be handed on."""
        return self.store.artifacts.get(artifact_id)


def _context_with_timeout(context: ToolExecutionContext | None, timeout: float | None) -> ToolExecutionContext:
    if context is None:
        context = ToolExecutionContext()
    elif not isinstance(context, ToolExecutionContext):
        raise SetupError(f"The context of a call must be a ToolExecutionContext, not {type(context).__name__}.")
    if timeout is not None:
        context = replace(context, timeout=timeout)
    seconds = context.timeout
    if seconds is DEFAULT_TIMEOUT:
        return context
    if not isinstance(seconds, (int, float)) or not (0 < seconds <= sys.float_info.max or seconds == math.inf):
        raise SetupError(
            f"A timeout must be more than 0 seconds, not {as_text(seconds)[:100]} ({type(seconds).__name__})."
        )
    return context


async def _close_if_closable(closable: Any) -> None:
    close = getattr(closable, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except Exception:
        logger.exception("object=<%r> | could not be closed", closable)


def _parse_batch_call(
    call: tuple[str, Mapping[str, Any]] | Mapping[str, Any],
) -> tuple[str, Mapping[str, Any], str | None]:
    if isinstance(call, Mapping):
        if not call.get("tool_name"):
            raise SetupError(
                f"A call of a batch needs a tool_name: {{'tool_name': …, 'params': …}}, not {as_text(call)[:200]}"
            )
        return call["tool_name"], call.get("params") or {}, call.get("action")
    try:
        name, params = call
    except (TypeError, ValueError):
        raise SetupError(
            f"A call of a batch is (tool_name, params) or a dictionary, not {as_text(call)[:200]}"
        ) from None
    return name, params, None
