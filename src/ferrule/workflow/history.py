"""What the run of a plan is resumed from: the records of its calls, and the replies of people."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrule.agent.run import Run
from ferrule.core.call import CALLER_PLANNER, ToolExecutionResult
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
from ferrule.policy.approvals import Approval, ApprovalRequest, Approvals
from ferrule.policy.budgets import CostControl, Payer, is_extension_request
from ferrule.store import ToolCallRecord, ToolKnowledgeStore
from ferrule.store.escapes import map_texts, to_storable_text
from ferrule.workflow.execution import UNKNOWN_OUTCOME, call_id_of, failure_result, success_result
from ferrule.workflow.plan import ASK_USER, NO_TOOL, Plan, PlanStep
from ferrule.workflow.references import find_referenced_steps, find_referenced_values
from ferrule.workflow.results import Answers, ApprovalDecisions, StepAttempt, StepResult
from ferrule.workflow.waiting import HumanReply

MAX_CALLS: Final = 10_000
"""How many call records of one run are read."""
MAX_PAUSED_RUNS: Final = 1_000
INTERRUPTED: Final = "This call was interrupted while it ran, so its outcome is unknown. It was not repeated."
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


# The data that a resumed run continues from


@dataclass(frozen=True, slots=True)
class CallRecords:
    """The records of a run's calls, by the ids its steps gave them."""

    by_call: dict[str, ToolCallRecord] = field(default_factory=dict)

    @classmethod
    async def of_run(cls, store: ToolKnowledgeStore, run_id: str) -> CallRecords:
        records: dict[str, ToolCallRecord] = {}
        # Without the calls that tools made: there may be very many, and none of them is the call of a step.
        for record in await store.query_call_records(
            conversation_id=run_id, caller_type=CALLER_PLANNER, limit=MAX_CALLS
        ):
            call_id = str(record.metadata.get("tool_call_id"))
            if call_id not in records or record.is_success:
                records[call_id] = record
        return cls(records)

    def has_call_of(self, step: PlanStep) -> bool:
        return call_id_of(step, 1) in self.by_call

    def restore_result(self, step: PlanStep, attempt: int, library: UnifiedToolLibrary) -> StepResult | None:
        """The recorded result of a step's call; None if it was never executed or can safely be repeated."""
        record = self.by_call.get(call_id_of(step, attempt))
        if record is None or step.tool_type == NO_TOOL:
            return None
        try:
            tool, capability = library.engine.registry.find(step.tool_type)
        except ToolNotFound:
            return None
        if record.is_success:
            result = ToolExecutionResult(is_success=True, tool_name=tool.id, output=record.result or {})
            return replace(success_result(step, result, tool, [_attempt_from_record(record)]), arguments=record.params)
        if tool.spec.effects_of(capability).repeatable or record.error_type in _NEVER_RAN:
            return None
        is_certain = record.status == "failed" and record.error_type not in (TIMEOUT, CANCELLED)
        if is_certain and record.metadata.get("outcome") != "unknown":
            error, error_type = record.error or "It failed.", record.error_type
        else:
            error, error_type = INTERRUPTED, UNKNOWN_OUTCOME
        failure = failure_result(step, error, error_type, [_attempt_from_record(record)])
        return replace(failure, arguments=record.params)


def _attempt_from_record(record: ToolCallRecord) -> StepAttempt:
    return StepAttempt(
        level="name",
        tool=record.tool_name,
        success=record.is_success,
        error=None if record.is_success else record.error or INTERRUPTED,
        call_id=record.record_id,
    )


async def match_human_replies(
    run: Run, answer: Answers, decisions: ApprovalDecisions, approvals: Approvals
) -> dict[str, HumanReply]:
    """Return the person's reply to each waiting step."""
    replies: dict[str, HumanReply] = {}
    requests_by_id: dict[str, ApprovalRequest | None] = {}
    for waiting in run.approvals.values():
        if is_extension_request(waiting):
            continue
        step_id, approval_id = waiting.call_id, waiting.approval_id
        decision = decisions if isinstance(decisions, bool) or decisions is None else decisions.get(step_id)
        if approval_id not in requests_by_id:  # steps that make the same call have one request
            requests_by_id[approval_id] = await _decide(approval_id, decision, approvals)
        if (request := requests_by_id[approval_id]) is not None:
            replies[step_id] = request
    questions = list(run.questions)
    if isinstance(answer, str):
        answer = {step_id: answer for step_id in questions[:1]}
    return replies | {step_id: text for step_id, text in (answer or {}).items() if step_id in questions}


async def _decide(approval_id: str, decision: Approval | bool | None, approvals: Approvals) -> ApprovalRequest | None:
    """The request with the person's decision, made now or elsewhere; None for one that must be decided (again)."""
    request = await approvals.get(approval_id)
    is_plain = decision is True or (isinstance(decision, Approval) and decision.allowed and not decision.arguments)
    if decision is not None and (request.state == "pending" or (request.state == "approved" and not is_plain)):
        return await approvals.record_decision(approval_id, decision)
    return request if request.state in ("approved", "refused") else None


async def apply_budget_decisions(
    run: Run, decisions: ApprovalDecisions, payer: Payer, costs: CostControl
) -> str | None:
    """Extend the budgets that a person has decided about; returns why the run must stop, if the person refused."""
    for request in run.approvals.values():
        if not is_extension_request(request):
            continue
        decision = decisions.get(request.call_id) if isinstance(decisions, Mapping) else decisions
        approval = Approval(allowed=decision) if isinstance(decision, bool) else decision
        try:
            refusal = await costs.apply_decision(payer, request, approval)
        except LookupError:  # if the model is still needed, the run waits again
            continue
        if refusal is not None:
            return refusal
    return None


class PausedRuns:
    """The plans and results of waiting runs in this process, with the secrets that the store does not have."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, tuple[int, tuple[Plan, dict[str, StepResult]]]] = OrderedDict()

    def add(self, run: Run, plan: Plan, results: dict[str, StepResult]) -> None:
        self._runs[run.id] = (run.entry_count, (plan, results))
        if len(self._runs) > MAX_PAUSED_RUNS:
            self._runs.popitem(last=False)

    def pop(self, run: Run) -> tuple[Plan, dict[str, StepResult]] | None:
        """Return the plan and results of the run; None if another process has continued the run since."""
        number, paused = self._runs.pop(run.id, (0, None))
        return paused if number == run.entry_count else None
