"""Warm worker processes, shared by all calls of sync functions.

A pool starts empty. A call takes an idle worker, or a new one while there is room, or waits its turn. Modules stay
imported, so the second call of a tool costs a fraction of a millisecond. A worker is given up when its call is
cancelled (it is killed, with all its children, before the cancellation goes on), when it has served many calls,
when it knows another version of the module that is wanted, or when there have been more than enough for a while.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from itertools import count

from ferrule.call import Invocation
from ferrule.content import Output
from ferrule.errors import SetupError, TransportFault
from ferrule.executors.function.reference import ByName, FunctionReference
from ferrule.executors.places import Places
from ferrule.executors.process_group import to_the_end
from ferrule.executors.worker.conversation import Conversation, RemoteFunction, pack_arguments
from ferrule.executors.worker.failure import read_failure
from ferrule.executors.worker.frames import Done, Failed, NotLoaded
from ferrule.executors.worker.process import WorkerProcess
from ferrule.schema import FunctionSignature

MAX_RESULT = 200_000_000

_GOODBYE_TIME = 1.0
"""Seconds a dismissed worker may take to clean up."""
_TIDY_SOON = 0.05


class WorkerPool:
    """Runs functions in processes that can be killed. Ends them all in `aclose`, or when this process ends."""

    def __init__(
        self,
        *,
        size: int | None = None,
        most: int = 32,
        idle_time: float = 30.0,
        calls_per_worker: int = 1000,
        max_result: int = MAX_RESULT,
    ) -> None:
        """Up to `most` calls run at once; `size` workers stay when there is nothing to do for `idle_time` seconds.

        No worker may send more than `max_result` bytes at a time: a result, a piece of one, a progress report.
        """
        self._size = min(max(os.cpu_count() or 2, 2), 8, most) if size is None else size
        self._most, self._idle_time, self._calls_per_worker = most, idle_time, calls_per_worker
        self._max_result = max_result
        if not 1 <= self._size <= most:
            raise SetupError(f"a worker pool needs 1 <= size <= most, not size={size} and most={most}")
        self._numbers = count(1)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._workers: set[WorkerProcess] = set()
        self._idle: deque[WorkerProcess] = deque()
        """The one used last is on the right, and taken first."""
        self._leaving: dict[WorkerProcess, float] = {}
        """Dismissed workers, and until when they may take."""
        self._places = Places(self._most)
        self._served = 0
        self._tidying: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._owner = os.getpid()
        weakref.finalize(self, _kill_all, self._workers, self._owner)

    @property
    def pids(self) -> frozenset[int]:
        """The processes there are now."""
        with self._lock:
            return frozenset(worker.pid for worker in self._workers)

    def introduce(self, reference: FunctionReference, signature: FunctionSignature) -> RemoteFunction:
        """Give a function the number under which workers will know it."""
        return RemoteFunction(number=next(self._numbers), reference=reference, signature=signature)

    async def run(self, function: RemoteFunction, invocation: Invocation) -> Output | NotLoaded:
        """The function's result, or NotLoaded when no worker can get at it; raises what the function raised."""
        if os.getpid() != self._owner:
            self._forget_workers_of_parent()
        arguments = pack_arguments(function, invocation)
        await self._places.take()
        try:
            outcome = None
            while outcome is None:
                worker = self._take_worker(function.reference)
                outcome = await self._converse(worker, function, invocation, arguments)
            self._give_back(worker)
        finally:
            self._places.leave()
        if isinstance(outcome, Failed):
            raise read_failure(outcome.failure)
        return Output(data=outcome.data, parts=outcome.parts) if isinstance(outcome, Done) else outcome

    async def aclose(self) -> None:
        """End all workers, the idle ones in peace. The pool may be used again."""
        with self._lock:
            for worker in self._workers.difference(self._idle, self._leaving):
                worker.kill()  # its call then fails, and takes it away
        give_up_at = time.monotonic() + 2 * _GOODBYE_TIME
        while self._workers and time.monotonic() < give_up_at:
            while self._idle:
                self._dismiss(self._idle.pop())
            self._look_after_leaving()
            await asyncio.sleep(0.002)
        _kill_all(self._workers, self._owner)  # those whose call was forgotten with its event loop

    # One call

    async def _converse(
        self, worker: WorkerProcess, function: RemoteFunction, invocation: Invocation, arguments: bytes
    ) -> Done | Failed | NotLoaded | None:
        """What came of the call; None when the worker had died in its sleep, and never began with it."""
        conversation = Conversation(worker, next(self._numbers), invocation, self._places.lent)
        try:
            outcome = await conversation.hold(function, arguments)
            worker.has_begun()
            await conversation.nested.end()
        except GeneratorExit:  # the event loop is gone, there is nothing left to wait with
            worker.kill_call()
            worker.kill_and_wait()
            self._forget(worker)
            raise
        except BaseException as error:
            worker.kill_call()
            died_in_its_sleep = isinstance(error, EOFError) and worker.idle_since and not worker.has_begun()
            await to_the_end(self._bury(worker, conversation))
            if died_in_its_sleep:
                return None
            if isinstance(error, EOFError):
                raise TransportFault(
                    f"The process that ran tool {invocation.tool.id!r} died ({worker.how_it_ended()}). "
                    "If it said why, that is in the standard error output.",
                    outcome="unknown",
                ) from None
            raise
        return outcome

    async def _bury(self, worker: WorkerProcess, conversation: Conversation) -> None:
        await worker.gone()
        self._forget(worker)
        await conversation.nested.end()

    # Workers

    def _take_worker(self, reference: FunctionReference) -> WorkerProcess:
        with self._lock:
            self._served += 1
            worker = self._take_idle(reference) or self._start()
            if self._served > 1 and not self._idle and len(self._workers) < self._size:
                # The next call shall find a warm worker, even if this one must be killed.
                asyncio.get_running_loop().call_soon(self._start_spare)
            return worker

    def _take_idle(self, reference: FunctionReference) -> WorkerProcess | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.channel.is_open() and _fits(worker, reference):
                return worker
            self._dismiss(worker)
        return None

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(max_frame=self._max_result)
        self._workers.add(worker)
        return worker

    def _start_spare(self) -> None:
        with self._lock:
            if not self._idle and len(self._workers) < self._size:
                self._let_rest(self._start())

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            worker.calls += 1
            if worker.calls < self._calls_per_worker:
                self._let_rest(worker)
            else:
                self._dismiss(worker)
            self._tidy_later()

    def _let_rest(self, worker: WorkerProcess) -> None:
        worker.idle_since = time.monotonic()
        self._idle.append(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        if worker.calls:
            worker.dismiss()
        else:
            worker.kill()  # nothing has run there that could want to clean up
        self._leaving[worker] = time.monotonic() + _GOODBYE_TIME
        self._tidy_later()

    def _forget(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._workers.discard(worker)

    def _forget_workers_of_parent(self) -> None:
        for worker in self._workers:
            worker.disown()
        self._begin()

    # Tidying up

    def _tidy_later(self) -> None:
        if not self._leaving and len(self._workers) <= self._size:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + (_TIDY_SOON if self._leaving else self._idle_time)
        if self._tidying is not None:
            pending_in, pending = self._tidying
            if pending_in is loop and pending.when() <= when:
                return
            pending.cancel()
        self._tidying = loop, loop.call_at(when, self._tidy)

    def _tidy(self) -> None:
        with self._lock:
            self._tidying = None
            self._look_after_leaving()
            too_old = time.monotonic() - self._idle_time
            while self._idle and len(self._workers) - len(self._leaving) > self._size:
                if self._idle[0].idle_since > too_old:
                    break
                self._dismiss(self._idle.popleft())
            self._tidy_later()

    def _look_after_leaving(self) -> None:
        with self._lock:
            for worker, deadline in list(self._leaving.items()):
                if worker.leave(deadline=deadline):
                    del self._leaving[worker]
                    self._workers.discard(worker)


def _fits(worker: WorkerProcess, reference: FunctionReference) -> bool:
    """Whether the worker has no other version of the function's module, nor can have one."""
    if not isinstance(reference, ByName):
        return True
    known = worker.modules.get(reference.module)
    return known == reference.digest if known is not None else worker.started_at > reference.changed_at


def _kill_all(workers: set[WorkerProcess], owner: int) -> None:
    if os.getpid() != owner:  # a fork of this process has copies of everything, and no business with the workers
        return
    for worker in workers:
        worker.kill()
    while workers:
        workers.pop().kill_and_wait()
