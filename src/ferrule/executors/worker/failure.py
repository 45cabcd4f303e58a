"""Exceptions on their way out of a worker process.

An exception arrives as what it was, the same class with the same text, if this process knows the class already; it
is never imported for it. Otherwise it arrives as `ExecutionFailed`. The class travels by name and is rebuilt without
running code of its own: its `__init__` may take other arguments than those the exception ended up with. What it
carries besides plain values arrives as text. Where it was raised in the worker is kept as a note, for logs.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from ferrule.content import plain_json
from ferrule.errors import ExecutionFailed, text_of
from ferrule.executors.worker.plain_pickle import HARMLESS, PlainReader

_state = PlainReader(HARMLESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception, written down."""

    module: str
    qualname: str
    state: bytes | None
    """A pickle of the arguments and attributes; None when they cannot be pickled."""
    text: str
    """What to say when the exception cannot be rebuilt."""
    trace: str


def write_failure(error: BaseException) -> Failure:
    return Failure(
        module=type(error).__module__,
        qualname=type(error).__qualname__,
        state=_state_of(error),
        text=_described(error),
        trace="".join(traceback.format_exception(error)),
    )


def read_failure(failure: Failure) -> Exception:
    try:
        error = _rebuild(failure)
    except Exception:  # whatever a foreign class does when it is found or made
        error = ExecutionFailed(failure.text)
    error.add_note(f"Raised in a worker process:\n{failure.trace}")
    return error


def _described(error: BaseException) -> str:
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _state_of(error: BaseException) -> bytes | None:
    try:
        # OSError and its kind know best which arguments make them again.
        reduced: Any = error.__reduce__()
        if reduced[0] is not type(error):
            reduced = type(error), error.args, error.__dict__
        arguments = [value if _travels(value) else str(value) for value in reduced[1]]
        attributes = reduced[2] if len(reduced) > 2 else None
        plain = {str(k): v if _travels(v) else plain_json(v) for k, v in (attributes or {}).items()}
        return pickle.dumps((arguments, plain), pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever the objects in it do
        return None


def _travels(value: Any) -> bool:
    try:
        _state.read(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:
        return False
    return True


def _rebuild(failure: Failure) -> Exception:
    if failure.state is None:
        return ExecutionFailed(failure.text)
    cls = _known_class(failure.module, failure.qualname)
    arguments, attributes = _state.read(failure.state)
    builtin = _builtin_base(cls)
    error: Exception = builtin.__new__(cls, *arguments)
    builtin.__init__(error, *arguments)
    BaseException.__setstate__(error, attributes)
    if _described(error) != failure.text:
        raise ValueError("it would say something else than it did")
    return error


def _known_class(module: str, qualname: str) -> type[Exception]:
    found: Any = sys.modules[module]
    for name in qualname.split("."):
        found = vars(found)[name]  # not getattr: modules can import when asked for a name
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise TypeError(f"{module}.{qualname} is not an exception")
    return found


def _builtin_base(cls: type[Exception]) -> Any:
    """Python's own class below: its `__init__` sets what nobody else can set (an errno, a position)."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")
