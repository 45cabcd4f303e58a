"""Answering a question with a plan: plan, execute, verify, synthesize.

`WorkflowRun` has these stages, and each of them stores its results. `SimpleWorkflow` calls the stages in a loop;
`ferrule.workflow.graph` calls the same stages from the nodes of a LangGraph graph.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

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
    StepResult,
)
from ferrule.agent.budget import BudgetedModel, NeedsPerson, RunBudget, RunLimits
from ferrule.agent.recovery import find_call_records
from ferrule.agent.requests import (
    Answers,
    ApprovalDecisions,
    HumanReply,
    PausedRuns,
    RunRequests,
    require_question,
)
from ferrule.agent.run import Run, lock_run
from ferrule.core.call import CALLER_PLANNER
from ferrule.core.events import RunEvents, ToolEngineEventType
from ferrule.core.messages import Usage, user_message
from ferrule.core.model import Model
from ferrule.core.permission import PLANNER_PRINCIPAL, CallPolicy, Principal
from ferrule.errors import (
    ToolNotFound,
)
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory import ExecutionContext
from ferrule.policy.approvals import ApprovalRequest, Person, Question, check_person
from ferrule.policy.budgets import is_extension_request
from ferrule.store import ToolCallRecord
from ferrule.store.escapes import map_texts, to_storable_text
from ferrule.workflow.execution import ExecutionAgent
from ferrule.workflow.plan import find_referenced_steps, find_referenced_values
from ferrule.workflow.plan_runner import PlanRunner
from ferrule.workflow.planning import NoPlan, PlanningAgent, make_planning_toolbox
from ferrule.workflow.results import StepContext
from ferrule.workflow.synthesis import CoordinationAgent
from ferrule.workflow.verification import VerificationAgent, combine_verifications

MAX_REQUESTS_PER_STEP: Final = 3
"""How often the person is asked about one step."""


@dataclass(frozen=True, slots=True)
class WorkflowAgents:
    """The four agents of one run."""

    planning: PlanningAgent
    execution: ExecutionAgent
    verification: VerificationAgent
    coordination: CoordinationAgent

    @property
    def usage(self) -> Usage:
        return self.planning.usage + self.execution.usage + self.coordination.usage


class WorkflowRun:
    """One run, with its stages in the order in which a workflow calls them."""

    def __init__(
        self,
        run: Run,
        plan: Plan | None,
        results: dict[str, StepResult],
        agents: WorkflowAgents,
        library: UnifiedToolLibrary,
        *,
        budget: RunBudget,
        requests: RunRequests,
        replies: Mapping[str, HumanReply],
        records: Mapping[str, ToolCallRecord],
        on_event: OnEvent | None,
        events: RunEvents,
        requires_plan: bool = False,
        stop_reason: str | None = None,
    ) -> None:
        """`plan` and `results` are those of a resumed run. With a `stop_reason`, only what there is is written."""
        self.run, self._agents, self._library, self._events = run, agents, library, events
        self._plan, self._results, self._records = plan, results, records
        self.secrets = PlanSecrets(run, library)
        self._usage_before, self._requests = run.usage, requests
        self._request_counts: Counter[str] = Counter()
        """How often the person was asked about a step or a budget."""
        self._budget, self._replies, self._emit = budget, replies, on_event or (lambda event: None)
        self._requires_plan, self._stop_reason = requires_plan, stop_reason
        self._timer = StageTimer()
        self._runner: PlanRunner | None = None
        self.answer = ""

    @property
    def has_plan(self) -> bool:
        return self._runner is not None

    @property
    def runner(self) -> PlanRunner:
        assert self._runner is not None, "plan() comes first"
        return self._runner

    async def plan(self) -> None:
        """Create the plan, or continue with the one in the store. `revise` may change it later.

        A run that waits for a person before it has a plan, or is stopped then, goes on with a plan without steps.
        """
        plan, needs = self._plan, None
        if plan is None and self._stop_reason is None:
            try:
                plan = await self._create_plan()
            except NeedsPerson as error:
                needs = error
        self._timer.end_stage("planning")
        if plan is not None:
            self._emit(PlanCreated(self.secrets.redact_plan(plan), tuple(self._results.values())))
        self._runner = self._make_runner(plan or EMPTY_PLAN)
        self._runner.stop_reason = self._stop_reason
        self._runner.paused_for = None if needs is None else needs.request
        self._runner.apply_replies(self._replies)

    async def _create_plan(self) -> Plan:
        run = self.run
        types = ToolEngineEventType.PLANNING_STARTED, ToolEngineEventType.PLANNING_ENDED
        with (
            self._events.emit_start_and_end(*types, task=run.task) as data,
            self._events.emit_agent_start_and_end("planning", run.task),
        ):
            plan = await self._agents.planning.decompose_task(
                run.task, history=run.history, is_required=self._requires_plan
            )
            data["plan"] = self.secrets.redact_plan(plan)
        self._store_plan(plan)  # before any step runs, so that its calls belong to a stored plan
        return plan

    def _store_plan(self, plan: Plan) -> None:
        self._count_usage()
        self.run.add_plan(self.secrets.redact_plan(plan))

    def _count_usage(self) -> None:
        """Add what the model was asked for since the last entry to the usage of the run."""
        self.run.usage = self._usage_before + self._agents.usage

    async def revise(self) -> None:
        """Replace the steps after a bad result."""
        await self.runner.revise()
        if self.runner.paused_for is not None:
            return
        self._store_plan(self.runner.plan)
        self._emit(PlanCreated(self.secrets.redact_plan(self.runner.plan)))

    async def execute(self) -> list[StepResult]:
        """Return the next results, empty if all steps have results or a person must reply first."""
        return await self.runner.advance()

    async def verify(self, results: Collection[StepResult]) -> None:
        """Verify and store results. A step with a doubtful result may be repeated with another tool instead."""
        for result in results:
            verified = await self.runner.verify(result)
            if verified is not None:
                self.secrets.add_referenced_secrets(self.runner.plan, verified)
                if not verified.arguments:
                    verified.arguments = self.secrets.redact(self.runner.plan[verified.step_id].parameters)
                self._count_usage()
                self.run.add_step(verified)
                self.runner.accept(verified)
                self._emit(StepEnded(verified))

    async def synthesize(self) -> None:
        """Write the answer; if a limit was reached, without asking the model."""
        self._timer.end_stage("execution")
        with self._events.emit_agent_start_and_end("coordination", self.run.task):
            try:
                self.answer = await self._agents.coordination.synthesize(
                    self.run.task,
                    self.runner.plan,
                    self.runner.results,
                    may_reason=self.runner.may_ask_model,
                    history=self.runner.context.history,
                )
            except NeedsPerson as needs:
                self.runner.paused_for = needs.request
        self._timer.end_stage("synthesis")

    async def ask_person(self) -> bool:
        """Ask the person at hand for what the plan waits for. Return whether the plan can continue.

        A request without a reply is not repeated. A step that is repeated with another tool or other arguments asks
        again, up to a limit.
        """
        self._timer.end_stage("execution")
        started, has_reply = time.monotonic(), False
        for request in self.runner.open_requests:
            # A budget may be exceeded often in a long run, and each time it is another request.
            extension = request if isinstance(request, ApprovalRequest) and is_extension_request(request) else None
            key = request.call_id if extension is None else extension.approval_id
            if self._request_counts[key] >= MAX_REQUESTS_PER_STEP:
                continue
            if extension is not None:
                is_decided = await self._ask_for_more(extension)
            elif is_decided := (reply := await self._requests.ask(request)) is not None:
                self.runner.apply_replies({request.call_id: reply})
            self._request_counts[key] += 1 if is_decided else MAX_REQUESTS_PER_STEP
            has_reply = has_reply or is_decided
        self._budget.exclude_time(time.monotonic() - started)
        self._timer.restart()
        return has_reply

    async def _ask_for_more(self, request: ApprovalRequest) -> bool:
        """Let the plan continue with more money, or stop if a person refuses it. Return False without a decision."""
        try:
            self._stop_reason = self.runner.stop_reason = await self._requests.ask_for_more(request)
        except LookupError:
            return False
        self.runner.continue_after_extension(request)
        if not self.runner.plan.steps:
            self._runner = None  # the plan itself was waited for
        return True

    async def finish(self) -> AgentAnswer[str]:
        """Write the last entry, with the answer or the requests the run waits for, and return the answer."""
        run, runner, requests = self.run, self.runner, self.runner.open_requests
        if not runner.is_done:
            self._timer.end_stage("execution")
        self._count_usage()
        run.approvals = {request.call_id: request for request in requests if isinstance(request, ApprovalRequest)}
        run.questions = {request.call_id: request for request in requests if isinstance(request, Question)}
        if runner.is_done:
            is_good = runner.stop_reason is None and any(result.success for result in runner.results)
            run.end(AgentState.FINISHED if is_good else AgentState.STOPPED, self.answer, runner.stop_reason or "")
        else:
            run.wait()
        run.plan = self.secrets.redact_plan(runner.plan) if runner.plan.steps else None
        return await answer_of_plan(run, self._library, self._timer.seconds)

    def interrupt(self, error: BaseException) -> None:
        """Write the last entry of a run that ended before it was done. It can be resumed if it has a plan."""
        self._count_usage()
        if isinstance(error, NoPlan):
            self.run.end(AgentState.STOPPED, "", str(error))
        else:
            self.run.interrupt(error)

    async def stop(self) -> None:
        """Cancel the running steps."""
        if self._runner is not None:
            await self._runner.stop()

    def _make_runner(self, plan: Plan) -> PlanRunner:
        run, agents = self.run, self._agents
        return PlanRunner(
            plan,
            StepContext(question=run.task, run_id=run.id, results=self._results, history=run.history),
            library=self._library,
            planning=agents.planning,
            execution=agents.execution,
            verification=agents.verification,
            budget=self._budget,
            records=self._records,
            events=self._events,
        )


class Workflow:
    """Answers questions with a plan. Subclasses decide how the stages of a run are called."""

    kind: ClassVar[str]

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        policy: CallPolicy | None = None,
        principal: Principal = PLANNER_PRINCIPAL,
        tools: Collection[str] | None = None,
        limits: RunLimits | None = None,
        person: Person | None = None,
    ) -> None:
        """`tools` restricts plans to these tools. `limits` apply to planning, to all steps and to the answer, except
        the limit on turns. Without a `person`, a run that needs an answer or an approval waits.
        """
        self._library, self._model, self._policy, self._limits = library, model, policy, limits
        self._person = check_person(person)
        principal = library.with_tenant(principal)
        self._principal = principal if tools is None else principal.restricted_to(tools)
        self._toolbox = make_planning_toolbox(library, self._principal, policy)
        self._paused = PausedRuns()

    async def run(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        budget: RunBudget | None = None,
        requires_plan: bool = False,
    ) -> AgentAnswer[str]:
        """Answer a question. `context["history"]` is the conversation before it, as text.

        `budget` is given by a caller who has used part of the limits for this question already. A question for which
        the model writes no plan is one step, or NoPlan if the caller `requires_plan`.
        """
        run = Run(task, self._library.engine.store, run_id)
        async with lock_run(self._library.engine.store, run.id) as lock:
            if run_id is not None:
                await run.require_new()
            history = str((context or {}).get("history", ""))
            run.begin([user_message(task)], workflow=self.kind, history=history)
            budget = budget or RunBudget(self._limits)
            result = await self._continue(run, budget, on_event, requires_plan=requires_plan)
            lock.release_in_background = result.state is not AgentState.WAITING  # nobody continues it
            return result

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        approvals: ApprovalDecisions = None,
        on_event: OnEvent | None = None,
    ) -> AgentAnswer[str]:
        """Continue a run that is waiting or was interrupted by a crash. No step is executed twice."""
        engine = self._library.engine
        async with lock_run(engine.store, run_id):
            run = await Run.load(run_id, engine.store)
            require_question(run, answer)
            if run.state in (AgentState.FINISHED, AgentState.STOPPED):
                return await answer_of_plan(run, self._library, {})
            budget = RunBudget(
                self._limits,
                usage=run.usage,
                calls=sum(map(is_call, run.steps)),
                seconds=run.seconds,
                run_costs=run.costs,
            )
            run.set_running()
            return await self._continue(run, budget, on_event, answer, approvals, is_resumed=True)

    async def _continue(
        self,
        stored: Run,
        budget: RunBudget,
        on_event: OnEvent | None,
        answer: Answers = None,
        approvals: ApprovalDecisions = None,
        *,
        is_resumed: bool = False,
        requires_plan: bool = False,
    ) -> AgentAnswer[str]:
        engine = self._library.engine
        events = budget.attach(engine, self._principal, stored.id)
        stored.costs = budget.run_costs
        plan, results = self._paused.pop(stored) or (stored.plan, {step.id: step for step in stored.steps})
        requests = RunRequests(stored, engine, budget, self._person)
        records = await find_call_records(stored.id, engine.store, CALLER_PLANNER) if is_resumed else {}
        replies, refusal = await requests.match_replies(answer, approvals)
        run = WorkflowRun(
            stored,
            plan,
            results,
            await self._make_agents(stored.task, budget),
            self._library,
            budget=budget,
            requests=requests,
            replies=replies,
            records=records,
            on_event=on_event,
            events=events,
            requires_plan=requires_plan,
            stop_reason=refusal,
        )
        try:
            await self._run_stages(run)
            while not run.runner.is_done and await run.ask_person():
                await self._run_stages(run)
        except BaseException as error:
            run.interrupt(error)
            raise
        finally:
            await run.stop()
        result = await run.finish()
        if not run.runner.is_done and run.runner.plan.steps:
            self._paused.add(stored, (run.runner.plan, run.runner.context.results))
        return result

    async def _run_stages(self, run: WorkflowRun) -> None:
        """Call the stages of a run until it has an answer or waits for a person."""
        raise NotImplementedError

    async def _make_agents(self, question: str, budget: RunBudget) -> WorkflowAgents:
        library, failing_model = self._library, BudgetedModel(self._model, budget)
        model = BudgetedModel(self._model, budget, asks_for_more=True)
        permitted = self._toolbox.permissions.select_tools(library.engine.registry.snapshot()).values()
        context = ExecutionContext(task_description=question, available_tools=[tool.spec for tool in permitted])
        memory = await library.create_run_memory(context, permissions=self._toolbox.permissions)
        return WorkflowAgents(
            PlanningAgent(library, model, toolbox=self._toolbox),
            ExecutionAgent(
                library,
                model,
                policy=self._policy,
                principal=self._principal,
                memory=memory,
                failing_model=failing_model,
            ),
            VerificationAgent(),
            CoordinationAgent(model),
        )


class SimpleWorkflow(Workflow):
    """Plan, then execute and verify until all steps have results, then synthesize."""

    kind = "simple"

    async def _run_stages(self, run: WorkflowRun) -> None:
        if not run.has_plan:
            await run.plan()
        while True:
            if run.runner.needs_revision:
                await run.revise()
            if run.runner.is_done:
                break
            results = await run.execute()
            if not results and run.runner.is_blocked:
                return
            await run.verify(results)
        await run.synthesize()


def is_call(result: StepResult) -> bool:
    """Return whether a result is that of a tool call."""
    return result.tool_type not in (NO_TOOL, ASK_USER) and not result.skipped


class PlanSecrets:
    """The secrets that the steps of a plan pass to tools: they are neither stored nor shown."""

    def __init__(self, run: Run, library: UnifiedToolLibrary) -> None:
        self._secrets, self._redaction = run.secrets, library.engine.store.redaction
        self._registry = library.engine.registry

    def redact_plan(self, plan: Plan) -> Plan:
        """Return the plan as it is stored and shown. Its secrets are also removed from all later entries of the run."""
        step_ids = [str(step.id) for step in plan.steps]
        return replace(plan, steps=tuple(self._redact_step(step, step_ids) for step in plan.steps))

    def redact(self, value: Any) -> Any:
        """Return the value without secrets and without what databases reject, so that it may be stored elsewhere."""
        return map_texts(to_storable_text, self._secrets.redact(value))

    def add_referenced_secrets(self, plan: Plan, result: StepResult) -> None:
        """Treat what a step of the plan passes on from this result to a secret parameter as a secret."""
        results = {str(result.step_id): result.output}
        for step in plan.steps:
            for name in self._find_secret_names(step.tool_type) & step.parameters.keys():
                if values := find_referenced_values(step.parameters[name], results):
                    self._secrets.add_params({name: values}, frozenset({name}))

    def _redact_step(self, step: PlanStep, step_ids: Collection[str]) -> PlanStep:
        secret_names = self._find_secret_names(step.tool_type)
        parameters = step.parameters.items()
        literal = {name: value for name, value in parameters if not find_referenced_steps(value, step_ids)}
        self._secrets.add_params(literal, secret_names)
        hidden = literal.keys() & secret_names
        if not hidden:
            return step
        return replace(step, parameters={**step.parameters, **dict.fromkeys(hidden, self._redaction.replacement)})

    def _find_secret_names(self, tool_type: str) -> frozenset[str]:
        try:
            return self._registry.find(tool_type)[1].secret_names
        except ToolNotFound:
            return frozenset()


class StageTimer:
    """Measures how long each stage takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end_stage(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def restart(self) -> None:
        """Measure the next stage from now on."""
        self._last = time.perf_counter()


async def answer_of_plan(run: Run, library: UnifiedToolLibrary, timings: dict[str, float]) -> AgentAnswer[str]:
    """Return what a run with a plan has come to, with the steps in the order of the plan."""
    plan, results = run.plan or EMPTY_PLAN, {step.id: step for step in run.steps}
    steps = tuple(results[str(step.id)] for step in plan.steps if str(step.id) in results)
    answer = run.answer((await library.engine.get_call_summary(run.id)).to_brief())
    errors, verification = collect_errors(plan, steps, run.reason), combine_verifications(steps)
    return replace(answer, steps=steps, verification=verification, errors=errors, timings=timings)


def collect_errors(plan: Plan, results: Sequence[StepResult], stop_reason: str) -> tuple[str, ...]:
    """Return the problems of the plan, the issues of the results, and why the run stopped early."""
    issues = (
        f"Step {result.step_id}: {issue}"
        for result in results
        if result.verification is not None and not result.skipped
        for issue in result.verification.issues
    )
    return (*plan.problems, *issues, *([f"The run was stopped: {stop_reason.rstrip('.')}."] if stop_reason else ()))
