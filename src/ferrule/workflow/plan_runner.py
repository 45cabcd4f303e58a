"""Running a plan: every step starts as soon as the results it needs are available, many concurrently.

The runner does not depend on a graph library and writes nothing into the store. A workflow asks it for the next results
and stores them; from the store, it can create another runner that continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ferrule.agent.answer import ASK_USER, NO_TOOL, Plan, PlanStep, StepAttempt, StepId, StepResult, Verification
from ferrule.agent.budget import HumanRequest, NeedsPerson, RunBudget
from ferrule.agent.requests import HumanReply
from ferrule.catalog.registry import ToolRegistry
from ferrule.core.call import ToolExecutionResult
from ferrule.core.events import RunEvents
from ferrule.core.spec import Effects
from ferrule.errors import (
    APPROVAL_REQUIRED,
    CANCELLED,
    EXECUTOR_NOT_FOUND,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    REJECTED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    ToolNotFound,
)
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.advice import AlternativeTool, alternative_tools
from ferrule.store import ToolCallRecord
from ferrule.workflow.execution import (
    STOPPED,
    UNKNOWN_OUTCOME,
    ExecutionAgent,
    call_id_of,
    can_repeat,
    changes_nothing,
    failure_result,
    skipped_result,
    success_result,
)
from ferrule.workflow.planning import PlanningAgent
from ferrule.workflow.results import StepContext
from ferrule.workflow.verification import VerificationAgent

INTERRUPTED: Final = "This call was interrupted while it ran, so its outcome is unknown. It was not repeated."
MIN_SIMILARITY: Final = 0.4
"""The minimum score of another tool to be called instead."""
MAX_REVISIONS: Final = 2
"""How many bad results may lead to a revised plan."""
_NEVER_REVISED: Final = frozenset({UNKNOWN_OUTCOME, PERMISSION_DENIED, STOPPED})
"""Failures that no revised plan may work around: the call may have had an effect, is not allowed, or hit a limit."""
_VERIFIED_BY_PERSON: Final = Verification(verified=True, confidence=1.0)


class PlanRunner:
    """Runs the steps of one plan."""

    def __init__(
        self,
        plan: Plan,
        context: StepContext,
        *,
        library: UnifiedToolLibrary,
        planning: PlanningAgent,
        execution: ExecutionAgent,
        verification: VerificationAgent,
        budget: RunBudget,
        records: Mapping[str, ToolCallRecord],
        events: RunEvents,
    ) -> None:
        """Take the `records` of calls made before the run was interrupted, by call id, which are not repeated."""
        self.plan, self.context = plan, context
        self._library, self._planning = library, planning
        self._execution, self._verification = execution, verification
        self._budget = budget
        self._records, self._events = records, events
        self._running: dict[str, asyncio.Task[StepResult]] = {}
        self._replacements: dict[str, PlanStep] = {}
        """Steps repeated with another tool. They enter the plan once they have results."""
        self._low_confidence: dict[str, StepResult] = {}
        """The first results of those steps."""
        self.waiting: dict[str, HumanRequest] = {}
        """Open requests to a person, by step id."""
        self.paused_for: HumanRequest | None = None
        """What the plan as a whole waits for: nothing new starts."""
        self._replies: dict[str, HumanReply] = {}
        self.stop_reason: str | None = None
        """Which limit the run has reached, or why a person stopped it, if so."""

    @property
    def is_done(self) -> bool:
        return len(self.context.results) == len(self.plan.steps) and self.paused_for is None

    @property
    def is_blocked(self) -> bool:
        """Return whether nothing can continue until a person has replied."""
        return not self._running and (bool(self.waiting) or self.paused_for is not None)

    @property
    def open_requests(self) -> list[HumanRequest]:
        """Return what people are asked. Several steps may wait for the same."""
        requests = [*self.waiting.values(), *([] if self.paused_for is None else [self.paused_for])]
        return [request for number, request in enumerate(requests) if request not in requests[:number]]

    @property
    def results(self) -> list[StepResult]:
        """Return the results so far, in the order of the plan."""
        results = self.context.results
        return [results[str(step.id)] for step in self.plan.steps if str(step.id) in results]

    @property
    def may_ask_model(self) -> bool:
        """Return whether the model may write the answer."""
        return self.stop_reason is None and self._budget.find_reached_limit() is None

    def apply_replies(self, replies: Mapping[str, HumanReply]) -> None:
        """Let the steps continue that a person has replied to. A used or expired request does not count as a reply."""
        for step_id, reply in replies.items():
            if isinstance(reply, str) or reply.state in ("approved", "refused"):
                self._replies[step_id] = reply
                self.waiting.pop(step_id, None)

    def continue_after_extension(self, request: HumanRequest) -> None:
        """Let what waits for more money continue. A person has decided about the request."""
        self.waiting = {step_id: other for step_id, other in self.waiting.items() if other != request}
        self.paused_for = None

    async def advance(self) -> list[StepResult]:
        """Start the ready steps and wait for the next results; empty if all are done or a person must reply first."""
        results = self._start_ready_steps()
        if results or not self._running:
            return results
        ended = await self._wait_for_first()
        if not ended:
            return await self._stop_at_time_limit()
        for step_id, task in list(self._running.items()):
            if task in ended:
                del self._running[step_id]
                try:
                    results.append(task.result())
                except NeedsPerson as needs:
                    self.waiting[step_id] = needs.request
                    self._budget.calls -= _makes_call(self.plan[step_id])  # the call was not executed
        return results

    async def _wait_for_first(self) -> Collection[asyncio.Task[StepResult]]:
        """Wait until a task ends and return those that have ended; empty if the time is up."""
        seconds = self._budget.seconds_left
        ended, _ = await asyncio.wait(self._running.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return ended

    async def verify(self, result: StepResult) -> StepResult | None:
        """Return the result with its verification, or None if the step will be repeated with another tool."""
        step = self.plan[result.step_id]
        if step.tool_type == ASK_USER and result.success:
            result.verification = _VERIFIED_BY_PERSON
            return result
        result.verification = await self._verification.verify_result(result, self.context, step.expected)
        if (first := self._low_confidence.pop(str(step.id), None)) is not None:
            return self._choose_better(first, result)
        if not result.made_up_number and result.success and result.failed_or_implausible and self._try_other_tool(step):
            self._low_confidence[str(step.id)] = result
            return None
        return result

    def accept(self, result: StepResult) -> None:
        """Store the result as the final one of its step."""
        self.context.results[str(result.step_id)] = result
        changed = self._replacements.pop(str(result.step_id), None)
        if changed is not None:
            self.plan = replace(self.plan, steps=tuple(changed if s.id == changed.id else s for s in self.plan.steps))

    @property
    def needs_revision(self) -> bool:
        """Return whether there is a new bad result, so that the following steps should be planned again."""
        if len(self.plan.revised_for) >= MAX_REVISIONS or not self._planning.can_revise:
            return False
        if self.paused_for is not None or self.stop_reason is not None:
            return False
        considered = set(map(str, self.plan.revised_for))
        has_new = any(str(step_id) not in considered for step_id in self._bad_steps)
        return has_new and self._budget.find_reached_limit(calls=self._budget.calls) is None

    @property
    def _bad_steps(self) -> list[StepId]:
        results = self.context.results.values()
        return [r.step_id for r in results if r.failed_or_implausible and r.error_type not in _NEVER_REVISED]

    async def revise(self) -> None:
        """Plan the steps again that depend on bad results or have not started; or wait for a person first."""
        started, context = self._started_steps(), self.context
        try:
            self.plan = await self._planning.revise(
                context.question,
                self.plan,
                context.results,
                started,
                bad=self._bad_steps,
                once=[step for step in started if self._must_not_repeat(step)],
                history=context.history,
            )
        except NeedsPerson as needs:
            self.paused_for = needs.request

    async def stop(self) -> None:
        """Cancel the running steps and wait until they have ended."""
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_ready_steps(self) -> list[StepResult]:
        """Start the steps that are ready; returns results for those that are skipped."""
        results: list[StepResult] = []
        if self.paused_for is not None:
            return results
        for step in self.plan.steps:
            step_id = str(step.id)
            if step_id in self.context.results or step_id in self._running:
                continue
            if step_id in self.waiting and self.stop_reason is None:
                continue
            needed = [self.context.results.get(str(dependency)) for dependency in step.dependencies]
            failure = next((r for r in needed if r is not None and not self._may_build_on(r, step)), None)
            if failure is not None:
                results.append(skipped_result(step, failure))
                continue
            needed += [self.context.results.get(str(step_id)) for step_id in step.find_awaited_steps(self.plan.steps)]
            if self.stop_reason is None and None not in needed:
                # Checked only if this step could start.
                self.stop_reason = self._budget.find_reached_limit(calls=self._budget.calls)
            if self.stop_reason is not None:
                self.waiting.pop(step_id, None)
                error = f"It was not started: {self.stop_reason}."
                results.append(replace(failure_result(step, error, STOPPED), skipped=True))
            elif None not in needed:
                self._budget.calls += _makes_call(step)
                self._running[step_id] = asyncio.create_task(self._run_step(step), name=f"ferrule-step-{step_id}")
        return results

    def _may_build_on(self, result: StepResult, step: PlanStep) -> bool:
        """Return whether a step may use a result. What the model only believes must not decide what is changed."""
        return result.success and (result.is_confirmed or changes_nothing(step, self._library.engine.registry))

    async def _stop_at_time_limit(self) -> list[StepResult]:
        """Cancel the running steps. Those that may have had an effect get an unknown outcome."""
        self.stop_reason = self._budget.find_reached_limit(calls=self._budget.calls) or "the time limit was reached"
        steps = [self.plan[step_id] for step_id in self._running]
        await self.stop()
        registry, error = self._library.engine.registry, f"It was cancelled: {self.stop_reason}."
        return [
            failure_result(step, error, STOPPED if can_repeat(step, registry) else UNKNOWN_OUTCOME) for step in steps
        ]

    def _started_steps(self) -> list[PlanStep]:
        """Return the steps that have started or are ready, with their dependencies, whose results may be lost."""
        bad = set(map(str, self._bad_steps))
        ids = {str(step.id) for step in self.plan.steps if self._has_started(step) or self._is_ready(step, bad)}
        for step in reversed(self.plan.steps):
            if str(step.id) in ids:
                ids.update(map(str, step.dependencies))
        return [step for step in self.plan.steps if str(step.id) in ids]

    def _is_ready(self, step: PlanStep, bad: Collection[str]) -> bool:
        ids = (*step.dependencies, *step.find_awaited_steps(self.plan.steps))
        needed = [self.context.results.get(str(step_id)) for step_id in ids]
        return all(result is not None and result.success and str(result.step_id) not in bad for result in needed)

    def _must_not_repeat(self, step: PlanStep) -> bool:
        """Return whether no other step may do the same: this step has had, may have had or will have an effect."""
        if can_repeat(step, self._library.engine.registry) or not self._execution.has_all_arguments(step):
            return False
        result = self.context.results.get(str(step.id))
        return result is None or result.success or result.error_type == UNKNOWN_OUTCOME

    def _has_started(self, step: PlanStep) -> bool:
        step_id = str(step.id)
        # Steps with a reply and repeated steps count too: other steps must not use their ids.
        by_step: Sequence[Mapping[str, object]] = (
            self.context.results,
            self._running,
            self.waiting,
            self._replies,
            self._replacements,
        )
        return any(step_id in steps for steps in by_step) or call_id_of(step, 1) in self._records

    async def _run_step(self, step: PlanStep) -> StepResult:
        step_id = str(step.id)
        step, attempt = self._replacements.get(step_id, step), 1 + (step_id in self._replacements)
        context = self.context.select_for(step)
        result = restore_result(step, self._records.get(call_id_of(step, attempt)), self._library.engine.registry)
        if result is None:
            # A reply covers one call: for another tool or other arguments, the person is asked again.
            reply = self._replies.pop(step_id, None)
            with self._events.emit_agent_start_and_end("execution", step.description):
                result = await self._execution.execute_step(step, context, attempt=attempt, reply=reply)
        if step.tool_type != ASK_USER:  # what a person answers is confirmed
            result.rests_on_reasoning = any(r.success and not r.is_confirmed for r in context.results.values())
        return result

    def _try_other_tool(self, step: PlanStep) -> bool:
        """Schedule the step again with another tool; False if no other tool fits."""
        if step.tool_type == NO_TOOL:
            return False
        registry = self._library.engine.registry
        try:
            tool, capability = registry.find(step.tool_type)
        except ToolNotFound:  # the tool has been removed
            return False
        effects = tool.spec.effects_of(capability)
        if not effects.repeatable:
            return False
        snapshot = registry.snapshot()
        specs = [other.spec for other in self._execution.permissions.select_tools(snapshot).values()]
        alternatives = alternative_tools(
            tool, capability, step.parameters, specs, failed={tool.id}, task=step.description, limit=len(specs)
        )
        best = next((other for other in alternatives if other.fits and _is_as_harmless(other, effects)), None)
        if best is None or best.score < MIN_SIMILARITY:
            return False
        action = best.spec.capability(best.action) or best.spec.capabilities[0]
        self._replacements[str(step.id)] = replace(step, tool_type=best.spec.model_name(action))
        return True

    def _choose_better(self, first: StepResult, second: StepResult) -> StepResult:
        """Return the more plausible of two results of a step. A doubtful result is better than a failure."""
        assert first.verification is not None and second.verification is not None
        attempts = (*first.attempts, *second.attempts)
        if second.success and second.verification.confidence >= first.verification.confidence:
            return replace(second, attempts=attempts)
        self._replacements.pop(str(first.step_id), None)
        return replace(first, attempts=attempts)


def _makes_call(step: PlanStep) -> bool:
    return step.tool_type not in (NO_TOOL, ASK_USER)


def _is_as_harmless(other: AlternativeTool, effects: Effects) -> bool:
    """Return whether the other tool changes no more than the tool it replaces."""
    capability = other.spec.capability(other.action) or other.spec.capabilities[0]
    others = other.spec.effects_of(capability)
    return others.read_only or (others.repeatable and not others.destructive and not effects.read_only)


_NEVER_RAN: Final = frozenset(
    {
        VALIDATION_ERROR,
        TOOL_NOT_FOUND,
        EXECUTOR_NOT_FOUND,
        REJECTED,
        PERMISSION_DENIED,
        APPROVAL_REQUIRED,
        KNOWN_FAILURE,
    }
)


def restore_result(step: PlanStep, record: ToolCallRecord | None, registry: ToolRegistry) -> StepResult | None:
    """Return the recorded result of a step's call; None if the call never ran or can safely be repeated."""
    if record is None or step.tool_type == NO_TOOL:
        return None
    try:
        tool, capability = registry.find(step.tool_type)
    except ToolNotFound:
        return None
    error = None if record.is_success else record.error or INTERRUPTED
    attempt = StepAttempt(
        level="name", tool=record.tool_name, success=record.is_success, error=error, call_id=record.record_id
    )
    if record.is_success:
        output = ToolExecutionResult(is_success=True, tool_name=tool.id, output=record.result or {})
        restored = success_result(step, output, tool, [attempt])
    elif tool.spec.effects_of(capability).repeatable or record.error_type in _NEVER_RAN:
        return None
    elif (
        record.status == "failed"
        and record.error_type not in (TIMEOUT, CANCELLED)
        and record.metadata.get("outcome") != "unknown"
    ):
        restored = failure_result(step, record.error or "It failed.", record.error_type, [attempt])
    else:
        restored = failure_result(step, INTERRUPTED, UNKNOWN_OUTCOME, [attempt])
    return replace(restored, arguments=record.params)
