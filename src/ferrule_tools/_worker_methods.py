"""Objects whose methods run in worker processes, on a copy of the object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.kinds.function.code_digest import digest_of_code
from ferrule.process.function_reference import ObjectFunction


class WorkerMethods:
    """The methods of an object that has no state from call to call, as functions for a worker process."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._methods: dict[str, Callable[..., Any]] = {}

    def function(self, action: str, /) -> Callable[..., Any]:
        if action not in self._methods:
            self._methods[action] = ObjectFunction(
                getattr(type(self._target), action), self._target, source_function=None
            )
        return self._methods[action]

    @property
    def code_digest(self) -> str:
        return digest_of_code(self._target)
