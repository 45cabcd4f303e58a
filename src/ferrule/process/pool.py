"""Warm worker processes, shared by all calls of sync functions.

A pool starts empty. A call takes an idle worker, or a new one up to the limit, or waits. Modules stay imported, so
the second call of a tool costs a fraction of a millisecond. A worker is ended when its call is cancelled (it is
killed, with all its children, before the cancellation goes on), when it has served many calls, when it has imported
another version of the function's module, or when there have been too many idle ones for a while.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from ferrule.concurrency.semaphore import ThreadsafeSemaphore
from ferrule.core.aio import cancel_all, finish_despite_cancellation
from ferrule.core.call import Invocation, current_invocation
from ferrule.core.content import Output
from ferrule.core.schema import FunctionSignature, read_function
from ferrule.errors import ExecutionFailed, SetupError, TransportFault
from ferrule.process.call import RemoteFunction, WorkerCall, pack_arguments
from ferrule.process.function_reference import FunctionReference, NameReference, NotSendable, make_reference
from ferrule.process.protocol import FunctionEnd, FunctionError, FunctionNotLoaded, FunctionResult, decode_error
from ferrule.process.worker_process import WorkerProcess

MAX_RESULT_BYTES = 200_000_000
"""Of a message of a worker: a result, a part of one, a progress report."""
IDLE_TIME = 30.0
"""Seconds without calls after which workers beyond the size of their pool are ended."""
MAX_CALLS_PER_WORKER = 1000

_EXIT_TIMEOUT = 1.0
"""Seconds a stopping worker may take to clean up."""
_EXIT_POLL_INTERVAL = 0.05


class WorkerPool:
    """Runs functions in processes that can be killed. Ends them all in `aclose`, or when this process ends."""

    def __init__(self, *, size: int | None = None, max_workers: int = 32) -> None:
        """Up to `max_workers` calls run concurrently; `size` workers stay after a while without calls."""
        self._size = min(max(os.cpu_count() or 2, 2), 8, max_workers) if size is None else size
        self._max_workers = max_workers
        if not 1 <= self._size <= max_workers:
            raise SetupError(
                f"a worker pool needs 1 <= size <= max_workers, not size={size} and max_workers={max_workers}"
            )
        self._numbers = count(1)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._workers: set[WorkerProcess] = set()
        self._idle: deque[WorkerProcess] = deque()
        """The worker used last is on the right, and is taken first."""
        self._stopping: dict[WorkerProcess, float] = {}
        """Workers that were asked to end, with the time at which they are killed."""
        self._semaphore = ThreadsafeSemaphore(self._max_workers)
        self._calls = 0
        self._cleanup: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._parent_pid = os.getpid()
        weakref.finalize(self, _kill_workers, self._workers, self._parent_pid)

    @property
    def pids(self) -> frozenset[int]:
        with self._lock:
            return frozenset(worker.pid for worker in self._workers)

    def register(self, reference: FunctionReference, signature: FunctionSignature | None = None) -> RemoteFunction:
        """Give a function the number under which workers keep it."""
        return RemoteFunction(number=next(self._numbers), reference=reference, signature=signature)

    async def run(
        self, function: RemoteFunction, invocation: Invocation, arguments: bytes | None = None
    ) -> Output | FunctionNotLoaded:
        """Return the result, or `FunctionNotLoaded` if no worker can load the function. Raises what it raised.

        `arguments` are those that `pack_arguments` returned elsewhere.
        """
        if os.getpid() != self._parent_pid:
            for worker in self._workers:
                worker.detach_after_fork()
            self._reset()
        if arguments is None:
            arguments = pack_arguments(function, invocation)
        await self._semaphore.acquire()
        try:
            outcome = None
            while outcome is None:
                worker = self._take_worker(function.reference)
                outcome = await self._run_call(worker, function, invocation, arguments)
            self._return_worker(worker)
        finally:
            self._semaphore.release()
        if isinstance(outcome, FunctionError):
            raise decode_error(outcome.failure)
        return Output(data=outcome.data, parts=outcome.parts) if isinstance(outcome, FunctionResult) else outcome

    async def aclose(self) -> None:
        """End all workers; idle ones may run their clean-up handlers. The pool may be used again."""
        with self._lock:
            for worker in self._workers.difference(self._idle, self._stopping):
                worker.kill()  # its call then fails and removes it
        deadline = time.monotonic() + 2 * _EXIT_TIMEOUT
        while self._workers and time.monotonic() < deadline:
            while self._idle:
                self._stop_worker(self._idle.pop())
            self._end_stopping_workers()
            await asyncio.sleep(0.002)
        _kill_workers(self._workers, self._parent_pid)  # those whose call was lost with its event loop

    # One call

    async def _run_call(
        self, worker: WorkerProcess, function: RemoteFunction, invocation: Invocation, arguments: bytes
    ) -> FunctionEnd | None:
        """Return how the call ended; None when the worker had died while idle and never started it."""
        call = WorkerCall(worker, next(self._numbers), invocation, self._semaphore.suspend)
        try:
            outcome = await call.run(function, arguments)
            await worker.output.end_call()
            await cancel_all(call.nested)
        except GeneratorExit:  # the event loop was closed: nothing can be awaited any more
            worker.kill_call()
            worker.kill_and_wait()
            self._forget_worker(worker)
            raise
        except BaseException as error:
            worker.kill_call()
            died_while_idle = isinstance(error, EOFError) and worker.idle_since and not call.has_started

            async def wait_until_gone() -> None:
                await worker.wait_until_gone()
                self._forget_worker(worker)
                await cancel_all(call.nested)

            await finish_despite_cancellation(wait_until_gone())
            if died_while_idle:
                return None
            if isinstance(error, EOFError):
                raise TransportFault(
                    f"The process that ran tool {invocation.tool.id!r} died ({worker.describe_end()}). "
                    "Its last messages are in the standard error output.",
                    outcome="unknown",
                ) from None
            raise
        return outcome

    # Workers

    def _take_worker(self, reference: FunctionReference) -> WorkerProcess:
        with self._lock:
            self._calls += 1
            worker = None
            while worker is None and self._idle:
                worker = self._idle.pop()
                if not worker.channel.is_open() or not _has_right_version(worker, reference):
                    self._stop_worker(worker)
                    worker = None
            worker = worker or self._start_worker()
            if self._calls > 1 and not self._idle and len(self._workers) < self._size:
                # The next call shall find a warm worker, even if this one is killed.
                asyncio.get_running_loop().call_soon(self._start_spare)
            return worker

    def _start_worker(self) -> WorkerProcess:
        worker = WorkerProcess(max_message=MAX_RESULT_BYTES)
        self._workers.add(worker)
        return worker

    def _start_spare(self) -> None:
        with self._lock:
            if not self._idle and len(self._workers) < self._size:
                self._add_idle(self._start_worker())

    def _return_worker(self, worker: WorkerProcess) -> None:
        with self._lock:
            worker.calls += 1
            if worker.calls < MAX_CALLS_PER_WORKER:
                self._add_idle(worker)
            else:
                self._stop_worker(worker)
            self._schedule_cleanup()

    def _add_idle(self, worker: WorkerProcess) -> None:
        worker.idle_since = time.monotonic()
        self._idle.append(worker)

    def _stop_worker(self, worker: WorkerProcess) -> None:
        if worker.calls:
            worker.channel.shut_down()
        else:
            worker.kill()  # nothing has run there that could need cleaning up
        self._stopping[worker] = time.monotonic() + _EXIT_TIMEOUT
        self._schedule_cleanup()

    def _forget_worker(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._workers.discard(worker)

    # Ending stopping and superfluous workers

    def _schedule_cleanup(self) -> None:
        if not self._stopping and len(self._workers) <= self._size:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + (_EXIT_POLL_INTERVAL if self._stopping else IDLE_TIME)
        if self._cleanup is not None:
            timer_loop, timer = self._cleanup
            if timer_loop is loop and timer.when() <= when:
                return
            timer.cancel()
        self._cleanup = loop, loop.call_at(when, self._clean_up)

    def _clean_up(self) -> None:
        with self._lock:
            self._cleanup = None
            self._end_stopping_workers()
            oldest = time.monotonic() - IDLE_TIME
            while self._idle and len(self._workers) - len(self._stopping) > self._size:
                if self._idle[0].idle_since > oldest:
                    break
                self._stop_worker(self._idle.popleft())
            self._schedule_cleanup()

    def _end_stopping_workers(self) -> None:
        with self._lock:
            for worker, deadline in list(self._stopping.items()):
                if worker.finish_exit(deadline=deadline):
                    del self._stopping[worker]
                    self._workers.discard(worker)


def _has_right_version(worker: WorkerProcess, reference: FunctionReference) -> bool:
    """Return whether the worker cannot have imported another version of the function's module."""
    if not isinstance(reference, NameReference):
        return True
    digest = worker.modules.get(reference.module)
    return digest == reference.digest if digest is not None else worker.started_at > reference.changed_at


def _kill_workers(workers: set[WorkerProcess], parent_pid: int) -> None:
    if os.getpid() != parent_pid:  # a fork has copies of these objects, but the workers are not its own
        return
    for worker in workers:
        worker.kill()
    while workers:
        workers.pop().kill_and_wait()


class IsolatedFunction:
    """A function that a running tool runs in a worker process, because it may take for ever or crash.

    The tool itself stays in its task, with its connections. When its call ends, in whatever way, the function has ended
    too. The function is at the top level of its module; its processes are ended by `aclose`.
    """

    def __init__(self, function: Callable[..., Any], *, beside: IsolatedFunction | None = None) -> None:
        """With `beside`, the function runs in the same processes as that one."""
        self._function = function
        self._pool: WorkerPool = WorkerPool(size=1, max_workers=4) if beside is None else beside._pool
        self._remote: RemoteFunction | None = None

    async def __call__(self, **params: Any) -> dict[str, Any]:
        """Return the result of the function for keyword arguments; may be called only inside a running tool."""
        if self._remote is None:
            reference = make_reference(self._function)
            if isinstance(reference, NotSendable):
                raise ExecutionFailed(f"{self._function.__name__!r} cannot run in a process: {reference.reason}.")
            self._remote = self._pool.register(reference, read_function(self._function))
        invocation = replace(current_invocation("an isolated function"), params=params)
        outcome = await self._pool.run(self._remote, invocation)
        if isinstance(outcome, FunctionNotLoaded):
            raise ExecutionFailed(f"{self._function.__name__!r} cannot be loaded in a process: {outcome.failure.text}")
        return outcome.data

    async def aclose(self) -> None:
        await self._pool.aclose()
