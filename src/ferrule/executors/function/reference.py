"""How another process finds the same function: by name, by the file it was loaded from, or as a copy.

- By name: what `from module import name` gives, in a module that a new process can import.
- By file: what a Python file defines that was loaded on its own; the file's text travels along, so the worker runs
  the very version that was loaded here.
- By value: a function of `__main__`, together with the globals it uses. The script itself is not run again, and
  needs no `if __name__ == "__main__"`.

Functions that live on something of this process (closures, lambdas, methods of an object) cannot be sent. An object
that another framework made of a function is found like the function it stands for (see `OnObject`).
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, reduce
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from ferrule.errors import LoadError
from ferrule.executors.python_module import ModuleVersion, load_version, read_version, version_of

MAIN = "__main__"

LOADING: ContextVar[str | None] = ContextVar("ferrule_loading", default=None)
"""In a worker: what is being imported there. Code that starts workers when imported would go on without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByName:
    """A function of a module that can be imported."""

    module: str
    qualname: str
    digest: str
    """Of the module's file: a worker that has imported another version of it cannot be used."""
    changed_at: float
    """When that file was changed: a worker that is older may have imported another version without our knowing."""

    def load(self) -> Callable[..., Any]:
        return _attribute(importlib.import_module(self.module), self.qualname)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByObjectName(ByName):
    """A function of ours, called with an object that a module has under the name."""

    function: Callable[..., Any]

    def load(self) -> Callable[..., Any]:
        return partial(self.function, _attribute(importlib.import_module(self.module), self.qualname))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFile:
    """A function of a file that was loaded on its own."""

    version: ModuleVersion
    qualname: str

    def load(self) -> Callable[..., Any]:
        return _attribute(load_version(self.version), self.qualname)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByValue:
    """A copy of a function of `__main__`.

    Its arguments are made ready before they are sent: the types in its hints cannot be looked up over there.
    """

    pickled: bytes

    def load(self) -> Callable[..., Any]:
        function: Callable[..., Any] = pickle.loads(self.pickled)
        return function


FunctionReference: TypeAlias = ByName | ByFile | ByValue


class OnObject(partial[Any]):
    """A function of ours, at the top level of its module, called with an object of another framework."""

    made_from: Callable[..., Any] | None
    """The function that the object is nothing more than; None for one that may keep things from call to call."""

    def __new__(
        cls, function: Callable[..., Any], thing: Any, *others: Any, made_from: Callable[..., Any] | None
    ) -> OnObject:
        made = super().__new__(cls, function, thing, *others)
        made.made_from = made_from
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsendable:
    """A function that can only run in this process."""

    reason: str
    """Completes the sentence "It cannot be sent to a worker process: …"."""


def copy_of(value: Any) -> bytes:
    """A pickle that brings along what only `__main__` has."""
    import cloudpickle  # type: ignore[import-untyped]

    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def refer_to(function: Callable[..., Any], *, copy_objects: bool = False) -> FunctionReference | Unsendable:
    """What a worker needs to find the function, or why it cannot.

    `copy_objects`: those too that may keep things from call to call. What their copies keep is lost.
    """
    if getattr(sys, "frozen", False):
        return Unsendable(reason="this program is one file, without a Python to start")
    if isinstance(function, OnObject):
        reference = _refer_to_object(function)
        return _copy(_plain(function)) if copy_objects and isinstance(reference, Unsendable) else reference
    module_name = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not module_name or not qualname:
        return Unsendable(reason=f"it is {_describe(function)}, which no module has under a name")
    if "<lambda>" in qualname:
        return Unsendable(reason="it is a lambda, which has no name to find it by")
    if "<locals>" in qualname:
        return Unsendable(reason="it is defined inside a function")
    if not _is_found_again(function, module_name, qualname):
        it = _describe(function) if inspect.ismethod(function) else "something else than this function"
        return Unsendable(reason=f"{module_name}.{qualname} is {it}")
    if module_name == MAIN:
        return _copy(function)
    if (version := version_of(function)) is not None:
        return ByFile(version=version, qualname=qualname)
    return _refer_by_name(module_name, qualname)


def _refer_to_object(function: OnObject) -> FunctionReference | Unsendable:
    thing, made_from = function.args[0], function.made_from
    if made_from is None:
        return Unsendable(reason=f"it is a {type(thing).__name__} object, which may keep things from call to call")
    module_name, qualname = getattr(made_from, "__module__", ""), getattr(made_from, "__qualname__", "")
    try:
        found = _attribute(sys.modules[module_name], qualname)
    except (KeyError, AttributeError):
        return Unsendable(reason=f"it is made from {qualname or made_from!r}, which no module has under that name")
    if found is thing and module_name != MAIN:  # a decorator has put it in the function's place
        reference = _refer_by_name(module_name, qualname)
        if not isinstance(reference, ByName):
            return Unsendable(reason=f"its module {module_name!r} cannot be imported by a new process")
        place = {name: getattr(reference, name) for name in ("module", "qualname", "digest", "changed_at")}
        return ByObjectName(**place, function=function.func)
    if found is thing or found is made_from:
        return _copy(_plain(function))
    return Unsendable(reason=f"{module_name}.{qualname} is something else than the function it is made from")


def _plain(function: OnObject) -> Callable[..., Any]:
    """The same without `made_from`, which a copy does not need."""
    return partial(function.func, *function.args)


def _describe(function: Callable[..., Any]) -> str:
    if inspect.ismethod(function):
        return f"a method of a living {type(function.__self__).__name__} object"
    return f"a {type(function).__name__} object"


def _is_found_again(function: Callable[..., Any], module_name: str, qualname: str) -> bool:
    try:
        # Not `is`: a class method is made anew each time it is looked up.
        return bool(_attribute(sys.modules[module_name], qualname) == function)
    except (KeyError, AttributeError):
        return False


def _refer_by_name(module_name: str, qualname: str) -> FunctionReference | Unsendable:
    module = sys.modules[module_name]
    file = getattr(module, "__file__", None)
    origin = _origin(module_name)
    if origin is None or origin != getattr(getattr(module, "__spec__", None), "origin", None):
        # Somebody loaded it from a file under a name of their own.
        try:
            return ByFile(version=read_version(Path(file or "")), qualname=qualname)
        except LoadError:
            return Unsendable(reason=f"its module {module_name!r} cannot be imported by a new process")
    return ByName(module=module_name, qualname=qualname, digest=_digest(file), changed_at=_change_time(file))


def _origin(module_name: str) -> str | None:
    """The file a new process would import the module from."""
    package = sys.modules.get(module_name.rpartition(".")[0])
    for finder in sys.meta_path:
        spec = finder.find_spec(module_name, getattr(package, "__path__", None))
        if spec is not None:
            return spec.origin
    return None


def _digest(file: str | None) -> str:
    try:
        return sha256(Path(file or "").read_bytes()).hexdigest()
    except OSError:  # built into Python, or inside a zip file
        return ""


def _change_time(file: str | None) -> float:
    try:
        # Not st_mtime: that of a file put in place of another may lie in the past.
        return Path(file or "").stat().st_ctime
    except OSError:
        return 0.0


def _copy(function: Callable[..., Any]) -> ByValue | Unsendable:
    try:
        return ByValue(pickled=copy_of(function))
    except Exception as error:  # pickle raises whatever the objects it meets raise
        return Unsendable(reason=f"something it uses cannot be copied ({error})")


def _attribute(holder: Any, qualname: str) -> Callable[..., Any]:
    found: Callable[..., Any] = reduce(getattr, qualname.split("."), holder)
    return found
