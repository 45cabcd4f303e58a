"""How a run ends, or comes to a halt: what is written down and told of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ferrule.agent.answer import AgentState, ApprovalRequest, Question
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.notes import RunNotes
from ferrule.workflow.plan import Plan
from ferrule.workflow.results import StepResult
from ferrule.workflow.team import Team
from ferrule.workflow.workflow import WorkflowResult


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


def conclude(
    notes: RunNotes, task: str, conductor: Conductor, answer: str, *, team: Team, clock: Clock
) -> WorkflowResult:
    """Write down how far the run has come, and tell it."""
    results, waiting = conductor.in_order, conductor.waiting.values()
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
