"""What every workflow is: what it is asked, what it tells on the way, what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from ferrule.agent.answer import AgentState, Approval, ApprovalRequest, Question
from ferrule.messages import Usage
from ferrule.workflow.plan import Plan
from ferrule.workflow.results import StepResult


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


def new_run_id() -> str:
    return uuid4().hex[:16]


def nobody(event: WorkflowEvent) -> None:
    """Nobody watches."""
