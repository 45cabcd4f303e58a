"""The one door: every call of every tool goes through `ToolEngine.execute`.

Find, validate, admit, run under a time-out that kills, settle, record, announce. The engine gets a call and gives
a result; it never learns who asked, and it raises only for cancellation and misuse.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from ferrule.call import (
    CALLER_WORKFLOW_NODE,
    DEFAULT_TIMEOUT,
    CallMemory,
    DefaultTimeout,
    Invocation,
    Progress,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolExecutor,
    ValidationResult,
)
from ferrule.concurrency import ConcurrencyConfig, Place, ToolConcurrencyController
from ferrule.content import Output, copy_json, encode_json
from ferrule.engine.asking import asking
from ferrule.engine.cache import ResultCache
from ferrule.engine.call_log import CallLog
from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.deadline import Deadline, Deadlines
from ferrule.engine.failures import failure_of
from ferrule.engine.output_limit import cut_error, cut_output, surely_short
from ferrule.engine.preparation import Preparation
from ferrule.engine.running import Prepared, RunningCall
from ferrule.engine.standard_executors import Executors
from ferrule.engine.tool_files import ToolFiles
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    ExecutorNotFound,
    InvalidArguments,
    KnownFailure,
    LoadError,
    PermissionDenied,
    Rejected,
    SetupError,
    Stopped,
    TimedOut,
    ToolNotFound,
    text_of,
)
from ferrule.events import EventBus, EventCallback, EventFilter, ToolEngineEventType
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.names import did_you_mean
from ferrule.registry import ToolRegistry
from ferrule.sources import LoadReport, tools_in
from ferrule.spec import Tool
from ferrule.store import CallStatistics, ToolCallRecord, ToolCallSummary, ToolKnowledgeStore
from ferrule.tags import with_tags

logger = logging.getLogger("ferrule.engine")

STOPPING = 5.0
"""Seconds a stopped tool has to end when the engine is closed."""


class ToolEngine:
    """Runs calls of tools: validated, limited, timed out, recorded, announced."""

    def __init__(
        self,
        config: ToolEngineConfig | None = None,
        *,
        registry: ToolRegistry | None = None,
        concurrency: ToolConcurrencyController | ConcurrencyConfig | None = None,
        store: ToolKnowledgeStore | str | None = None,
        address_guard: AddressGuard | None = None,
        on_elicit: OnElicit | None = None,
    ) -> None:
        """`on_elicit` asks the user what an MCP server wants to know; without it nobody can be asked."""
        self.config = config or ToolEngineConfig()
        self.registry = registry if registry is not None else ToolRegistry()
        self.concurrency = (
            concurrency
            if isinstance(concurrency, ToolConcurrencyController)
            else ToolConcurrencyController(concurrency or ConcurrencyConfig())
        )
        self.store = store if isinstance(store, ToolKnowledgeStore) else ToolKnowledgeStore(store)
        self.events = EventBus()
        self.cache = ResultCache()
        self._running: dict[str, RunningCall] = {}
        self.on_elicit = None if on_elicit is None else asking(on_elicit, self._running)
        """Asks the user, while the clocks of the tool's calls stand still; None where nobody can be asked."""
        self._mcp = McpExecutor(on_elicit=self.on_elicit)
        self._tag_table = self.config.tag_table
        self.address_guard = address_guard or AddressGuard()
        """Which addresses tools may reach."""
        self._executors = Executors(self.address_guard, self._mcp)
        self._preparation = Preparation(self.config, self.registry, self._executors)
        self._log = CallLog(self.store, self.events)
        self._deadlines: Deadlines | None = None
        self._files = ToolFiles(self.config, self.registry, self.events, self._mcp, self.address_guard)
        self._gone: list[Tool] = []
        """Tools that were taken out: calls of them may still run, so what they hold is closed with the engine."""
        self._closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it was started last; those in other threads have their calls made there."""

    # Life

    async def start(self) -> None:
        """Load the tools, open the store, watch the files. `async with` does it too."""
        self._closed = False
        self.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.store.start)  # which may have a database to wait for
        await self._files.start()

    async def aclose(self, grace: float = 5.0) -> None:
        """Take no more calls, give running ones some seconds, stop the rest, and close what was opened."""
        self._closed = True
        await _close(self._files)
        self.concurrency.refuse_waiting()
        await self._end_running(grace)
        for closable in (*self._executors.made(), *(tool.target for tool in (*self.registry, *self._gone))):
            await _close(closable)
        self._gone.clear()
        if self._deadlines is not None:
            self._deadlines.close()
            self._deadlines = None
        await self.events.aclose()
        await self.store.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # Tools

    def register(self, *things: Any) -> list[Tool]:
        """Make tools of functions, objects with methods, specs, other frameworks' tools or lists, and take them in."""
        tools = [with_tags(tool, self._tag_table) for thing in things for tool in tools_in(thing)]
        self.registry.add(*tools)
        for tool in tools if self.events.watched else ():
            self._files.announce(ToolEngineEventType.TOOL_ADDED, tool)
        return tools

    async def ping(self, tool: Tool) -> float | None:
        """Seconds an MCP server takes to answer, started if need be; None for tools that are no servers."""
        return await self._mcp.ping(tool) if tool.handler == "mcp" else None

    def unregister(self, tool_id: str) -> bool:
        """Take a tool out; calls of it that run go on. False when there was none."""
        gone = self.registry.remove(tool_id)
        self._gone += gone
        for tool in gone:
            self._files.announce(ToolEngineEventType.TOOL_REMOVED, tool)
        return bool(gone)

    def shown_params(self, tool_name: str, params: Any, action: str | None = None) -> dict[str, Any]:
        """The arguments of a call as they may be shown and recorded: without secrets."""
        given = dict(params) if isinstance(params, Mapping) else {"arguments": params}
        tools, secret_names = self.registry.snapshot(), frozenset[str]()
        if tools.knows(tool_name):
            with suppress(ToolNotFound):
                secret_names = tools.find(tool_name, action)[1].secret_names
        redaction = self.store.redaction
        if not secret_names and not redaction.suspects(encode_json(given).decode()):
            return given
        return redaction.clean_params(given, secret_names, redaction.secrets_of(given, secret_names))

    def check(self, tool: Tool, params: Mapping[str, Any], action: str | None = None) -> ValidationResult:
        """What is wrong with arguments, and what they would be called with; nothing is called."""
        return self._preparation.of(tool, action).check.check(params)

    def register_executor(self, name: str, executor: ToolExecutor) -> None:
        """Let tools whose handler has this name be run by an executor of yours."""
        self._executors[name] = executor
        self._preparation.forget()

    def circuit_state(self, tool: Tool) -> str:
        """`closed`: calls go through; `open`: the way to it is broken; `half_open`: one call may try."""
        return self._preparation.breaker(tool.source, tool.id).state

    async def reload(self) -> LoadReport:
        """Read changed files of tools now."""
        return await self._files.reload()

    async def discovered(self) -> None:
        """Wait until servers that are being asked for their tools have told them."""
        await self._files.servers.discovered()

    @property
    def load_errors(self) -> Sequence[LoadError]:
        """What could not be loaded when files were last read."""
        return self._files.errors

    # Watching and looking back

    def subscribe(self, callback: EventCallback, event_filter: EventFilter | None = None) -> Callable[[], None]:
        """Call `callback` with every event (or those a filter lets through); returns what ends it."""
        return self.events.subscribe(callback, event_filter)

    def unsubscribe(self, callback: EventCallback) -> bool:
        return self.events.unsubscribe(callback)

    async def query_call_records(self, **wanted: Any) -> list[ToolCallRecord]:
        """Records of calls, newest first; see `ToolKnowledgeStore.query_call_records`."""
        return await self.store.query_call_records(**wanted)

    async def get_call_summary(self, conversation_id: str) -> ToolCallSummary:
        return await self.store.get_call_summary(conversation_id)

    async def get_call_statistics(self, **wanted: Any) -> CallStatistics:
        return await self.store.get_call_statistics(**wanted)

    def get_artifact(self, artifact_id: str) -> bytes:
        """The whole of a result that was too long to be handed on."""
        return self.store.artifacts.get(artifact_id)

    # The story of one call

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
        context = self._context(context, timeout)
        return await self._perform(self._arrive(tool_name, action, params, context, on_progress))

    async def execute_candidate(
        self,
        tool: Tool,
        action: str | None = None,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
        *,
        timeout: float | None = None,
    ) -> ToolExecutionResult:
        """Call this very tool, where several have its name."""
        context = self._context(context, timeout)
        return await self._perform(self._arrive(tool.id, action, params, context, None), tool)

    async def _perform(self, call: RunningCall, tool: Tool | None = None) -> ToolExecutionResult:
        try:
            prepared = call.prepared = self._find(call, tool) or await self._find_on_servers(call, tool)
            self._validate(call, prepared)
            executor = self._find_executor(call, prepared)
            output = self._remembered(call, prepared)
            if output is None:
                try:
                    if not self._admit(call, prepared):
                        await self._wait_for_place(call, prepared)
                    output = await self._run(call, prepared, executor)
                finally:
                    if call.place is not None and not self._leave(call.place):
                        await self._return(call, call.place)
            result = self._succeed(call, prepared, output)
        except Exception as error:
            result = self._fail(call, failure_of(error))
        except BaseException:
            self._log.ended(call, self._fail(call, Stopped("The call was cancelled.")))
            raise
        if call.context.memory is not None:
            self._learn(call, call.context.memory, result)
        self._log.ended(call, result)
        if self.events.has_async_subscribers:
            await asyncio.sleep(0)  # let them see this call before its caller goes on
        return result

    def refuse(
        self,
        tool_name: str,
        params: Any,
        context: ToolExecutionContext,
        message: str,
        *,
        action: str | None = None,
    ) -> ToolExecutionResult:
        """Answer a call that somebody in front of the engine does not allow, with its record and events."""
        call = self._arrive(tool_name, action, params, context, None)
        with suppress(ToolNotFound):
            call.prepared = self._preparation.of(tool_name, action)
        result = self._fail(call, PermissionDenied(message))
        self._log.ended(call, result)
        return result

    async def execute_batch(
        self,
        calls: Iterable[tuple[str, Mapping[str, Any]] | Mapping[str, Any]],
        context: ToolExecutionContext | None = None,
        *,
        timeout: float | None = None,
    ) -> list[ToolExecutionResult]:
        """Many calls, as many at once as there are places; their results in the order of the calls.

        A call is `(tool_name, params)` or `{"tool_name": …, "params": …, "action": …}`.
        """
        wanted = [_call_of(call) for call in calls]
        context = self._context(context, timeout)
        results: list[ToolExecutionResult | None] = [None] * len(wanted)
        waiting = iter(range(len(wanted)))

        async def work() -> None:
            for index in waiting:
                name, params, action = wanted[index]
                results[index] = await self._perform(self._arrive(name, action, params, context, None))

        at_once = len(wanted) if context.caller_type == CALLER_WORKFLOW_NODE else self.concurrency.config.max_concurrent
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(wanted), at_once)):
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
        """Call a tool and see its progress as it comes; the result is the last item. Leaving early ends the call."""
        items: asyncio.Queue[Progress | None] = asyncio.Queue()
        task = asyncio.create_task(
            self.execute(tool_name, params, context, action=action, timeout=timeout, on_progress=items.put_nowait)
        )
        task.add_done_callback(lambda _: items.put_nowait(None))
        try:
            while (item := await items.get()) is not None:
                yield item
            yield task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})  # which, unlike awaiting it, tells its cancellation from our own

    # The steps of a call

    def _context(self, context: ToolExecutionContext | None, timeout: float | None) -> ToolExecutionContext:
        context = context or ToolExecutionContext()
        if timeout is not None:
            context = replace(context, timeout=timeout)
        if not context.timeout > 0:
            raise SetupError(f"A time-out must be more than 0 seconds, not {context.timeout!r}.")
        return context

    def _arrive(
        self,
        tool_name: str,
        action: str | None,
        params: Mapping[str, Any] | None,
        context: ToolExecutionContext,
        on_progress: Callable[[Progress], None] | None,
    ) -> RunningCall:
        outer = Invocation.current.get()
        parent = self._running.get(outer.call_id) if outer is not None else None
        if self._closed and parent is None:  # a tool that may still finish may still call others
            raise SetupError("This engine is closed. Start it again, or make another.")
        call = RunningCall(self.store.new_record_id(), tool_name, action, params, context, on_progress, parent)
        if context.tool_call_id is not None:
            call.note(tool_call_id=context.tool_call_id)
        self._log.arrived(call)
        return call

    def _find(self, call: RunningCall, tool: Tool | None) -> Prepared | None:
        """The tool and action that are wanted; None when a server may be just about to list them."""
        try:
            return self._preparation.of(tool or call.tool_name, call.action)
        except ToolNotFound:
            if not self._files.servers.is_discovering:
                raise
            return None

    async def _find_on_servers(self, call: RunningCall, tool: Tool | None) -> Prepared:
        await self._files.servers.discovered()
        return self._preparation.of(tool or call.tool_name, call.action)

    def _validate(self, call: RunningCall, prepared: Prepared) -> None:
        accepted = prepared.check.accept(call.params)
        if accepted is None:
            checked = prepared.check.check(call.params)
            if not checked.is_valid:
                problems = " ".join(str(error) for error in checked.errors)
                raise InvalidArguments(
                    f"The arguments of {call.tool_name!r} are not right: {problems}",
                    [error.to_dict() for error in checked.errors],
                )
            accepted = checked.validated_params
            if checked.ignored:
                call.note(ignored_params=list(checked.ignored))
        call.params = accepted

    def _find_executor(self, call: RunningCall, prepared: Prepared) -> ToolExecutor:
        if prepared.executor is not None:
            return prepared.executor
        name = prepared.tool.handler
        raise ExecutorNotFound(
            f"Tool {call.tool_name!r} is to be run by {name!r}, but no executor has that name."
            f"{did_you_mean(name, self._executors)} Register it with engine.register_executor({name!r}, …)."
        )

    def _remembered(self, call: RunningCall, prepared: Prepared) -> Output | None:
        memory = call.context.memory
        if memory is not None and (known := self._recall(call, prepared, memory)) is not None:
            call.note(recalled=True)
            return known
        if not prepared.effects.cacheable:
            return None
        call.cache_key = self.cache.key(prepared.tool, prepared.capability, call.params)
        output = self.cache.get(call.cache_key, prepared.tool) if call.cache_key is not None else None
        if output is not None:
            call.note(cached=True)
        return output

    def _recall(self, call: RunningCall, prepared: Prepared, memory: CallMemory) -> Output | None:
        call.asked = copy_json(call.params)
        try:
            return memory.recall(prepared.tool, prepared.capability, call.params)
        except KnownFailure:
            raise
        except Exception:  # a memory is anybody's code; no call must fail for it
            logger.exception("tool=<%s>, call=<%s> | the memory failed", call.tool_name, call.call_id)
            return None

    def _learn(self, call: RunningCall, memory: CallMemory, result: ToolExecutionResult) -> None:
        params = call.params if call.asked is None else call.asked
        if call.prepared is None or not isinstance(params, dict):
            return
        try:
            memory.learn(call.prepared.tool, call.prepared.capability, params, result)
        except Exception:
            logger.exception("tool=<%s>, call=<%s> | the memory failed", call.tool_name, call.call_id)

    def _admit(self, call: RunningCall, prepared: Prepared) -> bool:
        """Take a place; False when there is none and the call has to wait for one."""
        if call.depth > self.config.max_depth:
            raise Rejected(
                f"Tools call tools {call.depth} deep; {self.config.max_depth} is the most. Is there a circle?",
                reason="nesting",
            )
        prepared.breaker.check(call.tool_name)
        call.place = self.concurrency.try_acquire(prepared.bucket, caller_type=call.context.caller_type)
        if call.place is None:
            return False
        prepared.breaker.enter(call.tool_name)
        return True

    async def _wait_for_place(self, call: RunningCall, prepared: Prepared) -> None:
        since = time.perf_counter()
        with call.outer_clocks_stopped():
            try:
                call.place = await self.concurrency.acquire(
                    prepared.bucket, priority=call.context.priority, caller_type=call.context.caller_type
                )
            finally:
                call.wait_time = time.perf_counter() - since
        prepared.breaker.enter(call.tool_name)  # once more: others may have found it broken meanwhile

    def _leave(self, place: Place) -> bool:
        """Give the place back; False when that has to be waited for, because a tool called this tool."""
        if place.outer is not None:
            return False
        self.concurrency.release(place)
        return True

    async def _return(self, call: RunningCall, place: Place) -> None:
        """Give the place back to the call that made this one, which goes on when it has it."""
        with call.outer_clocks_stopped():
            await self.concurrency.leave(place)

    async def _run(self, call: RunningCall, prepared: Prepared, executor: ToolExecutor) -> Output:
        invocation = Invocation(
            call.call_id,
            prepared.tool,
            prepared.capability,
            call.params,
            call.context,
            partial(self._log.progressed, call),
            partial(self._call_nested, call),
        )
        self._running[call.call_id] = call
        deadline = call.deadline = Deadline(self._keeper(), self._seconds(call, prepared))
        token = Invocation.current.set(invocation)
        try:
            try:
                call.started = time.perf_counter()
                self._log.started(call)
                value = await self._attempt(call, prepared, executor, invocation)
            finally:
                call.ended = time.perf_counter()
                deadline.end()
                del self._running[call.call_id]
                Invocation.current.reset(token)
        except BaseException as error:
            cause = self._cause(call, prepared, deadline, error)
            if cause is error:
                raise
            raise cause from error
        if deadline.cancelled_by_others:
            raise asyncio.CancelledError
        if deadline.expired:
            raise self._stopped(call, prepared)
        return Output.of(value)

    async def _attempt(
        self, call: RunningCall, prepared: Prepared, executor: ToolExecutor, invocation: Invocation
    ) -> Any:
        """The tool's value, tried again where that is allowed and may help."""
        breaker, effects, policy = prepared.breaker, prepared.effects, self.config.retry
        unspoilt = copy_json(call.params) if effects.repeatable else call.params
        while True:
            call.attempts += 1
            try:
                value = await executor.execute(invocation)
                breaker.succeeded()
                return value
            except Exception as error:
                failure = failure_of(error)
                if failure.transport_fault:
                    breaker.faulted()
                else:
                    breaker.succeeded()
                delay = policy.delay(failure, call.attempts)
                if (
                    not policy.may_retry(failure, effects, call.context, call.attempts)
                    or breaker.state == "open"
                    or (call.deadline is not None and delay >= call.deadline.remaining())  # it would come too late
                ):
                    raise
                logger.info("tool=<%s>, attempt=<%d>, delay=<%.2f> | %s", call.tool_name, call.attempts, delay, failure)
                await asyncio.sleep(delay)
                invocation.params = copy_json(unspoilt)
            except BaseException:
                breaker.abandoned()
                raise

    def _cause(self, call: RunningCall, prepared: Prepared, deadline: Deadline, error: BaseException) -> BaseException:
        """What an exception out of a tool means, now that its deadline and its task can be looked at."""
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            return error
        if deadline.cancelled_by_others:  # whatever the tool made of it
            return error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
        if deadline.expired:
            return self._stopped(call, prepared)
        if isinstance(error, asyncio.CancelledError):
            return ExecutionFailed(f"Tool {call.tool_name!r} cancelled itself.")
        return failure_of(error)

    def _stopped(self, call: RunningCall, prepared: Prepared) -> CallError:
        if self._closed:
            return Stopped(f"Tool {call.tool_name!r} was stopped, because the engine was closed.")
        seconds = self._seconds(call, prepared)
        return TimedOut(
            f"Tool {call.tool_name!r} did not finish within {seconds:g} s and was stopped. "
            "Ask for less at once, or allow it more time.",
            timeout=seconds,
        )

    def _succeed(self, call: RunningCall, prepared: Prepared, output: Output) -> ToolExecutionResult:
        if call.cache_key is not None and call.attempts:
            self.cache.put(call.cache_key, prepared.tool, output, prepared.effects.cache_ttl)
        data, most = output.data, prepared.max_output
        if not surely_short(data, most):
            data = self._cut(call, data, most)
        return ToolExecutionResult(
            True,
            call.tool_name,
            data,
            None,
            None,
            [],
            call.took(),
            datetime.fromtimestamp(call.arrived_at, UTC),
            call.facts(),
            call.call_id,
            output.parts,
        )

    def _cut(self, call: RunningCall, data: dict[str, Any], most: int) -> dict[str, Any]:
        cut = cut_output(data, most, self.store, call.record.secrets if call.record is not None else ())
        if cut is None:
            return data
        call.note(artifact_id=cut.artifact_id, truncated=True, size=cut.size)
        return cut.shown

    def _fail(self, call: RunningCall, failure: CallError) -> ToolExecutionResult:
        if failure.__cause__ is not None:
            logger.debug("tool=<%s>, call=<%s> | failed", call.tool_name, call.call_id, exc_info=failure.__cause__)
        if failure.details:
            call.note(**failure.details)
            if call.prepared is not None and call.prepared.effects.repeatable and call.metadata is not None:
                call.metadata.pop("outcome", None)  # twice is as good as once: it does not matter
        if failure.transient:
            call.note(transient=True)
        return ToolExecutionResult(
            is_success=False,
            tool_name=call.tool_name,
            error=cut_error(text_of(failure) or type(failure).__name__),
            error_type=failure.error_type,
            validation_errors=list(failure.errors) if isinstance(failure, InvalidArguments) else [],
            execution_time=call.took(),
            executed_at=datetime.fromtimestamp(call.arrived_at, UTC),
            metadata=call.facts(),
            call_id=call.call_id,
        )

    # Small parts of the steps

    async def _call_nested(
        self, outer: RunningCall, tool_name: str, params: dict[str, Any], action: str | None
    ) -> ToolExecutionResult:
        """A call on behalf of a running one, in its name."""
        context = replace(outer.context, caller_id=outer.tool_name, caller_type="tool", timeout=DEFAULT_TIMEOUT)
        context.tool_call_id = None
        return await self.execute(tool_name, params, context, action=action)

    def _keeper(self) -> Deadlines:
        loop = asyncio.get_running_loop()
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop)
        return self._deadlines

    def _seconds(self, call: RunningCall, prepared: Prepared) -> float:
        """The shorter of what the caller asked for and what the tool may use."""
        asked = call.context.timeout
        if isinstance(asked, DefaultTimeout):
            return prepared.timeout or self.config.default_timeout
        return min(asked, prepared.timeout or math.inf)

    async def _end_running(self, grace: float) -> None:
        """Let running calls finish for a while, then stop them."""
        until = time.monotonic() + grace
        while self._running and time.monotonic() < until:
            await asyncio.sleep(0.005)
        for call in list(self._running.values()):
            if call.deadline is not None and call.deadline.is_of_this_loop():
                call.deadline.expire()
            else:  # its loop is gone, and with it the call
                self._running.pop(call.call_id, None)
        until = time.monotonic() + STOPPING
        while self._running and time.monotonic() < until:
            await asyncio.sleep(0.005)


async def _close(thing: Any) -> None:
    close = getattr(thing, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except Exception:
        logger.exception("thing=<%r> | could not be closed", thing)


def _call_of(call: tuple[str, Mapping[str, Any]] | Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str | None]:
    if isinstance(call, Mapping):
        if not call.get("tool_name"):
            raise SetupError(f"A call of a batch needs a tool_name: {{'tool_name': …, 'params': …}}, not {call!r}")
        return call["tool_name"], call.get("params") or {}, call.get("action")
    name, params = call
    return name, params, None
