"""One form for what plans, loops and models alone come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.agent.answer import AgentAnswer, AgentState, AgentStep
from ferrule.content import as_text
from ferrule.describe.sentences import within
from ferrule.names import model_name
from ferrule.orchestrator.result import OrchestratorResult, Way, verification_of_all
from ferrule.workflow import StepContext, StepResult, VerificationAgent, WorkflowResult
from ferrule.workflow.results import Attempt

_DESCRIPTION: Final = 200


def outcome_of_plan(done: WorkflowResult, summary: Mapping[str, Any]) -> OrchestratorResult:
    return OrchestratorResult(
        question=done.question,
        answer=done.answer,
        state=done.state,
        strategy="plan",
        run_id=done.run_id,
        plan=done.plan,
        steps=done.results,
        verification=verification_of_all(done.results),
        tool_usage_summary=dict(summary),
        usage=done.usage,
        timings=dict(done.timings),
        approvals=done.approvals,
        questions=done.questions,
        errors=done.errors,
    )


async def outcome_of_run(task: str, answer: AgentAnswer, way: Way, summary: Mapping[str, Any]) -> OrchestratorResult:
    """Its calls are verified as the steps of a plan are."""
    steps = tuple([await _verified(step_of(step), task) for step in answer.steps])
    return OrchestratorResult(
        question=task,
        answer=answer.text,
        state=answer.state,
        strategy=way,
        run_id=answer.run_id,
        steps=steps,
        verification=verification_of_all(steps),
        tool_usage_summary=dict(summary),
        usage=answer.usage,
        questions=tuple(answer.questions),
        approvals=tuple(answer.approvals),
        errors=(answer.reason,) if answer.state is AgentState.STOPPED and answer.reason else (),
    )


def step_of(step: AgentStep) -> StepResult:
    """A call of an agent as a step."""
    name = step.tool_id if step.action in (None, step.tool_id) else model_name(step.tool_id, step.action)
    error = None if step.is_success else step.text
    return StepResult(
        step_id=step.id,
        description=within(f"{name} {as_text(step.arguments)}", _DESCRIPTION),
        tool_type=name,
        success=step.is_success,
        result=step.text if step.is_success else "",
        output=step.text if step.is_success else None,
        error=error,
        error_type=step.error_type,
        attempts=(
            Attempt(level="name", tool=step.tool_id, success=step.is_success, error=error, call_id=step.record_id),
        ),
        seconds=step.seconds,
    )


async def _verified(step: StepResult, task: str) -> StepResult:
    # By itself: two calls of one tool speak of one subject and need not agree, as two steps of a plan should.
    verification = await VerificationAgent().verify_result(step, StepContext(question=task))
    return replace(step, verification=verification)
