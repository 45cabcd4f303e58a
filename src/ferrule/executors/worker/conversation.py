"""One call held with a worker: the function goes there, its progress and its own calls come here, then its result."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from ferrule.call import Invocation, ToolExecutionContext
from ferrule.errors import ExecutionFailed, InvalidArguments
from ferrule.executors import process_tree
from ferrule.executors.function.nested_calls import NestedCalls
from ferrule.executors.function.reference import ByName, ByValue, FunctionReference, copy_of
from ferrule.executors.worker.failure import write_failure
from ferrule.executors.worker.frames import (
    Answer,
    Arguments,
    Call,
    Done,
    Failed,
    NotLoaded,
    Question,
    ReadyArguments,
    Reported,
    Surroundings,
    encode,
)
from ferrule.executors.worker.process import WorkerProcess
from ferrule.schema import FunctionSignature

logger = logging.getLogger("ferrule.executors")

_STAYS_HERE = ("variables", "memory", "policy")
"""Of a context: variables are sent one by one, the others not at all."""
_CONTEXT_FIELDS = [f.name for f in fields(ToolExecutionContext) if f.name not in _STAYS_HERE]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFunction:
    """A function that workers can be told of."""

    number: int
    reference: FunctionReference
    signature: FunctionSignature


class Conversation:
    """What is said to one worker, and heard from it, during one call."""

    def __init__(
        self,
        worker: WorkerProcess,
        number: int,
        invocation: Invocation,
        place_lent: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._worker, self._number, self._invocation = worker, number, invocation
        self._place_lent = place_lent
        self.nested = NestedCalls()
        self._sending = asyncio.Lock()

    async def hold(self, function: RemoteFunction, arguments: bytes) -> Done | Failed | NotLoaded:
        """Have the function run. EOFError means that the worker died."""
        channel = self._worker.channel
        await channel.send(self._call(function, arguments))
        while True:
            frame = await channel.receive()
            if frame.number != self._number:  # of a thread that an earlier call left behind
                continue
            if isinstance(frame, Reported):
                self._invocation.report(frame.progress)
            elif isinstance(frame, Question):
                self._start_answering(frame)
            else:
                assert isinstance(frame, Done | Failed | NotLoaded)
                return frame

    def _call(self, function: RemoteFunction, arguments: bytes) -> Call:
        worker, invocation, reference = self._worker, self._invocation, function.reference
        surroundings = _surroundings()
        frame = Call(
            number=self._number,
            call_id=invocation.call_id,
            tool_id=invocation.tool.id,
            action=invocation.capability.name,
            function=function.number,
            reference=None if function.number in worker.functions else reference,
            surroundings=None if surroundings == worker.surroundings else surroundings,
            arguments=arguments,
        )
        worker.functions.add(function.number)
        worker.surroundings = surroundings
        worker.call_began = process_tree.now()
        if isinstance(reference, ByName):
            worker.modules[reference.module] = reference.digest
        return frame

    def _start_answering(self, question: Question) -> None:
        context = contextvars.copy_context()
        context.run(Invocation.current.set, self._invocation)
        self.nested.add(asyncio.create_task(self._answer(question), context=context))

    async def _answer(self, question: Question) -> None:
        try:
            with self._place_lent():  # the other tool may need it
                result = await self._invocation.call_tool(question.tool_name, question.params, question.action)
            encoded = encode(Answer(question.question, result))
        except Exception as error:
            encoded = encode(Answer(question.question, None, write_failure(error)))
        async with self._sending:
            with suppress(EOFError):  # whoever listens to the worker notices too
                await self._worker.channel.send_bytes(encoded)


def pack_arguments(function: RemoteFunction, invocation: Invocation) -> bytes:
    """Everything of the call that the caller handed in."""
    try:
        if isinstance(function.reference, ByValue):
            return copy_of(_ready_arguments(function, invocation))
        return pickle.dumps(_arguments(function, invocation), pickle.HIGHEST_PROTOCOL)
    except InvalidArguments:
        raise
    except Exception as error:  # pickle raises whatever the objects it meets raise
        raise ExecutionFailed(
            f"The arguments of tool {invocation.tool.id!r} cannot be sent to a worker process ({error}). "
            "Pass plain values, or give the tool isolation='thread'."
        ) from error


def _arguments(function: RemoteFunction, invocation: Invocation) -> Arguments:
    if function.signature.context_parameter is None:
        return Arguments(invocation.params, {}, {})
    context = {name: getattr(invocation.context, name) for name in _CONTEXT_FIELDS}
    return Arguments(invocation.params, context, _sendable_variables(invocation))


def _ready_arguments(function: RemoteFunction, invocation: Invocation) -> ReadyArguments:
    context = invocation.context
    if function.signature.context_parameter is not None:
        sendable = {name: context.variables[name] for name in _sendable_variables(invocation)}
        context = replace(context, variables=sendable, memory=None, policy=None)
    return ReadyArguments(*function.signature.bind(invocation.params, context))


def _sendable_variables(invocation: Invocation) -> dict[str, bytes]:
    sendable = {}
    for name, value in invocation.context.variables.items():
        try:
            sendable[name] = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            logger.info(
                "tool=<%s>, variable=<%s> | left out of the context in the worker process, cannot be pickled: %s",
                invocation.tool.id,
                name,
                error,
            )
    return sendable


def _surroundings() -> Surroundings:
    try:
        directory = os.getcwd()
    except OSError:
        directory = None
    return Surroundings(directory, [entry for entry in sys.path if isinstance(entry, str)], _environment())


def _environment() -> dict[str, str]:
    # To copy it takes longer than all the rest that is said to a worker, because each variable is decoded anew. What
    # `os.environ` keeps them in is private, but tells at once whether anything has changed.
    encoded: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
    return dict(os.environ) if encoded is None else _decoded(tuple(encoded.items()))


@lru_cache(maxsize=1)
def _decoded(environment: tuple[tuple[bytes, bytes], ...]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment}
