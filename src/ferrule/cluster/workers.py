"""Workers on the cluster as their owner sees them: one is started, given work and ended; a group has as many as needed.

In a group, work waits until a worker has a free slot: the caller is held up, nothing piles up on the nodes. Workers are
started while work waits, and a lost one is replaced in the same way. Ray decides where they run, and may add nodes.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final, TypeVar

from ferrule import __version__
from ferrule.cluster.actor import (
    OwnerMessage,
    OwnerRequest,
    RequestReply,
    ServiceFactory,
    WorkCancellation,
    WorkEnd,
    WorkerActor,
    WorkerMessage,
    WorkItem,
    WorkReport,
)
from ferrule.cluster.connection import actor_options, explain_missing_resources, import_ray
from ferrule.core.aio import cancel_all, finish_despite_cancellation
from ferrule.errors import FerruleError, SetupError, error_text
from ferrule.process.function_reference import pickle_copy
from ferrule.process.protocol import decode_error, encode_error

logger = logging.getLogger("ferrule.cluster")

T = TypeVar("T")

CANCEL_TIMEOUT: Final = 10.0
"""Seconds after which a worker that does not end cancelled work is killed."""
MAX_FAILED_STARTS: Final = 5
"""Workers in a row that died before they could be used."""
MAX_START_WAIT: Final = 30.0
"""Seconds until the next attempt after such a death; the first waits are shorter."""
START_WARNING_TIME: Final = 10.0
"""Seconds after which it is said why no worker has started."""
UNAVAILABLE_INTERVAL: Final = 0.5
"""Seconds between attempts to reach a worker that may be alive."""

OnReport = Callable[[Any], None]
OnRequest = Callable[[Any], Awaitable[Any]]


class WorkerLost(FerruleError):
    """The worker or its node died. Its work may have had effects, unless `is_sent` is false."""

    def __init__(self, message: str, *, is_sent: bool = True) -> None:
        super().__init__(message)
        self.is_sent = is_sent


class _WorkInProgress:
    """Work that a worker does for its owner."""

    def __init__(self, on_report: OnReport | None, on_request: OnRequest | None) -> None:
        self.on_report, self.on_request = on_report, on_request
        self.end: asyncio.Future[WorkEnd | WorkerLost] = asyncio.get_running_loop().create_future()
        self.replies: set[asyncio.Task[None]] = set()
        self.context = contextvars.copy_context()


class RemoteWorker:
    """An actor of this process, which ends with it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._numbers = count(1)
        self._work: dict[int, _WorkInProgress] = {}
        self._unsent: list[OwnerMessage] = []
        self._has_unsent = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self.node_id = ""
        self.loss = ""
        """Why it cannot be used any more."""
        self.load = 0
        """The slots in use; its group counts them."""

    @classmethod
    async def start(cls, factory: ServiceFactory, resources: Mapping[str, float]) -> RemoteWorker:
        """Start a worker, as soon as a node has the resources. Raises SetupError if the service cannot be made."""
        ray = import_ray()
        options = actor_options(resources)
        worker = cls(ray.remote(WorkerActor).options(max_restarts=0, max_task_retries=0, **options).remote())
        try:
            worker.node_id, version = await worker._open(pickle_copy(factory))
            if version != __version__:
                raise SetupError(
                    f"A node of the cluster has Ferrule {version}, this process {__version__}. "
                    "Install the same version on all nodes."
                )
        except BaseException:
            worker.kill()
            raise
        worker._loops = [asyncio.create_task(worker._send_all()), asyncio.create_task(worker._receive_all())]
        return worker

    async def _open(self, factory: bytes) -> tuple[str, str]:
        from ray.exceptions import RayError, RayTaskError

        try:
            opened: tuple[str, str] = await self._actor.open.remote(factory)
            return opened
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise SetupError(
                f"A worker cannot be set up on a node of the cluster: {type(cause).__name__}: {error_text(cause)}. "
                "Does the node have the same packages and files? If not, name them in `runtime_env` of [cluster]."
            ) from error
        except RayError as error:  # the node was lost, or has too little memory
            raise WorkerLost(_first_line(error), is_sent=False) from None

    async def run(self, payload: Any, *, on_report: OnReport | None = None, on_request: OnRequest | None = None) -> Any:
        """Do the work, and return its result. Cancelling ends the work before this returns.

        Raises what the work raised, or WorkerLost.
        """
        number, work = next(self._numbers), _WorkInProgress(on_report, on_request)
        if self.loss:
            raise WorkerLost(self.loss, is_sent=False)
        self._work[number] = work
        self._post(WorkItem(number, payload))
        try:
            end = await asyncio.shield(work.end)
        except asyncio.CancelledError:
            await finish_despite_cancellation(self._cancel(number, work))
            raise
        finally:
            del self._work[number]
            if work.replies:
                await cancel_all(work.replies)
        if isinstance(end, WorkerLost):
            raise end
        if end.failure is not None:
            raise decode_error(end.failure)
        if end.is_cancelled:
            raise WorkerLost("the worker was ended", is_sent=True)
        return end.value

    async def aclose(self) -> None:
        """Stop the worker and cancel its work."""
        if not self.loss:
            try:
                async with asyncio.timeout(CANCEL_TIMEOUT):
                    await self._actor.close.remote()
            except (TimeoutError, Exception) as error:  # it is killed in any case
                logger.debug("worker=<%s> | not closed: %s", self.node_id, error)
        self.kill()
        await cancel_all(self._loops)

    def kill(self, reason: str = "the worker was ended") -> None:
        """Kill the actor; the processes that it has started end with it."""
        self._lose(reason)
        try:
            import_ray().kill(self._actor, no_restart=True)
        except Exception as error:  # the connection to the cluster is gone, and the actor with it
            logger.debug("worker=<%s> | not killed: %s", self.node_id, error)

    async def _cancel(self, number: int, work: _WorkInProgress) -> None:
        self._post(WorkCancellation(number))
        await asyncio.wait([work.end], timeout=CANCEL_TIMEOUT)
        if not work.end.done():
            self.kill(f"it did not end cancelled work within {CANCEL_TIMEOUT:g} s and was killed")

    # Messages

    def _post(self, message: OwnerMessage) -> None:
        self._unsent.append(message)
        self._has_unsent.set()

    async def _send_all(self) -> None:
        while not self.loss:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            chunk, self._unsent = self._unsent, []
            await self._reach(self._actor.send, chunk)

    async def _receive_all(self) -> None:
        last = 0
        while not self.loss:
            received: list[tuple[int, WorkerMessage]] = await self._reach(self._actor.receive, last)
            for number, message in received or ():
                if number > last:
                    last = number
                    self._dispatch(message)

    async def _reach(self, method: Any, argument: Any) -> Any:
        """Call a method of the actor until it answers. Returns None when the actor is lost."""
        from ray.exceptions import ActorUnavailableError, RayError

        while not self.loss:
            try:
                return await method.remote(argument)
            except ActorUnavailableError:
                await asyncio.sleep(UNAVAILABLE_INTERVAL)
            except RayError as error:
                self._lose(_first_line(error))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # Ray's client raises errors of its own when the connection is lost
                self._lose(f"{type(error).__name__}: {error_text(error)}")
        return None

    def _dispatch(self, message: WorkerMessage) -> None:
        work = self._work.get(message.number)
        if work is None:
            return
        match message:
            case WorkReport():
                if work.on_report is not None:
                    work.context.run(work.on_report, message.value)
            case OwnerRequest():
                task = asyncio.get_running_loop().create_task(self._reply(work, message), context=work.context.copy())
                work.replies.add(task)
                task.add_done_callback(work.replies.discard)
            case WorkEnd():
                if not work.end.done():
                    work.end.set_result(message)

    async def _reply(self, work: _WorkInProgress, message: OwnerRequest) -> None:
        reply = RequestReply(message.number, message.request, None)
        try:
            assert work.on_request is not None
            reply = reply._replace(value=await work.on_request(message.value))
        except Exception as error:
            reply = reply._replace(failure=encode_error(error))
        self._post(reply)

    def _lose(self, reason: str) -> None:
        if self.loss:
            return
        self.loss = reason
        self._has_unsent.set()
        unsent = {message.number for message in self._unsent if isinstance(message, WorkItem)}
        for number, work in self._work.items():
            if not work.end.done():
                work.end.set_result(WorkerLost(reason, is_sent=number not in unsent))


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, because Ray's messages are pages long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# Groups


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
