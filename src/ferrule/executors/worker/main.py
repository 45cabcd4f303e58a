"""The worker process: runs the functions it is sent, one after another, in its main thread.

Whatever a function prints goes to standard error; standard input is empty. A result is made plain here, so that
only plain data and parts of content travel back.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ferrule.call import Invocation, Progress, ToolExecutionContext
from ferrule.content import Audio, Content, Image, Output, Resource, Text, plain_json
from ferrule.errors import ExecutionFailed
from ferrule.executors.function.reference import LOADING, ByValue, FunctionReference
from ferrule.executors.function.run import run_to_end
from ferrule.executors.worker.failure import write_failure
from ferrule.executors.worker.frames import (
    Arguments,
    Call,
    Done,
    Failed,
    NotLoaded,
    ReadyArguments,
    Reported,
    Surroundings,
    encode,
)
from ferrule.executors.worker.owner import Owner, meet_owner
from ferrule.schema import read_function
from ferrule.schema.binding import Bind, bind_as_they_are
from ferrule.spec import Tool, ToolCapability, ToolSpec

_PARTS = (Text, Image, Audio, Resource)

T = TypeVar("T")


def main(begun: int) -> None:
    owner = meet_owner(begun)
    faulthandler.enable()
    Worker(owner).serve()


class Worker:
    """Runs functions for its owner, and keeps them loaded."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._references: dict[int, FunctionReference] = {}
        self._functions: dict[int, tuple[Callable[..., Any], Bind]] = {}
        self._surroundings = Surroundings(None, [], {})

    def serve(self) -> None:
        while (call := self._owner.next_call()) is not None:
            encoded = self._perform(call)
            _flush()
            self._owner.finish(encoded)

    def _perform(self, call: Call) -> bytes:
        if call.reference is not None:
            self._references[call.function] = call.reference
        self._adopt(call.surroundings)
        try:
            function, bind = self._functions.get(call.function) or self._load(call.function)
        except BaseException as error:
            return encode(NotLoaded(call.number, write_failure(error)))
        try:
            value = contextvars.Context().run(self._run, call, function, bind)
            output = Output.of(value)
            # What the tool put into an Output or a part itself is still as it was.
            data = _plain_object(output.data) if output is value or output.parts else output.data
            return encode(Done(call.number, data, tuple(map(_plain_part, output.parts))))
        except BaseException as error:
            return encode(Failed(call.number, write_failure(error)))

    def _adopt(self, changed: Surroundings | None) -> None:
        if changed is not None:
            sys.path[:] = changed.path
            # What was set here, by a module that was imported, say, stays.
            for name in self._surroundings.environment.keys() - changed.environment.keys():
                os.environ.pop(name, None)
            os.environ.update(changed.environment)
            self._surroundings = changed
        if self._surroundings.directory is not None:
            with contextlib.suppress(OSError):  # gone meanwhile
                os.chdir(self._surroundings.directory)  # each time: the last function may have gone elsewhere

    def _load(self, number: int) -> tuple[Callable[..., Any], Bind]:
        reference = self._references[number]
        token = LOADING.set(getattr(reference, "module", "the file of a tool"))
        try:
            function = reference.load()
            bind = bind_as_they_are if isinstance(reference, ByValue) else read_function(function).bind
        finally:
            LOADING.reset(token)
        self._functions[number] = function, bind
        return function, bind

    def _run(self, call: Call, function: Callable[..., Any], bind: Bind) -> Any:
        arguments = _read_arguments(call)
        params, context = {}, ToolExecutionContext()
        if isinstance(arguments, ReadyArguments):
            function = partial(function, *arguments.args, **arguments.kwargs)
        else:
            params = arguments.params
            context = ToolExecutionContext(**arguments.context, variables=_read_variables(arguments.variables))
        invocation = Invocation(
            call_id=call.call_id,
            tool=Tool(spec=ToolSpec(tool_id=call.tool_id), handler="function"),
            capability=ToolCapability(name=call.action, description=""),
            params=params,
            context=context,
            report=partial(self._report, call.number),
            call_tool=partial(self._owner.ask_async, call.number),
            call_tool_sync=partial(self._owner.ask, call.number),
        )
        Invocation.current.set(invocation)
        return run_to_end(function, bind, invocation)

    def _report(self, number: int, progress: Progress) -> None:
        if number == self._owner.current:
            fraction = None if progress.fraction is None else float(progress.fraction)
            data = _plain_part(progress.data) if isinstance(progress.data, _PARTS) else plain_json(progress.data)
            plain = Progress(fraction=fraction, message=str(progress.message), data=data)
            self._owner.send(encode(Reported(number, plain)))


def _plain_object(data: Any) -> dict[str, Any]:
    plain = plain_json(data)
    return plain if isinstance(plain, dict) else {"result": plain}


def _plain_part(part: Content) -> Content:
    """The same part, made of nothing but text and bytes whatever the tool put into it."""
    match part:
        case Text():
            return Text(text=str(part.text))
        case Resource():
            return Resource(
                uri=str(part.uri),
                text=_optional(str, part.text),
                data=_optional(bytes, part.data),
                mime_type=_optional(str, part.mime_type),
            )
        case Image():
            return Image(data=bytes(part.data), mime_type=str(part.mime_type))
        case Audio():
            return Audio(data=bytes(part.data), mime_type=str(part.mime_type))


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)


def _read_arguments(call: Call) -> Arguments | ReadyArguments:
    try:
        arguments: Arguments | ReadyArguments = pickle.loads(call.arguments)
    except Exception as error:  # pickle raises whatever the objects it makes raise
        raise ExecutionFailed(
            f"The arguments of tool {call.tool_id!r} cannot be read in a worker process ({error}). "
            "Pass plain values, or give the tool isolation='thread'."
        ) from error
    return arguments


def _read_variables(packed: dict[str, bytes]) -> dict[str, Any]:
    variables = {}
    for name, value in packed.items():
        try:
            variables[name] = pickle.loads(value)
        except Exception as error:
            print(f"ferrule: variable {name!r} cannot be read in this worker process: {error}", file=sys.stderr)
    return variables


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a function may have put anything in their place
            stream.flush()
