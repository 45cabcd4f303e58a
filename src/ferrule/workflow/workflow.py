"""Plan, execute, verify, synthesize: what every workflow does, and the simple one that does it in a loop."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias
from uuid import uuid4

from ferrule.agent.answer import AgentState, Approval, ApprovalRequest, Question
from ferrule.agent.approval import ApprovalPolicy
from ferrule.agent.limits import RunLimits
from ferrule.agent.toolbox import Toolbox
from ferrule.library import UnifiedToolLibrary
from ferrule.memory import ExecutionContext, RunMemory
from ferrule.memory.counsel import Counsel
from ferrule.messages import Usage
from ferrule.models.model import Model
from ferrule.workflow.budget import Budget
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.coordination import CoordinationAgent
from ferrule.workflow.execution import ExecutionAgent, Word
from ferrule.workflow.notes import RunNotes
from ferrule.workflow.plan import ASK_USER, NO_TOOL, Plan
from ferrule.workflow.planning import PlanningAgent, planning_toolbox
from ferrule.workflow.recovery import Records
from ferrule.workflow.results import StepContext, StepResult
from ferrule.workflow.verification import VerificationAgent


@dataclass(frozen=True, slots=True)
class PlanMade:
    """There is a plan, or another one."""

    plan: Plan
    known: tuple[StepResult, ...] = ()
    """What its steps have come to already, in a run that is gone on with."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step has its result."""

    result: StepResult


WorkflowEvent: TypeAlias = PlanMade | StepEnded
Answers: TypeAlias = Mapping[str, str] | str | None
"""What the user says to the questions of steps, by their ids; a single text answers the first."""
Approvals: TypeAlias = Mapping[str, Approval | bool] | bool | None
OnWorkflowEvent: TypeAlias = Callable[[WorkflowEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResult:
    """What came of a question."""

    run_id: str
    question: str
    state: AgentState
    answer: str = ""
    plan: Plan | None = None
    results: tuple[StepResult, ...] = ()
    approvals: tuple[ApprovalRequest, ...] = ()
    questions: tuple[Question, ...] = ()
    """What steps wait for: leave to make a call, or an answer."""
    errors: tuple[str, ...] = ()
    """What was wrong and did not stop it."""
    usage: Usage = field(default_factory=Usage)
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage."""


class Workflow(Protocol):
    """Answers questions with a plan."""

    async def run(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult: ...

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        approvals: Approvals = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult: ...


@dataclass(slots=True, kw_only=True)
class Team:
    """The four agents of one run, and what they share."""

    planning: PlanningAgent
    execution: ExecutionAgent
    verification: VerificationAgent
    coordination: CoordinationAgent

    @classmethod
    async def of(
        cls,
        library: UnifiedToolLibrary,
        model: Model,
        question: str,
        policy: ApprovalPolicy | None,
        tools: Collection[str] | None,
        toolbox: Toolbox,
    ) -> Team:
        await library.failures.load()
        lived = ExecutionContext(task_description=question)
        memory = RunMemory(adviser=Counsel(lived, library.engine.registry, library.failures), listener=library.failures)
        return cls(
            planning=PlanningAgent(library, model, toolbox=toolbox),
            execution=ExecutionAgent(library, model, policy=policy, memory=memory, tools=tools),
            verification=VerificationAgent(),
            coordination=CoordinationAgent(model),
        )

    def conduct(
        self, plan: Plan, context: StepContext, *, library: UnifiedToolLibrary, budget: Budget, records: Records
    ) -> Conductor:
        return Conductor(
            plan,
            context,
            library=library,
            planning=self.planning,
            execution=self.execution,
            verification=self.verification,
            budget=budget,
            records=records,
        )

    async def answer(self, task: str, conductor: Conductor) -> str:
        """Out of what was found out; where a limit was reached, without asking the model once more."""
        results = in_order(conductor)
        return await self.coordination.synthesize(task, conductor.plan, results, think=conductor.may_think)

    @property
    def usage(self) -> Usage:
        return self.planning.usage + self.execution.usage + self.coordination.usage


class SimpleWorkflow:
    """Plan, then execute and verify until all steps have results, then synthesize. Written down step by step."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        policy: ApprovalPolicy | None = None,
        tools: Collection[str] | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        """`tools` are the only ones a plan may use; of `limits`, turns say nothing about plans."""
        self._library, self._model, self._policy, self._tools = library, model, policy, tools
        self._limits, self._toolbox = limits, planning_toolbox(library, tools)
        self._waiting = WaitingRuns()

    async def run(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult:
        """Answer a question. `context["history"]` is what was said before it, in words."""
        notes = RunNotes(self._library, run_id or new_run_id())
        history = str((context or {}).get("history", ""))
        notes.write("begin", task=task, strategy="plan", workflow="simple", history=history)
        return await self._go_on(notes, task, history, None, {}, Records(), {}, on_event, Spent())

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        approvals: Approvals = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult:
        """Go on with a run that waits, or that a crash interrupted; what was done is not done again."""
        notes = RunNotes(self._library, run_id)
        entries = await notes.read()
        begin = entries[0]
        plan, known = plan_in(entries), results_in(entries)
        if entries[-1]["kind"] == "end" and entries[-1]["state"] != AgentState.WAITING:
            return ended(run_id, begin["task"], plan, known, entries[-1])
        plan, known = self._waiting.take(run_id) or (plan, known)
        records = await Records.of_run(self._library.engine, run_id)
        words = words_for(entries[-1] if entries[-1]["kind"] == "end" else {}, answer, approvals)
        spent = spent_in(entries)
        return await self._go_on(
            notes, begin["task"], begin.get("history", ""), plan, known, records, words, on_event, spent
        )

    async def _go_on(
        self,
        notes: RunNotes,
        task: str,
        history: str,
        plan: Plan | None,
        known: dict[str, StepResult],
        records: Records,
        words: Mapping[str, Word],
        on_event: OnWorkflowEvent | None,
        spent: Spent,
    ) -> WorkflowResult:
        team = await Team.of(self._library, self._model, task, self._policy, self._tools, self._toolbox)
        tell = on_event or nobody
        budget = spent.budget(self._limits, team)
        clock = Clock()
        if plan is None:
            plan = await team.planning.decompose_task(task, history=history)
            notes.write("plan", plan=plan.to_dict())
        else:
            notes.learn(plan.to_dict())
        clock.lap("planning")
        tell(PlanMade(plan, tuple(known.values())))
        context = StepContext(question=task, run_id=notes.run_id, results=known, history=history)
        conductor = team.conduct(plan, context, library=self._library, budget=budget, records=records)
        conductor.take_words(words)
        await self._conduct(conductor, notes, tell)
        if not conductor.is_done:
            self._waiting.keep(notes.run_id, conductor)
        clock.lap("execution")
        answer = await team.answer(task, conductor) if conductor.is_done else ""
        clock.lap("synthesis")
        return conclude(notes, task, conductor, answer, team=team, clock=clock)

    async def _conduct(self, conductor: Conductor, notes: RunNotes, tell: OnWorkflowEvent) -> None:
        """Do and verify steps until all have results, or a person must speak first."""
        try:
            while True:
                if conductor.needs_revision:
                    await conductor.revise()
                    notes.write("plan", plan=conductor.plan.to_dict())
                    tell(PlanMade(conductor.plan))
                if conductor.is_done:
                    return
                found = await conductor.advance()
                if not found and conductor.is_stuck:
                    return
                for result in found:
                    verified = await conductor.verify(result)
                    if verified is not None:
                        notes.write("step", result=verified.to_dict())
                        conductor.settle(verified)
                        tell(StepEnded(verified))
        finally:
            await conductor.stop()


class WaitingRuns:
    """The plans and results of runs that wait, with the secrets in them: as they are written down they have none."""

    MOST: Final = 1_000

    def __init__(self) -> None:
        self._runs: OrderedDict[str, tuple[Plan, dict[str, StepResult]]] = OrderedDict()

    def keep(self, run_id: str, conductor: Conductor) -> None:
        self._runs[run_id] = (conductor.plan, conductor.context.results)
        if len(self._runs) > self.MOST:
            self._runs.popitem(last=False)

    def take(self, run_id: str) -> tuple[Plan, dict[str, StepResult]] | None:
        return self._runs.pop(run_id, None)


class Clock:
    """How long each stage took."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return sum(self.laps.values())


def new_run_id() -> str:
    return uuid4().hex[:16]


def in_order(conductor: Conductor) -> list[StepResult]:
    """The results there are, in the order of the plan."""
    results = conductor.context.results
    return [results[str(step.id)] for step in conductor.plan.steps if str(step.id) in results]


def conclude(
    notes: RunNotes, task: str, conductor: Conductor, answer: str, *, team: Team, clock: Clock
) -> WorkflowResult:
    """Write down how far the run has come, and tell it."""
    results, waiting = in_order(conductor), conductor.waiting.values()
    approvals = tuple(one for one in waiting if isinstance(one, ApprovalRequest))
    questions = tuple(one for one in waiting if isinstance(one, Question))
    state = AgentState.WAITING
    if conductor.is_done:
        is_good = conductor.stopped is None and any(result.success for result in results)
        state = AgentState.FINISHED if is_good else AgentState.STOPPED
    notes.write(
        "end",
        state=state.value,
        text=answer,
        reason=conductor.stopped or "",
        approvals=[asdict(one) for one in approvals],
        questions=[asdict(one) for one in questions],
        seconds=clock.total,
        used=asdict(team.usage),
    )
    return WorkflowResult(
        run_id=notes.run_id,
        question=task,
        state=state,
        answer=answer,
        plan=conductor.plan,
        results=tuple(results),
        approvals=approvals,
        questions=questions,
        errors=errors_of(conductor.plan, results, conductor.stopped),
        usage=team.usage,
        timings=clock.laps,
    )


def errors_of(plan: Plan, results: list[StepResult], stopped: str | None) -> tuple[str, ...]:
    """What was wrong with the plan, what is doubtful about results, and why it was not done to its end."""
    doubts = (
        f"Step {result.step_id}: {issue}"
        for result in results
        if result.verification is not None and not result.skipped
        for issue in result.verification.issues
    )
    return (*plan.problems, *doubts, *([f"The run was stopped: {stopped}."] if stopped else ()))


def plan_in(entries: Sequence[Mapping[str, Any]]) -> Plan | None:
    """The plan as it was last written down."""
    return next((Plan.from_dict(entry["plan"]) for entry in reversed(entries) if entry["kind"] == "plan"), None)


def results_in(entries: Sequence[Mapping[str, Any]]) -> dict[str, StepResult]:
    """By the ids of the steps. One whose checkpoint was lost in a crash is written down twice."""
    found = (StepResult.from_dict(entry["result"]) for entry in entries if entry["kind"] == "step")
    return {str(result.step_id): result for result in found}


def ended(
    run_id: str, task: str, plan: Plan | None, known: Mapping[str, StepResult], end: Mapping[str, Any]
) -> WorkflowResult:
    """A run that is over, as it was."""
    order = () if plan is None else plan.steps
    results = [known[str(step.id)] for step in order if str(step.id) in known]
    return WorkflowResult(
        run_id=run_id,
        question=task,
        state=AgentState(end["state"]),
        answer=end["text"],
        plan=plan,
        results=tuple(results),
        errors=() if plan is None else errors_of(plan, results, end.get("reason") or None),
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used in its earlier lives."""

    calls: int = 0
    seconds: float = 0.0
    usage: Usage = Usage()

    def budget(self, limits: RunLimits | None, team: Team) -> Budget:
        """What is left of the limits for the team that goes on."""
        return Budget(limits, lambda: self.usage + team.usage, calls=self.calls, seconds=self.seconds)


def spent_in(entries: Sequence[Mapping[str, Any]]) -> Spent:
    calls = sum(one.tool_type not in (NO_TOOL, ASK_USER) and not one.skipped for one in results_in(entries).values())
    ends = [entry for entry in entries if entry["kind"] == "end"]
    used = sum((Usage(**entry.get("used", {})) for entry in ends), start=Usage())
    return Spent(calls, sum(float(entry.get("seconds", 0)) for entry in ends), used)


def words_for(waits: Mapping[str, Any], answer: Answers, approvals: Approvals) -> dict[str, Word]:
    """What people have said about each step that waits: `approvals` and `questions` have their `call_id`s."""
    found: dict[str, Word] = {}
    for request in waits.get("approvals", ()):
        step_id = str(request["call_id"])
        word = approvals if isinstance(approvals, bool) or approvals is None else approvals.get(step_id)
        if word is not None:
            word = Approval(allowed=word) if isinstance(word, bool) else word
            # What was shown is what was agreed to: a model that is asked again may say something else.
            found[step_id] = replace(word, arguments=request["arguments"]) if word.arguments is None else word
    questions = [str(one["call_id"]) for one in waits.get("questions", ())]
    if isinstance(answer, str):
        answer = {step_id: answer for step_id in questions[:1]}
    return found | {step_id: text for step_id, text in (answer or {}).items() if step_id in questions}


def nobody(event: WorkflowEvent) -> None:
    """Nobody watches."""
