"""The result of a question, in the same form for every strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from ferrule.agent.answer import AgentAnswer, AgentState, AgentStep
from ferrule.core.content import as_text
from ferrule.core.names import model_name
from ferrule.texts.shorten import shorten
from ferrule.workflow import StepContext, StepResult, Verification, VerificationAgent, WorkflowResult
from ferrule.workflow.results import StepAttempt

AnswerStrategy: TypeAlias = Literal["fast_path", "plan", "loop", "direct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorResult(WorkflowResult):
    """The answer, and how it was found. Fields can also be read as `result["answer"]`."""

    strategy: AnswerStrategy
    run_id: str = ""
    """The run that found the answer, for resuming it or reading its records; empty if no run was needed."""
    trace_id: str = ""
    """The id of this question in the log."""
    conversation_id: str = ""
    verification: Verification | None = None
    """The verification of all steps together; the lowest confidence counts."""
    tool_usage_summary: dict[str, Any] = field(default_factory=dict)
    cost: float | None = None
    """What models and tools cost together; None if nothing of it has a price, 0 if it comes from the cache."""
    cached: bool = False
    """The answer comes from the cache."""
    shared: bool = False
    """The answer comes from a run that another caller started with the same question."""

    @property
    def is_finished(self) -> bool:
        return self.state is AgentState.FINISHED

    def __str__(self) -> str:
        return self.answer

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
            "model_cost": self.model_cost,
            "tool_cost": self.tool_cost,
            "timings": self.timings,
            "cached": self.cached,
            "shared": self.shared,
            "questions": [asdict(question) for question in self.questions],
            "approvals": [asdict(request) for request in self.approvals],
            "errors": list(self.errors),
        }


def combine_verifications(steps: tuple[StepResult, ...]) -> Verification | None:
    """Combine the verifications of all steps; None if there are none."""
    verifications = [step.verification for step in steps if step.verification is not None and not step.skipped]
    if not verifications:
        return None
    return Verification(
        verified=all(v.verified for v in verifications),
        confidence=min(v.confidence for v in verifications),
        issues=tuple(issue for v in verifications for issue in v.issues),
    )


# Converting the results of plans and agents

_MAX_DESCRIPTION_LENGTH: Final = 200


def convert_workflow_result(done: WorkflowResult, summary: Mapping[str, Any]) -> OrchestratorResult:
    return OrchestratorResult(
        **{each.name: getattr(done, each.name) for each in fields(done)},
        strategy="plan",
        verification=combine_verifications(done.steps),
        tool_usage_summary=dict(summary),
    )


async def convert_agent_answer(
    task: str, answer: AgentAnswer, strategy: AnswerStrategy, summary: Mapping[str, Any]
) -> OrchestratorResult:
    """Convert an agent's answer. Its calls are verified like the steps of a plan."""
    steps = tuple([await _convert_agent_step(step, task) for step in answer.steps])
    return OrchestratorResult(
        question=task,
        answer=answer.text,
        state=answer.state,
        strategy=strategy,
        run_id=answer.run_id,
        steps=steps,
        verification=combine_verifications(steps),
        tool_usage_summary=dict(summary),
        usage=answer.usage,
        model_cost=answer.model_cost,
        tool_cost=answer.tool_cost,
        questions=tuple(answer.questions),
        approvals=tuple(answer.approvals),
        errors=(answer.reason,) if answer.state is AgentState.STOPPED and answer.reason else (),
    )


async def _convert_agent_step(step: AgentStep, task: str) -> StepResult:
    """Convert a call of an agent to a step, and verify the step."""
    name = step.tool_id if step.action in (None, step.tool_id) else model_name(step.tool_id, step.action)
    error = None if step.is_success else step.text
    attempt = StepAttempt(level="name", tool=step.tool_id, success=step.is_success, error=error, call_id=step.record_id)
    converted = StepResult(
        step_id=step.id,
        description=shorten(f"{name} {as_text(step.arguments)}", _MAX_DESCRIPTION_LENGTH),
        tool_type=name,
        success=step.is_success,
        arguments=step.arguments,
        result=step.text if step.is_success else "",
        output=step.text if step.is_success else None,
        error=error,
        error_type=step.error_type,
        attempts=(attempt,),
        seconds=step.seconds,
    )
    # Without the other results: unlike steps of a plan, two calls of one tool have the same subject but need not agree.
    converted.verification = await VerificationAgent().verify_result(converted, StepContext(question=task))
    return converted
