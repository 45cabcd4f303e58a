"""Going on after a crash: what was done is not done again, what was learned is known again."""

from __future__ import annotations

from ferrule.agent.acting import Acting, text_for_model
from ferrule.agent.answer import AgentStep
from ferrule.agent.run import Run
from ferrule.agent.toolbox import Offer
from ferrule.call import CallMemory, ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.errors import KNOWN_FAILURE, ToolNotFound
from ferrule.messages import ToolCall
from ferrule.registry import ToolRegistry
from ferrule.store import ToolCallRecord

UNKNOWN = (
    "This call was interrupted while it ran; whether it did what it was to do is not known. It was not made again. "
    "Find out before you repeat it."
)
_SEARCHED = 500


def relearn(run: Run, memory: CallMemory | None, registry: ToolRegistry) -> None:
    """Tell the context and the memory of a run what its steps came to."""
    for step in run.steps:
        result = _result_of(step)
        run.context.record(step.tool_id, step.action, step.arguments, result)
        if memory is None or step.error_type == KNOWN_FAILURE:
            continue
        try:
            tool, capability = registry.find(step.tool_id, step.action)
        except ToolNotFound:
            continue
        memory.learn(tool, capability, dict(step.arguments), result)


async def answer_what_was_interrupted(run: Run, acting: Acting, offer: Offer, engine: ToolEngine) -> None:
    """Answer the calls that have none: from their records if they ended, else by making them if that is safe."""
    open_calls = [call for call in run.open_calls if call.id not in run.answers]
    open_calls = [call for call in open_calls if call.id not in run.questions and call.id not in run.approvals]
    if not open_calls:
        return
    records = await engine.query_call_records(conversation_id=run.id, limit=_SEARCHED)
    again = []
    for call in open_calls:
        record = _record_of(call, records)
        if record is None or (record.status == "interrupted" and _is_safe(call, offer)):
            again.append(call)
        else:
            run.answered(_step_of(call, record, offer))
    await acting.perform(again, offer)


def _record_of(call: ToolCall, records: list[ToolCallRecord]) -> ToolCallRecord | None:
    """What became of a call; of several tools that tried, one that succeeded if any did."""
    mine = [record for record in records if record.metadata.get("tool_call_id") == call.id]
    return next((record for record in mine if record.is_success), mine[0] if mine else None)


def _is_safe(call: ToolCall, offer: Offer) -> bool:
    found = offer.actions.get(call.name)
    return found is not None and found[0].spec.effects_of(found[1]).repeatable


def _step_of(call: ToolCall, record: ToolCallRecord, offer: Offer) -> AgentStep:
    text = UNKNOWN
    if record.status != "interrupted":
        text = text_for_model(
            ToolExecutionResult(
                is_success=record.is_success,
                tool_name=record.tool_name,
                output=record.result or {},
                error=record.error,
                error_type=record.error_type,
                metadata=record.metadata,
            )
        )
    return AgentStep(
        id=call.id,
        tool_id=record.tool_name,
        action=record.action,
        arguments=dict(record.params),
        text=text,
        is_success=record.is_success,
        error_type=record.error_type or (None if record.is_success else record.status),
        seconds=record.execution_time or 0.0,
        record_id=record.record_id,
    )


def _result_of(step: AgentStep) -> ToolExecutionResult:
    return ToolExecutionResult(
        is_success=step.is_success,
        tool_name=step.tool_id,
        output={"result": step.text} if step.is_success else {},
        error=None if step.is_success else step.text,
        error_type=step.error_type,
    )
