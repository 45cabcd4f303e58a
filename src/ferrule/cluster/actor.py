"""A worker on a node of the cluster: an actor that does many things at a time and reports as they happen.

The owner sends messages in chunks and collects the worker's messages in chunks: whatever came together while the last
chunk was on its way. So a busy worker needs fewer calls of Ray than it does work, and an idle one answers immediately.
A chunk that was lost on its way is sent again: both sides number their messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ferrule import __version__
from ferrule.core.aio import cancel_all
from ferrule.process.protocol import EncodedError, decode_error, encode_error

logger = logging.getLogger("ferrule.cluster")

MAX_CHUNK: Final = 256
"""Messages that are collected at a time."""
MAX_REPORTS: Final = 10_000
"""Messages that wait to be collected, above which progress is dropped."""


# Messages to a worker


class WorkItem(NamedTuple):
    """Something to do."""

    number: int
    payload: Any


class WorkCancellation(NamedTuple):
    number: int


class RequestReply(NamedTuple):
    """The owner's reply to a request."""

    number: int
    request: int
    value: Any
    failure: EncodedError | None = None


# Messages from a worker


class WorkReport(NamedTuple):
    """Something that is not the result: progress."""

    number: int
    value: Any


class OwnerRequest(NamedTuple):
    """Something that the owner does for the work, such as a call of another tool."""

    number: int
    request: int
    value: Any


class WorkEnd(NamedTuple):
    """The work has ended: nothing of it runs any more."""

    number: int
    value: Any = None
    failure: EncodedError | None = None
    is_cancelled: bool = False


OwnerMessage: TypeAlias = WorkItem | WorkCancellation | RequestReply
WorkerMessage: TypeAlias = WorkReport | OwnerRequest | WorkEnd


class WorkChannel:
    """What running work can tell its owner, and ask it."""

    def __init__(self, number: int, post: Callable[[WorkerMessage], None]) -> None:
        self._number, self._post = number, post
        self._requests: dict[int, asyncio.Future[RequestReply]] = {}
        self._numbers = count(1)

    def report(self, value: Any) -> None:
        self._post(WorkReport(self._number, value))

    async def request(self, value: Any) -> Any:
        """Wait for the owner's reply. Raises what the owner raised."""
        request, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._requests[request] = future
        self._post(OwnerRequest(self._number, request, value))
        try:
            reply = await future
        finally:
            del self._requests[request]
        if reply.failure is not None:
            raise decode_error(reply.failure)
        return reply.value

    def resolve(self, reply: RequestReply) -> None:
        future = self._requests.get(reply.request)
        if future is not None and not future.done():
            future.set_result(reply)


class WorkHandler(Protocol):
    """What a worker does; made on its node. Cancelling `run` ends the work before it returns."""

    async def run(self, payload: Any, channel: WorkChannel, /) -> Any: ...

    async def aclose(self) -> None: ...


ServiceFactory: TypeAlias = Callable[[], Awaitable[WorkHandler]]
"""Makes the service on the node: a function that the node can import, or one of `__main__`, which is copied."""


class WorkerActor:
    """The actor. Its methods are called by `RemoteWorker` only."""

    def __init__(self) -> None:
        self._service: WorkHandler | None = None
        self._running: dict[int, tuple[asyncio.Task[None], WorkChannel]] = {}
        self._last_item = 0
        self._messages: deque[tuple[int, WorkerMessage]] = deque()
        self._message_numbers = count(1)
        self._has_messages = asyncio.Event()
        self._dropped = 0
        os.dup2(2, 1)  # what is printed here appears on the owner's standard error: its standard output may be read

    async def open(self, factory: bytes) -> tuple[str, str]:
        """Make the service. Returns the id of the node, and the version of Ferrule there."""
        import pickle

        import ray

        self._service = await pickle.loads(factory)()
        return ray.get_runtime_context().get_node_id(), __version__

    async def send(self, messages: Sequence[OwnerMessage]) -> None:
        for message in messages:
            match message:
                case WorkItem(number, payload):
                    if number > self._last_item:  # else the chunk came twice
                        self._last_item = number
                        self._start(number, payload)
                case WorkCancellation(number):
                    if number in self._running:
                        self._running[number][0].cancel()
                case RequestReply(number):
                    if number in self._running:
                        self._running[number][1].resolve(message)

    async def receive(self, after: int) -> list[tuple[int, WorkerMessage]]:
        """Wait for messages after this number. Messages up to it have arrived and are dropped."""
        while self._messages and self._messages[0][0] <= after:
            self._messages.popleft()
        if not self._messages:
            self._has_messages.clear()
        await self._has_messages.wait()
        return [message for message, _ in zip(self._messages, range(MAX_CHUNK), strict=False)]

    async def close(self) -> None:
        await cancel_all([task for task, _ in self._running.values()])
        if self._service is not None:
            await self._service.aclose()

    def _start(self, number: int, payload: Any) -> None:
        channel = WorkChannel(number, self._post)
        task = asyncio.create_task(self._run(number, payload, channel))
        self._running[number] = task, channel

    async def _run(self, number: int, payload: Any, channel: WorkChannel) -> None:
        assert self._service is not None
        try:
            end = WorkEnd(number, await self._service.run(payload, channel))
        except asyncio.CancelledError:
            end = WorkEnd(number, is_cancelled=True)
        except BaseException as error:
            end = WorkEnd(number, failure=encode_error(error))
        del self._running[number]
        self._post(end)

    def _post(self, message: WorkerMessage) -> None:
        if isinstance(message, WorkReport) and len(self._messages) >= MAX_REPORTS:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning("progress comes faster than it is collected, and some of it is dropped")
            return
        self._messages.append((next(self._message_numbers), message))
        self._has_messages.set()
