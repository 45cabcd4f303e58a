"""Functions that run on nodes of the cluster, where the resources are that their tools declare.

The pipeline stays here: permission, limits, records, retries and timeouts are the caller's. On the node an actor holds
the resources and runs the function in a separate worker process (`ferrule.process`), like a function of this
machine: a timeout kills that process with everything it has started, and the actor stays for the next call.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from ferrule.cluster.actor import WorkChannel
from ferrule.cluster.connection import connect
from ferrule.cluster.workers import WorkerGroup, WorkerLost
from ferrule.core.call import Invocation, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Output, unwrap_reported_result
from ferrule.core.schema import read_function
from ferrule.core.spec import Tool, ToolCapability, ToolSpec
from ferrule.errors import ExecutionFailed, SetupError, TransportFault, error_text
from ferrule.process.call import RemoteFunction, pack_arguments
from ferrule.process.function_reference import (
    FunctionReference,
    NameReference,
    NotSendable,
    file_digest,
    make_reference,
)
from ferrule.process.pool import WorkerPool
from ferrule.process.protocol import (
    HEADER_SIZE,
    FunctionError,
    FunctionNotLoaded,
    FunctionResult,
    NestedReply,
    NestedRequest,
    ProgressReport,
    decode_error,
    decode_from_parent,
    decode_from_worker,
    encode_error,
    encode_message,
)

DEFAULT_RESOURCES: Final = {"cpu": 1.0}
"""Of a tool that declares only its place."""
DEFAULT_MAX_WORKERS: Final = 64
DEFAULT_IDLE_TIME: Final = 60.0


class FunctionRequest(NamedTuple):
    """A call of a function, for the node."""

    function: int
    """The caller's number for the function, under which it stays loaded."""
    reference: FunctionReference
    arguments: bytes
    call_id: str
    tool_id: str
    action: str


class ClusterExecutor:
    """Runs functions that declare `placement="cluster"` or `resources`.

    Register it as the executor `cluster` of an engine: `engine.register_executor("cluster", ClusterExecutor())`.
    """

    unwrap = staticmethod(unwrap_reported_result)

    def __init__(
        self,
        address: str | None = None,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        max_workers: int = DEFAULT_MAX_WORKERS,
        idle_time: float = DEFAULT_IDLE_TIME,
    ) -> None:
        """For `address` and `runtime_env` see `connect`; they are used with the first call.

        For each combination of resources, up to `max_workers` calls run at a time; what they have reserved is given
        back after `idle_time` seconds without a call.
        """
        self._address, self._runtime_env = address, runtime_env
        self._max_workers, self._idle_time = max_workers, idle_time
        self._functions: WeakKeyDictionary[Tool, dict[str, RemoteFunction]] = WeakKeyDictionary()
        self._numbers = count(1)
        self._groups: dict[frozenset[tuple[str, float]], WorkerGroup] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def execute(self, invocation: Invocation) -> Any:
        tool = invocation.tool
        function = self._get_function(invocation)
        request = FunctionRequest(
            function=function.number,
            reference=function.reference,
            arguments=pack_arguments(function, invocation),
            call_id=invocation.call_id,
            tool_id=tool.id,
            action=invocation.capability.name,
        )
        try:
            group = await self._get_group(tool.spec.limits_of(invocation.capability).resources)
            encoded = await group.run(
                request,
                on_report=lambda report: invocation.report(_decode(report).progress),
                on_request=partial(_call_nested, invocation),
            )
        except WorkerLost as lost:
            details = {"outcome": "unknown"} if lost.is_sent else {}
            raise TransportFault(f"The node that ran tool {tool.id!r} was lost: {lost}.", **details) from None
        except SetupError as error:
            raise ExecutionFailed(f"Tool {tool.id!r} cannot run on the cluster. {error}") from error
        return _read_outcome(tool, _decode(encoded))

    async def aclose(self) -> None:
        """End what runs on the cluster, and give its resources back. The connection to the cluster stays."""
        groups, self._groups = self._groups, {}
        if self._loop is asyncio.get_running_loop():
            await asyncio.gather(*(group.aclose() for group in groups.values()))

    def _get_function(self, invocation: Invocation) -> RemoteFunction:
        tool, action = invocation.tool, invocation.capability.name
        functions = self._functions.setdefault(tool, {})
        if action not in functions:
            function = tool.target.function(action)
            reference = make_reference(function, copy_objects=True)
            if isinstance(reference, NotSendable):
                raise ExecutionFailed(
                    f"Tool {tool.id!r} cannot be sent to the cluster: {reference.reason}. "
                    "Make it a function at the top level of a module."
                )
            functions[action] = RemoteFunction(
                number=next(self._numbers), reference=reference, signature=read_function(function)
            )
        return functions[action]

    async def _get_group(self, resources: Mapping[str, float]) -> WorkerGroup:
        await asyncio.to_thread(connect, self._address, runtime_env=self._runtime_env)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the workers of another event loop cannot be used from here
            self._loop, self._groups = loop, {}
        resources = resources or DEFAULT_RESOURCES
        key = frozenset(resources.items())
        if key not in self._groups:
            self._groups[key] = WorkerGroup(
                open_function_service, resources=resources, max_workers=self._max_workers, idle_time=self._idle_time
            )
        return self._groups[key]


async def _call_nested(invocation: Invocation, encoded: bytes) -> bytes:
    """Call another tool for the function, under the limits and records of this process."""
    request = _decode(encoded)
    try:
        result = await invocation.call_tool(request.tool_name, request.params, request.action)
        return encode_message(NestedReply(0, result))
    except Exception as error:
        return encode_message(NestedReply(0, None, encode_error(error)))


def _decode(encoded: bytes) -> Any:
    """Read what a node sends as data, which cannot run code here, like the messages of a worker process."""
    return decode_from_worker(memoryview(encoded)[HEADER_SIZE:])


def _read_outcome(tool: Tool, outcome: FunctionResult | FunctionError | FunctionNotLoaded) -> Output:
    if isinstance(outcome, FunctionError):
        raise decode_error(outcome.failure)
    if isinstance(outcome, FunctionNotLoaded):
        raise ExecutionFailed(
            f"Tool {tool.id!r} cannot be loaded on a node of the cluster: {outcome.failure.text}. Install its module "
            "there, or send it along: `py_modules` or `working_dir` in `runtime_env` of [cluster]."
        )
    return Output(data=outcome.data, parts=outcome.parts)


# On the node


class FunctionService:
    """Runs functions in worker processes of this node."""

    def __init__(self) -> None:
        self._pool = WorkerPool(size=1, max_workers=4)
        self._functions: dict[int, RemoteFunction] = {}

    async def run(self, request: FunctionRequest, channel: WorkChannel) -> bytes:
        try:
            _check_version(request.reference)
        except ExecutionFailed as error:
            return encode_message(FunctionNotLoaded(0, encode_error(error)))
        if request.function not in self._functions:
            self._functions[request.function] = self._pool.register(request.reference)
        function = self._functions[request.function]
        invocation = Invocation(
            call_id=request.call_id,
            tool=Tool(spec=ToolSpec(tool_id=request.tool_id), handler="function"),
            capability=ToolCapability(name=request.action, description=""),
            params={},
            context=ToolExecutionContext(),
            report=lambda progress: channel.report(encode_message(ProgressReport(0, progress))),
            call_tool=partial(_ask_caller, channel),
        )
        try:
            outcome = await self._pool.run(function, invocation, request.arguments)
        except Exception as error:
            return encode_message(FunctionError(0, encode_error(error)))
        if isinstance(outcome, FunctionNotLoaded):
            return encode_message(outcome)
        return encode_message(FunctionResult(0, outcome.data, outcome.parts))

    async def aclose(self) -> None:
        await self._pool.aclose()


async def open_function_service() -> FunctionService:
    return FunctionService()


async def _ask_caller(
    channel: WorkChannel, tool_name: str, params: dict[str, Any], action: str | None
) -> ToolExecutionResult:
    encoded = await channel.request(encode_message(NestedRequest(0, 0, tool_name, params, action)))
    reply = decode_from_parent(memoryview(encoded)[HEADER_SIZE:])
    if reply.failure is not None:
        raise decode_error(reply.failure)
    return cast(ToolExecutionResult, reply.result)


def _check_version(reference: FunctionReference) -> None:
    """Raise ExecutionFailed for another version of the module: it would do something else than was approved."""
    if not isinstance(reference, NameReference) or not reference.digest:
        return
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(reference.module)
    except (ImportError, ValueError) as error:
        raise ExecutionFailed(f"{reference.module} is not there: {error_text(error)}") from None
    if spec is None or spec.origin is None:
        raise ExecutionFailed(f"the module {reference.module!r} is not installed")
    if file_digest(str(Path(spec.origin))) != reference.digest:
        raise ExecutionFailed(f"{spec.origin} is another version of {reference.module!r} than the caller's")
