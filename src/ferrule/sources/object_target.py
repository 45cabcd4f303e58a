"""Functions that live on an object: made on first use, ended with the tool."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ferrule.errors import ExecutorNotFound
from ferrule.names import did_you_mean

ENDINGS = ("cleanup", "aclose", "close")
"""Methods that end an object; they are not actions."""


class SharedObject:
    """An object that one or more tools work on. It is made once, and ended when the last of them is."""

    def __init__(self, make: Callable[[], Any], *, users: int = 1, is_ended: bool = True) -> None:
        self._make, self._users, self._is_ended = make, users, is_ended
        self._made: Any = None
        self._guests: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, instance: Any, *, users: int = 1) -> SharedObject:
        """One that is there already. Whoever hands it over hands over its end too."""
        shared = cls(lambda: instance, users=users)
        shared._made = instance
        return shared

    def get(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def enter(self, user: str) -> None:
        """Somebody works with it from now on."""
        with self._lock:
            self._guests.add(user)

    async def leave(self, user: str) -> None:
        """When the last one leaves, it puts away what it holds for them (`cleanup`), and may be used again.

        Where `cleanup` takes an argument, it is told who leaves while others stay.
        """
        with self._lock:
            self._guests.discard(user)
            made, is_last = self._made, not self._guests
        cleanup = getattr(made, ENDINGS[0], None)
        if not callable(cleanup) or not (is_last or _takes_an_argument(cleanup)):
            return
        ended = cleanup() if is_last else cleanup(user)
        if inspect.isawaitable(ended):
            await ended

    async def release(self) -> None:
        with self._lock:
            self._users -= 1
            made, wanted = self._made, self._users == 0 and self._is_ended
        if made is None or not wanted:
            return
        for name in ENDINGS:
            end = getattr(made, name, None)
            if callable(end):
                ended = end()
                if inspect.isawaitable(ended):
                    await ended
                return


def _takes_an_argument(function: Callable[..., Any]) -> bool:
    return any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in inspect.signature(function).parameters.values()
    )


class ObjectTarget:
    """Finds the method of an action."""

    def __init__(self, shared: SharedObject, methods: Mapping[str, str]) -> None:
        """`methods` maps actions to attributes; an action that is not there has the attribute's name."""
        self._shared, self._methods = shared, methods
        # Bound methods are made anew each time they are looked up; those who keep notes on one need the same again.
        self._found: dict[str, Callable[..., Any]] = {}
        self._is_closed = False

    def function(self, action: str, /) -> Callable[..., Any]:
        found = self._found.get(action)
        return self._find(action) if found is None else found

    def enter(self, user: str) -> None:
        self._shared.enter(user)

    async def leave(self, user: str) -> None:
        await self._shared.leave(user)

    async def aclose(self) -> None:
        """End the object, if it was made and no other tool uses it."""
        if not self._is_closed:
            self._is_closed = True
            await self._shared.release()

    def _find(self, action: str) -> Callable[..., Any]:
        holder = self._shared.get()
        found: Any = getattr(holder, self._methods.get(action, action), None)
        if not callable(found):
            public = [name for name in dir(holder) if not name.startswith("_")]
            what = getattr(holder, "__name__", None) or type(holder).__name__
            raise ExecutorNotFound(f"{what!r} has no function for the action {action!r}.{did_you_mean(action, public)}")
        return self._found.setdefault(action, found)
