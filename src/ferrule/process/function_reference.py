"""How another process finds the same function: by name, by the file it was loaded from, or as a copy.

- By name: what `from module import name` gives, in a module that a new process can import.
- By file: what a Python file defines that was loaded on its own; the file's text is sent along, so the worker runs
  exactly the version that was loaded here.
- By value: a function of `__main__`, together with the globals it uses. The script itself is not run again, and
  needs no `if __name__ == "__main__"`.

Functions that depend on an object of this process (closures, lambdas, bound methods) cannot be sent. An object that
another framework made from a function is found like that function (see `ObjectFunction`).
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, reduce
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from ferrule.errors import LoadError
from ferrule.process.python_module import ModuleVersion, find_module_version, load_version, read_version

MAIN = "__main__"

LOADING: ContextVar[str | None] = ContextVar("ferrule_loading", default=None)
"""In a worker: the module being imported. Code that starts workers when imported would recurse without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameReference:
    """A function of a module that can be imported."""

    module: str
    qualname: str
    digest: str
    """Of the module's file: a worker that has imported another version of it cannot be used."""
    changed_at: float
    """When that file was changed: an older worker may have imported another version for another reason."""
    caller: Callable[..., Any] | None = None
    """A function of Ferrule that calls what the module has under this name, which is its first argument."""

    def load(self) -> Callable[..., Any]:
        value = _get_by_qualname(importlib.import_module(self.module), self.qualname)
        return value if self.caller is None else partial(self.caller, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReference:
    """A function of a file that was loaded on its own."""

    version: ModuleVersion
    qualname: str

    def load(self) -> Callable[..., Any]:
        return _get_by_qualname(load_version(self.version), self.qualname)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCopy:
    """A copy of a function of `__main__`.

    Its arguments are bound before they are sent: the types in its annotations cannot be looked up in the worker.
    """

    pickled: bytes

    def load(self) -> Callable[..., Any]:
        function: Callable[..., Any] = pickle.loads(self.pickled)
        return function


FunctionReference: TypeAlias = NameReference | FileReference | FunctionCopy


class ObjectFunction(partial[Any]):
    """A function of Ferrule, at the top level of its module, called with an object of another framework."""

    source_function: Callable[..., Any] | None
    """The function that the object only wraps; None for an object that may keep state from call to call."""

    def __new__(
        cls, function: Callable[..., Any], wrapped: Any, *others: Any, source_function: Callable[..., Any] | None
    ) -> ObjectFunction:
        new = super().__new__(cls, function, wrapped, *others)
        new.source_function = source_function
        return new


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSendable:
    """A function that can only run in this process."""

    reason: str
    """Completes the sentence "It cannot be sent to a worker process: …"."""


def pickle_copy(value: Any) -> bytes:
    """Return a pickle that includes what is defined only in `__main__`."""
    import cloudpickle  # type: ignore[import-untyped]

    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def make_reference(function: Callable[..., Any], *, copy_objects: bool = False) -> FunctionReference | NotSendable:
    """Return what a worker needs to find the function, or why it cannot.

    With `copy_objects`, objects that may keep state are copied too; the state of the copies is lost after the call.
    """
    if getattr(sys, "frozen", False):
        return NotSendable(reason="this program is a frozen executable, without a Python to start")
    if isinstance(function, ObjectFunction):
        reference = _refer_to_object(function)
        return (
            _refer_by_value(_to_plain_partial(function))
            if copy_objects and isinstance(reference, NotSendable)
            else reference
        )
    module_name = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not module_name or not qualname:
        return NotSendable(reason=f"it is {_describe_callable(function)}, which has no name in a module")
    if "<lambda>" in qualname:
        return NotSendable(reason="it is a lambda, which has no name")
    if "<locals>" in qualname:
        return NotSendable(reason="it is defined inside a function")
    try:
        # Not `is`: a class method is a new object each time it is looked up.
        is_importable = bool(_get_by_qualname(sys.modules[module_name], qualname) == function)
    except (KeyError, AttributeError):
        is_importable = False
    if not is_importable:
        actual = _describe_callable(function) if inspect.ismethod(function) else "something else than this function"
        return NotSendable(reason=f"{module_name}.{qualname} is {actual}")
    if module_name == MAIN:
        return _refer_by_value(function)
    if (version := find_module_version(function)) is not None:
        return FileReference(version=version, qualname=qualname)
    return _refer_by_name(module_name, qualname)


def _refer_to_object(function: ObjectFunction) -> FunctionReference | NotSendable:
    wrapped, source_function = function.args[0], function.source_function
    if source_function is None:
        return NotSendable(reason=f"it is a {type(wrapped).__name__} object, which may keep state from call to call")
    module_name, qualname = getattr(source_function, "__module__", ""), getattr(source_function, "__qualname__", "")
    try:
        value = _get_by_qualname(sys.modules[module_name], qualname)
    except (KeyError, AttributeError):
        return NotSendable(
            reason=f"it is made from {qualname or source_function!r}, which its module does not have under that name"
        )
    if value is wrapped and module_name != MAIN:  # a decorator has replaced the function by it
        reference = _refer_by_name(module_name, qualname)
        if not isinstance(reference, NameReference):
            return NotSendable(reason=f"its module {module_name!r} cannot be imported by a new process")
        return replace(reference, caller=function.func)
    if value is wrapped or value is source_function:
        return _refer_by_value(_to_plain_partial(function))
    return NotSendable(reason=f"{module_name}.{qualname} is something else than the function it is made from")


def _to_plain_partial(function: ObjectFunction) -> Callable[..., Any]:
    """Return the function without `source_function`, which a copy does not need."""
    return partial(function.func, *function.args)


def _describe_callable(function: Callable[..., Any]) -> str:
    if inspect.ismethod(function):
        return f"a method of a {type(function.__self__).__name__} object"
    return f"a {type(function).__name__} object"


def _refer_by_name(module_name: str, qualname: str) -> FunctionReference | NotSendable:
    module = sys.modules[module_name]
    file = getattr(module, "__file__", None)
    package = sys.modules.get(module_name.rpartition(".")[0])
    specs = (finder.find_spec(module_name, getattr(package, "__path__", None)) for finder in sys.meta_path)
    # The file a new process would import the module from.
    origin = next((spec.origin for spec in specs if spec is not None), None)
    if origin is None or origin != getattr(getattr(module, "__spec__", None), "origin", None):
        # It was loaded from a file under a name that cannot be imported.
        try:
            return FileReference(version=read_version(Path(file or "")), qualname=qualname)
        except LoadError:
            return NotSendable(reason=f"its module {module_name!r} cannot be imported by a new process")
    try:
        # Not st_mtime: a file that replaces another may have an older one.
        changed_at = Path(file or "").stat().st_ctime
    except OSError:
        changed_at = 0.0
    return NameReference(module=module_name, qualname=qualname, digest=file_digest(file), changed_at=changed_at)


def file_digest(file: str | None) -> str:
    try:
        return sha256(Path(file or "").read_bytes()).hexdigest()
    except OSError:  # built into Python, or inside a zip file
        return ""


def _refer_by_value(function: Callable[..., Any]) -> FunctionCopy | NotSendable:
    try:
        return FunctionCopy(pickled=pickle_copy(function))
    except Exception as error:  # pickle raises whatever the objects it meets raise
        return NotSendable(reason=f"something it uses cannot be copied ({error})")


def _get_by_qualname(holder: Any, qualname: str) -> Callable[..., Any]:
    value: Callable[..., Any] = reduce(getattr, qualname.split("."), holder)
    return value
