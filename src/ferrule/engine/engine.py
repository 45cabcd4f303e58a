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
    DEFAULT_TIMEOUT,
    DefaultTimeout,
    Invocation,
    Progress,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolExecutor,
)
from ferrule.concurrency import ConcurrencyConfig, ToolConcurrencyController
from ferrule.content import Output
from ferrule.engine.cache import ResultCache
from ferrule.engine.call_log import CallLog
from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.deadline import Deadline, Deadlines
from ferrule.engine.failures import failure_of
from ferrule.engine.output_limit import cut_output
from ferrule.engine.preparation import Preparation
from ferrule.engine.running import Prepared, RunningCall
from ferrule.engine.standard_executors import standard_executors
from ferrule.engine.tool_files import ToolFiles
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    ExecutorNotFound,
    InvalidArguments,
    LoadError,
    Rejected,
    SetupError,
    Stopped,
    TimedOut,
)
from ferrule.events import EventBus, EventCallback, EventFilter, ToolEngineEventType
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.names import did_you_mean
from ferrule.registry import ToolRegistry
from ferrule.sources import LoadReport, tool_of
from ferrule.spec import Tool
from ferrule.store import CallStatistics, ToolCallRecord, ToolCallSummary, ToolKnowledgeStore

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
    ) -> None:
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
        self._executors = standard_executors(address_guard or AddressGuard())
        self._preparation = Preparation(self.config, self.registry, self._executors)
        self._log = CallLog(self.store, self.events)
        self._running: dict[str, RunningCall] = {}
        self._deadlines: Deadlines | None = None
        self._files = ToolFiles(self.config, self.registry, self.events)
        self._closed = False

    # Life

    async def start(self) -> None:
        """Load the tools, open the store, watch the files. `async with` does it too."""
        self._closed = False
        self.store.start()
        await self._files.start()

    async def aclose(self, grace: float = 5.0) -> None:
        """Take no more calls, give running ones some seconds, stop the rest, and close what was opened."""
        self._closed = True
        await self._files.aclose()
        self.concurrency.refuse_waiting()
        await self._end_running(grace)
        for closable in (*self._executors.values(), *(tool.target for tool in self.registry)):
            await _close(closable)
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
        """Make tools of functions, objects with methods or specs, and take them in."""
        tools = [thing if isinstance(thing, Tool) else tool_of(thing) for thing in things]
        self.registry.add(*tools)
        for tool in tools if self.events.watched else ():
            self._files.announce(ToolEngineEventType.TOOL_ADDED, tool)
        return tools

    def unregister(self, tool_id: str) -> bool:
        """Take a tool out; calls of it that run go on. False when there was none."""
        gone = self.registry.remove(tool_id)
        for tool in gone:
            self._files.announce(ToolEngineEventType.TOOL_REMOVED, tool)
        return bool(gone)

    def register_executor(self, name: str, executor: ToolExecutor) -> None:
        """Let tools whose handler has this name be run by an executor of yours."""
        self._executors[name] = executor
        self._preparation.forget()

    async def reload(self) -> LoadReport:
        """Read changed files of tools now."""
        return await self._files.reload()

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
        return await self._perform(self._arrive(tool_name, action, params, context, timeout, on_progress))

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
        return await self._perform(self._arrive(tool.id, action, params, context, timeout, None), tool)

    async def _perform(self, call: RunningCall, tool: Tool | None = None) -> ToolExecutionResult:
        try:
            prepared = call.prepared = self._preparation.of(tool or call.tool_name, call.action)
            self._validate(call, prepared)
            executor = self._find_executor(call, prepared)
            output = self._remembered(call, prepared)
            if output is None:
                await self._admit(call, prepared)
                try:
                    output = await self._run(call, prepared, executor)
                finally:
                    await self._leave(call)
            result = self._succeed(call, prepared, output)
        except Exception as error:
            result = self._fail(call, failure_of(error))
        except BaseException:
            self._log.ended(call, self._fail(call, Stopped("The call was cancelled.")))
            raise
        self._log.ended(call, result)
        if self.events.has_async_subscribers:
            await asyncio.sleep(0)  # let them see this call before its caller goes on
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
        results: list[ToolExecutionResult | None] = [None] * len(wanted)
        waiting = iter(range(len(wanted)))

        async def work() -> None:
            for index in waiting:
                name, params, action = wanted[index]
                results[index] = await self.execute(name, params, context, action=action, timeout=timeout)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(wanted), self.concurrency.config.max_concurrent)):
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
            with suppress(asyncio.CancelledError):
                await task

    # The steps of a call

    def _arrive(
        self,
        tool_name: str,
        action: str | None,
        params: Mapping[str, Any] | None,
        context: ToolExecutionContext | None,
        timeout: float | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> RunningCall:
        context = context or ToolExecutionContext()
        if timeout is not None:
            context = replace(context, timeout=timeout)
        if not context.timeout > 0:
            raise SetupError(f"A time-out must be more than 0 seconds, not {context.timeout!r}.")
        if self._closed:
            raise SetupError("This engine is closed. Start it again, or make another.")
        outer = Invocation.current.get()
        parent = self._running.get(outer.call_id) if outer is not None else None
        call = RunningCall(self.store.new_record_id(), tool_name, action, params, context, on_progress, parent)
        self._log.arrived(call)
        return call

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
        if not prepared.effects.cacheable:
            return None
        output = self.cache.get(self.cache.key(prepared.tool, prepared.capability, call.params))
        if output is not None:
            call.note(cached=True)
        return output

    async def _admit(self, call: RunningCall, prepared: Prepared) -> None:
        if call.depth > self.config.max_depth:
            raise Rejected(
                f"Tools call tools {call.depth} deep; {self.config.max_depth} is the most. Is there a circle?",
                reason="nesting",
            )
        prepared.breaker.enter(call.tool_name)
        call.place = self.concurrency.try_acquire(prepared.bucket, caller_type=call.context.caller_type)
        if call.place is None:
            await self._wait_for_place(call, prepared)

    async def _wait_for_place(self, call: RunningCall, prepared: Prepared) -> None:
        # Waiting is nobody's own work: neither this call's clock runs, nor that of the call it belongs to.
        outer = call.parent.deadline if call.parent is not None else None
        if outer is not None:
            outer.pause()
        since = time.perf_counter()
        try:
            call.place = await self.concurrency.acquire(
                prepared.bucket, priority=call.context.priority, caller_type=call.context.caller_type
            )
        except BaseException:
            prepared.breaker.abandoned()
            raise
        finally:
            call.wait_time = time.perf_counter() - since
            if outer is not None:
                outer.resume()

    async def _leave(self, call: RunningCall) -> None:
        place = call.place
        if place is None:
            return
        if place.outer is None:
            self.concurrency.release(place)
        else:  # a tool called this tool: it goes on when it has its own place back
            await self.concurrency.leave(place)

    async def _run(self, call: RunningCall, prepared: Prepared, executor: ToolExecutor) -> Output:
        invocation = Invocation(
            call_id=call.call_id,
            tool=prepared.tool,
            capability=prepared.capability,
            params=call.params,
            context=call.context,
            report=partial(self._log.progressed, call),
            call_tool=partial(self._call_nested, call),
        )
        self._running[call.call_id] = call
        call.started = time.perf_counter()
        self._log.started(call)
        token = Invocation.current.set(invocation)
        deadline = call.deadline = Deadline(self._keeper(), self._seconds(call, prepared))
        try:
            value = await self._attempt(call, prepared, executor, invocation)
        except BaseException as error:
            deadline.end()
            cause = self._cause(call, prepared, error)
            if cause is error:
                raise
            raise cause from error
        finally:
            Invocation.current.reset(token)
            del self._running[call.call_id]
        deadline.end()
        prepared.breaker.succeeded()
        if deadline.expired:
            raise self._stopped(call, prepared)
        return Output.of(value)

    async def _attempt(
        self, call: RunningCall, prepared: Prepared, executor: ToolExecutor, invocation: Invocation
    ) -> Any:
        """The tool's value, tried again where that is allowed and may help."""
        while True:
            call.attempts += 1
            try:
                return await executor.execute(invocation)
            except Exception as error:
                failure = failure_of(error)
                policy = self.config.retry
                if not policy.may_retry(failure, prepared.effects, call.context, call.attempts):
                    raise
                delay = policy.delay(failure, call.attempts)
                if call.deadline is not None and delay >= call.deadline.remaining():
                    raise  # the next attempt would come too late
                logger.info("tool=<%s>, attempt=<%d>, delay=<%.2f> | %s", call.tool_name, call.attempts, delay, failure)
                await asyncio.sleep(delay)

    def _cause(self, call: RunningCall, prepared: Prepared, error: BaseException) -> BaseException:
        """What an exception out of a tool means, now that its deadline and its task can be looked at."""
        expired = call.deadline is not None and call.deadline.expired
        if isinstance(error, Exception):
            failure = failure_of(error)
            if failure.transport_fault:
                prepared.breaker.faulted()
            else:
                prepared.breaker.succeeded()
            return self._stopped(call, prepared) if expired else failure
        prepared.breaker.abandoned()
        task = asyncio.current_task()
        if not isinstance(error, asyncio.CancelledError) or (task is not None and task.cancelling()):
            return error
        if expired:
            return self._stopped(call, prepared)
        return ExecutionFailed(f"Tool {call.tool_name!r} cancelled itself.")

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
        if prepared.effects.cacheable and call.attempts:
            key = self.cache.key(prepared.tool, prepared.capability, call.params)
            self.cache.put(key, output, prepared.effects.cache_ttl)
        data = output.data
        cut = cut_output(data, prepared.max_output, self.store)
        if cut is not None:
            data = cut.shown
            call.note(artifact_id=cut.artifact_id, truncated=True, size=cut.size)
        return ToolExecutionResult(
            is_success=True,
            tool_name=call.tool_name,
            output=data,
            execution_time=call.took(),
            executed_at=datetime.fromtimestamp(call.arrived_at, UTC),
            metadata=call.facts(),
            call_id=call.call_id,
            content=output.parts,
        )

    def _fail(self, call: RunningCall, failure: CallError) -> ToolExecutionResult:
        if failure.__cause__ is not None:
            logger.debug("tool=<%s>, call=<%s> | failed", call.tool_name, call.call_id, exc_info=failure.__cause__)
        if failure.details:
            call.note(**failure.details)
        if failure.transient:
            call.note(transient=True)
        return ToolExecutionResult(
            is_success=False,
            tool_name=call.tool_name,
            error=str(failure) or type(failure).__name__,
            error_type=failure.error_type,
            validation_errors=failure.errors if isinstance(failure, InvalidArguments) else [],
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
            if call.deadline is not None:
                call.deadline.expire()
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
        if "tool_name" not in call:
            raise SetupError(f"A call of a batch needs a tool_name: {{'tool_name': …, 'params': …}}, not {call!r}")
        return call["tool_name"], call.get("params") or {}, call.get("action")
    name, params = call
    return name, params, None
