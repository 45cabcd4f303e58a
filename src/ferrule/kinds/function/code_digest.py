"""The digest of a tool's code: an approval is for the code as it was when the person was asked.

The code is followed from the tool's function, class or object through wrappers, partials, bound methods, base classes,
default values, closures, functions in attributes of objects, and helpers in the same module. The files of these modules
are part of the digest as well, because worker processes load functions from them.

State is left out, or any change of it would end an approval: other attributes of objects, mutable containers, and
variables that a function assigns with `nonlocal`. It counts by its type only; classes of Python and of installed
packages that the code refers to count by their names. The same code has the same digest in every process.

`find_changed_variables` reads the same code for changes that a worker process would keep to itself.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CellType, CodeType, EllipsisType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any

from ferrule.process.python_module import ModuleVersion

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
_PLAIN_TYPES = (NoneType, EllipsisType, bool, int, float, complex, str, bytes, range)
"""Immutable types whose `repr` is the same in every process."""
_CODE_FIELDS = (
    *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code", "co_exceptiontable"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars"),
)


def digest_of_code(*things: Any) -> str:
    """Return a digest that changes when the code of functions, classes, objects or modules changes."""
    reader = _CodeReader()
    described = [reader.describe_root(thing) for thing in things]
    return sha256(repr((described, sorted(reader.files))).encode()).hexdigest()


def is_user_code(base: type, cls: type) -> bool:
    """Return whether a base of a class is not part of Python or of an installed library, unless the class is so too."""
    if base is cls:
        return cls.__module__ != "builtins"
    return base.__module__.partition(".")[0] == cls.__module__.partition(".")[0] or not _is_library(base.__module__)


def _is_library(module: str | None) -> bool:
    module = module or ""  # None: of a function that was made by `exec`
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] in sys.stdlib_module_names or any(folder in file for folder in _LIBRARY_FOLDERS)


class _CodeReader:
    """Describes code as nested lists of texts. What was described before is a number: code may refer to itself."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        """The digests of the files of the modules."""
        self._visited: dict[int, tuple[int, Any]] = {}
        """By id. The thing itself is stored too, so that no other can get its id."""

    def describe_root(self, thing: Any) -> Any:
        """Describe a root, even if it belongs to an installed package."""
        if isinstance(thing, ModuleType):
            self._add_file(vars(thing))
            return self._describe_items(_select_own(vars(thing), vars(thing)))
        if isinstance(thing, type):
            return self._describe_class(thing)
        return [self._describe_class(type(thing)), self._describe(thing)]

    def _describe(self, value: Any) -> Any:
        if type(value) in _PLAIN_TYPES or isinstance(value, (frozenset, Enum)):
            return _describe_constant(value)
        if isinstance(value, tuple):
            return ["tuple", *map(self._describe, value)]
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type) and _is_library(value.__module__):
            return f"{value.__module__}.{value.__qualname__}"
        if id(value) in self._visited:
            return self._visited[id(value)][0]
        self._visited[id(value)] = len(self._visited), value
        return self._describe_class(value) if isinstance(value, type) else self._describe_object(value)

    def _describe_items(self, items: Mapping[str, Any]) -> list[Any]:
        return [(name, self._describe(items[name])) for name in sorted(items)]

    def _describe_class(self, cls: type) -> list[Any]:
        described: list[Any] = []
        for base in cls.__mro__:
            described.append(base.__qualname__)
            if is_user_code(base, cls):
                self._add_file(vars(sys.modules.get(base.__module__, object)))
                items = {
                    name: value
                    for name, value in vars(base).items()  # without notes of Python and libraries, such as `__doc__`
                    if not (name[:2] == name[-2:] == "__")
                    or isinstance(value, (FunctionType, staticmethod, classmethod, property))
                }
                described.append(self._describe_items(items))
        return described

    def _describe_object(self, value: Any) -> list[Any]:
        described = [self._describe(type(value))]
        match value:
            case FunctionType():
                described += self._describe_function(value)
            case MethodType():
                described += self._describe((value.__func__, value.__self__))
            case staticmethod() | classmethod():
                described.append(self._describe(value.__func__))
            case property():
                described += self._describe((value.fget, value.fset, value.fdel))
            case partial():
                described += self._describe((value.func, *value.args))
                described.append(self._describe_items(value.keywords))
            case _ if inspect.isroutine(value):  # written in C
                described.append(value.__qualname__)
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            attributes = {}
        # The attributes that are functions, among them what a wrapper wraps.
        kinds = (FunctionType, MethodType, partial)
        functions = {n: v for n, v in attributes.items() if n == "__wrapped__" or isinstance(v, kinds)}
        return [*described, self._describe_items(functions)]

    def _describe_function(self, function: FunctionType) -> list[Any]:
        code, variables = function.__code__, function.__globals__
        self._add_file(variables)
        state = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_DEREF"}
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        # A variable that has no value yet is state, like a list: it gets its value while the program runs.
        closure = {n: [] if cell == CellType() else cell.cell_contents for n, cell in cells if n not in state}
        names = set().union(*(each.co_names for each in _nested_codes(code)))  # also of attributes
        helpers = {name: variables[name] for name in names if name in variables}
        items = (function.__kwdefaults__ or {}, closure, _select_own(helpers, variables))
        return [_describe_code(code), self._describe(function.__defaults__), *map(self._describe_items, items)]

    def _add_file(self, variables: Mapping[str, Any]) -> None:
        version = variables.get("__ferrule_version__")
        if isinstance(version, ModuleVersion):  # the file may have changed, but this version is the one that runs
            self.files.add(version.digest)
        elif file := variables.get("__file__"):
            try:
                self.files.add(sha256(Path(file).read_bytes()).hexdigest())
            except OSError:  # it is inside an archive, or was deleted: what was loaded of it is described all the same
                self.files.add("")


def _select_own(items: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Select the code of the module with these variables, without imported code."""
    module = variables.get("__name__")
    return {n: v for n, v in items.items() if callable(v) and getattr(v, "__module__", None) == module}


def _describe_code(code: CodeType) -> list[Any]:
    return [*(getattr(code, name) for name in _CODE_FIELDS), *map(_describe_constant, code.co_consts)]


def _describe_constant(value: Any) -> Any:
    if type(value) in _PLAIN_TYPES:
        return type(value).__name__, repr(value)
    if isinstance(value, CodeType):
        return _describe_code(value)
    if isinstance(value, Enum):
        return type(value).__qualname__, value.name
    if isinstance(value, tuple):
        return ["tuple", *map(_describe_constant, value)]
    if isinstance(value, frozenset):  # its order is another one in each process
        return ["frozenset", *sorted(repr(_describe_constant(each)) for each in value)]
    return type(value).__qualname__


# Variables that a function changes

_CONTAINERS = (list, dict, set, bytearray, deque, SimpleNamespace)
_CHANGING_METHODS = {
    *("append", "appendleft", "extend", "extendleft", "insert", "remove", "pop", "popleft", "popitem", "clear", "sort"),
    *("reverse", "rotate", "add", "discard", "update", "setdefault", "subtract", "move_to_end", "difference_update"),
    *("intersection_update", "symmetric_difference_update"),
}


def find_changed_variables(function: Any) -> list[str]:
    """Return the variables of a module or of a closure that a function assigns, or whose values it changes.

    The user's functions and methods that it calls are read too, without running them. What is only read does not count.
    """
    function, owner = getattr(function, "__func__", function), getattr(function, "__self__", None)
    return [name for name in dict.fromkeys(_find_changes(function, owner, set())) if name]


def _find_changes(function: Any, owner: Any, visited: set[Any]) -> Iterator[str]:
    """Yield the changed variables of a function, and "" if it changes the object `owner` whose method it is."""
    if not isinstance(function, FunctionType) or function in visited or _is_library(function.__module__):
        return
    visited.add(function)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: None if cell == CellType() else cell.cell_contents for name, cell in cells}
    for code in _nested_codes(function.__code__):
        loaded: dict[tuple[int | None, int | None], tuple[str, Any]] = {}
        """The variables that have been loaded, by the place in the file where their expressions begin: code that
        changes a part of a variable (`orders["a"].items[0] = 1`) has the same place.
        """
        value: Any = None
        last = ""
        for each in dis.get_instructions(code):
            action, name, positions = each.opname, each.argval, each.positions
            place = (positions.lineno, positions.col_offset) if positions else (None, None)
            variable, whole = ("", owner) if last == "self" else loaded.get(place, (None, None))
            before, value, last = value, None, ""
            is_closure = action.endswith("_DEREF") and name in closure and name in code.co_freevars
            if action in ("STORE_GLOBAL", "DELETE_GLOBAL") or (is_closure and not action.startswith("LOAD")):
                yield name
            elif action == "LOAD_GLOBAL" or is_closure:
                value = (closure if is_closure else function.__globals__).get(name)
                if isinstance(value, FunctionType):
                    yield from _find_changes(value, None, visited)
                elif _may_change(value) and None not in place:
                    loaded[place] = name, value
            elif action.startswith("LOAD_FAST") and owner is not None:
                if (name[-1] if isinstance(name, tuple) else name) in function.__code__.co_varnames[:1]:
                    loaded[place], value, last = ("", owner), owner, "self"
            elif variable is None:
                continue
            elif action in ("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR"):
                yield variable
            elif action in ("LOAD_ATTR", "LOAD_METHOD"):
                value = inspect.getattr_static(before, name, None) if before is not None else None
                if name in _CHANGING_METHODS and isinstance(whole if before is None else before, _CONTAINERS):
                    yield variable
                elif isinstance(value, FunctionType) and not isinstance(before, type):
                    me = None if isinstance(before, ModuleType) else before
                    yield from (each or variable for each in _find_changes(value, me, visited))


def _may_change(value: Any) -> bool:
    """Return whether a value is a container, or the user's own: a module, a class or an object of one."""
    if isinstance(value, (ModuleType, type)):
        return not _is_library(value.__name__ if isinstance(value, ModuleType) else value.__module__)
    return isinstance(value, _CONTAINERS) or not _is_library(type(value).__module__)


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested_codes(each)
