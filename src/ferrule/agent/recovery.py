"""Going on after a crash: what was done is not done again, what was learned is known again."""

from __future__ import annotations

from typing import Final

from ferrule.agent.acting import Acting, text_for_model
from ferrule.agent.answer import AgentStep
from ferrule.agent.meaning import Meant
from ferrule.agent.run import Run
from ferrule.agent.toolbox import Offer
from ferrule.call import ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.errors import CANCELLED, KNOWN_FAILURE, PERMISSION_DENIED, VALIDATION_ERROR, SetupError, ToolNotFound
from ferrule.memory import RunMemory
from ferrule.messages import ToolCall
from ferrule.registry import ToolRegistry
from ferrule.store import ToolCallRecord
from ferrule.tools.conversation import CONTROL

UNKNOWN = (
    "This call was interrupted while it ran; whether it did what it was to do is not known. It was not made again. "
    "Find out before you repeat it."
)
INTERRUPTED: Final = "interrupted"
_CUT_OFF: Final = (INTERRUPTED, "cancelled")
_SEARCHED: Final = 500


def relearn(run: Run, memory: RunMemory | None, registry: ToolRegistry) -> None:
    """Tell the context and the memory of a run what its steps came to."""
    for step in run.steps:
        result = _result_of(step)
        run.context.record(step.tool_id, step.action, step.arguments, result)
        if memory is None or not _was_made(step) or not registry.snapshot().knows(step.tool_id):
            continue
        try:
            tool, capability = registry.find(step.tool_id, step.action)
        except ToolNotFound:
            continue
        memory.relearn(tool, capability, dict(step.arguments), result)


async def answer_what_was_interrupted(run: Run, acting: Acting, offer: Offer, engine: ToolEngine) -> None:
    """Answer the calls that have none: from their records if they ended, else by making them if that is safe."""
    open_calls = [call for call in run.open_calls if call.id not in run.answers and call.id not in run.questions]
    if not open_calls:
        return
    records = await engine.query_call_records(conversation_id=run.id, limit=_SEARCHED)
    again = []
    for call in open_calls:
        meant = acting.meaning.of(call, offer)
        record = None if meant.tool_id in CONTROL else _record_of(call, records)
        if record is not None and record.status == "running":
            raise SetupError(f"The run {run.id!r} is going on in another process. Wait for its answer, or end it.")
        if record is not None and not (record.status in _CUT_OFF and _is_safe(meant)):
            run.answered(_step_of(call, record))
        elif call.id not in run.approvals:
            again.append(call)
    await acting.perform(again, offer)


def _record_of(call: ToolCall, records: list[ToolCallRecord]) -> ToolCallRecord | None:
    """What became of a call; of several tools that tried, one that succeeded if any did.

    One that only asked for leave has not been made.
    """
    mine = [record for record in records if record.metadata.get("tool_call_id") == call.id]
    made = [record for record in mine if record.metadata.get("advice") != "ask_approval"]
    made.sort(key=lambda record: (not record.is_success, record.status not in (*_CUT_OFF, "running")))
    return made[0] if made else None


def _is_safe(meant: Meant) -> bool:
    return bool(meant.candidates) and all(
        tool.spec.effects_of(capability).repeatable for tool, capability in meant.candidates
    )


def _was_made(step: AgentStep) -> bool:
    """Not: refused before anybody was called, answered from memory, or cut off so that nobody knows what it did."""
    if step.error_type in (KNOWN_FAILURE, CANCELLED, INTERRUPTED):
        return False
    return bool(step.record_id) or step.error_type not in (PERMISSION_DENIED, VALIDATION_ERROR)


def _step_of(call: ToolCall, record: ToolCallRecord) -> AgentStep:
    text, error_type = UNKNOWN, INTERRUPTED if record.status in _CUT_OFF else record.error_type
    if record.status not in _CUT_OFF:
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
        error_type=error_type,
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
