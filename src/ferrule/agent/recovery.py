"""Resuming a run: calls that ended are not executed again, and the run's memory is restored."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from ferrule.agent.answer import ASK_USER, StepResult
from ferrule.agent.control_tools import CONTROL_TOOLS
from ferrule.agent.run import Run
from ferrule.agent.toolbox import ResolvedCall, ToolOffer
from ferrule.agent.turn import ActiveRun, advice_for_model, result_of_call
from ferrule.catalog.registry import ToolRegistry
from ferrule.core.call import CALLER_CONVERSATION_AGENT, ToolExecutionResult
from ferrule.errors import CANCELLED, KNOWN_FAILURE, PERMISSION_DENIED, VALIDATION_ERROR, ToolNotFound
from ferrule.library.meta_tools import META_TOOLS
from ferrule.memory import RunMemory
from ferrule.policy.provenance import RunOrigins
from ferrule.store import ToolCallRecord, ToolKnowledgeStore

UNKNOWN_OUTCOME: Final = (
    "This call was interrupted while it ran, so its outcome is unknown. It was not repeated. "
    "Find out what it did before you repeat it."
)
INTERRUPTED: Final = "interrupted"
INTERRUPTED_STATUSES: Final = (INTERRUPTED, "cancelled", "running")
"""The process that resumes a run has its lock. A running call belongs to a process that died on another machine."""
_STOP_TIMEOUT: Final = 5.0
"""Seconds in which a process that has lost the lock of a run, but lives, ends the calls of the run."""
MAX_RECORDS: Final = 10_000
"""Of the calls that the model or the plan made: many times what they may make before they are resumed."""


async def find_call_records(run_id: str, store: ToolKnowledgeStore, caller_type: str) -> dict[str, ToolCallRecord]:
    """Return the records of a run's calls by call id, when no call runs any more as far as can be known.

    If several tools were tried for a call, a success is preferred, then an interruption. Records of calls that only
    asked for approval are ignored: nothing was executed.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT
    while True:
        # Without the calls that tools made: there may be very many, and the run did not make them.
        records = await store.query_call_records(conversation_id=run_id, caller_type=caller_type, limit=MAX_RECORDS)
        if time.monotonic() > deadline or all(record.status != "running" for record in records):
            break
        await asyncio.sleep(0.25)
    records = [record for record in reversed(records) if record.metadata.get("advice") != "ask_approval"]
    records.sort(key=lambda record: (record.is_success, record.status in INTERRUPTED_STATUSES))
    return {str(record.metadata.get("tool_call_id")): record for record in records}


def restore_memory(run: Run, memory: RunMemory | None, registry: ToolRegistry) -> None:
    """Restore the context and the memory of a run from its steps."""
    for step in run.steps:
        result = _result_from_step(step)
        run.context.record(step.tool_id, step.action, dict(step.arguments), result)
        if memory is None or not _was_executed(step) or not registry.snapshot().may_contain(step.tool_id):
            continue
        try:
            tool, capability = registry.find(step.tool_id, step.action)
        except ToolNotFound:
            continue
        memory.restore_call(tool, capability, dict(step.arguments), result)


def restore_origins(run: Run, origins: RunOrigins, registry: ToolRegistry) -> None:
    """Tell what knows the texts of a run which texts a resumed run has had. Of results, only the text is stored."""
    origins.add_conversation(run.messages[: run.begin_length])
    for step in run.steps:
        if step.tool_id == ASK_USER and step.is_success:
            origins.add_trusted(step.text)
        elif _was_executed(step) and step.tool_id not in (*CONTROL_TOOLS, *META_TOOLS):
            try:
                action = registry.find(step.tool_id, step.action)
            except ToolNotFound:
                action = None
            origins.add_stored_result(action, step.tool_type, step.arguments, step.text, is_success=step.is_success)


async def answer_interrupted_calls(active: ActiveRun, offer: ToolOffer) -> None:
    """Give open calls their results: from their records if they ended, or by executing them if that is safe."""
    run = active.run
    open_calls = [call for call in run.open_calls if call.id not in run.answers and call.id not in run.questions]
    if not open_calls:
        return
    records = await find_call_records(run.id, active.engine.store, CALLER_CONVERSATION_AGENT)
    unanswered = []
    for call in open_calls:
        resolved = active.resolver.resolve(call, offer)
        record = None if resolved.tool_id in CONTROL_TOOLS else records.get(call.id)
        if record is not None and not (record.status in INTERRUPTED_STATUSES and _is_repeatable(resolved)):
            run.add_step(_step_from_record(resolved, record))
        elif call.id not in run.approvals:
            unanswered.append(resolved)
    await active.execute_calls(unanswered, offer)


def _is_repeatable(resolved: ResolvedCall) -> bool:
    return bool(resolved.candidates) and all(
        tool.spec.effects_of(capability).repeatable for tool, capability in resolved.candidates
    )


def _was_executed(step: StepResult) -> bool:
    """Return whether a tool was called with a known outcome: not refused, not known to fail, not interrupted."""
    if step.error_type in (KNOWN_FAILURE, CANCELLED, INTERRUPTED):
        return False
    return bool(step.record_id) or step.error_type not in (PERMISSION_DENIED, VALIDATION_ERROR)


def _step_from_record(resolved: ResolvedCall, record: ToolCallRecord) -> StepResult:
    text, advice, error_type = UNKNOWN_OUTCOME, "", record.error_type
    if record.status in INTERRUPTED_STATUSES:
        error_type = INTERRUPTED
    else:
        result = ToolExecutionResult(
            is_success=record.is_success,
            tool_name=record.tool_name,
            output=record.result or {},
            error=record.error,
            error_type=record.error_type,
            metadata=record.metadata,
        )
        text, advice = result.text, advice_for_model(result)
    return result_of_call(
        resolved,
        record.tool_name,
        text,
        is_success=record.is_success,
        record_id=record.record_id,
        error_type=error_type,
        action=record.action,
        arguments=dict(record.params),
        seconds=record.execution_time or 0.0,
        advice=advice,
    )


def _result_from_step(step: StepResult) -> ToolExecutionResult:
    return ToolExecutionResult(
        is_success=step.is_success,
        tool_name=step.tool_id,
        output={"result": step.text} if step.is_success else {},
        error=None if step.is_success else step.text,
        error_type=step.error_type,
    )
