"""Running the tasks of a batch on a cluster, by workers on its nodes that each have their own agents.

The folder of the batch stays with this process, which writes every trajectory that arrives. A task whose worker or
node is lost is given to another worker. Where the workers share a store, its run continues there; a task whose
trajectory was written is never run again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from math import ceil
from time import time
from typing import Any, Final, NamedTuple, TypeAlias

from ferrule.batch.local import LocalBackend
from ferrule.batch.tasks import BatchTask
from ferrule.batch.trajectory import build_failure
from ferrule.batch.waiting_model import WaitingModel
from ferrule.cluster.actor import WorkChannel
from ferrule.cluster.group import WorkerGroup
from ferrule.cluster.remote_worker import WorkerLost

logger = logging.getLogger("ferrule.batch")

MAX_LOSSES: Final = 10
"""Workers that one task may lose. Nodes come and go; a task that has lost so many workers is what kills them."""

BackendFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[LocalBackend]]
"""Opens the back end of a worker, on its node: a function that the node can import, or a `functools.partial` of one."""


class TaskAssignment(NamedTuple):
    task: BatchTask
    run_id: str
    may_exist: bool


class ClusterBackend:
    """Runs tasks with workers on a cluster that this process is connected to (`ferrule.cluster.connect`)."""

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
            partial(_open_service, open_backend),
            resources=resources or {"cpu": 1},
            max_workers=workers,
            slots=ceil(concurrency / workers),
        )

    @property
    def node_ids(self) -> list[str]:
        """Return the node of each worker."""
        return self._group.node_ids

    async def run_task(self, task: BatchTask, run_id: str, *, may_exist: bool) -> dict[str, Any]:
        started_at, losses = time(), 0
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


async def _open_service(open_backend: BackendFactory) -> BatchService:
    resources = AsyncExitStack()
    return BatchService(await resources.enter_async_context(open_backend()), resources)
