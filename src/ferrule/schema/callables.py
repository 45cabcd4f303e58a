"""The things Python can call, seen alike: functions, methods, partials, callable objects, wrapped functions."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_type_hints

from ferrule.call import ToolExecutionContext
from ferrule.errors import SpecError

Kind: TypeAlias = Literal["sync", "async", "generator", "async_generator"]


def name_of(fn: Any) -> str:
    """What to call a callable in messages."""
    below = underlying(fn)
    return str(getattr(below, "__qualname__", None) or getattr(below, "__name__", None) or repr(fn))


def underlying(fn: Any) -> Any:
    """The plain function below partials, methods, wrappers and callable objects, or what comes nearest to it."""
    while True:
        if hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif isinstance(fn, types.FunctionType):
            return fn
        elif isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, (types.MethodType, staticmethod, classmethod)):
            fn = fn.__func__
        elif is_callable_object(fn):
            fn = type(fn).__call__
        else:
            return fn


def is_callable_object(thing: Any) -> bool:
    """Whether it is an object whose class has a `__call__` written in Python."""
    return callable(thing) and not isinstance(thing, type) and isinstance(type(thing).__call__, types.FunctionType)


def kind_of(fn: Callable[..., Any]) -> Kind:
    """How a call of it gives its result. A wrapper is taken as it is, whatever it wraps."""
    called = type(fn).__call__ if is_callable_object(fn) else fn
    if inspect.iscoroutinefunction(called):
        return "async"
    if inspect.isasyncgenfunction(called):
        return "async_generator"
    return "generator" if inspect.isgeneratorfunction(called) else "sync"


def doc_of(fn: Any) -> str | None:
    """The docstring of a callable; that of a partial is its function's, a method may inherit its own."""
    if isinstance(fn, functools.partial):
        return doc_of(fn.func)
    if is_callable_object(fn):
        return type(fn).__call__.__doc__ or type(fn).__doc__
    return fn.__doc__ or (inspect.getdoc(fn) if isinstance(fn, types.MethodType) else None)


def open_parameters(fn: Callable[..., Any]) -> tuple[list[inspect.Parameter], Any]:
    """The parameters a caller may give, and the return annotation.

    What a partial fixed by name is left out: it may be a key, and was not meant to be chosen by a model.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the parameters of {name_of(fn)!r} cannot be read ({error}). Wrap it in a function with type hints."
        ) from error
    fixed = fn.keywords if isinstance(fn, functools.partial) else ()
    return [p for name, p in signature.parameters.items() if name not in fixed], signature.return_annotation


def resolve_hints(fn: Callable[..., Any], written: dict[str, Any]) -> dict[str, Any]:
    """The annotations with names in quotes replaced by what they name."""
    if all(isinstance(hint, type) for hint in written.values()):
        return written
    below = underlying(fn)
    names = getattr(below, "__globals__", {})
    try:
        return _evaluate(below, written, names)
    except Exception:
        return _resolve_one_by_one(below, written, names)


def _resolve_one_by_one(below: Any, written: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    # Type checkers tell people to import types "only for checking", the context's among them.
    names = {ToolExecutionContext.__name__: ToolExecutionContext, **names}
    resolved: dict[str, Any] = {}
    for name, hint in written.items():
        try:
            resolved.update(_evaluate(below, {name: hint}, names))
        except Exception as error:
            if name == "return":
                continue
            raise SpecError(
                f"function {name_of(below)!r}: the type hint {hint!r} of parameter {name!r} means nothing at run time "
                f"({error}). Import or define what it names at the top level of {below.__module__!r}, "
                f"outside `if TYPE_CHECKING`."
            ) from error
    return resolved


def _evaluate(below: Any, written: Mapping[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    holder = types.SimpleNamespace(__annotations__=dict(written), __type_params__=getattr(below, "__type_params__", ()))
    return get_type_hints(holder, globalns=names, include_extras=True)
