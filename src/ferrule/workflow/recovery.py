"""What the steps of an interrupted run had come to, by the records of their calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrule.call import ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.errors import (
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
from ferrule.library import UnifiedToolLibrary
from ferrule.store import ToolCallRecord
from ferrule.workflow.execution import UNKNOWN_OUTCOME, call_id_of, failed, succeeded
from ferrule.workflow.plan import NO_TOOL, PlanStep
from ferrule.workflow.results import Attempt, StepResult

UNKNOWN = (
    "This call was interrupted while it ran; whether it did what it was to do is not known. It was not made again."
)
_NEVER_RAN = frozenset(
    {VALIDATION_ERROR, TOOL_NOT_FOUND, EXECUTOR_NOT_FOUND, REJECTED, PERMISSION_DENIED, KNOWN_FAILURE}
)
MOST_CALLS = 10_000
"""Of one run."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a run's calls, by the ids its steps gave them."""

    by_call: dict[str, ToolCallRecord] = field(default_factory=dict)

    @classmethod
    async def of_run(cls, engine: ToolEngine, run_id: str) -> Records:
        found: dict[str, ToolCallRecord] = {}
        for record in await engine.query_call_records(conversation_id=run_id, limit=MOST_CALLS):
            call_id = str(record.metadata.get("tool_call_id"))
            if call_id not in found or record.is_success:
                found[call_id] = record
        return cls(found)

    def know(self, step: PlanStep) -> bool:
        """Whether a call was made for a step."""
        return call_id_of(step, 1) in self.by_call

    def result_of(self, step: PlanStep, attempt: int, library: UnifiedToolLibrary) -> StepResult | None:
        """What became of a step's call; None when it was never made, or can be made again."""
        record = self.by_call.get(call_id_of(step, attempt))
        if record is None or step.tool_type == NO_TOOL:
            return None
        try:
            tool, capability = library.engine.registry.find(step.tool_type)
        except ToolNotFound:
            return None
        if record.is_success:
            result = ToolExecutionResult(is_success=True, tool_name=tool.id, output=record.result or {})
            return succeeded(step, result, tool, [_attempt(record)])
        if tool.spec.effects_of(capability).repeatable or record.error_type in _NEVER_RAN:
            return None
        is_known = record.status == "failed" and record.error_type not in (TIMEOUT, CANCELLED)
        if is_known and record.metadata.get("outcome") != "unknown":
            return failed(step, record.error or "It failed.", record.error_type, [_attempt(record)])
        return failed(step, UNKNOWN, UNKNOWN_OUTCOME, [_attempt(record)])


def _attempt(record: ToolCallRecord) -> Attempt:
    return Attempt(
        level="name",
        tool=record.tool_name,
        success=record.is_success,
        error=None if record.is_success else record.error or UNKNOWN,
        call_id=record.record_id,
    )
