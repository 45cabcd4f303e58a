"""One worker on the cluster, as its owner sees it: started, given work, ended."""

from __future__ import annotations

import asyncio
import contextvars
import logging
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
from ferrule.cluster.connection import actor_options, import_ray
from ferrule.core.aio import cancel_all, finish_despite_cancellation
from ferrule.errors import FerruleError, SetupError, error_text
from ferrule.process.function_reference import pickle_copy
from ferrule.process.protocol import decode_error, encode_error

logger = logging.getLogger("ferrule.cluster")

T = TypeVar("T")

CANCEL_TIMEOUT: Final = 10.0
"""Seconds after which a worker that does not end cancelled work is killed."""
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
            if not await self._reach(lambda chunk=chunk: self._actor.send.remote(chunk)):  # type: ignore[misc]
                return

    async def _receive_all(self) -> None:
        last = 0
        while not self.loss:
            received: list[tuple[int, WorkerMessage]] = []
            if not await self._reach(lambda last=last: self._actor.receive.remote(last), received):  # type: ignore[misc]
                return
            for number, message in received:
                if number > last:
                    last = number
                    self._dispatch(message)

    async def _reach(self, call: Callable[[], Awaitable[Any]], received: list[Any] | None = None) -> bool:
        """Call the actor until it answers. Returns False when the actor is lost."""
        from ray.exceptions import ActorUnavailableError, RayError

        while not self.loss:
            try:
                result = await call()
                if received is not None:
                    received.extend(result)
                return True
            except ActorUnavailableError:
                await asyncio.sleep(UNAVAILABLE_INTERVAL)
            except RayError as error:
                self._lose(_first_line(error))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # Ray's client raises errors of its own when the connection is lost
                self._lose(f"{type(error).__name__}: {error_text(error)}")
        return False

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
