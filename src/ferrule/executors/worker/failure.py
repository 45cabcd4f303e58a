"""Exceptions on their way out of a worker process.

An exception arrives as what it was: the same class with the same text and attributes, if this process can find the
class; otherwise as `ExecutionFailed`. The class travels by name and is rebuilt without running its own `__init__`,
which may take other arguments than those the exception ended up with. Where it was raised in the worker is kept as
a note, for logs.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
from typing import Any, NamedTuple

from ferrule.errors import ExecutionFailed


class Failure(NamedTuple):
    """An exception, written down."""

    module: str
    qualname: str
    state: bytes | None
    """A pickle of the arguments and attributes; None when they cannot be pickled."""
    text: str
    """What to say when the exception cannot be rebuilt."""
    trace: str


def write_failure(error: BaseException) -> Failure:
    text = _text_of(error)
    return Failure(
        module=type(error).__module__,
        qualname=type(error).__qualname__,
        state=_state_of(error),
        text=f"{type(error).__name__}: {text}" if text else type(error).__name__,
        trace="".join(traceback.format_exception(error)),
    )


def read_failure(failure: Failure) -> Exception:
    try:
        error = _rebuild(failure)
    except Exception:  # whatever a foreign class does when it is found or made
        error = ExecutionFailed(failure.text)
    error.add_note(f"Raised in a worker process:\n{failure.trace}")
    return error


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _state_of(error: BaseException) -> bytes | None:
    try:
        # OSError and its kind know best which arguments make them again.
        reduced: Any = error.__reduce__()
        if reduced[0] is not type(error):
            reduced = type(error), error.args, error.__dict__
        return pickle.dumps((reduced[1], reduced[2] if len(reduced) > 2 else None), pickle.HIGHEST_PROTOCOL)
    except Exception:
        return None


def _rebuild(failure: Failure) -> Exception:
    if failure.state is None:
        return ExecutionFailed(failure.text)
    cls = _find_class(failure.module, failure.qualname)
    arguments, attributes = pickle.loads(failure.state)
    error = cls.__new__(cls, *arguments)
    _builtin_init(cls)(error, *arguments)
    if attributes:
        error.__setstate__(attributes)
    return error


def _find_class(module: str, qualname: str) -> type[Exception]:
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise TypeError(f"{module}.{qualname} is not an exception")
    return found


def _builtin_init(cls: type[Exception]) -> Any:
    """The `__init__` of Python's own class below: it sets what nobody else can set (an errno, a position)."""
    own: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    return own.__init__
