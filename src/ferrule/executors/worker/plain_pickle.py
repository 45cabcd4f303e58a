"""Pickles that can do no harm when they are read.

To read a pickle is to run what it says: any function it names, with any arguments. What comes out of a worker was
written by a tool, so it may name nothing but a few classes of values. None of them can be changed by a pickle: they
belong to Python's core, or have a `__setstate__` that wants an object.
"""

from __future__ import annotations

import builtins
import datetime
import decimal
import io
import pickle
from collections.abc import Iterable
from typing import Any

from ferrule import errors

_EXCEPTIONS = tuple(
    each
    for module in (builtins, errors)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Exception)
)
_TIMES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)

HARMLESS = (*_EXCEPTIONS, *_TIMES, set, frozenset, complex, decimal.Decimal)
"""What may be part of an exception, besides numbers, texts and what is made of them."""


class PlainReader:
    """Reads pickles of plain values and of these classes; UnpicklingError for any other."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._known = {(cls.__module__, cls.__qualname__): cls for cls in classes}

    def read(self, pickled: bytes | bytearray | memoryview) -> Any:
        return _Unpickler(pickled, self._known).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes | bytearray | memoryview, known: dict[tuple[str, str], type]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._known = known

    def find_class(self, module: str, name: str, /) -> type:
        try:
            return self._known[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain value") from None
