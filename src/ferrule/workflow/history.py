"""The entries that a run of a plan writes into the store, and reading them when it is resumed.

Every run is a stream of entries in the store, appended and never changed:

    begin   the question
    plan    the plan, and each revision of it
    step    the result of a step, after it was verified
    end     the answer, or the requests it waits for, or why it was interrupted

The store is the only memory of a run: both workflows continue from these entries and from the records of the calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ferrule.agent.answer import AgentState
from ferrule.agent.run import RUN_PREFIX, Run, RunEntries
from ferrule.core.call import CALLER_PLANNER, ToolExecutionResult
from ferrule.core.content import as_text
from ferrule.core.messages import Message, ToolCall, Usage, assistant_message, tool_message, user_message
from ferrule.core.names import model_name
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
    SetupError,
    ToolNotFound,
)
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.approvals import Approval, ApprovalRequest, Approvals
from ferrule.policy.budgets import CostControl, Payer, RunCosts, is_extension_request
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
_ENDED_OR_WAITING: Final = (AgentState.FINISHED, AgentState.STOPPED, AgentState.WAITING)
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


async def read_run_entries(run_id: str, store: ToolKnowledgeStore) -> dict[str, Mapping[str, Any]]:
    """The entries of a run, by number; raises SetupError if there are none."""
    entries = await store.read_entries(RUN_PREFIX + run_id)
    if not entries:
        raise SetupError(f"There is no run {run_id!r} in this store. `ferrule runs list` lists the runs.")
    return entries


class RunLog:
    """Writes the entries of one run, without the secrets that steps pass to tools."""

    def __init__(self, library: UnifiedToolLibrary, run_id: str) -> None:
        self.run_id, self._store = run_id, library.engine.store
        self._entries = RunEntries(library.engine.store, run_id)
        self._registry = library.engine.registry
        self._secrets = library.engine.store.get_run_secrets(run_id)

    @property
    def entry_count(self) -> int:
        """How many entries the run has."""
        return self._entries.entry_count

    def write(self, kind: str, **fields: Any) -> None:
        if "plan" in fields:
            fields["plan"] = self.redact_plan_dict(fields["plan"])
        self._entries.write(kind, **fields)

    def redact_plan_dict(self, plan: dict[str, Any]) -> dict[str, Any]:
        """The plan without its secrets. They are also removed from all later entries."""
        step_ids = [str(step["id"]) for step in plan["steps"]]
        return {**plan, "steps": [self._redact_step(step, step_ids) for step in plan["steps"]]}

    def add_referenced_secrets(self, plan: Plan, result: StepResult) -> None:
        """Treat what a step of the plan passes on from this result to a secret parameter as a secret."""
        results = {str(result.step_id): result.output}
        for step in plan.steps:
            for name in self._find_secret_names(step.tool_type) & step.parameters.keys():
                if values := find_referenced_values(step.parameters[name], results):
                    self._secrets.add_params({name: values}, frozenset({name}))

    def redact_plan(self, plan: Plan) -> Plan:
        """The plan as it may be shown to people and listeners: without its secrets."""
        return Plan.from_dict(self.redact_plan_dict(plan.to_dict()))

    def redact(self, value: Any) -> Any:
        """The value without any secrets and without what databases reject, so that it may be stored elsewhere."""
        return map_texts(to_storable_text, self._secrets.redact(value))

    async def read(self) -> list[Mapping[str, Any]]:
        entries = await read_run_entries(self.run_id, self._store)
        self._entries.load(entries)
        return list(entries.values())

    def _redact_step(self, step: dict[str, Any], step_ids: Collection[str]) -> dict[str, Any]:
        secret_names = self._find_secret_names(step["tool_type"])
        parameters = step["parameters"].items()
        literal = {name: value for name, value in parameters if not find_referenced_steps(value, step_ids)}
        redaction = self._store.redaction
        self._secrets.add_params(literal, secret_names)
        hidden = literal.keys() & secret_names
        if not hidden:
            return step
        return {**step, "parameters": {**step["parameters"], **dict.fromkeys(hidden, redaction.replacement)}}

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
            return success_result(step, result, tool, [_attempt_from_record(record)])
        if tool.spec.effects_of(capability).repeatable or record.error_type in _NEVER_RAN:
            return None
        is_certain = record.status == "failed" and record.error_type not in (TIMEOUT, CANCELLED)
        if is_certain and record.metadata.get("outcome") != "unknown":
            return failure_result(step, record.error or "It failed.", record.error_type, [_attempt_from_record(record)])
        return failure_result(step, INTERRUPTED, UNKNOWN_OUTCOME, [_attempt_from_record(record)])


def _attempt_from_record(record: ToolCallRecord) -> StepAttempt:
    return StepAttempt(
        level="name",
        tool=record.tool_name,
        success=record.is_success,
        error=None if record.is_success else record.error or INTERRUPTED,
        call_id=record.record_id,
    )


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """The state of a run when it starts or is resumed. A new run has only its question."""

    task: str
    conversation: str = ""
    """The conversation before the question, as text."""
    plan: Plan | None = None
    results: dict[str, StepResult] = field(default_factory=dict)
    records: CallRecords = field(default_factory=CallRecords)
    end: Mapping[str, Any] | None = None
    """The last entry, if the run has ended or is waiting."""
    calls: int = 0
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    """The usage of the model so far."""
    costs: RunCosts = field(default_factory=RunCosts)

    @classmethod
    def from_entries(cls, entries: Sequence[Mapping[str, Any]]) -> RunHistory:
        results, ends = find_step_results(entries), [entry for entry in entries if entry["kind"] == "end"]
        return cls(
            task=entries[0]["task"],
            conversation=entries[0].get("history", ""),
            plan=find_latest_plan(entries),
            results=results,
            end=entries[-1] if entries[-1].get("state") in _ENDED_OR_WAITING else None,
            calls=sum(r.tool_type not in (NO_TOOL, ASK_USER) and not r.skipped for r in results.values()),
            seconds=sum(float(entry.get("seconds", 0)) for entry in ends),
            usage=sum((Usage(**entry.get("used", {})) for entry in ends), start=Usage()),
            costs=RunCosts(**(ends[-1].get("costs", {}) if ends else {})),
        )

    @property
    def is_over(self) -> bool:
        return self.end is not None and self.end["state"] != AgentState.WAITING


def find_latest_plan(entries: Sequence[Mapping[str, Any]]) -> Plan | None:
    """The latest plan among the entries."""
    return next((Plan.from_dict(entry["plan"]) for entry in reversed(entries) if entry["kind"] == "plan"), None)


def find_step_results(entries: Sequence[Mapping[str, Any]]) -> dict[str, StepResult]:
    """The results of the steps, by step id."""
    results = (StepResult.from_dict(entry["result"]) for entry in entries if entry["kind"] == "step")
    return {str(result.step_id): result for result in results}


async def match_human_replies(
    requests: Mapping[str, Any] | None, answer: Answers, decisions: ApprovalDecisions, approvals: Approvals
) -> dict[str, HumanReply]:
    """The person's reply to each waiting step. `requests` is the entry with the run's open requests."""
    requests = requests or {}
    replies: dict[str, HumanReply] = {}
    requests_by_id: dict[str, ApprovalRequest | None] = {}
    for waiting in requests.get("approvals", ()):
        if is_extension_request(ApprovalRequest(**waiting)):
            continue
        step_id, approval_id = str(waiting["call_id"]), waiting["approval_id"]
        decision = decisions if isinstance(decisions, bool) or decisions is None else decisions.get(step_id)
        if approval_id not in requests_by_id:  # steps that make the same call have one request
            requests_by_id[approval_id] = await _decide(approval_id, decision, approvals)
        if (request := requests_by_id[approval_id]) is not None:
            replies[step_id] = request
    questions = [str(question["call_id"]) for question in requests.get("questions", ())]
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
    requests: Mapping[str, Any] | None, decisions: ApprovalDecisions, payer: Payer, costs: CostControl
) -> str | None:
    """Extend the budgets that a person has decided about; returns why the run must stop, if the person refused."""
    for request in [ApprovalRequest(**waiting) for waiting in (requests or {}).get("approvals", ())]:
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

    def add(self, log: RunLog, plan: Plan, results: dict[str, StepResult]) -> None:
        self._runs[log.run_id] = (log.entry_count, (plan, results))
        if len(self._runs) > MAX_PAUSED_RUNS:
            self._runs.popitem(last=False)

    def pop(self, log: RunLog) -> tuple[Plan, dict[str, StepResult]] | None:
        """The plan and results of the run; None if another process has continued it since."""
        number, paused = self._runs.pop(log.run_id, (0, None))
        return paused if number == log.entry_count else None


# Any run as a conversation: to show it, or for training


async def load_trajectory(run_id: str, store: ToolKnowledgeStore) -> list[Message]:
    """The messages of a run in OpenAI's format. Each step of a plan is shown as a tool call with its result."""
    entries = list((await read_run_entries(run_id, store)).values())
    if entries[0].get("workflow") is None:
        return (await Run.load(run_id, store)).messages
    records = await store.query_call_records(conversation_id=run_id, limit=MAX_CALLS)
    return _messages_of_plan_run(entries, {record.record_id: record for record in records})


def _messages_of_plan_run(entries: Sequence[Mapping[str, Any]], records: Mapping[str, ToolCallRecord]) -> list[Message]:
    messages, plan = [user_message(str(entries[0].get("task", "")))], find_latest_plan(entries)
    if plan is not None:
        for result in find_step_results(entries).values():
            messages += _step_messages(result, plan[result.step_id], records)
    if entries[-1]["kind"] == "end" and entries[-1]["text"]:
        messages.append(assistant_message(entries[-1]["text"]))
    return messages


def _step_messages(result: StepResult, step: PlanStep, records: Mapping[str, ToolCallRecord]) -> list[Message]:
    text = result.result if result.success else result.error or "failed"
    if result.tool_type == NO_TOOL or result.skipped:
        return [assistant_message(f"{step.description}: {text}")]
    call = ToolCall(
        name=result.tool_type, arguments=_find_recorded_arguments(result, step, records), id=call_id_of(step, 1)
    )
    full = as_text(result.output) if result.success and result.output is not None else text
    return [assistant_message(step.description, [call]), tool_message(call, full)]


def _find_recorded_arguments(
    result: StepResult, step: PlanStep, records: Mapping[str, ToolCallRecord]
) -> dict[str, Any]:
    """The arguments as recorded: those in the plan may contain references, or gaps that the model filled in."""
    for attempt in result.attempts:
        record = records.get(attempt.call_id)
        if record is None:
            continue
        if result.tool_type in (model_name(record.tool_name), model_name(record.tool_name, record.action)):
            return dict(record.params)
    return dict(step.parameters)
