"""Runs of the server: those that it continues by itself, and how runs are shown to clients.

When people have decided about what a run waits for, wherever the decision was made, a server continues the run. Every
server of a store looks for decisions; the first that has the lock of a run continues it. What was decided while no
server ran is found when a server starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ferrule.agent import AgentAnswer
from ferrule.agent.answer import AgentState, StepResult
from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.core.aio import cancel_all, wait_at_most
from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.core.messages import Usage
from ferrule.engine import ToolEngine
from ferrule.errors import FerruleError, Rejected, RunInProgress, SetupError, StoreError
from ferrule.memory.conversation import ConversationMemory
from ferrule.orchestrator.request_cache import EventListener, SharedRun
from ferrule.server.responses import Problem
from ferrule.store import ToolKnowledgeStore
from ferrule.store.entry_streams import find_entry_times
from ferrule.store.spending import CostSummary, summarize_costs

logger = logging.getLogger("ferrule.server")

POLL_INTERVAL: Final = 2.0
"""Seconds between two looks for decisions of other processes."""
OTHERS_FIRST: Final = 3.0
"""Seconds in which the process of a decision may continue the run itself."""
OVERLAP: Final = 3_600.0
"""Seconds by which the clocks of two servers may differ."""
MAX_CONTINUED_RUNS: Final = 8
"""At the same time; further ones wait."""
STOP_TIMEOUT: Final = 10.0
"""Seconds for runs to end when the server stops; then they are interrupted."""

ResumeRun = Callable[[str, EventListener], Awaitable[AgentAnswer]]


class Continuations:
    """The runs that this server continues by itself."""

    def __init__(self, engine: ToolEngine, resume: ResumeRun, is_in_progress: Callable[[str], bool]) -> None:
        """`resume` continues a run in the name of who started it; `is_in_progress`: a request works on it here."""
        self._engine, self._resume, self._is_in_progress = engine, resume, is_in_progress
        self._runs: dict[str, SharedRun[AgentAnswer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._candidates: dict[str, float] = {}
        """Runs with decisions, and when to look at them."""
        self._seen_decisions: dict[str, float] = {}
        """The decisions that were looked at, with their times."""
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(MAX_CONTINUED_RUNS)

    def find(self, run_id: str) -> SharedRun[AgentAnswer] | None:
        """Find a run that is being continued here, for a client that wants its answer."""
        run = self._runs.get(run_id)
        return None if run is None or run.is_over else run

    async def run(self) -> None:
        """Look for decisions until cancelled."""

        async def receive(event: ToolEngineEvent) -> None:  # a decision was made here: its run need not wait
            self._candidates[event.data["request"].run_id] = 0.0
            self._news.set()

        unsubscribe = self._engine.subscribe(receive, {ToolEngineEventType.APPROVAL_DECIDED})
        try:
            while True:
                try:
                    await self._look()
                except StoreError as error:  # the store is away: look again
                    logger.warning("error=<%s> | approved runs wait until the store is available", error)
                except Exception:
                    logger.exception("approved runs were not looked for")
                await wait_at_most(self._news, POLL_INTERVAL)
                self._news.clear()
        finally:
            unsubscribe()

    async def aclose(self) -> None:
        """Wait a while for the runs to end, and cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT)
        await cancel_all(self._tasks)

    async def _look(self) -> None:
        newest = min(max(self._seen_decisions.values(), default=0.0), time.time())  # a clock may be fast
        self._seen_decisions = {key: at for key, at in self._seen_decisions.items() if at > newest - OVERLAP}
        for approval_id, run_id, decided_at in await self._engine.approvals.list_decided_runs(newest - OVERLAP):
            if approval_id not in self._seen_decisions:
                self._seen_decisions[approval_id] = decided_at
                self._candidates.setdefault(run_id, time.monotonic() + OTHERS_FIRST)
        for run_id, look_at in list(self._candidates.items()):
            if look_at > time.monotonic() or await self._engine.store.is_locked(RUN_PREFIX + run_id):
                continue
            is_decided = await self._is_decided(run_id)
            if not self._is_in_progress(run_id):  # or else it may wait again, when the request has ended
                del self._candidates[run_id]
                if is_decided:
                    self._start(run_id)

    async def _is_decided(self, run_id: str) -> bool:
        """Return whether a run waits, and people have decided about all calls that it waits for.

        The run of an agent that a program has made is not bound: only the program can continue it.
        """
        store, approvals = self._engine.store, self._engine.approvals
        try:
            run = await Run.load(run_id, store)
            is_waiting = run.state is AgentState.WAITING and await ConversationMemory(store).get_run_binding(run_id)
            waiting = run.approvals.values() if is_waiting else ()
            states = {(await approvals.get(each.approval_id)).state for each in waiting}
        except SetupError:  # the calls of a client are in no run, or a request was deleted
            return False
        return bool(states) and states.isdisjoint(("pending", "expired"))

    def _start(self, run_id: str) -> None:
        async def resume(emit: EventListener) -> AgentAnswer:
            async with self._slots:
                return await self._resume(run_id, emit)

        run = self._runs[run_id] = SharedRun(resume)
        task = asyncio.create_task(self._wait_for_end(run_id, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_for_end(self, run_id: str, run: SharedRun[AgentAnswer]) -> None:
        logger.info("run=<%s> | continued, because people have decided", run_id)
        try:
            await run.join()  # the run goes on when clients join it and leave
        except (Rejected, RunInProgress, StoreError) as error:
            logger.info("run=<%s>, error=<%s> | looked at again later", run_id, error)
            self._candidates[run_id] = time.monotonic() + OTHERS_FIRST
        except (FerruleError, Problem) as error:
            logger.warning("run=<%s>, error=<%s> | an approved run was not continued", run_id, error)
        except Exception:
            logger.exception("run=<%s> | an approved run was not continued", run_id)
        finally:
            if self._runs.get(run_id) is run:
                del self._runs[run_id]


MAX_SUMMARIES: Final = 5_000


def describe_run(run: Run, written_at: float | None = None) -> dict[str, Any]:
    described = {
        "run_id": run.id,
        "state": run.state.value,
        "task": run.task,
        "turns": run.turns,
        "calls": len(run.steps),
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
        """Return the summary of a run whose last entry was written at this time."""
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
    """Describe a run with its messages in the format of OpenAI's API, and everything that happened, in order."""
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
    """Describe a turn of the model, the result of a call or of a step, a pause or the end; None for other entries."""
    kind, at = entry["kind"], _format_time(written_at)
    if kind == "message" and "used" in entry:
        requests, input_tokens, output_tokens, cached = entry["used"]
        usage = Usage(requests=requests, input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached)
        described = {"kind": "turn", "at": at, "usage": describe_usage(usage), "message": entry["message"]}
        # The model and the tokens of each tool's schemas are stored with the first turn, and when they change.
        return described | {name: entry.get(name) for name in ("cost", "model", "tools")}
    if kind == "step":
        step = StepResult.from_dict(entry["step"])
        return {"kind": "call" if step.description == "" else "step", "at": at, "step": step.to_dict()}
    if kind in ("wait", "end"):
        return {"kind": kind, "at": at, "state": entry.get("state"), "reason": entry.get("reason")}
    return None


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
