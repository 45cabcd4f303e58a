"""Plan, execute, verify, synthesize: what every workflow does, and the simple one that does it in a loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from ferrule.agent.answer import AgentState, Approval, ApprovalRequest
from ferrule.agent.approval import ApprovalPolicy
from ferrule.library import UnifiedToolLibrary
from ferrule.memory import ExecutionContext, RunMemory
from ferrule.memory.counsel import Counsel
from ferrule.messages import Usage
from ferrule.models.model import Model
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.coordination import CoordinationAgent
from ferrule.workflow.execution import ExecutionAgent
from ferrule.workflow.notes import RunNotes
from ferrule.workflow.plan import Plan
from ferrule.workflow.planning import PlanningAgent
from ferrule.workflow.recovery import Records
from ferrule.workflow.results import StepContext, StepResult
from ferrule.workflow.verification import VerificationAgent


@dataclass(frozen=True, slots=True)
class PlanMade:
    """There is a plan."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step has its result."""

    result: StepResult


WorkflowEvent: TypeAlias = PlanMade | StepEnded
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
    """Steps that wait for a person's word."""
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
        *,
        approvals: Mapping[str, Approval | bool] | bool | None = None,
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
    ) -> Team:
        await library.failures.load()
        lived = ExecutionContext(task_description=question)
        memory = RunMemory(adviser=Counsel(lived, library.engine.registry, library.failures), listener=library.failures)
        return cls(
            planning=PlanningAgent(library, model, tools=tools),
            execution=ExecutionAgent(library, model, policy=policy, memory=memory, tools=tools),
            verification=VerificationAgent(),
            coordination=CoordinationAgent(model),
        )

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
    ) -> None:
        """`tools` are the only ones a plan may use."""
        self._library, self._model, self._policy, self._tools = library, model, policy, tools

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
        return await self._go_on(notes, task, history, None, {}, Records(), {}, on_event)

    async def resume(
        self,
        run_id: str,
        *,
        approvals: Mapping[str, Approval | bool] | bool | None = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult:
        """Go on with a run that waits, or that a crash interrupted; what was done is not done again."""
        notes = RunNotes(self._library, run_id)
        entries = await notes.read()
        begin = entries[0]
        plan = next((Plan.from_dict(e["plan"]) for e in reversed(entries) if e["kind"] == "plan"), None)
        results = [StepResult.from_dict(e["result"]) for e in entries if e["kind"] == "step"]
        if entries[-1]["kind"] == "end" and entries[-1]["state"] != AgentState.WAITING:
            return ended(run_id, begin["task"], plan, results, entries[-1])
        records = await Records.of_run(self._library.engine, run_id)
        asked = entries[-1].get("approvals", []) if entries[-1]["kind"] == "end" else []
        words = words_for([str(one["call_id"]) for one in asked], approvals)
        known = {str(result.step_id): result for result in results}
        return await self._go_on(notes, begin["task"], begin.get("history", ""), plan, known, records, words, on_event)

    async def _go_on(
        self,
        notes: RunNotes,
        task: str,
        history: str,
        plan: Plan | None,
        known: dict[str, StepResult],
        records: Records,
        words: Mapping[str, Approval],
        on_event: OnWorkflowEvent | None,
    ) -> WorkflowResult:
        team, tell = await Team.of(self._library, self._model, task, self._policy, self._tools), on_event or nobody
        clock = Clock()
        if plan is None:
            plan = await team.planning.decompose_task(task, history=history)
            notes.write("plan", plan=plan.to_dict())
        clock.lap("planning")
        tell(PlanMade(plan))
        conductor = Conductor(
            plan,
            StepContext(question=task, run_id=notes.run_id, results=known, history=history),
            library=self._library,
            execution=team.execution,
            verification=team.verification,
            records=records,
        )
        conductor.take_words(words)
        await self._conduct(conductor, notes, tell)
        clock.lap("execution")
        answer = ""
        if conductor.is_done:
            answer = await team.coordination.synthesize(task, conductor.plan, in_order(conductor))
        clock.lap("synthesis")
        return conclude(notes, task, conductor, answer, team=team, clock=clock)

    async def _conduct(self, conductor: Conductor, notes: RunNotes, tell: OnWorkflowEvent) -> None:
        """Do and verify steps until all have results, or a person must speak first."""
        try:
            while not conductor.is_done and not conductor.is_stuck:
                for result in await conductor.advance():
                    verified = await conductor.verify(result)
                    if verified is not None:
                        notes.write("step", result=verified.to_dict())
                        conductor.settle(verified)
                        tell(StepEnded(verified))
        finally:
            await conductor.stop()


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
    results, waiting = in_order(conductor), tuple(conductor.waiting.values())
    state = AgentState.WAITING
    if conductor.is_done:
        state = AgentState.FINISHED if any(result.success for result in results) else AgentState.STOPPED
    asked = [{"call_id": one.call_id} for one in waiting]
    notes.write("end", state=state.value, text=answer, reason="", approvals=asked, seconds=clock.total)
    return WorkflowResult(
        run_id=notes.run_id,
        question=task,
        state=state,
        answer=answer,
        plan=conductor.plan,
        results=tuple(results),
        approvals=waiting,
        errors=errors_of(conductor.plan, results),
        usage=team.usage,
        timings=clock.laps,
    )


def errors_of(plan: Plan, results: list[StepResult]) -> tuple[str, ...]:
    """What was wrong with the plan, and what is doubtful about results."""
    doubts = (
        f"Step {result.step_id}: {issue}"
        for result in results
        if result.verification is not None and not result.skipped
        for issue in result.verification.issues
    )
    return (*plan.problems, *doubts)


def ended(
    run_id: str, task: str, plan: Plan | None, results: list[StepResult], end: Mapping[str, Any]
) -> WorkflowResult:
    """A run that is over, as it was."""
    return WorkflowResult(
        run_id=run_id,
        question=task,
        state=AgentState(end["state"]),
        answer=end["text"],
        plan=plan,
        results=tuple(results),
        errors=() if plan is None else errors_of(plan, results),
    )


def words_for(waiting: list[str], approvals: Mapping[str, Approval | bool] | bool | None) -> dict[str, Approval]:
    """What people have said about each step that waits."""
    found = {}
    for step_id in waiting:
        word = approvals if isinstance(approvals, bool) or approvals is None else approvals.get(step_id)
        if word is not None:
            found[step_id] = Approval(allowed=word) if isinstance(word, bool) else word
    return found


def nobody(event: WorkflowEvent) -> None:
    """Nobody watches."""
