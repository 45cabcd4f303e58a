"""What comes of a question, however it was answered."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

from ferrule.agent.answer import AgentState, ApprovalRequest, Question
from ferrule.messages import Usage
from ferrule.names import did_you_mean
from ferrule.workflow import Plan, StepResult, Verification

Way: TypeAlias = Literal["fast_path", "plan", "loop", "direct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorResult:
    """The answer, and how it came about. `result["answer"]` reads a field too."""

    question: str
    answer: str
    state: AgentState
    strategy: Way
    trace_id: str = ""
    """Of this question; what it did is logged under it."""
    run_id: str = ""
    """Of the run that found the answer, to resume it or look at its records; empty where none was needed."""
    conversation_id: str = ""
    plan: Plan | None = None
    steps: tuple[StepResult, ...] = ()
    """What was done, step of a plan or call of the loop alike."""
    verification: Verification | None = None
    """Of all steps together: the least sure one counts."""
    tool_usage_summary: dict[str, Any] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """What the usage costs, if there is a price."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage, and `total`."""
    cached: bool = False
    """The answer was kept from an earlier time."""
    shared: bool = False
    """The answer is that of a run that somebody else's same question had begun."""
    questions: tuple[Question, ...] = ()
    approvals: tuple[ApprovalRequest, ...] = ()
    """What it waits for, if it does."""
    errors: tuple[str, ...] = ()
    """What was wrong and did not stop it; or, if it stopped, why."""

    @property
    def is_finished(self) -> bool:
        return self.state is AgentState.FINISHED

    def __str__(self) -> str:
        return self.answer

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(f"A result has no {name!r}.{did_you_mean(name, _NAMES)}")
        return getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for files, pipes and pages."""
        return {
            "question": self.question,
            "answer": self.answer,
            "state": self.state.value,
            "strategy": self.strategy,
            "trace_id": self.trace_id,
            "run_id": self.run_id,
            "conversation_id": self.conversation_id,
            "plan": None if self.plan is None else self.plan.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "verification": None if self.verification is None else asdict(self.verification),
            "tool_usage_summary": self.tool_usage_summary,
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "cost": self.cost,
            "timings": self.timings,
            "cached": self.cached,
            "shared": self.shared,
            "questions": [asdict(question) for question in self.questions],
            "approvals": [asdict(request) for request in self.approvals],
            "errors": list(self.errors),
        }


_NAMES = tuple(field.name for field in fields(OrchestratorResult))


def verification_of_all(steps: tuple[StepResult, ...]) -> Verification | None:
    """What is to be said about all steps together; None where nothing was done that could be verified."""
    found = [step.verification for step in steps if step.verification is not None and not step.skipped]
    if not found:
        return None
    return Verification(
        verified=all(one.verified for one in found),
        confidence=min(one.confidence for one in found),
        issues=tuple(issue for one in found for issue in one.issues),
    )
