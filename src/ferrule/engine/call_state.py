"""The prepared actions, the state of running calls, and the records and events of calls."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from traceback import format_exception
from typing import Any

from ferrule.catalog.registry import RegistrySnapshot, ToolRegistry, find_action
from ferrule.catalog.validation import ParameterCheck, ToolParameterValidator
from ferrule.concurrency import Slot, suspend_slots
from ferrule.core.call import (
    Invocation,
    Progress,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolExecutor,
    ValidationResult,
)
from ferrule.core.content import Content, Output, Resource, Text, copy_json, safe_str
from ferrule.core.elicitation import Elicitation, OnElicit
from ferrule.core.events import EventBus, ToolEngineEvent, ToolEngineEventType
from ferrule.core.permission import LOCAL_USER, CallPolicy, Decision, Principal
from ferrule.core.spec import Effects, Limits, Tool, ToolCapability
from ferrule.engine.config import OnStoreFailure, ToolEngineConfig
from ferrule.engine.deadline import Deadline
from ferrule.engine.resilience import CacheKey, CircuitBreaker
from ferrule.errors import APPROVAL_REQUIRED, CANCELLED, VALIDATION_ERROR, InvalidArguments, Rejected, error_text
from ferrule.kinds.executors import Executors
from ferrule.policy.approvals import ApprovalRequest, CallBinding
from ferrule.policy.budgets import CostControl, Payer, Payment
from ferrule.store import ToolCallRecord, ToolKnowledgeStore

logger = logging.getLogger("ferrule.engine")

NOT_RECORDED = "[not recorded]"
MAX_RECORDED_NAMES = 100
"""Of the arguments of a call that is recorded without their values."""
MAX_RECORDED_NAME_LENGTH = 200


@dataclass(slots=True, kw_only=True)
class PreparedAction:
    """Everything about one action that does not change from call to call."""

    tool: Tool
    capability: ToolCapability
    record_fields: tuple[str, str, str, str]
    """What the record of a call says about the tool: its id, the action, the fingerprint of its spec, its source."""
    check: ParameterCheck
    executor: ToolExecutor | None
    """None when no executor is registered under the name that the tool gives."""
    prepare: Callable[[Tool, ToolCapability], Awaitable[Tool] | None] | None
    """See `ToolExecutor`, which also describes the next two."""
    validates_itself: bool
    unwrap: Callable[[Output], Output] | None
    breaker: CircuitBreaker
    effects: Effects
    limits: Limits
    bucket: str
    price: float
    """Of one call."""
    last_decision: tuple[Principal, CallPolicy, Decision] | None = None
    """What the policy last decided about calls of this action, where that does not depend on their arguments."""


class ActionTable:
    """Finds the tool and action that a caller names, and prepares each action once, until the registry changes."""

    def __init__(
        self, config: ToolEngineConfig, registry: ToolRegistry, executors: Executors, costs: CostControl
    ) -> None:
        self._config, self._registry, self._executors, self._costs = config, registry, executors, costs
        self._validator = ToolParameterValidator(strict=config.strict_validation)
        self._prepared: dict[tuple[str | Tool, str | None], PreparedAction] = {}
        self._version = -1
        self._breakers: dict[tuple[str, str], CircuitBreaker] = {}
        self.on_circuit_open: Callable[[str, str], None] = lambda source, tool_id: None
        """Called when a tool cannot be reached any more, with its source and id."""

    def get(self, tool: str | Tool, action: str | None) -> PreparedAction:
        """Return the action of a tool, or of the tool with a name. Raises ToolNotFound if it cannot be called."""
        if self._version != self._registry.version:
            self._version = self._registry.version
            self._prepared.clear()
        prepared = self._prepared.get((tool, action))
        if prepared is None:
            if isinstance(tool, str):
                entry = self._registry.find(tool, action)
            else:
                self._registry.snapshot().require_callable(tool)
                entry = tool, find_action(tool, action)
            prepared = self._prepared[tool, action] = self._prepare_action(*entry)
        return prepared

    def clear(self) -> None:
        self._prepared.clear()

    def snapshot(self) -> RegistrySnapshot:
        return self._registry.snapshot()

    def breaker(self, source: str, tool_id: str) -> CircuitBreaker:
        """Return the breaker that all versions of a tool share: they are reached by the same connection."""
        breaker = self._breakers.get((source, tool_id))
        if breaker is None:
            breaker = CircuitBreaker(self._config.breaker, on_open=lambda: self.on_circuit_open(source, tool_id))
            self._breakers[source, tool_id] = breaker
        return breaker

    def _prepare_action(self, tool: Tool, capability: ToolCapability) -> PreparedAction:
        limits = tool.spec.limits_of(capability)
        executor = self._executors.choose(tool.handler, limits)
        validates_itself = getattr(executor, "validates_itself", None)
        return PreparedAction(
            tool=tool,
            capability=capability,
            record_fields=(tool.spec.tool_id, capability.name, tool.spec.fingerprint, tool.source),
            check=self._validator.get_check(capability),
            executor=executor,
            prepare=getattr(executor, "prepare", None),
            validates_itself=validates_itself is not None and validates_itself(capability),
            unwrap=getattr(executor, "unwrap", None),
            breaker=self.breaker(tool.source, tool.id),
            effects=tool.spec.effects_of(capability),
            limits=limits,
            bucket=tool.spec.bucket_of(capability),
            price=self._costs.price_of(tool.spec, capability),
        )


class RunningCall:
    """The state of one call, from its arrival to its result."""

    # What most calls do not need is not set for each of them.
    argument_error: str | None = None
    memory_params: dict[str, Any] | None = None
    """A copy for the memory: tools may change theirs."""
    depth = 0
    started: float | None = None
    """On the clock of `time.perf_counter`; None until the tool runs."""
    ended: float | None = None
    cache_key: CacheKey | None = None
    wait_time = 0.0
    attempts = 0
    metadata: dict[str, Any] | None = None
    prepared: PreparedAction | None = None
    approval: tuple[ApprovalRequest, CallBinding] | None = None
    """The approval that the call uses up when it starts."""
    payment: Payment | None = None
    """What budgets have paid for the call in advance."""
    is_cancelled = False
    """Somebody else than its caller has cancelled it."""
    decision: Decision | None = None
    """What the policy said about the call."""
    slot: Slot | None = None
    deadline: Deadline | None = None
    record: ToolCallRecord | None = None

    def __init__(
        self,
        call_id: str,
        tool_name: str,
        action: str | None,
        params: Mapping[str, Any] | None,
        context: ToolExecutionContext,
        on_progress: Callable[[Progress], None] | None,
        parent: RunningCall | None,
    ) -> None:
        self.call_id = call_id
        self.tool_name, self.action = tool_name, action
        if not isinstance(tool_name, str):  # the call is recorded all the same
            self.argument_error = f"The name of the tool must be text, not {type(tool_name).__name__}."
            self.tool_name = safe_str(tool_name)
        if action is not None and not isinstance(action, str):
            self.argument_error = f"The name of the action must be text, not {type(action).__name__}."
            self.action = safe_str(action)
        self.params: Any = params
        """As the caller passed them; after validation, as the tool gets them."""
        self.context = context
        self.principal, self.policy = context.principal, context.policy
        """As they were when the call arrived: a tool gets the context, and may change it."""
        self.on_progress = on_progress
        self.parent = parent
        if parent is not None:
            self.depth = parent.depth + 1
        self.arrived_at = time.time()

    def add_metadata(self, **metadata: Any) -> None:
        if self.metadata is None:
            self.metadata = metadata
        else:
            self.metadata.update(metadata)

    def result_metadata(self) -> dict[str, Any]:
        if self.attempts > 1:
            self.add_metadata(attempts=self.attempts)
        if self.started is not None and self.prepared is not None and self.prepared.price:
            self.add_metadata(cost=self.prepared.price)
        return self.metadata if self.metadata is not None else {}

    def leaves_validation_to_tool(self, action: PreparedAction) -> bool:
        return self.context.leaves_validation_to_tool and action.validates_itself and type(self.params) is dict

    def accept_params(self, action: PreparedAction, checked: ValidationResult) -> dict[str, Any]:
        """Return the arguments that a check has accepted. Raises InvalidArguments with what is wrong."""
        if not checked.is_valid:
            problems = " ".join(str(error) for error in checked.errors)
            has_actions = len(action.tool.spec.capabilities) > 1  # an error names the action, not its server
            name = f"{action.tool.id}__{action.capability.name}" if has_actions else self.tool_name
            raise InvalidArguments(
                f"Invalid arguments for {name!r}: {problems}", [error.to_dict() for error in checked.errors]
            )
        if checked.ignored and not self.leaves_validation_to_tool(action):
            self.add_metadata(ignored_params=list(checked.ignored))
        return checked.validated_params

    def disable_caching(self) -> None:
        """Do not cache the results of this call and the calls that it is nested in: they are made from its result."""
        call: RunningCall | None = self
        while call is not None:
            call.cache_key = None
            call = call.parent

    @property
    def payer(self) -> Payer:
        return Payer(principal=self.principal, run_id=self.context.conversation_id or self.context.workflow_id or "")

    def elapsed(self) -> float:
        """Seconds the tool ran."""
        if self.started is None:
            return 0.0
        return (self.ended if self.ended is not None else time.perf_counter()) - self.started

    def pause_outer_deadlines(self) -> AbstractContextManager[None]:
        """Pause the timeouts of the calls that this call is nested in while it waits: waiting is not their work."""
        outer = () if self.parent is None else self.parent.iterate_with_parents()
        return _pause_deadlines([call.deadline for call in outer if call.deadline is not None])

    def iterate_with_parents(self) -> Iterator[RunningCall]:
        """Yield the call and the calls that it is nested in."""
        call: RunningCall | None = self
        while call is not None:
            yield call
            call = call.parent


@asynccontextmanager
async def pause_for_person(*calls: RunningCall) -> AsyncIterator[None]:
    """Wait for a person on behalf of calls: for an answer or an approval.

    Meanwhile their timeouts are paused, also of the calls that they are nested in, and other calls may use their
    slots. When the block is left, the call has its slot again; of several calls, one of them.
    """
    chain = dict.fromkeys(each for call in calls for each in call.iterate_with_parents())
    slots = [call.slot for call in chain if call.slot is not None]
    of_calls = [call.slot for call in calls if call.slot is not None]
    with _pause_deadlines([call.deadline for call in chain if call.deadline is not None]):
        async with suspend_slots(slots, of_calls=of_calls):
            yield


def pause_calls_while_asking(on_elicit: OnElicit, running: Mapping[str, RunningCall]) -> OnElicit:
    """Wrap the callback, so that the tool's calls are `pause_for_person` while a person answers.

    An older MCP server does not say which of its calls asks; unless there is only one, all of them wait.
    """

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        invocation = Invocation.current.get()
        call = None if invocation is None else running.get(invocation.call_id)
        calls = [c for c in running.values() if c.prepared is not None and c.prepared.tool.id == question.tool_id]
        async with pause_for_person(*(calls if call is None else (call,))), question.turn or nullcontext():
            return await on_elicit(question)

    return ask


@contextmanager
def _pause_deadlines(deadlines: Sequence[Deadline]) -> Iterator[None]:
    for deadline in deadlines:
        deadline.pause()
    try:
        yield
    finally:
        for deadline in deadlines:
            deadline.resume()


# Records and events


class CallLog:
    """Records calls and emits their events. Without a subscriber no event is created."""

    def __init__(
        self,
        store: ToolKnowledgeStore,
        events: EventBus,
        actions: ActionTable,
        on_store_failure: OnStoreFailure,
        costs: CostControl,
    ) -> None:
        self._store, self._events, self._actions = store, events, actions
        self._on_store_failure, self._costs = on_store_failure, costs

    def emit_before_call(self, call: RunningCall) -> None:
        if self._events.has_subscriber_for(ToolEngineEventType.BEFORE_TOOL_CALL):
            try:
                names = self._actions.get(call.tool_name, call.action).capability.secret_names
            except Exception:  # what is wrong with the name is reported by the next step
                params = _recordable_params(call)
            else:
                run_id, secrets = call.context.conversation_id, _secrets_of(call)
                params = self._store.redact_arguments(call.params, names, run_id, secrets)
            data = {"params": params, "action": call.action, "context": call.context}
            self._emit(ToolEngineEventType.BEFORE_TOOL_CALL, call, data)

    def record_start(self, call: RunningCall) -> None:
        """Record the start of a call, so that even `kill -9` does not lose it. Raises Rejected if it must have a record
        and the record cannot be stored.

        With an approval the call has its record already, from the transaction that used the approval.
        """
        if call.record is None:
            call.record = make_record(call)
            failure = self._store.record_started(call.record, secret_names=_secret_names(call))
            if failure is not None:
                self._refuse_without_record(call, failure)
        if self._events.has_subscriber_for(ToolEngineEventType.EXECUTION_STARTED):
            data = {"params": copy_json(call.record.params), "action": call.action}
            self._emit(ToolEngineEventType.EXECUTION_STARTED, call, data)

    def _refuse_without_record(self, call: RunningCall, failure: Exception) -> None:
        is_destructive = call.prepared is None or call.prepared.effects.destructive
        if self._on_store_failure == "refuse" or (self._on_store_failure == "refuse_destructive" and is_destructive):
            reason = getattr(failure, "strerror", None) or error_text(failure)  # the whole text names a path
            raise Rejected(
                f"{call.tool_name!r} was not called, because its record cannot be stored safely: {reason}. Free "
                "disk space and call it again, or set on_store_failure in [engine] of ferrule.toml to call tools "
                "without safe records.",
                reason="store",
            )

    def emit_progress(self, call: RunningCall, progress: Progress) -> None:
        if call.ended is not None:  # reported by a task that the tool did not end
            return
        if call.deadline is not None:
            call.deadline.restart()
        began = time.perf_counter()
        if call.on_progress is not None:
            try:
                call.on_progress(progress)
            except KeyboardInterrupt:
                raise
            except BaseException:
                logger.exception("tool=<%s> | the caller's progress callback failed", call.tool_name)
        if self._events.has_subscriber_for(ToolEngineEventType.EXECUTION_PROGRESS):
            if secrets := _secrets_of(call):
                redact = self._store.redaction.redact
                progress = replace(
                    progress, message=redact(progress.message, secrets), data=redact(progress.data, secrets)
                )
            self._emit(ToolEngineEventType.EXECUTION_PROGRESS, call, {"progress": progress, "action": call.action})
        if call.deadline is not None:
            call.deadline.exclude_callbacks(began)

    def record_end(self, call: RunningCall, result: ToolExecutionResult) -> None:
        """Record the end of a call, and give its result the recorded arguments."""
        record = call.record
        if record is None:  # it ended before it started, perhaps because of its arguments
            record = call.record = make_record(call)
        if result.is_success:
            record.status = "success"
            record.result = result.output
        else:
            record.status = "cancelled" if result.error_type in (CANCELLED, APPROVAL_REQUIRED) else "failed"
            record.error, record.error_type = result.error, result.error_type
        record.execution_time = result.execution_time
        if call.started is not None and call.prepared is not None and call.prepared.price:
            record.cost = call.prepared.price
            self._costs.record_call(call.payer, record.cost)
        record.attempts = call.attempts
        record.metadata = metadata = result.metadata
        if call.decision is not None and call.decision.rule:  # for audits; the caller need not know it
            record.metadata = {**metadata, "rule": call.decision.rule}
        if metadata:
            record.artifact_id = metadata.get("artifact_id")
        self._store.record_finished(record, secret_names=_secret_names(call))
        result.arguments = record.params

    def log_failure(self, call: RunningCall, error: BaseException) -> None:
        """Log what a tool raised, with its traceback: both may have secrets of the arguments in them."""
        if logger.isEnabledFor(logging.DEBUG):
            lines = self._store.redaction.redact_text("".join(format_exception(error)), _secrets_of(call))
            logger.debug("tool=<%s>, call=<%s> | failed\n%s", call.tool_name, call.call_id, lines)

    def log_retry(self, call: RunningCall, failure: Exception, delay: float) -> None:
        if logger.isEnabledFor(logging.INFO):
            text = self._store.redaction.redact_text(error_text(failure), _secrets_of(call))
            logger.info("tool=<%s>, attempt=<%d>, delay=<%.2f> | %s", call.tool_name, call.attempts, delay, text)

    def log_blocked_loop(self, call: RunningCall, seconds: float) -> None:
        logger.warning(
            "tool=<%s>, call=<%s>, seconds=<%.2f> | blocked the event loop: no other call went on, and no timeout was "
            "kept. Let the tool await what takes long, or write it as `def`, which runs in a worker process",
            call.tool_name,
            call.call_id,
            seconds,
        )

    def emit_end(self, call: RunningCall, result: ToolExecutionResult) -> None:
        if result.is_success:
            event_type = ToolEngineEventType.EXECUTION_COMPLETED
        elif result.error_type == VALIDATION_ERROR:
            event_type = ToolEngineEventType.VALIDATION_ERROR
        else:
            event_type = ToolEngineEventType.EXECUTION_FAILED
        wants_end = self._events.has_subscriber_for(ToolEngineEventType.AFTER_TOOL_CALL)
        if not wants_end and not self._events.has_subscriber_for(event_type):
            return
        record = call.record
        assert record is not None, "the end of a call is recorded before it is emitted"
        # Subscribers get what the record has, in a copy: if they change it, the caller's result stays as it is.
        output, error = (record.result, record.error) if record.redacted is None else record.redacted
        redact = partial(self._store.redaction.redact, secrets=record.secrets)
        copied = ToolExecutionResult(
            is_success=result.is_success,
            tool_name=result.tool_name,
            output=copy_json(output),
            error=error,
            error_type=result.error_type,
            validation_errors=copy_json(result.validation_errors) if result.validation_errors else [],
            execution_time=result.execution_time,
            executed_at=result.executed_at,
            metadata=copy_json(result.metadata) if result.metadata else {},
            call_id=result.call_id,
            content=tuple(_redact_part(part, redact) for part in result.content),
            arguments=copy_json(result.arguments),
        )
        if record.redacted is not None or record.secrets:
            copied.metadata, copied.validation_errors = redact(copied.metadata), redact(copied.validation_errors)
        params = copy_json(copied.arguments) if wants_end else {}
        if self._events.has_subscriber_for(event_type):
            self._emit(event_type, call, {"result": copied, "action": call.action}, copied)
        if wants_end:
            data = {"params": params, "action": call.action, "context": call.context, "result": copied}
            self._emit(ToolEngineEventType.AFTER_TOOL_CALL, call, data, copied)

    def _emit(
        self,
        event_type: ToolEngineEventType,
        call: RunningCall,
        data: dict[str, Any],
        result: ToolExecutionResult | None = None,
    ) -> None:
        error, error_type = (None, None) if result is None else (result.error, result.error_type)
        self._events.emit(  # by position, which takes half the time
            ToolEngineEvent(
                event_type, call.tool_name, call.call_id, error, error_type, data, time.time(), call.principal
            )
        )


def make_record(call: RunningCall) -> ToolCallRecord:
    """Make the record of a call, with what is known when the call starts."""
    prepared, context, parent = call.prepared, call.context, call.parent
    of_unknown_tool = (call.tool_name, call.action, None, None)
    tool_id, action, fingerprint, source = of_unknown_tool if prepared is None else prepared.record_fields
    record = ToolCallRecord(  # by position, which takes half the time
        call.call_id,
        tool_id,
        copy_json(call.params if prepared is not None and type(call.params) is dict else _recordable_params(call)),
        action,
        context.caller_id,
        context.caller_type,
        context.conversation_id,
        context.workflow_id,
        fingerprint,
        source,
        None if parent is None else parent.call_id,
        call.arrived_at,
    )
    record.wait_time = call.wait_time
    if parent is not None:
        record.secrets = _secrets_of(parent)
    if call.principal is not LOCAL_USER:
        record.principal, record.tenant = call.principal.label, call.principal.tenant or None
    if context.tool_call_id is not None:  # a run that continues after a crash finds the call by it
        record.metadata = {"tool_call_id": context.tool_call_id}
    return record


def _recordable_params(call: RunningCall) -> dict[str, Any]:
    """Return what to record of the arguments: of an unknown tool or of another type than a dictionary, not their
    values.
    """
    params = call.params
    if not isinstance(params, dict):
        return {} if params is None else {"arguments": NOT_RECORDED if call.prepared is None else params}
    if call.prepared is None:  # without a schema it is unknown which of them are secret
        return keep_names(params)
    return params


def keep_names(params: dict[Any, Any]) -> dict[str, Any]:
    """Return the first names of arguments without their values. There may be many names, and long ones."""
    names = itertools.islice(dict.keys(params), MAX_RECORDED_NAMES)
    return {safe_str(name)[:MAX_RECORDED_NAME_LENGTH]: NOT_RECORDED for name in names}


def _redact_part(part: Content, redact: Callable[[str], str]) -> Content:
    """Return a part of a result without the secrets in its texts."""
    if isinstance(part, Text):
        return replace(part, text=redact(part.text))
    if isinstance(part, Resource):
        return replace(part, uri=redact(part.uri), text=None if part.text is None else redact(part.text))
    return part


def _secrets_of(call: RunningCall) -> tuple[str, ...]:
    """Return the secrets that the records of a call, or of the call that made it, have found in arguments."""
    if call.record is not None:
        return call.record.secrets
    return _secrets_of(call.parent) if call.parent is not None else ()


def _secret_names(call: RunningCall) -> frozenset[str]:
    return call.prepared.capability.secret_names if call.prepared is not None else frozenset()
