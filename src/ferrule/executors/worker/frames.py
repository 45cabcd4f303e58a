"""What this process and its workers say to each other: pickles, each after its length.

Only plain values, parts of content and Ferrule's own small types travel. What a caller handed in (arguments,
variables) is pickled apart, so that a value the other side cannot read spoils one call and not the conversation.
A worker believes what this process sends. This process reads nothing from a worker that could run code here.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ferrule.call import Progress, ToolExecutionResult
from ferrule.content import Audio, Content, Image, Resource, Text
from ferrule.errors import ExecutionFailed
from ferrule.executors.function.reference import FunctionReference
from ferrule.executors.worker.failure import Failure
from ferrule.executors.worker.plain_pickle import PlainReader

_LENGTH = struct.Struct(">Q")
HEADER_SIZE = _LENGTH.size


class Surroundings(NamedTuple):
    """What a function may look at besides its arguments. A worker that started long ago must not see old ones."""

    directory: str | None
    """None when this process stands in a directory that is gone."""
    path: list[str]
    """Where modules are found."""
    environment: dict[str, str]


class Call(NamedTuple):
    """To a worker: run a function."""

    number: int
    """Of the conversation; every frame of it carries the number, so that late ones of an older call are known."""
    call_id: str
    tool_id: str
    action: str
    function: int
    """Under which number the worker keeps the function."""
    reference: FunctionReference | None
    """None when the worker has been told before."""
    surroundings: Surroundings | None
    """None when they have not changed since the last call."""
    arguments: bytes
    """A pickle of `Arguments` or `ReadyArguments`."""


class Arguments(NamedTuple):
    """What goes into a function, for the worker to make ready."""

    params: dict[str, Any]
    context: dict[str, Any]
    """Who calls and under which conditions, for functions that ask for it."""
    variables: dict[str, bytes]
    """Each a pickle of its own: one that cannot be read in the worker is left out."""


class ReadyArguments(NamedTuple):
    """The same, made ready here."""

    args: Sequence[Any]
    kwargs: dict[str, Any]


class Answer(NamedTuple):
    """To a worker: what came of a call its function made."""

    question: int
    result: ToolExecutionResult | None
    failure: Failure | None = None


class Question(NamedTuple):
    """From a worker: the function calls another tool."""

    number: int
    question: int
    tool_name: str
    params: dict[str, Any]
    action: str | None


class Reported(NamedTuple):
    """From a worker: how far the function is."""

    number: int
    progress: Progress


class Done(NamedTuple):
    """From a worker: the function's result."""

    number: int
    data: dict[str, Any]
    parts: tuple[Content, ...]


class Failed(NamedTuple):
    """From a worker: the function raised."""

    number: int
    failure: Failure


class NotLoaded(NamedTuple):
    """From a worker: the function could not be brought there. Nothing of it has run."""

    number: int
    failure: Failure


_FRAMES = {frame.__name__: frame for frame in (Call, Answer, Question, Reported, Done, Failed, NotLoaded)}
_from_worker = PlainReader((Text, Image, Audio, Resource, Progress, Failure))


def encode(frame: Any) -> bytes:
    payload = pickle.dumps((type(frame).__name__, *frame), pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(payload)) + payload


def length_of(header: bytes | bytearray | memoryview) -> int:
    """How many bytes of payload follow a header."""
    return int(_LENGTH.unpack_from(header)[0])


def decode_from_owner(payload: bytes | bytearray | memoryview) -> Any:
    name, *fields = pickle.loads(payload)
    return _FRAMES[name](*fields)


def decode_from_worker(payload: bytes | bytearray | memoryview) -> Any:
    """The same, without belief in what is read; ExecutionFailed when it is anything but a frame."""
    try:
        name, *fields = _from_worker.read(payload)
        return _FRAMES[name](*fields)
    except Exception as error:  # a pickle can be wrong in any way
        raise ExecutionFailed(
            f"A worker process sent something else than plain values ({error}), and was ended. "
            "Let the tool return numbers, texts, lists, dictionaries and parts of content."
        ) from error
