"""The one path of every call: `CallPipeline.run`. docs/architecture.md lists its steps.

A call that ends early is recorded and emitted too. Only cancellation and misuse raise; everything else that goes wrong
is in the result.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ferrule.concurrency import ToolConcurrencyController
from ferrule.core.call import (
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
from ferrule.core.content import Output, copy_json, is_larger_than
from ferrule.core.events import EventBus
from ferrule.core.names import did_you_mean
from ferrule.core.permission import Decision
from ferrule.core.spec import Tool
from ferrule.engine.authorization import Authorizer
from ferrule.engine.call_state import ActionTable, CallLog, PreparedAction, RunningCall, keep_names
from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.deadline import AbandonedTasks, Deadline, Deadlines, run_until_abandoned
from ferrule.engine.output_limit import cut_error, cut_output
from ferrule.engine.plugins import Discovery
from ferrule.engine.resilience import ResultCache, is_overload, to_call_error
from ferrule.errors import (
    CallCancelled,
    CallError,
    ExecutionFailed,
    ExecutorNotFound,
    InvalidArguments,
    KnownFailure,
    NeedsApproval,
    Rejected,
    SetupError,
    ToolNotFound,
    error_text,
)
from ferrule.kinds.executors import Executors
from ferrule.policy.budgets import CostControl, Payment
from ferrule.process.checks import check_arguments
from ferrule.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.engine")

SHUTDOWN_TIMEOUT = 5.0
"""Seconds a cancelled tool has to end when the engine is closed."""


@dataclass(kw_only=True, eq=False, repr=False)
class CallPipeline:
    """Runs calls. The engine creates the pipeline and owns its parts."""

    config: ToolEngineConfig
    running: dict[str, RunningCall]
    """The calls whose tool runs at the moment, by their ids."""
    actions: ActionTable
    executors: Executors
    discovery: Discovery
    concurrency: ToolConcurrencyController
    cache: ResultCache
    store: ToolKnowledgeStore
    events: EventBus
    authorizer: Authorizer
    costs: CostControl
    abandoned_tasks: AbandonedTasks = field(default_factory=AbandonedTasks, init=False)
    is_closed: bool = field(default=False, init=False)
    _deadlines: Deadlines | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._log = CallLog(self.store, self.events, self.actions, self.config.on_store_failure, self.costs)

    async def run(self, call: RunningCall, tool: Tool | None = None) -> ToolExecutionResult:
        """Run all steps of one call, of `tool` or of the tool that the call names."""
        origins = call.context.origins
        try:
            action = call.prepared = await self._find_action(call, tool)
            if action.prepare is not None and (tool_to_call := action.prepare(action.tool, action.capability)):
                action = call.prepared = self.actions.get(await tool_to_call, action.capability.name)
            # Before anything is said about the tool's parameters.
            decision = self.authorizer.check_policy(call, action)
            await self._validate(call, action)
            output = self._check_known_failure(call, action)
            is_undecided = decision.verdict != "allow" or decision.depends_on_arguments
            is_undecided = is_undecided or (origins is not None and origins.has_untrusted)
            if (is_undecided or call.context.approval_id is not None) and await self._authorize(call, action, decision):
                output = self._check_known_failure(call, action)  # the person has changed the arguments
            if output is None:
                output = self._find_cached(call, action)
            if output is not None and call.approval is not None:
                await self.authorizer.use_approval(call, action)
            if output is None:
                executor = self._require_executor(call, action)
                if action.price and self.costs.budgets:
                    await self._pay(call, action)
                try:
                    await self._acquire_slot(call, action)
                    try:
                        if call.approval is not None:
                            await self.authorizer.use_approval(call, action)
                        self._log.record_start(call)
                    except BaseException:
                        action.breaker.record_abandoned()  # the call has entered it and does not run
                        raise
                    output = await self._run_tool(call, action, executor)
                except NeedsApproval as signal:
                    output = await self._run_with_approval(call, action, executor, signal)
                finally:
                    if call.slot is not None and call.slot.outer is None:
                        self.concurrency.release(call.slot)
                    elif call.slot is not None:
                        with call.pause_outer_deadlines():  # it waits until the outer call has its slot again
                            await self.concurrency.release_and_wait(call.slot)
                    if call.payment is not None and call.started is None:
                        await self.costs.correct(call.payment, 0.0)
            result = self._normalize_result(call, action, output)
        except ToolNotFound as error:
            failure = self.authorizer.remove_hidden_tool_names(call, error, self.actions.snapshot())
            result = self._failed_result(call, failure)
        except Exception as error:
            result = self._failed_result(call, to_call_error(error))
        except BaseException:
            self.end_early(call, CallCancelled("The call was cancelled."))
            raise
        if call.context.memory is not None:
            # Before the record: the memory may add to the metadata.
            self._update_memory(call, call.context.memory, result)
        if origins is not None and call.prepared is not None and not call.principal.owns(call.prepared.tool):
            tool, was_run, is_of_model = call.prepared.tool, call.deadline is not None, call.parent is None
            origins.add_result(
                tool, call.prepared.capability, call.params, result, was_run=was_run, is_of_model=is_of_model
            )
        self._log.record_end(call, result)
        if self.events.has_subscribers:
            self._log.emit_end(call, result)
            if self.events.has_async_subscribers:
                await asyncio.sleep(0)  # let subscribers see this call before its caller continues
        return result

    def start_call(
        self,
        tool_name: str,
        action: str | None,
        params: Mapping[str, Any] | None,
        context: ToolExecutionContext,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> RunningCall:
        invocation = Invocation.current.get()
        parent = self.running.get(invocation.call_id) if invocation is not None else None
        if self.is_closed and parent is None:  # a tool that may still finish may still call others
            raise SetupError("This engine is closed. Start it again, or make another.")
        outer = parent
        if parent is None and invocation is not None:
            nested = invocation.call_tool
            if isinstance(nested, partial) and nested.func == self._call_nested:
                outer = nested.args[0]  # a task that a tool has left behind may do no more than the tool
        if outer is not None or context.is_approved:
            context = self.authorizer.context_of_nested_call(context, outer)
        call = RunningCall(self.store.new_record_id(), tool_name, action, params, context, on_progress, parent)
        if context.tool_call_id is not None:
            call.add_metadata(tool_call_id=context.tool_call_id)
        if type(params) is dict and is_larger_than(params, self.config.max_input):
            limit = f"{self.config.max_input:,}"
            call.argument_error = f"The arguments have more than {limit} bytes. Send less, or write it to a file."
            call.params = keep_names(params)  # for the record and events
        if self.events.has_subscribers:
            self._log.emit_before_call(call)
        return call

    def end_early(self, call: RunningCall, failure: CallError) -> ToolExecutionResult:
        """Record and emit a call that ends by this failure before it has a result. Return the failed result."""
        result = self._failed_result(call, failure)
        self._log.record_end(call, result)
        self._log.emit_end(call, result)
        return result

    def cancel(self, call_id: str) -> bool:
        """Stop a running call from outside; False when no such call runs."""
        call = self.running.get(call_id)
        if call is None or call.deadline is None or not call.deadline.is_of_this_loop():
            return False
        call.is_cancelled = True
        call.deadline.expire()
        return True

    async def end_running(self, grace: float) -> None:
        """Let running calls finish for some seconds, then stop them."""
        await self._wait_for_running(grace)
        for call in list(self.running.values()):
            if call.deadline is not None and call.deadline.is_of_this_loop():
                call.deadline.expire()
            else:  # its event loop was closed, and the call ended with the loop
                self.running.pop(call.call_id, None)
        await self._wait_for_running(SHUTDOWN_TIMEOUT)
        for call in list(self.running.values()):
            if call.deadline is not None:
                call.deadline.abandon()
        await self._wait_for_running(1.0)
        await self.abandoned_tasks.cancel()
        if self._deadlines is not None:
            self._deadlines.close()
            self._deadlines = None

    async def _wait_for_running(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds  # the clock of the deadlines of the calls
        while self.running and loop.time() < until:
            await asyncio.sleep(0.005)

    # The steps

    async def _find_action(self, call: RunningCall, tool: Tool | None) -> PreparedAction:
        """Return the tool and action that the caller names, after discovering them if necessary."""
        if call.argument_error is not None:
            raise InvalidArguments(call.argument_error)
        try:
            return self.actions.get(tool or call.tool_name, call.action)
        except ToolNotFound:
            if not self.discovery.may_discover(call.tool_name):
                raise
        await self.discovery.wait(call.tool_name)
        try:
            return self.actions.get(tool or call.tool_name, call.action)
        except ToolNotFound:
            reason = self.discovery.explain_failure(call.tool_name)
            if reason is None:
                raise
            raise ToolNotFound(f"{call.tool_name!r} cannot be called: {reason}") from None

    async def _validate(self, call: RunningCall, action: PreparedAction) -> None:
        if call.leaves_validation_to_tool(action):
            return
        is_quick = not action.check.takes_long(call.params)
        checked = action.check.check(call.params) if is_quick else await self._check_elsewhere(call, action)
        call.params = call.accept_params(action, checked)

    async def _check_elsewhere(self, call: RunningCall, action: PreparedAction) -> ValidationResult:
        """Check arguments for which that may take longer than the call, in a process that ends with the call."""
        deadline = self._start_deadline(call, action)
        try:
            try:
                result = await check_arguments(action.check, call.params, call.principal)
            finally:
                deadline.end()
                del self.running[call.call_id]
        except (RecursionError, ValueError):  # nested too deep, or not JSON
            result = action.check.check(call.params)
        except BaseException as error:
            cause = self._explain_exception(call, deadline, error)
            if cause is error:
                raise
            raise cause from error
        if deadline.is_expired or (self.is_closed and call.parent is None):
            raise self._make_stop_error(call, deadline)
        return result

    def _check_known_failure(self, call: RunningCall, action: PreparedAction) -> Output | None:
        """Return the result that the run's memory has, if any. Raises KnownFailure if the call is known to fail."""
        memory = call.context.memory
        if memory is None:
            return None
        call.memory_params = copy_json(call.params)
        try:
            output = memory.find_result(action.tool, action.capability, call.params)
        except (KnownFailure, KeyboardInterrupt):
            raise
        except BaseException:  # the memory may be the user's code, and must not make calls fail
            logger.exception("tool=<%s>, call=<%s> | the memory failed", call.tool_name, call.call_id)
            return None
        if output is not None:
            call.add_metadata(recalled=True)
        return output

    async def _authorize(self, call: RunningCall, action: PreparedAction, decision: Decision) -> bool:
        """Refuse a call that is not allowed, or find the approval that it needs or brings.

        Returns whether the person has changed the arguments.
        """
        if decision.depends_on_arguments or call.context.origins is not None:
            decision = self._decide_with_arguments(call, action)
        if decision.verdict == "allow" and call.context.approval_id is None:
            return False
        return await self._find_approval(call, action, decision.reason, is_required=decision.verdict == "ask")

    def _decide_with_arguments(self, call: RunningCall, action: PreparedAction) -> Decision:
        decision = self.authorizer.decide_with_arguments(call, action, call.params)
        if call.leaves_validation_to_tool(action):  # which converts: rules must not miss "true" or a default
            params = call.accept_params(action, action.check.check(call.params))
            converted = self.authorizer.decide_with_arguments(call, action, params)
            decision = converted if decision.verdict == "allow" else decision
        return decision

    async def _find_approval(
        self, call: RunningCall, action: PreparedAction, reason: str, *, is_required: bool, **details: Any
    ) -> bool:
        call.disable_caching()  # results that depend on an approval are for this call alone
        edited = await self.authorizer.find_approval(call, action, reason, is_required=is_required, **details)
        if edited is not None:
            call.params = edited
            await self._validate(call, action)
            self._decide_with_arguments(call, action)
        # The approval covers this call alone: calls that the tool makes have neither its id nor its mark.
        call.context = replace(call.context, approval_id=None)
        call.context.is_approved = call.approval is not None
        return edited is not None

    async def _pay(self, call: RunningCall, action: PreparedAction) -> None:
        """Take the price of the call from the budgets; a budget that asks needs a person's approval of the call."""
        pay = partial(self.costs.pay_for_call, call.payer, call.tool_name, action.price)
        payment = await pay(is_approved=call.approval is not None)
        if isinstance(payment, str):
            await self._find_approval(call, action, payment, is_required=True)
            payment = await pay(is_approved=True)
        call.payment = payment if isinstance(payment, Payment) else None

    def _find_cached(self, call: RunningCall, action: PreparedAction) -> Output | None:
        # What a tool does with an approval is for that call alone: it may itself have asked for it. And a result may
        # be made of the dependencies of one run, which are not in the key.
        if not action.effects.cacheable or call.approval is not None or call.context.deps is not None:
            call.disable_caching()
            return None
        call.cache_key = self.cache.key(action.tool, action.capability, call.params, call.principal, call.policy)
        output = self.cache.get(call.cache_key, action.tool) if call.cache_key is not None else None
        if output is not None:
            call.add_metadata(cached=True)
        return output

    async def _acquire_slot(self, call: RunningCall, action: PreparedAction) -> None:
        """Take a slot, or wait for one. Raises Rejected if the call must not run now."""
        if call.depth > self.config.max_depth:
            raise Rejected(
                f"Tool calls are nested {call.depth} deep (limit {self.config.max_depth}). Is there a cycle?",
                reason="nesting",
            )
        if self.abandoned_tasks:
            self.abandoned_tasks.check(call.tool_name)
        if action.breaker.faults:
            action.breaker.check(call.tool_name)
        context = call.context
        call.slot = self.concurrency.try_acquire(action.bucket, caller_type=context.caller_type)
        if call.slot is None:
            since = time.perf_counter()
            with call.pause_outer_deadlines():
                try:
                    call.slot = await self.concurrency.acquire(
                        action.bucket, priority=context.priority, caller_type=context.caller_type
                    )
                finally:
                    call.wait_time = time.perf_counter() - since
        if action.breaker.faults:
            action.breaker.begin_call(call.tool_name)  # checked again: other calls may have opened the circuit

    async def _run_tool(self, call: RunningCall, action: PreparedAction, executor: ToolExecutor) -> Output:
        """Run the tool under its timeout. When this returns or raises, the tool has ended."""
        invocation = Invocation(
            call.call_id,
            action.tool,
            action.capability,
            call.params,
            call.context,
            partial(self._log.emit_progress, call),  # `report`
            partial(self._call_nested, call),  # `call_tool`
        )
        deadline = self._start_deadline(call, action)
        token = Invocation.current.set(invocation)
        try:
            try:
                call.started = time.perf_counter()
                value = await self._run_with_retries(call, action, executor, invocation)
            finally:
                call.ended = time.perf_counter()
                deadline.end()
                if deadline.blocked:
                    call.add_metadata(blocked_loop_seconds=round(deadline.blocked, 3))
                    if getattr(executor, "runs_code_of_users", False):
                        self._log.log_blocked_loop(call, deadline.blocked)
                del self.running[call.call_id]
                try:  # noqa: SIM105 (`suppress` would cost as much as all of this block)
                    Invocation.current.reset(token)
                except ValueError:  # the coroutine is being closed in another context
                    pass
        except BaseException as error:
            if deadline.is_abandoned:
                self.abandoned_tasks.add(call.tool_name, call.call_id, deadline.tasks_left())
            cause = self._explain_exception(call, deadline, error)
            if deadline.is_expired:
                self.concurrency.report_load(call.slot, is_overload=True)
            if cause is error:
                raise
            raise cause from error
        deadline.note_success()
        if deadline.is_cancelled_by_caller:
            raise asyncio.CancelledError
        if deadline.is_expired:
            raise self._make_stop_error(call, deadline)
        self.concurrency.report_load(call.slot, seconds=call.ended - call.started)
        output = Output.of(value)
        return output if action.unwrap is None else action.unwrap(output)

    async def _run_with_approval(
        self, call: RunningCall, action: PreparedAction, executor: ToolExecutor, signal: NeedsApproval
    ) -> Output:
        """Run a tool again that raised NeedsApproval, if the call has been approved; otherwise request the approval."""
        if "approval_id" in signal.details or call.approval is not None:  # of a nested call, or the second request
            raise signal
        is_edited = await self._find_approval(call, action, error_text(signal), is_required=True, **signal.details)
        if is_edited and call.memory_params is not None:
            call.memory_params = copy_json(call.params)
        await self.authorizer.use_approval(call, action)
        return await self._run_tool(call, action, executor)

    def _normalize_result(self, call: RunningCall, action: PreparedAction, output: Output) -> ToolExecutionResult:
        if call.cache_key is not None and call.attempts:
            self.cache.add(call.cache_key, action.tool, output, action.effects.cache_ttl)
        secrets = call.record.secrets if call.record is not None else ()
        data, cut = cut_output(output.data, action.limits.max_output or self.config.max_output, self.store, secrets)
        if cut:
            call.add_metadata(**cut)
        return ToolExecutionResult(
            True,
            call.tool_name,
            data,
            None,  # no error
            None,
            [],
            call.elapsed(),
            datetime.fromtimestamp(call.arrived_at, UTC),
            call.result_metadata(),
            call.call_id,
            output.parts,
            output.original,
        )

    def _failed_result(self, call: RunningCall, failure: CallError) -> ToolExecutionResult:
        if failure.__cause__ is not None:
            self._log.log_failure(call, failure.__cause__)
        if failure.details:
            call.add_metadata(**{str(name): copy_json(value) for name, value in dict(failure.details).items()})
            if call.prepared is not None and call.prepared.effects.repeatable and call.metadata is not None:
                call.metadata.pop("outcome", None)  # whether it happened does not matter: it may be repeated
        if failure.transient:
            call.add_metadata(transient=True)
        return ToolExecutionResult(
            is_success=False,
            tool_name=call.tool_name,
            error=cut_error(error_text(failure) or type(failure).__name__),
            error_type=failure.error_type,
            validation_errors=list(failure.errors) if isinstance(failure, InvalidArguments) else [],
            execution_time=call.elapsed(),
            executed_at=datetime.fromtimestamp(call.arrived_at, UTC),
            metadata=call.result_metadata(),
            call_id=call.call_id,
            original=failure.original,
        )

    def _update_memory(self, call: RunningCall, memory: CallMemory, result: ToolExecutionResult) -> None:
        params = call.params if call.memory_params is None else call.memory_params
        if call.prepared is None or not isinstance(params, dict):
            return
        try:
            memory.record_result(call.prepared.tool, call.prepared.capability, params, result)
        except KeyboardInterrupt:
            raise
        except BaseException:
            logger.exception("tool=<%s>, call=<%s> | the memory failed", call.tool_name, call.call_id)

    # Parts of running

    def _require_executor(self, call: RunningCall, action: PreparedAction) -> ToolExecutor:
        if action.executor is not None:
            return action.executor
        name = action.tool.handler
        raise ExecutorNotFound(
            f"Tool {call.tool_name!r} uses the executor {name!r}, which is not registered."
            f"{did_you_mean(name, self.executors)} Register it with engine.register_executor({name!r}, …)."
        )

    async def _run_with_retries(
        self, call: RunningCall, action: PreparedAction, executor: ToolExecutor, invocation: Invocation
    ) -> Any:
        """Return the tool's value, after retries where they are allowed and may help."""
        breaker, effects, policy = action.breaker, action.effects, self.config.retry
        deadline = call.deadline
        assert deadline is not None
        params = copy_json(call.params) if action.effects.repeatable else call.params  # a tool may change its arguments
        while True:
            call.attempts += 1
            try:
                value = await run_until_abandoned(executor.execute(invocation), deadline)
                if breaker.faults:
                    breaker.record_success()
                return value
            except Exception as error:
                failure = to_call_error(error)
                if is_overload(failure):  # another failure does not show what the service can bear
                    self.concurrency.report_load(call.slot, is_overload=True)
                if failure.transport_fault:
                    breaker.record_fault()
                else:
                    breaker.record_success()
                delay = policy.delay(failure, call.attempts)
                if (
                    not policy.may_retry(failure, effects, call.context, call.attempts)
                    or breaker.state == "open"
                    or delay >= deadline.remaining()  # it would come too late
                ):
                    raise
                self._log.log_retry(call, failure, delay)
                await asyncio.sleep(delay)
                invocation.params = copy_json(params)
            except BaseException:
                breaker.record_abandoned()
                raise

    def _start_deadline(self, call: RunningCall, action: PreparedAction) -> Deadline:
        """Start the clock of a call: the shorter of the caller's timeout and the tool's own."""
        loop = asyncio.get_running_loop()
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop, self.config.stop_timeout)
        timeout, max_timeout = call.context.timeout, None
        if isinstance(timeout, DefaultTimeout):
            timeout, max_timeout = action.limits.timeout or self.config.default_timeout, action.limits.max_timeout
        elif action.limits.timeout is not None:
            timeout = min(timeout, action.limits.timeout)
        self.running[call.call_id] = call
        deadline = call.deadline = Deadline(self._deadlines, timeout, max_timeout)
        return deadline

    def _explain_exception(self, call: RunningCall, deadline: Deadline, error: BaseException) -> BaseException:
        """Return what an exception out of a tool means, now that its deadline and its task have ended."""
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):  # GeneratorExit: the caller's coroutine is closed
            return error
        if deadline.is_cancelled_by_caller:  # whatever the tool made of it
            return error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
        if deadline.is_expired:
            return self._make_stop_error(call, deadline)
        if isinstance(error, asyncio.CancelledError):
            return ExecutionFailed(f"Tool {call.tool_name!r} cancelled itself.")
        return to_call_error(error)

    def _make_stop_error(self, call: RunningCall, deadline: Deadline) -> CallError:
        if self.is_closed or call.is_cancelled:
            outcome = {"outcome": "unknown"} if deadline.is_abandoned else {}
            reason = "the call was cancelled" if call.is_cancelled else "the engine was closed"
            return CallCancelled(f"Tool {call.tool_name!r} was stopped, because {reason}.", **outcome)
        return deadline.timeout_error(call.tool_name)

    async def _call_nested(
        self, outer: RunningCall, tool_name: str, params: dict[str, Any], action: str | None
    ) -> ToolExecutionResult:
        """Make a call for a running tool, under its context."""
        context = replace(
            outer.context,
            caller_id=outer.tool_name,
            caller_type="tool",
            timeout=DEFAULT_TIMEOUT,
            tool_call_id=None,
            principal=outer.principal,
            policy=outer.policy,
        )
        return await self.run(self.start_call(tool_name, action, params, context))
