"""Running tasks in this process: one agent for each selection of tools, many runs at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from typing import Any, Final, Protocol

from ferrule.agent import Agent, AgentAnswer, AgentState, RunLimits
from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.batch.tasks import BatchTask
from ferrule.batch.trajectory import build_failure, build_trajectory, remove_secrets
from ferrule.batch.waiting_model import BatchInterrupted, TaskTrace, WaitingModel
from ferrule.core.permission import Principal
from ferrule.errors import LockHeld, RunInProgress, SetupError, StoreError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.budgets import is_extension_request
from ferrule.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.batch")

MAX_AGENTS: Final = 64
"""Agents for different selections of tools that are kept; they are cheap to make again."""
MAX_ATTEMPTS: Final = 3
"""Of a task that an unexpected error ended: a full disk, a defect of a tool that the engine cannot contain."""
STORE_DELAYS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between the attempts of a task whose store does not answer, as while Postgres restarts."""
MAX_RECORDS: Final = 10_000
LOCK_TIMEOUT: Final = 60.0
"""Seconds that a task waits for the end of a worker that worked on it before."""
BATCH_PRIORITY: Final = -10
"""Calls of a batch wait behind calls of people where the limits have the strategy `priority`: as if they had come ten
times `ageing` later."""


class BatchBackend(Protocol):
    """Where the tasks of a batch run. `LocalBackend` is this process; a cluster implements the same two methods."""

    async def run_task(self, task: BatchTask, run_id: str, *, may_exist: bool) -> dict[str, Any]:
        """Do a task and return its trajectory. `may_exist`: an earlier process may have begun its run.

        Raises `BatchInterrupted` when the whole batch must stop; the task continues later.
        """
        ...

    async def aclose(self) -> None: ...


class LocalBackend:
    """Runs tasks with agents of one library, in this event loop."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: WaitingModel,
        *,
        instructions: str = "",
        tools: list[str] | None = None,
        core_tools: list[str] | None = None,
        limits: RunLimits | None = None,
        memory: bool = True,
        name: str = "batch",
    ) -> None:
        self._library, self._model = library, model
        self._instructions, self._tools, self._core_tools = instructions, tools, core_tools or []
        self._limits, self._memory = limits or RunLimits(priority=BATCH_PRIORITY), memory
        self._principal = library.with_tenant(Principal(kind="agent", name=name))
        self._agents: OrderedDict[tuple[str, ...] | None, Agent] = OrderedDict()

    @property
    def retries(self) -> Counter[str]:
        """Requests to the model that were sent again, by class of error."""
        return self._model.retries

    async def run_task(self, task: BatchTask, run_id: str, *, may_exist: bool) -> dict[str, Any]:
        started_at, attempts, store_delays = time.time(), 0, iter(STORE_DELAYS)
        while True:
            try:
                return await self._run_once(task, run_id, may_exist=may_exist)
            except (asyncio.CancelledError, BatchInterrupted):
                raise
            except (StoreError, RunInProgress) as error:  # the database restarts, and the run has lost its lock
                failure: Exception = error
                if (delay := next(store_delays, None)) is None:
                    break
                logger.warning("task=<%s>, error=<%s> | trying again in %g s", task.id, error, delay)
                await asyncio.sleep(delay)
            except SetupError as error:  # of this task: it names a tool that does not exist
                failure = error
                break
            except Exception as error:
                failure, attempts = error, attempts + 1
                logger.exception("task=<%s>, attempt=<%d> | failed", task.id, attempts)
                if attempts == MAX_ATTEMPTS:
                    break
            may_exist = True
        return build_failure(task, failure, model=self._model.name, started_at=started_at)

    async def aclose(self) -> None:
        await self._model.aclose()

    async def _run_once(self, task: BatchTask, run_id: str, *, may_exist: bool) -> dict[str, Any]:
        store, started_at, trace = self._library.engine.store, time.time(), TaskTrace()
        agent = self._get_agent(task.tools)
        if may_exist:
            await _take_over_run(store, run_id)
        is_resumed = may_exist and await Run(task.task, store, run_id).exists()
        token = TaskTrace.current.set(trace)
        try:
            answer = await (agent.resume(run_id) if is_resumed else agent.run(task.task, run_id=run_id))
        finally:
            TaskTrace.current.reset(token)
        _interrupt_without_budget(answer)
        trajectory = build_trajectory(
            task,
            answer,
            trace,
            await store.query_call_records(conversation_id=run_id, limit=MAX_RECORDS),
            model=self._model.name,
            started_at=started_at,
            is_resumed=is_resumed,
            engine=self._library.engine,
            permissions=self._library.engine.permissions(self._principal),
        )
        return remove_secrets(trajectory, store)

    def _get_agent(self, tools: tuple[str, ...] | None) -> Agent:
        if tools in self._agents:
            self._agents.move_to_end(tools)
            return self._agents[tools]
        selected = list(tools) if tools is not None else self._tools
        agent = Agent(
            self._library,
            self._model,
            name=self._principal.name,
            instructions=self._instructions,
            core_tools=self._core_tools,
            limits=self._limits,
            principal=self._principal,
            memory=self._memory,
        )
        if selected is not None:
            agent.load_tools_by_config(selected)
        self._agents[tools] = agent
        if len(self._agents) > MAX_AGENTS:
            self._agents.popitem(last=False)
        return agent


async def _take_over_run(store: ToolKnowledgeStore, run_id: str) -> None:
    """Wait until the run is not locked. Taking the lock also imports what a killed process had written."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            async with store.lock(RUN_PREFIX + run_id):
                return
        except LockHeld:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


def _interrupt_without_budget(answer: AgentAnswer[Any]) -> None:
    """Interrupt the batch when a budget of the project is spent: its tasks continue when there is more."""
    if answer.state is AgentState.INTERRUPTED:
        raise BatchInterrupted(answer.reason)
    for request in answer.approvals:
        if is_extension_request(request):
            raise BatchInterrupted(
                f"{request.reason} Approve more with: ferrule approvals approve {request.approval_id}"
            )
