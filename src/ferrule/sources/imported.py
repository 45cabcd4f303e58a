"""A Python callable that a file names as `module:callable`, imported when it is first called.

The module is looked for as any import does it, then as a file next to the one that names it. What stands next to it
belongs to the tool: it is kept as it was when the tool was loaded.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ferrule.errors import LoadError
from ferrule.executors.python_module import find_neighbour, load_or_explain, load_python_module, read_version


class ImportedTarget:
    """Finds the callable of an action: what the handler names, or, of a class or object, the method of that name."""

    def __init__(self, handler: str, *, path: Path, line: int) -> None:
        self.handler = handler
        self.module, _, self.attributes = handler.partition(":")
        self._path, self._line = path, line
        neighbour = find_neighbour(path, self.module)
        self.version = None if neighbour is None else read_version(neighbour)
        self._thing: Any = None
        # Bound methods are made anew each time they are looked up; those who keep notes on one need the same again.
        self._functions: dict[str, Callable[..., Any]] = {}

    def function(self, action: str, /) -> Callable[..., Any]:
        if action not in self._functions:
            self._functions[action] = self._function(action)
        return self._functions[action]

    def _function(self, action: str) -> Callable[..., Any]:
        if self._thing is None:
            self._thing = self._find()
        # Functions are what they are; of anything else that has a method for the action, that is meant.
        function = self._thing if inspect.isroutine(self._thing) else getattr(self._thing, action, self._thing)
        if not callable(function):
            raise self._error(f"it is {type(function).__name__}, not a function", f"define a method {action!r} of it")
        return function

    def _find(self) -> Any:
        found: Any = self._import()
        for name in self.attributes.split("."):
            try:
                # A method needs its object: one is made, as for a class that is named itself.
                if inspect.isclass(found) and inspect.isfunction(inspect.getattr_static(found, name)):
                    found = self._make(found)
                found = getattr(found, name)
            except AttributeError:
                raise self._error(f"{self.module!r} has no {self.attributes!r}", "check the spelling") from None
        return self._make(found) if inspect.isclass(found) else found

    def _import(self) -> ModuleType:
        if self.version is not None:
            return load_or_explain(self.version, shown=self._path.with_name(self.version.path.name))
        neighbour = find_neighbour(self._path, self.module)
        if neighbour is not None:  # it was put there since
            return load_python_module(neighbour)
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            hint = f"install it, or put {self.module}.py next to {self._path.name}"
            raise self._error(f"no module {error.name!r} can be found", hint) from error
        except Exception as error:  # the module is the user's code: it may raise anything
            raise self._error(f"importing it failed with {type(error).__name__}: {error}") from error

    def _make(self, cls: type) -> Any:
        try:
            return cls()
        except Exception as error:  # the user's code again
            hint = "a class is made without arguments; name an object or a function instead"
            raise self._error(f"making a {cls.__name__} failed with {type(error).__name__}: {error}", hint) from error

    def _error(self, message: str, hint: str | None = None) -> LoadError:
        return LoadError(f"entry.handler {self.handler!r}: {message}", path=self._path, line=self._line, hint=hint)
