"""The messages between this process and its workers: pickles, each after its length.

Only plain values, parts of content and Ferrule's own small types are sent. What a caller passed in (arguments,
variables) is pickled separately, so that a value the other side cannot read fails one call and not the connection.

The trust is one-sided. A worker trusts what this process sends. This process reads nothing from a worker that could run
code here: reading a pickle means to call whatever functions it names, and what comes out of a worker was written by a
tool. So these pickles may name only a few classes of values (`_make_safe_reader`).

An exception arrives as the same class with the same text if this process has the class already; nothing is imported for
it. Otherwise it arrives as `ExecutionFailed`. The class travels by name and is rebuilt without running its own code,
because its `__init__` may take other arguments than those the exception ended up with. All attributes but plain
values arrive as text. The traceback of the worker is added as a note, for logs.
"""

from __future__ import annotations

import builtins
import datetime
import decimal
import io
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ferrule import errors
from ferrule.core.call import Progress, ToolExecutionResult
from ferrule.core.content import Audio, Content, Image, Resource, Text, plain_json
from ferrule.errors import ExecutionFailed, SetupError, error_text
from ferrule.process.function_reference import FunctionReference

_LENGTH = struct.Struct(">Q")
HEADER_SIZE = _LENGTH.size


# Messages to a worker


class ProcessEnvironment(NamedTuple):
    """What a function can see besides its arguments; a worker that started long ago must not see old values."""

    directory: str | None
    """None when the current directory of this process was deleted."""
    path: list[str]
    """`sys.path`."""
    variables: dict[str, str]


class FunctionCall(NamedTuple):
    number: int
    """Of the call; all its messages carry it, so that late ones of an earlier call are recognised."""
    call_id: str
    tool_id: str
    action: str
    function: int
    """The number under which the worker keeps the function."""
    reference: FunctionReference | None
    """None when the worker got it with an earlier call."""
    environment: ProcessEnvironment | None
    """None when it has not changed since the last call."""
    arguments: bytes
    """A pickle of `CallArguments` or `BoundArguments`."""


class CallArguments(NamedTuple):
    """The arguments of a function, which the worker binds to its parameters."""

    params: dict[str, Any]
    context: dict[str, Any]
    """The fields of the execution context, for functions that have a parameter for it."""
    variables: dict[str, bytes]
    """Each a pickle of its own: one that cannot be read in the worker is left out."""
    deps: bytes
    """A pickle; empty if the run has no dependencies."""
    is_approved: bool


class MissingDeps:
    """Stands for the dependencies of a run in a worker process that cannot have them. Using it raises SetupError."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python asks for these itself
            raise AttributeError(name)
        raise SetupError(
            f"The dependencies of this run are not available: {self.reason}. Write the tool as `async def`, or give it "
            'isolation="thread".'
        )

    def __getitem__(self, key: Any) -> NoReturn:
        self.__getattr__("")


class BoundArguments(NamedTuple):
    """Arguments that this process has already bound to the function's parameters."""

    args: Sequence[Any]
    kwargs: dict[str, Any]


class NestedReply(NamedTuple):
    """The result of a call that the function made."""

    request: int
    result: ToolExecutionResult | None
    failure: EncodedError | None = None


# Messages from a worker


class FunctionStarted(NamedTuple):
    """The worker has read the call. A call that a dead worker did not start can safely be sent to another one."""

    number: int


class NestedRequest(NamedTuple):
    """The function calls another tool."""

    number: int
    request: int
    tool_name: str
    params: dict[str, Any]
    action: str | None


class ProgressReport(NamedTuple):
    number: int
    progress: Progress


class FunctionResult(NamedTuple):
    number: int
    data: dict[str, Any]
    parts: tuple[Content, ...]


class FunctionError(NamedTuple):
    number: int
    failure: EncodedError


class FunctionNotLoaded(NamedTuple):
    """The function could not be loaded in the worker. Nothing of it has run."""

    number: int
    failure: EncodedError


FunctionEnd: TypeAlias = FunctionResult | FunctionError | FunctionNotLoaded


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedError:
    """An exception in a form that can be sent."""

    module: str
    qualname: str
    state: bytes | None
    """A pickle of the arguments and attributes; None when they cannot be pickled."""
    text: str
    """The message when the exception cannot be rebuilt."""
    trace: str


# Encoding


def encode_message(message: Any) -> bytes:
    payload = pickle.dumps((type(message).__name__, *message), pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(payload)) + payload


def read_payload_length(header: bytes | bytearray | memoryview) -> int:
    return int(_LENGTH.unpack_from(header)[0])


def decode_from_parent(payload: bytes | bytearray | memoryview) -> Any:
    name, *fields = pickle.loads(payload)
    return _MESSAGES[name](*fields)


def decode_from_worker(payload: bytes | bytearray | memoryview) -> Any:
    """Decode a message that is not trusted; ExecutionFailed for anything but a message of plain values."""
    try:
        name, *fields = _read_worker_message(payload)
        return _MESSAGES[name](*fields)
    except Exception as error:  # a pickle can be wrong in any way
        raise ExecutionFailed(
            f"A worker process sent something else than plain values ({error}), and was ended. "
            "Let the tool return numbers, texts, lists, dictionaries and parts of content."
        ) from error


def _make_safe_reader(*classes: type) -> Callable[[bytes | bytearray | memoryview], Any]:
    """Return a function that reads pickles of plain values and of these classes. It raises for any other class."""
    allowed = {(cls.__module__, cls.__qualname__): cls for cls in classes}

    class SafeUnpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> type:
            try:
                return allowed[module, name]
            except KeyError:
                raise pickle.UnpicklingError(f"{module}.{name} is no plain value") from None

    return lambda pickled: SafeUnpickler(io.BytesIO(pickled)).load()


# A pickle can also set attributes of the classes it names. It cannot change these: they belong to Python's core, or
# have a `__setstate__` that expects an instance.
_EXCEPTION_CLASSES = tuple(
    cls
    for module in (builtins, errors)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Exception)
)
_TIME_CLASSES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)
_read_error_state = _make_safe_reader(*_EXCEPTION_CLASSES, *_TIME_CLASSES, set, frozenset, complex, decimal.Decimal)
_read_worker_message = _make_safe_reader(Text, Image, Audio, Resource, Progress, EncodedError)
_MESSAGES = {
    message.__name__: message
    for message in (
        FunctionCall,
        NestedReply,
        FunctionStarted,
        NestedRequest,
        ProgressReport,
        FunctionResult,
        FunctionError,
        FunctionNotLoaded,
    )
}


# Exceptions


def encode_error(error: BaseException) -> EncodedError:
    return EncodedError(
        module=type(error).__module__,
        qualname=type(error).__qualname__,
        state=_pickle_state(error),
        text=_describe_error(error),
        trace="".join(traceback.format_exception(error)),
    )


def decode_error(failure: EncodedError) -> Exception:
    try:
        error = _rebuild_error(failure)
    except Exception:  # whatever a foreign class does when it is looked up or created
        error = ExecutionFailed(failure.text)
    error.add_note(f"Raised in a worker process:\n{failure.trace}")
    return error


def _describe_error(error: BaseException) -> str:
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _pickle_state(error: BaseException) -> bytes | None:
    try:
        # `__reduce__` of OSError and its subclasses returns the arguments that recreate them.
        reduced: Any = error.__reduce__()
        if reduced[0] is not type(error):
            reduced = type(error), error.args, error.__dict__
        arguments = [value if _is_sendable(value) else str(value) for value in reduced[1]]
        attributes = reduced[2] if len(reduced) > 2 else None
        plain = {str(k): v if _is_sendable(v) else plain_json(v) for k, v in (attributes or {}).items()}
        return pickle.dumps((arguments, plain), pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever the objects in it do
        return None


def _is_sendable(value: Any) -> bool:
    try:
        _read_error_state(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:
        return False
    return True


def _rebuild_error(failure: EncodedError) -> Exception:
    if failure.state is None:
        return ExecutionFailed(failure.text)
    cls: Any = sys.modules[failure.module]
    for name in failure.qualname.split("."):
        cls = vars(cls)[name]  # not getattr: modules can import something when asked for a name
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        raise TypeError(f"{failure.module}.{failure.qualname} is not an exception")
    arguments, attributes = _read_error_state(failure.state)
    # Python's own class below it: its `__init__` sets what nothing else can set (an errno, a position).
    builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    error: Exception = builtin.__new__(cls, *arguments)
    builtin.__init__(error, *arguments)
    BaseException.__setstate__(error, attributes)
    if _describe_error(error) != failure.text:
        raise ValueError("the rebuilt exception has another text")
    return error
