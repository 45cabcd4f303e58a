"""A function that a running tool has done in a worker process: work that may take for ever, or crash.

The tool itself stays in its task, with its connections; what it cannot trust is done where it can be killed. When the
call of the tool ends, in whatever way, the function has ended too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ferrule.call import running_invocation
from ferrule.errors import ExecutionFailed
from ferrule.executors.function.reference import Unsendable, refer_to
from ferrule.executors.worker.conversation import RemoteFunction
from ferrule.executors.worker.frames import NotLoaded
from ferrule.executors.worker.pool import WorkerPool
from ferrule.schema import read_function


class Aside:
    """Runs one function, at the top level of its module, in processes of its own, which `aclose` ends."""

    def __init__(self, function: Callable[..., Any], *, beside: Aside | None = None) -> None:
        """`beside` another one it runs in the same processes."""
        self._function = function
        self._pool: WorkerPool = WorkerPool(size=1, most=4) if beside is None else beside._pool
        self._known: RemoteFunction | None = None

    async def __call__(self, **params: Any) -> dict[str, Any]:
        """What the function gives for arguments by name, or raises; only inside a running tool."""
        outcome = await self._pool.run(self._remote(), replace(running_invocation("an aside"), params=params))
        if isinstance(outcome, NotLoaded):
            raise ExecutionFailed(f"{self._function.__name__!r} cannot be loaded in a process: {outcome.failure.text}")
        return outcome.data

    async def aclose(self) -> None:
        await self._pool.aclose()

    def _remote(self) -> RemoteFunction:
        if self._known is None:
            reference = refer_to(self._function)
            if isinstance(reference, Unsendable):
                raise ExecutionFailed(f"{self._function.__name__!r} cannot run in a process: {reference.reason}.")
            self._known = self._pool.introduce(reference, read_function(self._function))
        return self._known
