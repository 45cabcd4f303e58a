"""Where the tasks of a batch run: in this process, or with workers on the nodes of a cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import lru_cache, partial
from math import ceil
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ferrule.agent import Agent, AgentState, RunLimits
from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.batch.tasks import BatchTask
from ferrule.batch.trajectory import build_failure, build_trajectory, remove_secrets
from ferrule.batch.waiting_model import BatchInterrupted, TaskTrace, WaitingModel
from ferrule.cluster.actor import WorkChannel
from ferrule.cluster.workers import WorkerGroup, WorkerLost
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
        self._get_agent = lru_cache(MAX_AGENTS)(self._make_agent)

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
        if answer.state is AgentState.INTERRUPTED:
            raise BatchInterrupted(answer.reason)
        for request in filter(is_extension_request, answer.approvals):  # the task continues when there is more budget
            more = f"Approve more with: ferrule approvals approve {request.approval_id}"
            raise BatchInterrupted(f"{request.reason} {more}")
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

    def _make_agent(self, tools: tuple[str, ...] | None) -> Agent:
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
        selected = list(tools) if tools is not None else self._tools
        if selected is not None:
            agent.load_tools_by_config(selected)
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


# On a cluster

MAX_LOSSES: Final = 10
"""Workers that one task may lose. Nodes come and go; a task that has lost so many workers is what kills them."""

BackendFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[LocalBackend]]
"""Opens the back end of a worker, on its node: a function that the node can import, or a `functools.partial` of one."""


class TaskAssignment(NamedTuple):
    task: BatchTask
    run_id: str
    may_exist: bool


class ClusterBackend:
    """Runs tasks with workers on a cluster that this process is connected to (`ferrule.cluster.connect`).

    A task whose worker or node is lost is given to another worker. Where the workers share a store, its run continues
    there. The folder of the batch stays with this process, which writes every trajectory that arrives.
    """

    def __init__(
        self,
        open_backend: BackendFactory,
        *,
        workers: int,
        concurrency: int,
        resources: Mapping[str, float] | None = None,
        model: WaitingModel | None = None,
    ) -> None:
        """Up to `workers` workers, each with the `resources` (default: one CPU), work on `concurrency` tasks together.

        `model` is not asked; it counts the requests that workers had to send again.
        """
        self._model = model
        self._group = WorkerGroup(
            partial(BatchService.open, open_backend),
            resources=resources or {"cpu": 1},
            max_workers=workers,
            slots=ceil(concurrency / workers),
        )

    @property
    def node_ids(self) -> list[str]:
        """Return the node of each worker."""
        return self._group.node_ids

    async def run_task(self, task: BatchTask, run_id: str, *, may_exist: bool) -> dict[str, Any]:
        started_at, losses = time.time(), 0
        while True:
            try:
                trajectory, retries = await self._group.run(TaskAssignment(task, run_id, may_exist))
            except WorkerLost as lost:
                may_exist, losses = True, losses + lost.is_sent
                logger.info("task=<%s>, losses=<%d> | given to another worker: %s", task.id, losses, lost)
                if losses < MAX_LOSSES:
                    continue
                name = self._model.name if self._model is not None else ""
                return build_failure(task, lost, model=name, started_at=started_at)
            if self._model is not None:
                self._model.retries.update(retries)
            return dict(trajectory)

    async def aclose(self) -> None:
        await self._group.aclose()
        if self._model is not None:
            await self._model.aclose()


class BatchService:
    """A worker on a node, which runs tasks with its own back end."""

    @classmethod
    async def open(cls, open_backend: BackendFactory) -> BatchService:
        resources = AsyncExitStack()
        return cls(await resources.enter_async_context(open_backend()), resources)

    def __init__(self, backend: LocalBackend, resources: AsyncExitStack) -> None:
        self._backend, self._resources = backend, resources
        self._retries: Counter[str] = Counter()
        """Those that the owner knows of."""

    async def run(self, assignment: TaskAssignment, channel: WorkChannel) -> tuple[dict[str, Any], Counter[str]]:
        task, run_id, may_exist = assignment
        trajectory = await self._backend.run_task(task, run_id, may_exist=may_exist)
        retries = self._backend.retries - self._retries
        self._retries += retries
        return trajectory, retries

    async def aclose(self) -> None:
        await self._resources.aclose()
