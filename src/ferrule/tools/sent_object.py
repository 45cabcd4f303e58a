"""Objects that travel: worker processes get a copy of them, and run their methods there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.executors.function.reference import OnObject


class SentObject:
    """Finds the methods of an object that keeps nothing from call to call."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._found: dict[str, Callable[..., Any]] = {}

    def function(self, action: str, /) -> Callable[..., Any]:
        if action not in self._found:
            self._found[action] = OnObject(getattr(type(self._thing), action), self._thing, made_from=None)
        return self._found[action]
