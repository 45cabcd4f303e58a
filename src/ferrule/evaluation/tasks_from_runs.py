"""New tasks from recorded runs: what was asked, with which tools, how it ended. Equal questions become one task."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.batch.tasks import BatchTask, hash_task
from ferrule.store import ToolKnowledgeStore

_CONTROL_TOOLS = frozenset({"finish_task", "ask_user", "get_conversation_history"})


async def read_tasks_from_runs(
    store: ToolKnowledgeStore, *, states: frozenset[str] = frozenset({"finished"}), since: float = 0.0
) -> AsyncIterator[BatchTask]:
    """Yield the tasks of the runs in a store, the latest first; of equal questions only the latest."""
    questions: set[str] = set()
    for stream, written_at in (await store.list_streams(RUN_PREFIX)).items():
        if written_at < since:
            return
        run = await Run.load(stream.removeprefix(RUN_PREFIX), store)
        digest = hash_task(normalize_question(run.task), None)
        if run.state.value not in states or not run.task.strip() or digest in questions:
            continue
        questions.add(digest)
        steps = [step for step in run.steps if step.tool_id not in _CONTROL_TOOLS]
        metadata = {
            "run_id": run.id,
            "state": run.state.value,
            "answer": run.text,
            "turns": run.turns,
            "calls": len(run.steps),
            "last_results": {step.tool_id: step.text for step in steps if step.is_success},
        }
        tools = tuple(dict.fromkeys(step.tool_id for step in steps)) or None
        yield BatchTask(id=digest, task=run.task, tools=tools, metadata=metadata)


def normalize_question(text: str) -> str:
    """Remove what may differ between equal questions: case, spaces and the sign at the end."""
    return re.sub(r"\s+", " ", text).strip().rstrip("?？.。!！ ").casefold()
