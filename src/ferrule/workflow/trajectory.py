"""A run as a conversation, whichever way it was answered: what is shown of it, and what is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.agent.run import BOOKS, Run
from ferrule.content import as_text
from ferrule.errors import SetupError
from ferrule.messages import Message, ToolCall, assistant_message, tool_message, user_message
from ferrule.names import model_name
from ferrule.store import ToolCallRecord, ToolKnowledgeStore
from ferrule.workflow.execution import call_id_of
from ferrule.workflow.past import plan_in, results_in
from ferrule.workflow.plan import NO_TOOL, PlanStep
from ferrule.workflow.recovery import MOST_CALLS
from ferrule.workflow.results import StepResult


async def trajectory_of(run_id: str, store: ToolKnowledgeStore) -> list[Message]:
    """The messages of a run in OpenAI's format. The steps of a plan are its calls, and their results the answers."""
    entries = list((await store.notes(BOOKS + run_id)).values())
    if not entries:
        raise SetupError(f"There is no run {run_id!r} in this store. `ferrule runs list` shows those there are.")
    if entries[0].get("workflow") is None:
        return (await Run.load(run_id, store)).messages
    records = await store.query_call_records(conversation_id=run_id, limit=MOST_CALLS)
    return _of_plan(entries, {record.record_id: record for record in records})


def _of_plan(entries: Sequence[Mapping[str, Any]], made: Mapping[str, ToolCallRecord]) -> list[Message]:
    messages, plan = [user_message(str(entries[0].get("task", "")))], plan_in(entries)
    if plan is not None:
        messages += [said for one in results_in(entries).values() for said in _of_step(one, plan[one.step_id], made)]
    if entries[-1]["kind"] == "end" and entries[-1]["text"]:
        messages.append(assistant_message(entries[-1]["text"]))
    return messages


def _of_step(result: StepResult, step: PlanStep, made: Mapping[str, ToolCallRecord]) -> list[Message]:
    text = result.result if result.success else result.error or "failed"
    if result.tool_type == NO_TOOL or result.skipped:
        return [assistant_message(f"{step.description}: {text}")]
    call = ToolCall(name=result.tool_type, arguments=_arguments(result, step, made), id=call_id_of(step, 1))
    full = as_text(result.output) if result.success and result.output is not None else text
    return [assistant_message(step.description, [call]), tool_message(call, full)]


def _arguments(result: StepResult, step: PlanStep, made: Mapping[str, ToolCallRecord]) -> dict[str, Any]:
    """What the tool was called with, as recorded: in the plan there are references, and gaps that a model filled."""
    calls = [made[attempt.call_id] for attempt in result.attempts if attempt.call_id in made]
    mine = [
        one for one in calls if result.tool_type in (model_name(one.tool_name), model_name(one.tool_name, one.action))
    ]
    return dict(mine[0].params if mine else step.parameters)
