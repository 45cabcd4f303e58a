"""A run with a plan: every step starts as soon as the results it needs are available, many concurrently.

`PlanRunner` has the stages of the run, and each of them stores its results. It does not depend on a graph library: the
workflows call the stages, and from the store they can create another runner that continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ferrule.agent.answer import (
    ASK_USER,
    EMPTY_PLAN,
    NO_TOOL,
    AgentAnswer,
    AgentState,
    OnEvent,
    Plan,
    PlanCreated,
    PlanStep,
    StepEnded,
    StepId,
    StepResult,
    Verification,
)
from ferrule.agent.budget import HumanRequest, NeedsPerson, RunBudget
from ferrule.agent.calls import HumanReply, RunRequests
from ferrule.agent.run import Run
from ferrule.core.events import RunEvents, ToolEngineEventType
from ferrule.core.messages import text_of_message
from ferrule.errors import PERMISSION_DENIED, ToolNotFound
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.advice import alternative_tools
from ferrule.store.escapes import map_texts, to_storable_text
from ferrule.texts.error_messages import translate_error
from ferrule.texts.language import detect_language
from ferrule.workflow.execution import (
    STOPPED,
    UNKNOWN_OUTCOME,
    ExecutionAgent,
    call_id_of,
    effects_of_step,
    failure_result,
    skipped_result,
)
from ferrule.workflow.plan import find_referenced_steps, find_referenced_values
from ferrule.workflow.planning import NoPlan, PlanningAgent
from ferrule.workflow.results import CoordinationAgent, StepContext
from ferrule.workflow.verification import VerificationAgent, combine_verifications

MIN_SIMILARITY: Final = 0.4
"""The minimum score of another tool to be called instead."""
MAX_REVISIONS: Final = 2
"""How many bad results may lead to a revised plan."""
_NEVER_REVISED: Final = frozenset({UNKNOWN_OUTCOME, PERMISSION_DENIED, STOPPED})
"""Failures that no revised plan may work around: the call may have had an effect, is not allowed, or hit a limit."""
_VERIFIED_BY_PERSON: Final = Verification(verified=True, confidence=1.0)
_WHOLE_PLAN: Final = ""
"""In place of the id of a step, where planning, a revision or the answer waits for a person."""


class PlanRunner:
    """A run with a plan in progress in this process, with its stages in the order in which a workflow calls them."""

    def __init__(
        self,
        run: Run,
        library: UnifiedToolLibrary,
        *,
        planning: PlanningAgent,
        execution: ExecutionAgent,
        coordination: CoordinationAgent,
        plan: Plan | None,
        results: dict[str, StepResult],
        budget: RunBudget,
        requests: RunRequests,
        on_event: OnEvent | None,
        events: RunEvents,
        requires_plan: bool = False,
    ) -> None:
        """`plan` and `results` are those of a resumed run."""
        self.run, self._library, self._events = run, library, events
        self._planning, self._execution, self._coordination = planning, execution, coordination
        self._budget, self._requests, self._emit = budget, requests, on_event or (lambda event: None)
        self._stored_plan, self._requires_plan = plan, requires_plan
        self._plan: Plan | None = None
        earlier = tuple(text_of_message(message) for message in run.messages[: run.begin_length - 1])
        self.context = StepContext(
            question=run.task, run_id=run.id, results=results, history=run.history, earlier_questions=earlier
        )
        self._usage_before = run.usage
        self._running: dict[str, asyncio.Task[StepResult]] = {}
        self._replacements: dict[str, PlanStep] = {}
        """Steps repeated with another tool. They enter the plan once they have results."""
        self._low_confidence: dict[str, StepResult] = {}
        """The first results of those steps."""
        self._waits: dict[str, str] = {}
        """By step id: the id of the request that the step waits for."""
        self._replies: dict[str, HumanReply] = {}
        self.stop_reason: str | None = None
        """Which limit the run has reached, or why a person stopped it, if so."""
        self.answer = ""
        self._seconds: dict[str, float] = {}
        """How long each stage took."""
        self._stage_started = time.perf_counter()

    @property
    def plan(self) -> Plan:
        return self._plan or EMPTY_PLAN

    @property
    def has_plan(self) -> bool:
        return self._plan is not None

    @property
    def is_paused(self) -> bool:
        """Return whether the plan as a whole waits for a person: nothing new starts."""
        return self._waits.get(_WHOLE_PLAN, "") in self.run.approvals

    @property
    def is_done(self) -> bool:
        return len(self.context.results) == len(self.plan.steps) and not self.is_paused

    @property
    def is_blocked(self) -> bool:
        """Return whether nothing can continue until a person has replied."""
        return not self._running and self.run.is_waiting

    @property
    def results(self) -> list[StepResult]:
        """Return the results so far, in the order of the plan."""
        results = self.context.results
        return [results[str(step.id)] for step in self.plan.steps if str(step.id) in results]

    # Planning

    async def make_plan(self) -> None:
        """Create the plan, or continue with the one in the store. `revise` may change it later.

        A run that is stopped before it has a plan goes on with a plan without steps. One that waits then has no plan.
        """
        plan = self._stored_plan
        if plan is None and self.stop_reason is None:
            try:
                plan = await self._create_plan()
            except NeedsPerson as needs:
                self._wait_for(_WHOLE_PLAN, needs.request)
        self._end_stage("planning")
        if plan is not None:
            self._emit(PlanCreated(self.redact_plan(plan), tuple(self.context.results.values())))
        if not self.is_paused:
            self._plan = plan or EMPTY_PLAN

    async def _create_plan(self) -> Plan:
        run = self.run
        types = ToolEngineEventType.PLANNING_STARTED, ToolEngineEventType.PLANNING_ENDED
        with (
            self._events.emit_start_and_end(*types, task=run.task) as data,
            self._events.emit_agent_start_and_end("planning", run.task),
        ):
            plan = await self._planning.decompose_task(run.task, history=run.history, is_required=self._requires_plan)
            data["plan"] = self.redact_plan(plan)
        self._store_plan(plan)  # before any step runs, so that its calls belong to a stored plan
        return plan

    def _store_plan(self, plan: Plan) -> None:
        self._count_usage()
        self.run.add_plan(self.redact_plan(plan))

    def _count_usage(self) -> None:
        """Add what the model was asked for since the last entry to the usage of the run."""
        usage = self._planning.usage + self._execution.usage + self._coordination.usage
        self.run.usage = self._usage_before + usage

    def _end_stage(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._stage_started
        self._stage_started = now

    @property
    def needs_revision(self) -> bool:
        """Return whether there is a new bad result, so that the following steps should be planned again."""
        if len(self.plan.revised_for) >= MAX_REVISIONS or not self._planning.can_revise:
            return False
        if self.is_paused or self.stop_reason is not None:
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
            self._plan = await self._planning.revise(
                context.question,
                self.plan,
                context.results,
                started,
                bad=self._bad_steps,
                once=[step for step in started if self._must_not_repeat(step)],
                history=context.history,
            )
        except NeedsPerson as needs:
            self._wait_for(_WHOLE_PLAN, needs.request)
            return
        self._store_plan(self.plan)
        self._emit(PlanCreated(self.redact_plan(self.plan)))

    # People

    def _wait_for(self, step_id: str, request: HumanRequest) -> None:
        self._waits[step_id] = request.call_id
        self.run.wait_for(request)

    def _is_waiting(self, step_id: str) -> bool:
        request_id = self._waits.get(step_id, step_id)
        return request_id in self.run.questions or request_id in self.run.approvals

    def apply_replies(self, replies: Mapping[str, HumanReply], refusal: str | None) -> None:
        """Let the steps continue that people have replied to. A used or expired request does not count as a reply."""
        self.stop_reason = refusal or self.stop_reason
        for step_id, reply in replies.items():
            self.run.questions.pop(step_id, None)
            self.run.approvals.pop(step_id, None)
            if isinstance(reply, str) or reply.state in ("approved", "refused"):
                self._replies[step_id] = reply

    async def ask_person(self) -> bool:
        """Ask the person at hand for what the plan waits for. Return whether the plan can continue."""
        self._end_stage("execution")
        before = self.run.open_requests
        self.apply_replies(*await self._requests.ask_person())
        self._stage_started = time.perf_counter()
        return self.run.open_requests != before

    # Steps

    async def advance(self) -> list[StepResult]:
        """Start the ready steps and wait for the next results; empty if all are done or a person must reply first."""
        results = self._start_ready_steps()
        if results or not self._running:
            return results
        ended, _ = await asyncio.wait(
            self._running.values(), timeout=self._budget.seconds_left, return_when=asyncio.FIRST_COMPLETED
        )
        if not ended:
            return await self._stop_at_time_limit()
        for step_id, task in list(self._running.items()):
            if task in ended:
                del self._running[step_id]
                try:
                    results.append(task.result())
                except NeedsPerson as needs:
                    self._wait_for(step_id, needs.request)
                    self._budget.calls -= makes_call(self.plan[step_id])  # the call was not executed
        return results

    async def verify(self, results: Collection[StepResult]) -> None:
        """Verify and store results. A step with a doubtful result may be repeated with another tool instead."""
        for result in results:
            verified = await self._verify_result(result)
            if verified is None:
                continue
            self._add_referenced_secrets(verified)
            if not verified.arguments:
                verified.arguments = self.redact(self.plan[verified.step_id].parameters)
            self._count_usage()
            self.run.add_step(verified)
            self.context.results[verified.id] = verified
            if (changed := self._replacements.pop(verified.id, None)) is not None:
                steps = tuple(changed if step.id == changed.id else step for step in self.plan.steps)
                self._plan = replace(self.plan, steps=steps)
            self._emit(StepEnded(verified))

    async def _verify_result(self, result: StepResult) -> StepResult | None:
        """Return the result with its verification, or None if the step will be repeated with another tool."""
        step = self.plan[result.step_id]
        if step.tool_type == ASK_USER and result.success:
            result.verification = _VERIFIED_BY_PERSON
            return result
        result.verification = await VerificationAgent().verify_result(result, self.context, step.expected)
        if (first := self._low_confidence.pop(str(step.id), None)) is not None:
            assert first.verification is not None
            # A doubtful result is better than a failure.
            is_better = result.success and result.verification.confidence >= first.verification.confidence
            if not is_better:
                self._replacements.pop(str(step.id), None)
            return replace(result if is_better else first, attempts=(*first.attempts, *result.attempts))
        if not result.made_up_number and result.success and result.failed_or_implausible and self._try_other_tool(step):
            self._low_confidence[str(step.id)] = result
            return None
        return result

    async def synthesize(self) -> None:
        """Write the answer; if a limit was reached, without asking the model."""
        self._end_stage("execution")
        with self._events.emit_agent_start_and_end("coordination", self.run.task):
            try:
                self.answer = await self._coordination.synthesize(
                    self.run.task,
                    self.plan,
                    self.results,
                    may_reason=self.stop_reason is None and self._budget.find_reached_limit() is None,
                    history=self.context.history,
                )
            except NeedsPerson as needs:
                self._wait_for(_WHOLE_PLAN, needs.request)
        self._end_stage("synthesis")

    async def finish(self) -> AgentAnswer[str]:
        """Write the last entry, with the answer or the requests the run waits for, and return the answer."""
        run = self.run
        self._count_usage()
        if self.is_done:
            is_good = self.stop_reason is None and any(result.success for result in self.results)
            run.end(AgentState.FINISHED if is_good else AgentState.STOPPED, self.answer, self.stop_reason or "")
        else:
            self._end_stage("execution")
            run.wait()
        run.plan = self.redact_plan(self.plan) if self.plan.steps else None
        summary = await self._execution.calls_of(run.id, run.task).summarize()
        return answer_of_plan(run, summary, self._seconds)

    def interrupt(self, error: BaseException) -> None:
        """Write the last entry of a run that ended before it was done. It can be resumed if it has a plan."""
        self._count_usage()
        if isinstance(error, NoPlan):
            self.run.end(AgentState.STOPPED, "", str(error))
        else:
            self.run.interrupt(error)

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
        if self.is_paused:
            return results
        for step in self.plan.steps:
            step_id = str(step.id)
            if step_id in self.context.results or step_id in self._running:
                continue
            if self._is_waiting(step_id) and self.stop_reason is None:
                continue
            needed = [self.context.results.get(str(dependency)) for dependency in step.dependencies]
            # What the model only believes must not decide what is changed.
            may_believe = effects_of_step(step, self._library.engine.registry).read_only
            failure = next((r for r in needed if r and not (r.success and (r.is_confirmed or may_believe))), None)
            if failure is not None:
                results.append(skipped_result(step, failure))
                continue
            needed += [self.context.results.get(str(step_id)) for step_id in step.find_awaited_steps(self.plan.steps)]
            if self.stop_reason is None and None not in needed:
                # Checked only if this step could start.
                self.stop_reason = self._budget.find_reached_limit(calls=self._budget.calls)
            if self.stop_reason is not None:
                error = f"It was not started: {self.stop_reason}."
                results.append(replace(failure_result(step, error, STOPPED), skipped=True))
            elif None not in needed:
                self._budget.calls += makes_call(step)
                self._running[step_id] = asyncio.create_task(self._run_step(step), name=f"ferrule-step-{step_id}")
        return results

    async def _stop_at_time_limit(self) -> list[StepResult]:
        """Cancel the running steps. Those that may have had an effect get an unknown outcome."""
        self.stop_reason = self._budget.find_reached_limit(calls=self._budget.calls) or "the time limit was reached"
        steps = [self.plan[step_id] for step_id in self._running]
        await self.stop()
        registry, error = self._library.engine.registry, f"It was cancelled: {self.stop_reason}."
        return [
            failure_result(step, error, STOPPED if effects_of_step(step, registry).repeatable else UNKNOWN_OUTCOME)
            for step in steps
        ]

    def _started_steps(self) -> list[PlanStep]:
        """Return the steps that have started or are ready, with their dependencies, whose results may be lost."""
        bad, ids = set(map(str, self._bad_steps)), set[str]()
        for step in self.plan.steps:
            needed = (*step.dependencies, *step.find_awaited_steps(self.plan.steps))
            results = [self.context.results.get(str(step_id)) for step_id in needed]
            is_ready = all(result and result.success and str(result.step_id) not in bad for result in results)
            if is_ready or self._has_started(step):
                ids.add(str(step.id))
        for step in reversed(self.plan.steps):
            if str(step.id) in ids:
                ids.update(map(str, step.dependencies))
        return [step for step in self.plan.steps if str(step.id) in ids]

    def _must_not_repeat(self, step: PlanStep) -> bool:
        """Return whether no other step may do the same: this step has had, may have had or will have an effect."""
        is_repeatable = effects_of_step(step, self._library.engine.registry).repeatable
        if is_repeatable or not self._execution.has_all_arguments(step):
            return False
        result = self.context.results.get(str(step.id))
        return result is None or result.success or result.error_type == UNKNOWN_OUTCOME

    def _has_started(self, step: PlanStep) -> bool:
        step_id = str(step.id)
        # Steps with a reply and repeated steps count too: other steps must not use their ids.
        by_step: Sequence[Mapping[str, object]] = (
            self.context.results,
            self._running,
            self._waits,
            self._replies,
            self._replacements,
        )
        was_made = self._execution.calls_of(self.run.id, self.run.task).was_made(call_id_of(step, 1))
        return was_made or self._is_waiting(step_id) or any(step_id in steps for steps in by_step)

    async def _run_step(self, step: PlanStep) -> StepResult:
        step_id = str(step.id)
        step, attempt = self._replacements.get(step_id, step), 1 + (step_id in self._replacements)
        context = self.context.select_for(step)
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
        for other in filter(lambda each: each.fits, alternatives):
            action = other.spec.capability(other.action) or other.spec.capabilities[0]
            own = other.spec.effects_of(action)
            if own.read_only or (own.repeatable and not own.destructive and not effects.read_only):  # as harmless
                if other.score < MIN_SIMILARITY:
                    return False
                self._replacements[str(step.id)] = replace(step, tool_type=other.spec.model_name(action))
                return True
        return False

    # Secrets that steps pass to tools: they are neither stored nor shown

    def redact(self, value: Any) -> Any:
        """Return the value without secrets and without what databases reject, so that it may be stored elsewhere."""
        return map_texts(to_storable_text, self.run.secrets.redact(value))

    def redact_plan(self, plan: Plan) -> Plan:
        """Return the plan as it is stored and shown. Its secrets are also removed from all later entries of the run."""
        step_ids, blank = [str(step.id) for step in plan.steps], self._library.engine.store.redaction.replacement
        steps = []
        for step in plan.steps:
            parameters, secret_names = step.parameters, self._find_secret_names(step.tool_type)
            literal = {n: value for n, value in parameters.items() if not find_referenced_steps(value, step_ids)}
            self.run.secrets.add_params(literal, secret_names)
            if hidden := literal.keys() & secret_names:
                step = replace(step, parameters={**parameters, **dict.fromkeys(hidden, blank)})
            steps.append(step)
        return replace(plan, steps=tuple(steps))

    def _add_referenced_secrets(self, result: StepResult) -> None:
        """Treat what a step of the plan passes on from this result to a secret parameter as a secret."""
        results = {str(result.step_id): result.output}
        for step in self.plan.steps:
            for name in self._find_secret_names(step.tool_type) & step.parameters.keys():
                if values := find_referenced_values(step.parameters[name], results):
                    self.run.secrets.add_params({name: values}, frozenset({name}))

    def _find_secret_names(self, tool_type: str) -> frozenset[str]:
        try:
            return self._library.engine.registry.find(tool_type)[1].secret_names
        except ToolNotFound:
            return frozenset()


def makes_call(step: PlanStep | StepResult) -> bool:
    return step.tool_type not in (NO_TOOL, ASK_USER)


def answer_of_plan(run: Run, summary: Mapping[str, Any], timings: dict[str, float]) -> AgentAnswer[str]:
    """Return what a run with a plan has come to, with the steps in the order of the plan."""
    plan, results = run.plan or EMPTY_PLAN, {step.id: step for step in run.steps}
    steps = tuple(results[str(step.id)] for step in plan.steps if str(step.id) in results)
    stop = [f"The run was stopped: {run.reason.rstrip('.')}."] if run.reason else []
    language = detect_language(run.task)
    errors = tuple(translate_error(error, language) for error in [*list_problems(plan, steps), *stop])
    verification = combine_verifications(steps)
    return replace(run.answer(summary), steps=steps, verification=verification, errors=errors, timings=timings)


def list_problems(plan: Plan, results: Sequence[StepResult]) -> list[str]:
    """Return the problems of the plan and of the results."""
    checked = [(r, r.verification) for r in results if r.verification is not None and not r.skipped]
    return [*plan.problems, *(f"Step {r.step_id}: {issue}" for r, checks in checked for issue in checks.issues)]
