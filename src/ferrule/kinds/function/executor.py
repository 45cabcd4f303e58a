"""The executor of Python functions: decides where a function runs, and runs it there.

Async functions run in the task of their caller, where cancelling ends them. Sync functions run in worker processes,
which can be killed. Those that cannot be sent to another process run in threads, which cannot be killed. The option
`isolation` of a tool overrides this. Functions for a cluster, of an engine that has none, run in worker processes too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ferrule.core.call import Invocation
from ferrule.core.content import unwrap_reported_result
from ferrule.core.schema import FunctionSignature, read_function
from ferrule.core.schema.binding import Bind
from ferrule.core.spec import Isolation, Limits, Tool
from ferrule.errors import ExecutionFailed
from ferrule.kinds.function.code_digest import find_changed_variables
from ferrule.process.function_reference import NotSendable, make_reference
from ferrule.process.pool import WorkerPool
from ferrule.process.protocol import FunctionNotLoaded
from ferrule.process.run_function import refuse_process_exit, run_blocking, run_in_task
from ferrule.process.thread import FunctionThreads

logger = logging.getLogger("ferrule.kinds")

Runner: TypeAlias = Callable[[Invocation], Awaitable[Any]]


@dataclass(slots=True, kw_only=True)
class _PreparedFunction:
    """What is known about an action before it is called."""

    tool: Tool
    function: Callable[..., Any]
    bind: Bind
    run: Runner | None
    """None for async functions, which are awaited directly."""


class FunctionExecutor:
    """Runs tools that are Python functions."""

    unwrap = staticmethod(unwrap_reported_result)
    runs_code_of_users = True

    def __init__(self, pool: WorkerPool, threads: FunctionThreads | None = None) -> None:
        self._pool = pool
        self._threads = threads or FunctionThreads()
        self._prepared: dict[tuple[str, str, str], _PreparedFunction] = {}
        """By source, tool and action: a new version of a tool replaces the old one."""

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
            refuse_process_exit(invocation, error)

    async def aclose(self) -> None:
        """End the worker processes."""
        await self._pool.aclose()

    def _prepare(self, invocation: Invocation) -> _PreparedFunction:
        tool, capability = invocation.tool, invocation.capability
        function = tool.target.function(capability.name)
        signature = read_function(function)
        run = self._choose_runner(tool, tool.spec.limits_of(capability), function, signature)
        prepared = _PreparedFunction(tool=tool, function=function, bind=signature.bind, run=run)
        self._prepared[tool.source, tool.spec.tool_id, capability.name] = prepared
        return prepared

    def _choose_runner(
        self, tool: Tool, limits: Limits, function: Callable[..., Any], signature: FunctionSignature
    ) -> Runner | None:
        isolation, is_async = limits.isolation, signature.kind in ("async", "async_generator")
        if isolation == "inline" or (isolation == "auto" and is_async and not limits.is_for_cluster):
            return None if signature.kind == "async" else partial(run_in_task, function, signature.bind)
        in_thread = partial(self._threads.run, partial(run_blocking, function, signature.bind))
        if isolation == "thread":
            return in_thread
        fallback = partial(_fall_back_to_thread, tool, isolation, in_thread)
        reference = make_reference(function, copy_objects=isolation == "process")
        if isinstance(reference, NotSendable):
            return fallback(reference.reason)
        if isolation == "auto" and (changed := find_changed_variables(getattr(function, "source_function", function))):
            logger.warning(
                "tool=<%s>, variables=<%s> | changes variables of the program, but runs in a worker process, which has "
                'copies of them: the program does not see the changes. Give the tool isolation="thread", write it as '
                '`async def`, or keep the values in a file or a database. isolation="process" stops this warning.',
                tool.id,
                ", ".join(changed),
            )
        remote_function, runner_in_thread = self._pool.register(reference, signature), None

        async def run_in_worker(invocation: Invocation) -> Any:
            nonlocal runner_in_thread
            if runner_in_thread is None:
                outcome = await self._pool.run(remote_function, invocation)
                if not isinstance(outcome, FunctionNotLoaded):
                    return outcome
                runner_in_thread = fallback(f"loading it there failed with {outcome.failure.text}")
            return await runner_in_thread(invocation)

        return run_in_worker


def _fall_back_to_thread(tool: Tool, isolation: Isolation, in_thread: Runner, reason: str) -> Runner:
    """Return the runner in a thread. Raises ExecutionFailed if the tool requires a process."""
    if isolation == "process":
        raise ExecutionFailed(
            f"Tool {tool.id!r} has isolation='process', but cannot be sent to another process: {reason}. "
            "Make it a function at the top level of a module, or give it isolation='thread'."
        )
    logger.info("tool=<%s>, reason=<%s> | runs in a thread, which cannot be killed", tool.id, reason)
    return in_thread
