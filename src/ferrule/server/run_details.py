"""A run as the page shows it: its turns, steps and plan, each with the time at which it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ferrule.agent.answer import AgentState
from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.core.messages import Usage
from ferrule.memory.conversation import ConversationMemory
from ferrule.store import ToolKnowledgeStore
from ferrule.store.entry_streams import find_entry_times
from ferrule.store.spending import CostSummary, summarize_costs

MAX_SUMMARIES: Final = 5_000


def describe_run(run: Run, written_at: float | None = None) -> dict[str, Any]:
    """A run in a list."""
    described = {
        "run_id": run.id,
        "state": run.state.value,
        "task": run.task,
        "turns": run.turns,
        "calls": len(run.steps) + run.finished_plan_steps,
        "text": run.text,
        "reason": run.reason,
        "usage": describe_usage(run.usage),
        "cost": run.costs.total,
        "seconds": round(run.seconds, 3),
    }
    return described if written_at is None else {**described, "at": _format_time(written_at)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list, and what it was bound to when it began."""

    written_at: float
    described: dict[str, Any]
    binding: Mapping[str, Any]


class RunSummaries:
    """The summaries of runs. Those of runs that do not go on are kept: a list has hundreds, and is read often."""

    def __init__(self, store: ToolKnowledgeStore) -> None:
        self._store, self._summaries = store, dict[str, RunSummary]()

    async def get(self, run_id: str, written_at: float) -> RunSummary:
        """The summary of a run whose last entry was written at this time."""
        cached = self._summaries.get(run_id)
        if cached is not None and cached.written_at == written_at:
            return cached
        run = await Run.load_and_detect_interruption(run_id, self._store)
        binding = await ConversationMemory(self._store).get_run_binding(run_id) or {}
        summary = RunSummary(written_at=written_at, described=describe_run(run, written_at), binding=binding)
        if run.state not in (AgentState.RUNNING, AgentState.INTERRUPTED):  # these may change without an entry
            if len(self._summaries) >= MAX_SUMMARIES:
                self._summaries.clear()
            self._summaries[run_id] = summary
        return summary


def describe_usage(usage: Usage) -> dict[str, Any]:
    return {**asdict(usage), "total_tokens": usage.total_tokens}


async def describe_whole_run(run_id: str, store: ToolKnowledgeStore, tenant: str) -> dict[str, Any]:
    """A run with its messages in the format of OpenAI's API, and everything that happened, in order."""
    run = await Run.load_and_detect_interruption(run_id, store)
    entries = await store.read_entries(RUN_PREFIX + run_id)
    times = await store.query(find_entry_times, RUN_PREFIX + run_id)
    binding = await ConversationMemory(store).get_run_binding(run_id) or {}
    since = datetime.fromtimestamp(min(times.values()), UTC)
    cost = (await store.query(summarize_costs, "run", since, keys=[run_id])).get(run_id, CostSummary())
    return {
        **describe_run(run, max(times.values())),
        "started_at": _format_time(min(times.values())),
        "cost": cost.cost if cost.cost or run.costs.total is not None else None,
        "costs": cost.to_dict(),
        "strategy": binding.get("strategy", "plan" if run.workflow else "loop"),
        "model": binding.get("model"),
        "conversation_id": str(binding.get("conversation_id", "")).removeprefix(f"{tenant}/"),
        "questions": [asdict(question) for question in run.questions.values()],
        "approvals": [asdict(request) for request in run.approvals.values()],
        "plan": run.plan,
        "history": [
            described
            for key, entry in entries.items()
            if (described := _describe_entry(entry, times.get(key, 0.0))) is not None
        ],
        "messages": run.messages,
    }


def _describe_entry(entry: Mapping[str, Any], written_at: float) -> dict[str, Any] | None:
    """A turn of the model, the result of a call or of a step, a pause or the end."""
    kind, at = entry["kind"], _format_time(written_at)
    if kind == "message" and "used" in entry:
        requests, input_tokens, output_tokens, cached = entry["used"]
        usage = Usage(requests=requests, input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached)
        described = {"kind": "turn", "at": at, "usage": describe_usage(usage), "message": entry["message"]}
        # The model and the tokens of each tool's schemas are stored with the first turn, and when they change.
        return described | {name: entry.get(name) for name in ("cost", "model", "tools")}
    if kind == "answer":
        return {"kind": "call", "at": at, "step": entry["step"]}
    if kind == "step":
        return {"kind": "step", "at": at, "step": entry["result"]}
    if kind in ("wait", "end"):
        return {"kind": kind, "at": at, "state": entry.get("state"), "reason": entry.get("reason")}
    return None


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
