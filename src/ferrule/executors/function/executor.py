"""The executor of Python functions: decides where a function runs, and runs it there.

Async functions run in the task of their caller, where cancelling ends them. Sync functions run in worker processes,
which can be killed. Those that no other process can get at run in threads, which cannot. A tool's `isolation` says
otherwise where that is wrong for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ferrule.call import Invocation
from ferrule.errors import ExecutionFailed
from ferrule.executors.function.reference import Unsendable, refer_to
from ferrule.executors.function.run import refuse_to_end, run_here, run_to_end
from ferrule.executors.function.thread import FunctionThreads
from ferrule.executors.worker.conversation import RemoteFunction
from ferrule.executors.worker.frames import NotLoaded
from ferrule.executors.worker.pool import WorkerPool
from ferrule.schema import FunctionSignature, read_function
from ferrule.schema.binding import Bind
from ferrule.spec import Isolation, Tool

logger = logging.getLogger("ferrule.executors")


Runner: TypeAlias = Callable[[Invocation], Awaitable[Any]]


@dataclass(slots=True, kw_only=True)
class _Prepared:
    """Everything about an action that need not be found out for each call."""

    tool: Tool
    function: Callable[..., Any]
    bind: Bind
    run: Runner | None
    """None for async functions, which are awaited without further ado."""


class FunctionExecutor:
    """Runs tools that are Python functions."""

    def __init__(self, pool: WorkerPool, threads: FunctionThreads | None = None) -> None:
        self._pool = pool
        self._threads = threads or FunctionThreads()
        self._prepared: dict[tuple[str, str, str], _Prepared] = {}
        """One for each name: that of a new version of a tool takes the place of the old one."""

    async def execute(self, invocation: Invocation) -> Any:
        tool = invocation.tool
        prepared = self._prepared.get((tool.source, tool.spec.tool_id, invocation.capability.name))
        if prepared is None or prepared.tool is not tool:
            prepared = self._prepare(invocation)
        if prepared.run is not None:
            return await prepared.run(invocation)
        args, kwargs = prepared.bind(invocation.params, invocation.context)
        try:
            return await prepared.function(*args, **kwargs)
        except SystemExit as error:
            refuse_to_end(invocation, error)

    async def aclose(self) -> None:
        """End the worker processes."""
        await self._pool.aclose()

    def _prepare(self, invocation: Invocation) -> _Prepared:
        tool, capability = invocation.tool, invocation.capability
        function = tool.target.function(capability.name)
        signature = read_function(function)
        isolation = tool.spec.limits_of(capability).isolation
        run = self._runner(tool, isolation, function, signature)
        prepared = _Prepared(tool=tool, function=function, bind=signature.bind, run=run)
        self._prepared[tool.source, tool.spec.tool_id, capability.name] = prepared
        return prepared

    def _runner(
        self, tool: Tool, isolation: Isolation, function: Callable[..., Any], signature: FunctionSignature
    ) -> Runner | None:
        is_async = signature.kind in ("async", "async_generator")
        if isolation == "inline" or (isolation == "auto" and is_async):
            return None if signature.kind == "async" else partial(run_here, function, signature.bind)
        in_thread = partial(self._threads.run, partial(run_to_end, function, signature.bind))
        if isolation == "thread":
            return in_thread
        instead = partial(_without_process, tool, isolation, in_thread)
        reference = refer_to(function, copy_objects=isolation == "process")
        if isinstance(reference, Unsendable):
            return instead(reference.reason)
        return _InWorker(self._pool, self._pool.introduce(reference, signature), instead)


class _InWorker:
    """Runs one function in worker processes, or elsewhere if it turns out that they cannot load it."""

    def __init__(self, pool: WorkerPool, function: RemoteFunction, instead_because: Callable[[str], Runner]) -> None:
        self._pool, self._function, self._instead_because = pool, function, instead_because
        self._instead: Runner | None = None

    async def __call__(self, invocation: Invocation) -> Any:
        if self._instead is None:
            outcome = await self._pool.run(self._function, invocation)
            if not isinstance(outcome, NotLoaded):
                return outcome
            self._instead = self._instead_because(f"loading it there failed with {outcome.failure.text}")
        return await self._instead(invocation)


def _without_process(tool: Tool, isolation: Isolation, in_thread: Runner, reason: str) -> Runner:
    """What to do with a function that worker processes cannot run."""
    if isolation == "process":
        raise ExecutionFailed(
            f"Tool {tool.id!r} is to run in a process of its own, but cannot be sent there: {reason}. "
            "Make it a function at the top level of a module, or give it isolation='thread'."
        )
    logger.info("tool=<%s>, reason=<%s> | runs in a thread, which cannot be killed", tool.id, reason)
    return in_thread
