"""One call of a function in a worker: send the function, receive progress and nested calls, then the result."""

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
from typing import Any

from ferrule.core.call import Invocation, ToolExecutionContext
from ferrule.core.schema import FunctionSignature
from ferrule.errors import ExecutionFailed, InvalidArguments
from ferrule.process import protocol
from ferrule.process.function_reference import FunctionCopy, FunctionReference, NameReference, pickle_copy
from ferrule.process.groups import process_clock
from ferrule.process.worker_process import WorkerProcess

logger = logging.getLogger("ferrule.process")

_NOT_SENT = ("variables", "deps", "memory", "origins", "policy", "model", "is_approved")
"""Of a context: variables, dependencies and the approval are sent separately, the others not at all."""
_CONTEXT_FIELDS = [field.name for field in fields(ToolExecutionContext) if field.name not in _NOT_SENT]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFunction:
    number: int
    reference: FunctionReference
    signature: FunctionSignature | None = None
    """None where calls come with packed arguments: on a node of a cluster."""


class WorkerCall:
    """The messages to and from one worker during one call."""

    def __init__(
        self,
        worker: WorkerProcess,
        number: int,
        invocation: Invocation,
        suspend_permit: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._worker, self._number, self._invocation = worker, number, invocation
        self._suspend_permit = suspend_permit
        self.has_started = False
        self.nested: set[asyncio.Task[None]] = set()
        """The calls of other tools that the function has made; they end with the function at the latest."""
        self._send_lock = asyncio.Lock()

    async def run(self, function: RemoteFunction, arguments: bytes) -> protocol.FunctionEnd:
        """Run the function in the worker. EOFError means that the worker died."""
        channel = self._worker.channel
        await channel.send(protocol.encode_message(self._make_message(function, arguments)))
        while True:
            message = await channel.receive()
            if message.number != self._number:  # from a thread that an earlier call left running
                continue
            if isinstance(message, protocol.FunctionStarted):
                self.has_started = True
            elif isinstance(message, protocol.ProgressReport):
                self._invocation.report(message.progress)
            elif isinstance(message, protocol.NestedRequest):
                context = contextvars.copy_context()
                context.run(Invocation.current.set, self._invocation)
                task = asyncio.create_task(self._run_nested(message), context=context)
                self.nested.add(task)
                task.add_done_callback(self.nested.discard)
            else:
                assert isinstance(message, protocol.FunctionEnd)
                return message

    def _make_message(self, function: RemoteFunction, arguments: bytes) -> protocol.FunctionCall:
        worker, invocation, reference = self._worker, self._invocation, function.reference
        environment = _current_environment()
        message = protocol.FunctionCall(
            number=self._number,
            call_id=invocation.call_id,
            tool_id=invocation.tool.id,
            action=invocation.capability.name,
            function=function.number,
            reference=None if function.number in worker.functions else reference,
            environment=None if environment == worker.environment else environment,
            arguments=arguments,
        )
        worker.functions.add(function.number)
        worker.environment = environment
        worker.call_started_at = process_clock()
        worker.output.tool_id = invocation.tool.id
        if isinstance(reference, NameReference):
            worker.modules[reference.module] = reference.digest
        return message

    async def _run_nested(self, request: protocol.NestedRequest) -> None:
        try:
            with self._suspend_permit():  # the other tool may need a worker too
                result = await self._invocation.call_tool(request.tool_name, request.params, request.action)
            encoded = protocol.encode_message(protocol.NestedReply(request.request, result))
        except Exception as error:
            encoded = protocol.encode_message(protocol.NestedReply(request.request, None, protocol.encode_error(error)))
        async with self._send_lock:
            with suppress(EOFError):  # `run` notices it too
                await self._worker.channel.send(encoded)


def pack_arguments(function: RemoteFunction, invocation: Invocation) -> bytes:
    """Return a pickle of everything that the caller passed in."""
    assert function.signature is not None
    try:
        if isinstance(function.reference, FunctionCopy):
            return pickle_copy(_bind_arguments(function.signature, invocation))
        arguments = protocol.CallArguments(invocation.params, {}, {}, b"", False)
        if function.signature.context_parameter is not None:
            context, variables = invocation.context, _pickle_variables(invocation)
            values = {name: getattr(context, name) for name in _CONTEXT_FIELDS}
            deps = _pickle_deps(invocation, pickle.dumps)
            arguments = protocol.CallArguments(invocation.params, values, variables, deps, context.is_approved)
        return pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL)
    except InvalidArguments:
        raise
    except Exception as error:  # pickle raises whatever the objects it meets raise
        raise ExecutionFailed(
            f"The arguments of tool {invocation.tool.id!r} cannot be sent to a worker process ({error}). "
            "Pass plain values, or give the tool isolation='thread'."
        ) from error


def _bind_arguments(signature: FunctionSignature, invocation: Invocation) -> protocol.BoundArguments:
    context = invocation.context
    if signature.context_parameter is not None:
        sendable = {name: context.variables[name] for name in _pickle_variables(invocation)}
        deps = pickle.loads(deps) if (deps := _pickle_deps(invocation, pickle_copy)) else None
        context = replace(context, variables=sendable, deps=deps, memory=None, origins=None, policy=None, model=None)
        context.is_approved = invocation.context.is_approved
    return protocol.BoundArguments(*signature.bind(invocation.params, context))


def _pickle_deps(invocation: Invocation, dump: Callable[[Any], bytes]) -> bytes:
    """Return a pickle of the run's dependencies, or of what says why they cannot be sent; empty if there are none."""
    deps = invocation.context.deps
    try:
        return b"" if deps is None else dump(deps)
    except Exception as error:  # pickle raises whatever the objects it meets raise
        return pickle.dumps(protocol.MissingDeps(f"{type(deps).__name__} cannot be sent to a worker process ({error})"))


def _pickle_variables(invocation: Invocation) -> dict[str, bytes]:
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


def _current_environment() -> protocol.ProcessEnvironment:
    try:
        directory = os.getcwd()
    except OSError:
        directory = None
    # Copying `os.environ` takes longer than everything else that is sent, because it decodes each variable again. Its
    # private dictionary of bytes shows cheaply whether anything has changed since the last call.
    encoded: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
    variables = dict(os.environ) if encoded is None else _decode_variables(tuple(encoded.items()))
    return protocol.ProcessEnvironment(directory, [entry for entry in sys.path if isinstance(entry, str)], variables)


@lru_cache(maxsize=1)
def _decode_variables(variables: tuple[tuple[bytes, bytes], ...]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in variables}
