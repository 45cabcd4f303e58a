"""The plan of a run in the store: without its secrets, and with the results of its calls when the run is resumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.agent.run import Run
from ferrule.catalog.registry import ToolRegistry
from ferrule.core.call import ToolExecutionResult
from ferrule.errors import (
    APPROVAL_REQUIRED,
    CANCELLED,
    EXECUTOR_NOT_FOUND,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    REJECTED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    ToolNotFound,
)
from ferrule.library.library import UnifiedToolLibrary
from ferrule.store import ToolCallRecord
from ferrule.store.escapes import map_texts, to_storable_text
from ferrule.workflow.execution import UNKNOWN_OUTCOME, failure_result, success_result
from ferrule.workflow.plan import ASK_USER, NO_TOOL, Plan, PlanStep
from ferrule.workflow.references import find_referenced_steps, find_referenced_values
from ferrule.workflow.results import StepAttempt, StepResult

INTERRUPTED: Final = "This call was interrupted while it ran, so its outcome is unknown. It was not repeated."


def restore_plan(run: Run) -> tuple[Plan | None, dict[str, StepResult]]:
    """Return the plan of a run and the results of its steps, as the store has them."""
    plan = None if run.plan is None else Plan.from_dict(run.plan)
    return plan, {step_id: StepResult.from_dict(result) for step_id, result in run.results.items()}


def is_call(result: Mapping[str, Any]) -> bool:
    """Return whether a stored result is that of a tool call."""
    return result["tool_type"] not in (NO_TOOL, ASK_USER) and not result["skipped"]


class PlanSecrets:
    """The secrets that the steps of a plan pass to tools: they are neither stored nor shown."""

    def __init__(self, run: Run, library: UnifiedToolLibrary) -> None:
        self._secrets, self._redaction = run.secrets, library.engine.store.redaction
        self._registry = library.engine.registry

    def redact_plan_dict(self, plan: Plan) -> dict[str, Any]:
        """Return the plan as it is stored. Its secrets are also removed from all later entries of the run."""
        fields, step_ids = plan.to_dict(), [str(step.id) for step in plan.steps]
        return {**fields, "steps": [self._redact_step(step, step_ids) for step in fields["steps"]]}

    def redact_plan(self, plan: Plan) -> Plan:
        """Return the plan as it may be shown to people and listeners."""
        return Plan.from_dict(self.redact_plan_dict(plan))

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

    def _redact_step(self, step: dict[str, Any], step_ids: Collection[str]) -> dict[str, Any]:
        secret_names = self._find_secret_names(step["tool_type"])
        parameters = step["parameters"].items()
        literal = {name: value for name, value in parameters if not find_referenced_steps(value, step_ids)}
        self._secrets.add_params(literal, secret_names)
        hidden = literal.keys() & secret_names
        if not hidden:
            return step
        return {**step, "parameters": {**step["parameters"], **dict.fromkeys(hidden, self._redaction.replacement)}}

    def _find_secret_names(self, tool_type: str) -> frozenset[str]:
        try:
            return self._registry.find(tool_type)[1].secret_names
        except ToolNotFound:
            return frozenset()


_NEVER_RAN: Final = frozenset(
    {
        VALIDATION_ERROR,
        TOOL_NOT_FOUND,
        EXECUTOR_NOT_FOUND,
        REJECTED,
        PERMISSION_DENIED,
        APPROVAL_REQUIRED,
        KNOWN_FAILURE,
    }
)


def restore_result(step: PlanStep, record: ToolCallRecord | None, registry: ToolRegistry) -> StepResult | None:
    """Return the recorded result of a step's call; None if the call never ran or can safely be repeated."""
    if record is None or step.tool_type == NO_TOOL:
        return None
    try:
        tool, capability = registry.find(step.tool_type)
    except ToolNotFound:
        return None
    error = None if record.is_success else record.error or INTERRUPTED
    attempt = StepAttempt(
        level="name", tool=record.tool_name, success=record.is_success, error=error, call_id=record.record_id
    )
    if record.is_success:
        output = ToolExecutionResult(is_success=True, tool_name=tool.id, output=record.result or {})
        restored = success_result(step, output, tool, [attempt])
    elif tool.spec.effects_of(capability).repeatable or record.error_type in _NEVER_RAN:
        return None
    elif record.status != "failed" or record.error_type in (TIMEOUT, CANCELLED) or _is_unknown(record):
        restored = failure_result(step, INTERRUPTED, UNKNOWN_OUTCOME, [attempt])
    else:
        restored = failure_result(step, record.error or "It failed.", record.error_type, [attempt])
    return replace(restored, arguments=record.params)


def _is_unknown(record: ToolCallRecord) -> bool:
    return record.metadata.get("outcome") == "unknown"
