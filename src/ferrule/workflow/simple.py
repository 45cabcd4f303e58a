"""The simple workflow: plan, execute, verify and synthesize in a loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrule.agent.answer import AgentState
from ferrule.agent.approval import ApprovalPolicy
from ferrule.agent.limits import RunLimits
from ferrule.library import UnifiedToolLibrary
from ferrule.models.model import Model
from ferrule.workflow.concluding import Clock, conclude, ended
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.execution import Word
from ferrule.workflow.notes import RunNotes
from ferrule.workflow.past import Spent, WaitingRuns, plan_in, results_in, spent_in, words_for
from ferrule.workflow.plan import Plan
from ferrule.workflow.planning import planning_toolbox
from ferrule.workflow.recovery import Records
from ferrule.workflow.results import StepContext, StepResult
from ferrule.workflow.team import Team
from ferrule.workflow.workflow import (
    Answers,
    Approvals,
    OnWorkflowEvent,
    PlanMade,
    StepEnded,
    WorkflowResult,
    new_run_id,
    nobody,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """What a run goes on from: nothing but its question, if it has just begun."""

    task: str
    history: str = ""
    plan: Plan | None = None
    results: dict[str, StepResult] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    spent: Spent = Spent()


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
        return await self._go_on(notes, _Past(task=task, history=history), {}, on_event)

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
        begin, last = entries[0], entries[-1]
        plan, known = plan_in(entries), results_in(entries)
        if last["kind"] == "end" and last["state"] != AgentState.WAITING:
            return ended(run_id, begin["task"], plan, known, last)
        plan, known = self._waiting.take(run_id) or (plan, known)
        past = _Past(
            task=begin["task"],
            history=begin.get("history", ""),
            plan=plan,
            results=known,
            records=await Records.of_run(self._library.engine, run_id),
            spent=spent_in(entries),
        )
        return await self._go_on(
            notes, past, words_for(last if last["kind"] == "end" else {}, answer, approvals), on_event
        )

    async def _go_on(
        self, notes: RunNotes, past: _Past, words: Mapping[str, Word], on_event: OnWorkflowEvent | None
    ) -> WorkflowResult:
        task, plan, tell = past.task, past.plan, on_event or nobody
        team = await Team.of(self._library, self._model, task, self._policy, self._tools, self._toolbox)
        clock = Clock()
        if plan is None:
            plan = await team.planning.decompose_task(task, history=past.history)
            notes.write("plan", plan=plan.to_dict())
        else:
            notes.learn(plan.to_dict())
        clock.lap("planning")
        tell(PlanMade(plan, tuple(past.results.values())))
        context = StepContext(question=task, run_id=notes.run_id, results=past.results, history=past.history)
        budget = past.spent.budget(self._limits, team)
        conductor = team.conduct(plan, context, library=self._library, budget=budget, records=past.records)
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
