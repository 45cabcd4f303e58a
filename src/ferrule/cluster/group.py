"""Workers of one kind on the cluster: as many as the work needs, each with a number of slots.

Work waits until a worker has a free slot: the caller is held up, nothing piles up on the nodes. Workers are started
while work waits, and a lost one is replaced in the same way. Ray decides where they run, and may add nodes for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from ferrule.cluster.actor import ServiceFactory
from ferrule.cluster.connection import explain_missing_resources
from ferrule.cluster.remote_worker import OnReport, OnRequest, RemoteWorker, WorkerLost
from ferrule.core.aio import cancel_all
from ferrule.errors import SetupError

logger = logging.getLogger("ferrule.cluster")

MAX_FAILED_STARTS: Final = 5
"""Workers in a row that died before they could be used."""
MAX_START_WAIT: Final = 30.0
"""Seconds until the next attempt after such a death; the first waits are shorter."""
START_WARNING_TIME: Final = 10.0
"""Seconds after which it is said why no worker has started."""


class WorkerGroup:
    """Does work with workers that it starts when they are needed."""

    def __init__(
        self,
        factory: ServiceFactory,
        *,
        resources: Mapping[str, float],
        max_workers: int,
        slots: int = 1,
        idle_time: float | None = None,
    ) -> None:
        """Let each worker reserve `resources` and do up to `slots` things at a time.

        A worker without work for `idle_time` seconds is ended, so that its resources can be used elsewhere.
        """
        self._factory, self._resources = factory, dict(resources)
        self._max_workers, self._slots, self._idle_time = max_workers, slots, idle_time
        self._workers: list[RemoteWorker] = []
        self._starting: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[RemoteWorker]] = deque()
        self._idle_timers: dict[RemoteWorker, asyncio.TimerHandle] = {}
        self._failed_starts = 0

    @property
    def node_ids(self) -> list[str]:
        """Return the node of each worker."""
        return [worker.node_id for worker in self._workers]

    async def run(self, payload: Any, *, on_report: OnReport | None = None, on_request: OnRequest | None = None) -> Any:
        """Do work on a worker with a free slot; see `RemoteWorker.run`."""
        worker = await self._take_slot()
        try:
            return await worker.run(payload, on_report=on_report, on_request=on_request)
        finally:
            self._return_slot(worker)

    async def aclose(self) -> None:
        """End all workers and what they do."""
        self._max_workers = 0
        for timer in self._idle_timers.values():
            timer.cancel()
        await cancel_all(self._starting)
        await asyncio.gather(*(worker.aclose() for worker in self._workers))
        self._workers.clear()
        await asyncio.gather(*self._ending)

    # Slots

    async def _take_slot(self) -> RemoteWorker:
        for worker in [each for each in self._workers if each.loss and not each.load]:  # lost while it was idle
            self._remove(worker)
        free = [worker for worker in self._workers if worker.load < self._slots and not worker.loss]
        if free:
            worker = min(free, key=lambda each: each.load)
            self._use_slot(worker)
            return worker
        waiter: asyncio.Future[RemoteWorker] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._start_missing_workers()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._return_slot(waiter.result())
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            # Workers that are not needed any more and wait for resources: Ray might add a node for them.
            while self._starting and (len(self._starting) - 1) * self._slots >= len(self._waiting):
                self._starting.pop().cancel()

    def _use_slot(self, worker: RemoteWorker) -> None:
        worker.load += 1
        if timer := self._idle_timers.pop(worker, None):
            timer.cancel()

    def _return_slot(self, worker: RemoteWorker) -> None:
        worker.load -= 1
        if worker.loss:
            self._remove(worker)
        else:
            self._give_slots(worker)

    def _give_slots(self, worker: RemoteWorker) -> None:
        while self._waiting and worker.load < self._slots:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._use_slot(worker)
                waiter.set_result(worker)
        if not worker.load and self._idle_time is not None:
            loop = asyncio.get_running_loop()
            self._idle_timers[worker] = loop.call_later(self._idle_time, self._end_idle, worker)

    # Workers

    def _start_missing_workers(self) -> None:
        while (
            len(self._starting) * self._slots < len(self._waiting)
            and len(self._workers) + len(self._starting) < self._max_workers
        ):
            task = asyncio.create_task(self._start_worker())
            self._starting.append(task)
            task.add_done_callback(self._on_start_end)

    async def _start_worker(self) -> None:
        if self._failed_starts:  # the next one would die of the same cause
            await asyncio.sleep(min(2.0**self._failed_starts, MAX_START_WAIT))
        timer = asyncio.get_running_loop().call_later(START_WARNING_TIME, self._warn_about_resources)
        try:
            worker = await RemoteWorker.start(self._factory, self._resources)
        finally:
            timer.cancel()
        self._failed_starts = 0
        self._workers.append(worker)
        self._give_slots(worker)

    def _on_start_end(self, task: asyncio.Task[None]) -> None:
        if task in self._starting:
            self._starting.remove(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, WorkerLost):
            self._failed_starts += 1
            logger.warning("a worker died before it could be used: %s", error)
        if error is not None and (not isinstance(error, WorkerLost) or self._failed_starts >= MAX_FAILED_STARTS):
            self._failed_starts = 0
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_exception(SetupError(str(error)))
            return
        self._start_missing_workers()

    def _warn_about_resources(self) -> None:
        try:
            problem = explain_missing_resources(self._resources)
        except Exception as error:  # only a hint
            logger.debug("the nodes of the cluster are not known: %s", error)
            return
        logger.warning("%s", problem or "All nodes are busy: work waits until one is free.")

    def _remove(self, worker: RemoteWorker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            logger.warning("worker lost: %s", worker.loss)
            self._close(worker)
        self._start_missing_workers()

    def _end_idle(self, worker: RemoteWorker) -> None:
        self._idle_timers.pop(worker, None)
        if worker in self._workers and not worker.load:
            self._workers.remove(worker)
            self._close(worker)

    def _close(self, worker: RemoteWorker) -> None:
        task = asyncio.create_task(worker.aclose())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
