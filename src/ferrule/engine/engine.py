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
from ferrule.content import Output, as_text, encode_json
from ferrule.engine.breaker import CircuitBreaker
from ferrule.engine.cache import ResultCache
from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.deadline import Deadline, Deadlines
from ferrule.engine.failures import failure_of
from ferrule.engine.output_limit import cut_text
from ferrule.engine.running import Prepared, RunningCall
from ferrule.engine.standard_executors import standard_executors
from ferrule.engine.tool_files import ToolFiles
from ferrule.errors import (
    CANCELLED,
    VALIDATION_ERROR,
    CallError,
    ExecutionFailed,
    ExecutorNotFound,
    InvalidArguments,
    LoadError,
    Rejected,
    SetupError,
    StoreError,
    TimedOut,
)
from ferrule.events import EventBus, EventCallback, EventFilter, ToolEngineEvent, ToolEngineEventType
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.names import did_you_mean
from ferrule.registry import ToolRegistry
from ferrule.sources import LoadReport, tool_of
from ferrule.spec import Tool
from ferrule.store import CallStatistics, ToolCallRecord, ToolCallSummary, ToolKnowledgeStore
from ferrule.validation import ToolParameterValidator

logger = logging.getLogger("ferrule.engine")


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
        self.validator = ToolParameterValidator(strict=self.config.strict_validation)
        self.cache = ResultCache()
        self._executors = standard_executors(address_guard or AddressGuard())
        self._prepared: dict[tuple[str, str | None], Prepared] = {}
        self._prepared_version = -1
        self._breakers: dict[tuple[str, str], CircuitBreaker] = {}
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

    async def aclose(self) -> None:
        """End what runs, let go of everything that was opened, and keep every record."""
        self._closed = True
        await self._files.aclose()
        self.concurrency.refuse_waiting()
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
        self._prepared.clear()

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
        call = self._arrive(tool_name, action, params, context, timeout, on_progress)
        try:
            self._find(call)
            self._validate(call)
            output = self._remembered(call)
            if output is None:
                await self._admit(call)
                try:
                    output = await self._run(call)
                finally:
                    await self._leave(call)
            result = self._succeed(call, output)
        except Exception as error:
            result = self._fail(call, failure_of(error))
        except BaseException:
            self._settle(call, self._failed_result(call, "The call was cancelled.", CANCELLED))
            raise
        self._settle(call, result)
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
        if self.events.watched:
            self._announce(call, ToolEngineEventType.BEFORE_TOOL_CALL, params=params, action=action, context=context)
        return call

    def _find(self, call: RunningCall) -> None:
        if self._prepared_version != self.registry.version:
            self._prepared_version = self.registry.version
            self._prepared.clear()
        prepared = self._prepared.get((call.tool_name, call.action))
        if prepared is None:
            prepared = self._prepare(call.tool_name, call.action)
            self._prepared[call.tool_name, call.action] = prepared
        call.prepared = prepared

    def _validate(self, call: RunningCall) -> None:
        prepared = _prepared(call)
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
        if prepared.executor is None:
            known = did_you_mean(prepared.tool.handler, self._executors)
            raise ExecutorNotFound(
                f"Tool {call.tool_name!r} is to be run by {prepared.tool.handler!r}, but no executor has that name."
                f"{known} Register it with engine.register_executor({prepared.tool.handler!r}, …)."
            )

    def _remembered(self, call: RunningCall) -> Output | None:
        prepared = _prepared(call)
        if not prepared.effects.cacheable:
            return None
        output = self.cache.get(self.cache.key(prepared.tool, prepared.capability, call.params))
        if output is not None:
            call.note(cached=True)
        return output

    async def _admit(self, call: RunningCall) -> None:
        prepared, context = _prepared(call), call.context
        if call.depth > self.config.max_depth:
            raise Rejected(
                f"Tools call tools {call.depth} deep; {self.config.max_depth} is the most. Is there a circle?",
                reason="nesting",
            )
        prepared.breaker.enter(call.tool_name)
        call.place = self.concurrency.try_acquire(prepared.bucket, caller_type=context.caller_type)
        if call.place is not None:
            return
        # Waiting is nobody's own work: neither this call's clock runs, nor that of the call it belongs to.
        outer = call.parent.deadline if call.parent is not None else None
        if outer is not None:
            outer.pause()
        since = time.perf_counter()
        try:
            call.place = await self.concurrency.acquire(
                prepared.bucket, priority=context.priority, caller_type=context.caller_type
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

    async def _run(self, call: RunningCall) -> Output:
        prepared = _prepared(call)
        invocation = call.invocation = Invocation(
            call_id=call.call_id,
            tool=prepared.tool,
            capability=prepared.capability,
            params=call.params,
            context=call.context,
            report=_Reporter(self, call),
            call_tool=_NestedCaller(self, call),
        )
        self._running[call.call_id] = call
        self._start(call)
        token = Invocation.current.set(invocation)
        deadline = call.deadline = Deadline(self._keeper(), self._seconds(call))
        try:
            value = await self._attempt(call, invocation)
        except BaseException as error:
            deadline.end()
            raise self._cause(call, error) from error
        finally:
            Invocation.current.reset(token)
            del self._running[call.call_id]
        deadline.end()
        if deadline.expired:
            raise self._timed_out(call)
        prepared.breaker.succeeded()
        return Output.of(value)

    async def _attempt(self, call: RunningCall, invocation: Invocation) -> Any:
        """The tool's value, tried again where that is allowed and may help."""
        prepared = _prepared(call)
        assert prepared.executor is not None
        while True:
            call.attempts += 1
            try:
                return await prepared.executor.execute(invocation)
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

    def _cause(self, call: RunningCall, error: BaseException) -> BaseException:
        """What an exception out of a tool means, now that its deadline and its task have been looked at."""
        breaker = _prepared(call).breaker
        deadline = call.deadline
        if isinstance(error, Exception):
            failure = failure_of(error)
            breaker.faulted() if failure.transport_fault else breaker.succeeded()
            return self._timed_out(call) if deadline is not None and deadline.expired else failure
        breaker.abandoned()
        if not isinstance(error, asyncio.CancelledError):
            return error
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return error
        if deadline is not None and deadline.expired:
            return self._timed_out(call)
        return ExecutionFailed(f"Tool {call.tool_name!r} cancelled itself.")

    def _timed_out(self, call: RunningCall) -> TimedOut:
        seconds = self._seconds(call)
        return TimedOut(
            f"Tool {call.tool_name!r} did not finish within {seconds:g} s and was stopped. "
            "Ask for less at once, or allow it more time.",
            timeout=seconds,
        )

    def _succeed(self, call: RunningCall, output: Output) -> ToolExecutionResult:
        prepared = _prepared(call)
        if prepared.effects.cacheable and call.attempts:
            key = self.cache.key(prepared.tool, prepared.capability, call.params)
            self.cache.put(key, output, prepared.effects.cache_ttl)
        return ToolExecutionResult(
            is_success=True,
            tool_name=call.tool_name,
            output=self._limited(call, output.data),
            execution_time=call.took(),
            executed_at=datetime.fromtimestamp(call.arrived_at, UTC),
            metadata=self._metadata(call),
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
        result = self._failed_result(call, str(failure) or type(failure).__name__, failure.error_type)
        if isinstance(failure, InvalidArguments):
            result.validation_errors = failure.errors
        return result

    def _failed_result(self, call: RunningCall, error: str, error_type: str) -> ToolExecutionResult:
        return ToolExecutionResult(
            is_success=False,
            tool_name=call.tool_name,
            error=error,
            error_type=error_type,
            execution_time=call.took(),
            executed_at=datetime.fromtimestamp(call.arrived_at, UTC),
            metadata=self._metadata(call),
            call_id=call.call_id,
        )

    def _start(self, call: RunningCall) -> None:
        """From here on the call has its record, whatever is killed."""
        call.started = time.perf_counter()
        call.record = self._record(call)
        self.store.record_started(call.record, secret_names=_prepared(call).secret_names)
        if self.events.watched:
            self._announce(call, ToolEngineEventType.EXECUTION_STARTED, params=call.params)

    def _settle(self, call: RunningCall, result: ToolExecutionResult) -> None:
        """Record and announce how the call ended, before its caller is told."""
        record = call.record if call.record is not None else self._record(call)
        if result.is_success:
            record.status = "success"
            record.result = result.output
        else:
            record.status = "cancelled" if result.error_type == CANCELLED else "failed"
            record.error, record.error_type = result.error, result.error_type
        record.execution_time = result.execution_time
        record.attempts = call.attempts
        record.metadata = result.metadata
        record.artifact_id = result.metadata.get("artifact_id")
        secret_names = call.prepared.secret_names if call.prepared is not None else frozenset[str]()
        self.store.record_finished(record, secret_names=secret_names)
        if self.events.watched:
            self._announce_end(call, result)

    def _record(self, call: RunningCall) -> ToolCallRecord:
        prepared, context = call.prepared, call.context
        return ToolCallRecord(
            record_id=call.call_id,
            tool_name=prepared.tool.spec.tool_id if prepared is not None else call.tool_name,
            action=prepared.capability.name if prepared is not None else call.action,
            params=call.params if isinstance(call.params, dict) else {"arguments": call.params},
            caller_id=context.caller_id,
            caller_type=context.caller_type,
            conversation_id=context.conversation_id,
            workflow_id=context.workflow_id,
            started_at=call.arrived_at,
            wait_time=call.wait_time,
            parent_id=call.parent.call_id if call.parent is not None else None,
            fingerprint=prepared.tool.spec.fingerprint if prepared is not None else None,
            source=prepared.tool.source if prepared is not None else None,
        )

    # Small parts of the steps

    def _prepare(self, tool_name: str, action: str | None) -> Prepared:
        tool, capability = self.registry.find(tool_name, action)
        limits = tool.spec.limits_of(capability)
        breaker = self._breakers.setdefault((tool.source, tool.id), CircuitBreaker(self.config.breaker))
        return Prepared(
            tool=tool,
            capability=capability,
            check=self.validator.check_of(capability),
            executor=self._executors.get(tool.handler),
            breaker=breaker,
            effects=tool.spec.effects_of(capability),
            bucket=tool.spec.bucket_of(capability),
            timeout=limits.timeout,
            max_output=limits.max_output or self.config.max_output,
            secret_names=capability.secret_names,
        )

    def _keeper(self) -> Deadlines:
        loop = asyncio.get_running_loop()
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop)
        return self._deadlines

    def _seconds(self, call: RunningCall) -> float:
        """The shorter of what the caller asked for and what the tool may use."""
        asked, own = call.context.timeout, _prepared(call).timeout
        if isinstance(asked, DefaultTimeout):
            return own or self.config.default_timeout
        return min(asked, own or math.inf)

    def _limited(self, call: RunningCall, data: dict[str, Any]) -> dict[str, Any]:
        """The result as handed on: cut, with the whole of it kept as an artifact, when it is too long."""
        most = _prepared(call).max_output
        if _surely_short(data, most):
            return data
        whole = encode_json(data)
        if len(whole) <= most:
            return data
        text = as_text(data["result"]) if set(data) == {"result"} else whole.decode()
        artifact_id = self._keep(whole)
        call.note(artifact_id=artifact_id, truncated=True, size=len(whole))
        kept = f" and is kept as artifact {artifact_id}" if artifact_id else ""
        note = f"[Cut here: the whole result has {len(whole):,} bytes{kept}. Ask for a smaller part.]"
        return {"result": f"{cut_text(text, most)}\n{note}", "truncated": True, "artifact_id": artifact_id}

    def _keep(self, whole: bytes) -> str | None:
        try:
            return self.store.artifacts.put(whole, "application/json").artifact_id
        except (OSError, StoreError) as error:  # a full disk must not cost the caller what is there
            logger.error("size=<%d> | a long result could not be kept whole: %s", len(whole), error)
            return None

    def _metadata(self, call: RunningCall) -> dict[str, Any]:
        if call.attempts > 1:
            call.note(attempts=call.attempts)
        return call.metadata if call.metadata is not None else {}

    # Announcing

    def _announce(self, call: RunningCall, event_type: ToolEngineEventType, **data: Any) -> None:
        self.events.emit(
            ToolEngineEvent(event_type=event_type, tool_name=call.tool_name, call_id=call.call_id, data=data)
        )

    def _announce_end(self, call: RunningCall, result: ToolExecutionResult) -> None:
        if result.is_success:
            ended = ToolEngineEventType.EXECUTION_COMPLETED
        elif result.error_type == VALIDATION_ERROR:
            ended = ToolEngineEventType.VALIDATION_ERROR
        else:
            ended = ToolEngineEventType.EXECUTION_FAILED
        for event_type in (ended, ToolEngineEventType.AFTER_TOOL_CALL):
            self.events.emit(
                ToolEngineEvent(
                    event_type=event_type,
                    tool_name=call.tool_name,
                    call_id=call.call_id,
                    error=result.error,
                    error_type=result.error_type,
                    data={"result": result},
                )
            )


class _Reporter:
    """Takes the progress of one call to whoever wants it."""

    __slots__ = ("_call", "_engine")

    def __init__(self, engine: ToolEngine, call: RunningCall) -> None:
        self._engine, self._call = engine, call

    def __call__(self, progress: Progress) -> None:
        if self._call.on_progress is not None:
            self._call.on_progress(progress)
        if self._engine.events.watched:
            self._engine._announce(self._call, ToolEngineEventType.EXECUTION_PROGRESS, progress=progress)


class _NestedCaller:
    """Makes calls on behalf of a running call, in its name."""

    __slots__ = ("_call", "_engine")

    def __init__(self, engine: ToolEngine, call: RunningCall) -> None:
        self._engine, self._call = engine, call

    async def __call__(self, tool_name: str, params: dict[str, Any], action: str | None) -> ToolExecutionResult:
        outer = self._call.context
        context = replace(outer, caller_id=self._call.tool_name, caller_type="tool", timeout=DEFAULT_TIMEOUT)
        return await self._engine.execute(tool_name, params, context, action=action)


async def _close(thing: Any) -> None:
    close = getattr(thing, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except Exception:
        logger.exception("thing=<%r> | could not be closed", thing)


def _prepared(call: RunningCall) -> Prepared:
    assert call.prepared is not None
    return call.prepared


def _call_of(call: tuple[str, Mapping[str, Any]] | Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str | None]:
    if isinstance(call, Mapping):
        if "tool_name" not in call:
            raise SetupError(f"A call of a batch needs a tool_name: {{'tool_name': …, 'params': …}}, not {call!r}")
        return call["tool_name"], call.get("params") or {}, call.get("action")
    name, params = call
    return name, params, None


_SHORT = frozenset({int, float, bool, type(None)})


def _surely_short(data: dict[str, Any], most: int) -> bool:
    """Whether a result is short at first sight, without writing it out."""
    if len(data) > 8:
        return False
    left = most // 6  # a character of JSON text has at most six bytes
    for key, value in data.items():
        if type(value) is str:
            left -= len(value) + len(key)
        elif type(value) in _SHORT:
            left -= 32 + len(key)
        else:
            return False
    return left > 0
