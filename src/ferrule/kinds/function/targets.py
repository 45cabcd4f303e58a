"""Targets: where the function of an action is found.

The function may be a method of an object (`ObjectTarget`), which is created on first use and ended with its tools; the
object may be an instance of a class that a spec only names (`import_class_or_module`, `make_object_of_spec`). A YAML
file names a callable as `module:callable` (`ImportedTarget`), which is imported on the first call.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from ferrule.core.names import did_you_mean
from ferrule.core.spec import FunctionToolSpec
from ferrule.errors import ExecutionFailed, ExecutorNotFound, FerruleError, LoadError
from ferrule.kinds.function.code_digest import digest_of_code
from ferrule.process.python_module import find_sibling_module, load_or_explain, load_python_module, read_version

CLEANUP_METHODS = ("cleanup", "aclose", "close")
"""Methods that end an object; they are not actions."""


class SharedObject:
    """An object that one or more tools use. It is created once, and ended with the last of these tools."""

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        find_code: Callable[[], Sequence[Any]],
        tools: int = 1,
        has_cleanup: bool = True,
    ) -> None:
        """`find_code` returns what an approval is for: its class or module, which is known before it is created.

        `tools` is the number of tools that use it. Without `has_cleanup` it is a module, which is never ended.
        """
        self._make, self._tools, self._has_cleanup = make, tools, has_cleanup
        self.find_code = find_code
        self.instance: Any = None
        """None until it is needed."""
        self._runs: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, instance: Any, *, tools: int = 1) -> SharedObject:
        """Share an object that exists already. The object is also ended with its tools."""
        shared = cls(lambda: instance, find_code=lambda: [instance], tools=tools)
        shared.instance = instance
        return shared

    def get(self) -> Any:
        with self._lock:
            if self.instance is None:
                self.instance = self._make()
            return self.instance

    def begin_run(self, run_id: str) -> None:
        with self._lock:
            self._runs.add(run_id)

    async def end_run(self, run_id: str) -> None:
        """Let the object release what it has for runs (`cleanup`) after its last run. It may be used again.

        A `cleanup` that takes an argument is also called, with the id of the run, while other runs go on.
        """
        with self._lock:
            self._runs.discard(run_id)
            instance, is_last = self.instance, not self._runs
        cleanup = getattr(instance, CLEANUP_METHODS[0], None)
        if callable(cleanup) and is_last:
            await _await_if_needed(cleanup())
        elif callable(cleanup):
            kinds = [parameter.kind for parameter in inspect.signature(cleanup).parameters.values()]
            if inspect.Parameter.POSITIONAL_ONLY in kinds or inspect.Parameter.POSITIONAL_OR_KEYWORD in kinds:
                await _await_if_needed(cleanup(run_id))

    async def release(self) -> None:
        """Record that a tool of the object has ended. The last one ends the object."""
        with self._lock:
            self._tools -= 1
            instance, is_over = self.instance, self._tools == 0 and self._has_cleanup
        if instance is None or not is_over:
            return
        methods = (getattr(instance, name, None) for name in CLEANUP_METHODS)
        if (cleanup := next(filter(callable, methods), None)) is not None:
            await _await_if_needed(cleanup())


async def _await_if_needed(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


class ObjectTarget:
    """Finds the method of an action."""

    def __init__(self, shared: SharedObject, methods: Mapping[str, str]) -> None:
        """`methods` maps actions to attributes; the attribute of any other action has the action's name."""
        self._shared, self._methods = shared, methods
        # Each lookup creates a new bound method, but callers cache what they know about one: return the same again.
        self._functions: dict[str, Callable[..., Any]] = {}
        self._is_closed = False

    def function(self, action: str, /) -> Callable[..., Any]:
        if (function := self._functions.get(action)) is not None:
            return function
        instance = self._shared.get()
        method: Any = getattr(instance, self._methods.get(action, action), None)
        if not callable(method):
            public = [name for name in dir(instance) if not name.startswith("_")]
            what = getattr(instance, "__name__", None) or type(instance).__name__
            raise ExecutorNotFound(f"{what!r} has no function for the action {action!r}.{did_you_mean(action, public)}")
        return self._functions.setdefault(action, method)

    @property
    def code_digest(self) -> str:
        return digest_of_code(*self._shared.find_code())

    @property
    def closable_object(self) -> Any:
        """Return the object, if it exists and has something to clean up."""
        instance = self._shared.instance
        return instance if callable(getattr(instance, CLEANUP_METHODS[0], None)) else None

    def begin_run(self, run_id: str) -> None:
        self._shared.begin_run(run_id)

    async def end_run(self, run_id: str) -> None:
        await self._shared.end_run(run_id)

    async def aclose(self) -> None:
        """End the object, if it was created and no other tool uses it."""
        if not self._is_closed:
            self._is_closed = True
            await self._shared.release()


# Classes that a spec only names: imported and instantiated when they are first needed


def import_class_or_module(spec: FunctionToolSpec) -> Any:
    """Return the class the spec names, or the module when it names none."""
    try:
        module = importlib.import_module(spec.module_path)
    except ModuleNotFoundError as error:
        raise ExecutorNotFound(
            f"tool {spec.tool_id!r}: module {spec.module_path!r} cannot be imported, because there is no module "
            f"{error.name!r}. Install it, or correct the tool's module_path."
        ) from error
    except Exception as error:  # what a user's module raises while it is imported may be anything
        raise ExecutionFailed(
            f"tool {spec.tool_id!r}: importing module {spec.module_path!r} failed with {type(error).__name__}: {error}."
        ) from error
    if not spec.class_name:
        return module
    try:
        return reduce(getattr, spec.class_name.split("."), module)
    except AttributeError as error:
        raise ExecutorNotFound(
            f"tool {spec.tool_id!r}: module {spec.module_path!r} has no class {spec.class_name!r}."
            f"{did_you_mean(spec.class_name, vars(module))}"
        ) from error


def find_code_of_spec(spec: FunctionToolSpec) -> list[Any]:
    """Return the module and the class that the spec names, imported now: an approval is for the code that will run."""
    imported = import_class_or_module(spec)
    return [sys.modules[spec.module_path], imported]


def make_object_of_spec(spec: FunctionToolSpec) -> Any:
    """Return the object whose methods the spec's actions are, or the module that defines them."""
    imported = import_class_or_module(spec)
    return make_instance(spec.tool_id, imported, spec.init_params) if spec.class_name else imported


def make_instance(tool_id: str, cls: type, init_params: Mapping[str, Any]) -> Any:
    try:
        return cls(**init_params)
    except FerruleError:
        raise
    except Exception as error:  # the class is the user's code
        raise ExecutionFailed(
            f"tool {tool_id!r}: creating a {cls.__name__} failed with {type(error).__name__}: {error}."
        ) from error


# Callables that a YAML file names. The module is looked for as by any import, then as a file next to the YAML file;
# such a file belongs to the tool, which runs it as it was when the tool was loaded.


class ImportedTarget:
    """Finds the callable of an action: what the handler names, or, of a class or object, the method of that name."""

    def __init__(self, handler: str, *, path: Path, line: int) -> None:
        self.handler = handler
        self.module, _, self.attributes = handler.partition(":")
        self._path, self._line = path, line
        sibling = find_sibling_module(path, self.module)
        self.version = None if sibling is None else read_version(sibling)
        self._thing: Any = None
        # Always the same function, as in ObjectTarget.
        self._functions: dict[str, Callable[..., Any]] = {}

    def function(self, action: str, /) -> Callable[..., Any]:
        if action not in self._functions:
            if self._thing is None:
                self._thing = self._find()
            # A function is called itself; of anything else, its method of the action's name if it has one.
            target = self._thing if inspect.isroutine(self._thing) else getattr(self._thing, action, self._thing)
            if not callable(target):
                raise self._error(f"it is {type(target).__name__}, not a function", f"define a method {action!r} of it")
            self._functions[action] = target
        return self._functions[action]

    @property
    def code_digest(self) -> str:
        module: Any = self._import()
        names = self.attributes.split(".")
        return digest_of_code(module, reduce(lambda value, name: getattr(value, name, None), names, module))

    def _find(self) -> Any:
        value: Any = self._import()
        for name in self.attributes.split("."):
            try:
                # A method needs an object: it is created as for a class that is named itself.
                if inspect.isclass(value) and inspect.isfunction(inspect.getattr_static(value, name)):
                    value = self._make(value)
                value = getattr(value, name)
            except AttributeError:
                raise self._error(f"{self.module!r} has no {self.attributes!r}", "check the spelling") from None
        return self._make(value) if inspect.isclass(value) else value

    def _import(self) -> ModuleType:
        if self.version is not None:
            return load_or_explain(self.version, display_path=self._path.with_name(self.version.path.name))
        sibling = find_sibling_module(self._path, self.module)
        if sibling is not None:  # it was created after the tool was loaded
            return load_python_module(sibling)
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
            hint = "the class is called without arguments; name an object or a function instead"
            raise self._error(f"creating a {cls.__name__} failed with {type(error).__name__}: {error}", hint) from error

    def _error(self, message: str, hint: str | None = None) -> LoadError:
        return LoadError(f"entry.handler {self.handler!r}: {message}", path=self._path, line=self._line, hint=hint)
