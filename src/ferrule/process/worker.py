"""The worker process: runs the functions it is sent, one after another, in its main thread.

What a function prints goes to standard error; standard input is empty. A result is converted to plain values here, so
that only plain data and parts of content are sent back.

This module is what a worker imports when it starts, so it must load little: no asyncio, for example.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import fcntl
import os
import pickle
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from itertools import count
from typing import Any

from ferrule.core.call import Invocation, Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Audio, Content, Image, Output, Resource, Text, plain_json
from ferrule.core.schema import read_function
from ferrule.core.schema.binding import Bind, bind_unchanged
from ferrule.core.spec import Tool, ToolCapability, ToolSpec
from ferrule.errors import ExecutionFailed
from ferrule.process import protocol
from ferrule.process.function_reference import LOADING, FunctionCopy, FunctionReference
from ferrule.process.groups import become_subreaper
from ferrule.process.run_function import run_blocking

_PART_TYPES = (Text, Image, Audio, Resource)


def main() -> None:
    parent = _connect_to_parent()
    faulthandler.enable()
    become_subreaper()  # daemons that a call starts are found and ended with it
    FunctionWorker(parent).serve()


class FunctionWorker:
    """Runs functions for the parent process, and keeps them loaded."""

    def __init__(self, parent: ParentConnection) -> None:
        self._parent = parent
        self._references: dict[int, FunctionReference] = {}
        self._functions: dict[int, tuple[Callable[..., Any], Bind]] = {}
        self._environment = protocol.ProcessEnvironment(None, [], {})

    def serve(self) -> None:
        while (call := self._parent.next_call()) is not None:
            encoded = self._run_call(call)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # a function may have replaced them by anything
                    stream.flush()
            self._parent.finish(encoded)

    def _run_call(self, call: protocol.FunctionCall) -> bytes:
        if call.reference is not None:
            self._references[call.function] = call.reference
        self._apply_environment(call.environment)
        try:
            function, bind = self._functions.get(call.function) or self._load_function(call.function)
        except BaseException as error:
            return protocol.encode_message(protocol.FunctionNotLoaded(call.number, protocol.encode_error(error)))
        try:
            value = contextvars.Context().run(self._call_function, call, function, bind)
            output = Output.of(value)
            # `Output.of` has converted the value, except where the tool itself built an Output or parts.
            data: Any = plain_json(output.data) if output is value or output.parts else output.data
            data = data if isinstance(data, dict) else {"result": data}
            return protocol.encode_message(
                protocol.FunctionResult(call.number, data, tuple(map(_to_plain_part, output.parts)))
            )
        except BaseException as error:
            return protocol.encode_message(protocol.FunctionError(call.number, protocol.encode_error(error)))

    def _apply_environment(self, environment: protocol.ProcessEnvironment | None) -> None:
        if environment is not None:
            sys.path[:] = environment.path
            # Only variables that came from the parent are removed; one that an imported module set here stays.
            for name in self._environment.variables.keys() - environment.variables.keys():
                os.environ.pop(name, None)
            os.environ.update(environment.variables)
            self._environment = environment
        if self._environment.directory is not None:
            with contextlib.suppress(OSError):  # deleted meanwhile
                os.chdir(self._environment.directory)  # for each call: the last function may have changed it

    def _load_function(self, number: int) -> tuple[Callable[..., Any], Bind]:
        reference = self._references[number]
        token = LOADING.set(getattr(reference, "module", "the file of a tool"))
        try:
            function = reference.load()
            bind = bind_unchanged if isinstance(reference, FunctionCopy) else read_function(function).bind
        finally:
            LOADING.reset(token)
        self._functions[number] = function, bind
        return function, bind

    def _call_function(self, call: protocol.FunctionCall, function: Callable[..., Any], bind: Bind) -> Any:
        arguments = _read_arguments(call)
        params, context = {}, ToolExecutionContext()
        if isinstance(arguments, protocol.BoundArguments):
            function = partial(function, *arguments.args, **arguments.kwargs)
        else:
            params, context = arguments.params, _read_context(arguments)
        invocation = Invocation(
            call_id=call.call_id,
            tool=Tool(spec=ToolSpec(tool_id=call.tool_id), handler="function"),
            capability=ToolCapability(name=call.action, description=""),
            params=params,
            context=context,
            report=partial(self._report, call.number),
            call_tool=partial(self._parent.call_tool_async, call.number),
            call_tool_sync=partial(self._parent.call_tool, call.number),
        )
        Invocation.current.set(invocation)
        return run_blocking(function, bind, invocation)

    def _report(self, number: int, progress: Progress) -> None:
        if number == self._parent.current_call:
            fraction, data = None if progress.fraction is None else float(progress.fraction), progress.data
            data = _to_plain_part(data) if isinstance(data, _PART_TYPES) else plain_json(data)
            plain = Progress(fraction=fraction, message=str(progress.message), data=data, event=str(progress.event))
            self._parent.send(protocol.encode_message(protocol.ProgressReport(number, plain)))


class ParentConnection:
    """The connection to the parent process.

    Only one thread can read from the socket at a time, while several may wait for a message: the main thread for the
    next call, threads of a function for the results of the tools they called. So the first thread that waits reads for
    all of them, and wakes the others after each message.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        self._message_arrived = threading.Condition()
        self._is_being_read = False
        self._calls: deque[protocol.FunctionCall | None] = deque()
        self._requests: dict[int, Future[protocol.NestedReply]] = {}
        self._request_numbers = count(1)
        self.current_call = 0
        """The number of the running call; 0 between calls."""

    def next_call(self) -> protocol.FunctionCall | None:
        """Return the call to run now, or None when the parent sends no more."""
        self._read_until(lambda: bool(self._calls))
        call = self._calls.popleft()
        self.current_call = call.number if call is not None else 0
        if call is not None:
            self.send(protocol.encode_message(protocol.FunctionStarted(call.number)))
        return call

    def finish(self, encoded: bytes) -> None:
        """Send the end of the call. What a thread of it requests after that is refused."""
        self.current_call = 0
        for future in list(self._requests.values()):
            future.cancel()
        self._requests.clear()
        self.send(encoded)

    def send(self, encoded: bytes) -> None:
        with self._send_lock:
            self._connection.sendall(encoded)

    def call_tool(self, number: int, tool_name: str, params: dict[str, Any], action: str | None) -> ToolExecutionResult:
        """Have the parent call another tool, and wait for the result."""
        if number != self.current_call:
            raise ExecutionFailed("The call that started this thread has ended: it cannot call other tools any more.")
        plain = plain_json(params)
        if not isinstance(plain, dict):
            raise ExecutionFailed("The arguments for another tool must be JSON values: numbers, texts, lists of them.")
        request, future = next(self._request_numbers), Future[protocol.NestedReply]()
        action = None if action is None else str(action)
        message = protocol.encode_message(protocol.NestedRequest(number, request, str(tool_name), plain, action))
        self._requests[request] = future
        self.send(message)
        self._read_until(future.done)
        reply = future.result()
        if reply.failure is not None:
            raise protocol.decode_error(reply.failure)
        assert reply.result is not None
        return reply.result

    async def call_tool_async(
        self, number: int, tool_name: str, params: dict[str, Any], action: str | None
    ) -> ToolExecutionResult:
        import asyncio  # an async function has loaded it already; most workers never do

        return await asyncio.to_thread(self.call_tool, number, tool_name, params, action)

    def _read_until(self, condition: Callable[[], bool]) -> None:
        with self._message_arrived:
            while not condition():
                if self._is_being_read:
                    self._message_arrived.wait()
                    continue
                self._is_being_read = True
                self._message_arrived.release()
                try:
                    header = self._read_exactly(protocol.HEADER_SIZE)
                    payload = self._read_exactly(protocol.read_payload_length(header)) if header else b""
                    message: protocol.FunctionCall | protocol.NestedReply | None = (
                        protocol.decode_from_parent(payload) if payload else None
                    )
                finally:
                    self._message_arrived.acquire()
                    self._is_being_read = False
                if not isinstance(message, protocol.NestedReply):
                    self._calls.append(message)
                elif (future := self._requests.pop(message.request, None)) and future.set_running_or_notify_cancel():
                    future.set_result(message)
                self._message_arrived.notify_all()

    def _read_exactly(self, size: int) -> bytearray:
        """Return exactly `size` bytes; nothing when the parent sends no more."""
        buffer = bytearray(size)
        remaining = memoryview(buffer)
        while remaining:
            length = self._connection.recv_into(remaining)
            if not length:
                return bytearray()
            remaining = remaining[length:]
        return buffer


def _connect_to_parent() -> ParentConnection:
    """Take over the connections that came as standard input and output, and put harmless ones in their place."""
    connection, parent_pipe = socket.socket(fileno=os.dup(0)), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    _exit_with_parent(parent_pipe)
    return ParentConnection(connection)


def _exit_with_parent(parent_pipe: int) -> None:
    def wait() -> None:
        os.read(parent_pipe, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="ferrule-lifeline", daemon=True).start()
    if hasattr(fcntl, "F_SETSIG"):
        # The thread cannot run while a function computes in C and holds the GIL. Linux can send the signal by itself
        # when the pipe breaks, and to the whole group.
        fcntl.fcntl(parent_pipe, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(parent_pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent_pipe, fcntl.F_SETFL, fcntl.fcntl(parent_pipe, fcntl.F_GETFL) | os.O_ASYNC)


# Plain values


def _to_plain_part(part: Content) -> Content:
    """Build the same part from text and bytes only, whatever the tool put into it."""
    part_type = next(each for each in _PART_TYPES if isinstance(part, each))  # not a subclass of the tool
    values = {field.name: getattr(part, field.name) for field in fields(part_type) if field.name != "kind"}
    plain = {
        name: bytes(value) if name == "data" else str(value) for name, value in values.items() if value is not None
    }
    return part_type(**plain)  # type: ignore[arg-type]


def _read_arguments(call: protocol.FunctionCall) -> protocol.CallArguments | protocol.BoundArguments:
    try:
        arguments: protocol.CallArguments | protocol.BoundArguments = pickle.loads(call.arguments)
    except Exception as error:  # pickle raises whatever the objects it creates raise
        raise ExecutionFailed(
            f"The arguments of tool {call.tool_id!r} cannot be read in a worker process ({error}). "
            "Pass plain values, or give the tool isolation='thread'."
        ) from error
    return arguments


def _read_context(arguments: protocol.CallArguments) -> ToolExecutionContext:
    variables = {}
    for name, value in arguments.variables.items():
        try:
            variables[name] = pickle.loads(value)
        except Exception as error:
            print(f"ferrule: variable {name!r} cannot be read in this worker process: {error}", file=sys.stderr)
    try:
        deps = pickle.loads(arguments.deps) if arguments.deps else None
    except Exception as error:
        deps = protocol.MissingDeps(f"they cannot be read in this worker process ({error})")
    context = ToolExecutionContext(**arguments.context, variables=variables, deps=deps)
    context.is_approved = arguments.is_approved
    return context
