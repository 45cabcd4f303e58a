"""A run as a conversation, whichever way it was answered: what is shown of it, and what is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.agent.run import BOOKS, Run
from ferrule.content import as_text
from ferrule.errors import SetupError
from ferrule.messages import Message, ToolCall, assistant_message, tool_message, user_message
from ferrule.store import ToolKnowledgeStore
from ferrule.workflow.execution import call_id_of
from ferrule.workflow.plan import NO_TOOL, Plan
from ferrule.workflow.results import StepResult


async def trajectory_of(run_id: str, store: ToolKnowledgeStore) -> list[Message]:
    """The messages of a run in OpenAI's format. The steps of a plan are its calls, and their results the answers."""
    entries = list((await store.notes(BOOKS + run_id)).values())
    if not entries:
        raise SetupError(f"There is no run {run_id!r} in this store. `ferrule runs list` shows those there are.")
    if entries[0].get("workflow") is None:
        return (await Run.load(run_id, store)).messages
    return _of_plan(entries)


def _of_plan(entries: Sequence[Mapping[str, Any]]) -> list[Message]:
    messages = [user_message(str(entries[0].get("task", "")))]
    plan = next((Plan.from_dict(entry["plan"]) for entry in reversed(entries) if entry["kind"] == "plan"), None)
    for entry in entries:
        if entry["kind"] == "step" and plan is not None:
            messages += _of_step(StepResult.from_dict(entry["result"]), plan)
        elif entry["kind"] == "end" and entry["text"]:
            messages.append(assistant_message(entry["text"]))
    return messages


def _of_step(result: StepResult, plan: Plan) -> list[Message]:
    step = plan[result.step_id]
    text = result.result if result.success else result.error or "failed"
    if step.tool_type == NO_TOOL or result.skipped:
        return [assistant_message(f"{step.description}: {text}")]
    call = ToolCall(name=step.tool_type, arguments=dict(step.parameters), id=call_id_of(step, 1))
    full = as_text(result.output) if result.success and result.output is not None else text
    return [assistant_message(step.description, [call]), tool_message(call, full)]
