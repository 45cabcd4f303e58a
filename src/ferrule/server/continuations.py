"""Continues runs when people have decided about what they wait for, wherever the decision was made.

Every server of a store looks for decisions; whichever has the lock of a run first continues it, the others leave it
alone. What was decided while no server ran is found when one starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from ferrule.agent.answer import AgentState
from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.core.aio import cancel_all, wait_at_most
from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.engine import ToolEngine
from ferrule.errors import FerruleError, Rejected, RunInProgress, SetupError, StoreError
from ferrule.memory.conversation import ConversationMemory
from ferrule.orchestrator import OrchestratorResult
from ferrule.orchestrator.request_cache import EventListener, SharedRun
from ferrule.policy.approvals import ApprovalRequest
from ferrule.server.problems import Problem

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

ResumeRun = Callable[[str, EventListener], Awaitable[OrchestratorResult]]


class Continuations:
    """The runs that this server continues by itself."""

    def __init__(self, engine: ToolEngine, resume: ResumeRun, is_in_progress: Callable[[str], bool]) -> None:
        """`resume` continues a run in the name of who started it; `is_in_progress`: a request works on it here."""
        self._engine, self._resume, self._is_in_progress = engine, resume, is_in_progress
        self._runs: dict[str, SharedRun[OrchestratorResult]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._candidates: dict[str, float] = {}
        """Runs with decisions, and when to look at them."""
        self._seen_decisions: dict[str, float] = {}
        """The decisions that were looked at, with their times."""
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(MAX_CONTINUED_RUNS)

    def find(self, run_id: str) -> SharedRun[OrchestratorResult] | None:
        """A run that is being continued here, for a client that wants its answer."""
        run = self._runs.get(run_id)
        return None if run is None or run.is_over else run

    async def run(self) -> None:
        """Look for decisions until cancelled."""
        unsubscribe = self._engine.subscribe(self._receive, _is_decision)
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
        """Let the runs end, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT)
        await cancel_all(self._tasks)

    async def _receive(self, event: ToolEngineEvent) -> None:
        """A decision that was made here: nobody else is to be waited for."""
        request: ApprovalRequest = event.data["request"]
        self._candidates[request.run_id] = 0.0
        self._news.set()

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
        """Whether a run waits, and people have decided about all calls that it waits for.

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
        run = self._runs[run_id] = SharedRun(lambda emit: self._resume_in_turn(run_id, emit))
        task = asyncio.create_task(self._wait_for_end(run_id, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resume_in_turn(self, run_id: str, emit: EventListener) -> OrchestratorResult:
        async with self._slots:
            return await self._resume(run_id, emit)

    async def _wait_for_end(self, run_id: str, run: SharedRun[OrchestratorResult]) -> None:
        logger.info("run=<%s> | continued, because people have decided", run_id)
        try:
            await run.join()  # whoever else joins it and leaves: it goes on
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


def _is_decision(event: ToolEngineEvent) -> bool:
    return event.event_type is ToolEngineEventType.APPROVAL_DECIDED
