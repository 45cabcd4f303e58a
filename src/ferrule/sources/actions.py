"""Which methods of a class are its tool's actions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

from ferrule.errors import SpecError
from ferrule.schema import read_function
from ferrule.sources.object_target import ENDINGS
from ferrule.sources.tool_options import NO_OPTIONS, ToolOptions, options_of
from ferrule.spec import ToolCapability

_INSTALLED = ("site-packages", "dist-packages")
_OF_THE_WHOLE_TOOL = ("version", "metadata", "subcategory", "priority", "dependencies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A method that can be called as an action."""

    attribute: str
    method: Callable[..., Any]
    """Bound to the class instead of an object: to be read, not to be called."""
    options: ToolOptions

    @property
    def name(self) -> str:
        return self.options.name or self.attribute


def actions_of(cls: type) -> list[Action]:
    """The methods decorated with `@tool` or, when there are none, the public ones that users wrote."""
    methods = _methods(cls)
    noted = {name: method for name, method in methods.items() if options_of(_function(method)) is not None}
    chosen = noted or {n: m for n, m in methods.items() if not n.startswith("_") and n not in ENDINGS}
    actions = [
        Action(attribute=name, method=_bound(method, cls), options=options_of(_function(method)) or NO_OPTIONS)
        for name, method in chosen.items()
    ]
    return [action for action in actions if action.options.enabled is not False]


def capability_of(action: Action, whole: ToolOptions) -> ToolCapability:
    """An action of a tool with several; what its options leave open is as the whole tool's say."""
    if misplaced := action.options.said(*_OF_THE_WHOLE_TOOL):
        raise SpecError(
            f"action {action.name!r}: {' and '.join(misplaced)} can only be said of a whole tool. "
            f"Say it on the class, or register each method as a tool of its own."
        )
    signature = read_function(action.method)
    options = action.options.over(replace(whole, name=None, description=None, examples=None))
    return ToolCapability(
        name=action.name,
        description=options.description or signature.description,
        parameters=signature.parameters,
        examples=[dict(example) for example in options.examples or ()],
        category=str(options.category or "general"),
        output=signature.output,
        effects=options.effects if action.options.says_effects else None,
        limits=options.limits if action.options.says_limits else None,
    )


def _methods(cls: type) -> dict[str, Any]:
    """By name, in the order they were written, those of bases first; a class overrides what its bases have."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if _is_written_by_users(base, cls):
            for name, value in vars(base).items():
                if _is_method(value):
                    found[name] = value
                else:
                    found.pop(name, None)
    return {name: method for name, method in found.items() if not (name.startswith("__") and name.endswith("__"))}


def _is_written_by_users(base: type, cls: type) -> bool:
    """Not what comes from Python or from a library a tool's class builds on."""
    if base is cls:
        return cls.__module__ != "builtins"
    package = base.__module__.partition(".")[0]
    if package == cls.__module__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(base.__module__), "__file__", None) or ""
    return package not in sys.stdlib_module_names and not any(folder in file for folder in _INSTALLED)


def _is_method(value: Any) -> bool:
    # Properties and cached ones are read, not called; a class inside a class is no method of it.
    return isinstance(value, (staticmethod, classmethod)) or (inspect.isroutine(value) and callable(value))


def _function(method: Any) -> Any:
    return method.__func__ if isinstance(method, (staticmethod, classmethod)) else method


def _bound(method: Any, cls: type) -> Callable[..., Any]:
    function: Callable[..., Any] = _function(method)
    return function if isinstance(method, staticmethod) else MethodType(function, cls)
