"""The internal endpoint: serves this server's stateful MCP servers to the other servers of the store, over MCP.

At `/internal/mcp/NAME` of the internal listener, the server that has the process of NAME runs its calls for the others.
The server that took a call has decided about it, limits it and records it; here, only the executor runs. Progress, log
messages, questions and cancellation pass as in the protocol of 2025, in which questions arrive while a call waits. What
MCP has no place for is in the `_meta` of a request: for whom the call is made, and what was decided about.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.core.aio import cancel_all
from ferrule.core.call import Invocation, ToolExecutionContext, ToolExecutionResult, ToolExecutor
from ferrule.core.permission import Principal
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.engine import ToolEngine
from ferrule.engine.resilience import to_call_error
from ferrule.errors import (
    CallCancelled,
    CallError,
    ExecutionFailed,
    InvalidArguments,
    NeedsApproval,
    PermissionDenied,
    Rejected,
    TimedOut,
    Transient,
    TransportFault,
)
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.listing import HANDLER, pinned_parts
from ferrule.kinds.mcp.relay import ClientRequest
from ferrule.kinds.mcp.results import ProtocolError
from ferrule.server.asgi import mark_endless, read_body, send_json
from ferrule.server.fleet import MESSAGES_PATH, ServerFleet
from ferrule.server.listening import is_internal
from ferrule.server.mcp.requests import ClientCall, IncomingRequest, OrderedMessages, answer_call
from ferrule.server.mcp.resources_and_prompts import PROMPTS, REQUEST_HANDLER, RESOURCES
from ferrule.server.problems import Problem

logger = logging.getLogger("ferrule.server")

INTERNAL_PATH: Final = "/internal/mcp/"
MAX_MESSAGE_SIZE: Final = 256 * 1024 * 1024
"""Bytes; what clients and models may send is limited before."""
CALL_KEY: Final = "ferrule.internal/call"
"""The `_meta` of a request: for whom it is made."""
FAILURE_KEY: Final = "ferrule.internal/failure"
"""The data of an error: what the executor raised."""
NOT_OWNER: Final = "NotOwner"
"""The type of the failure of a call that was not made, because this server does not have the process."""
_DISCONNECTED: Final = "ferrule.disconnected"
_FAILURES: Final = {
    kind.__name__: kind
    for kind in (
        CallCancelled,
        ExecutionFailed,
        InvalidArguments,
        NeedsApproval,
        PermissionDenied,
        Rejected,
        TimedOut,
        Transient,
        TransportFault,
    )
}
"""Any other type arrives as ExecutionFailed."""


def is_stateful(tool: Tool) -> bool:
    return isinstance(tool.target, McpServerConfig) and tool.target.is_stateful


class InternalRequests:
    """The layer that answers the other servers: calls at `/internal/mcp/NAME`, and messages at `MESSAGES_PATH`.

    It answers only what came in at the internal listener, with one of the fleet's secrets.
    """

    def __init__(self, app: ASGIApp, endpoint: InternalEndpoint, fleet: ServerFleet) -> None:
        self._app, self._endpoint, self._fleet = app, endpoint, fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_message = path == MESSAGES_PATH
        if scope["type"] != "http" or not is_internal(scope) or not (is_message or path.startswith(INTERNAL_PATH)):
            await self._app(scope, receive, send)
            return
        secret = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ")
        if not any(hmac.compare_digest(secret, each.encode()) for each in self._fleet.secrets):
            problem = Problem(401, "Only servers of the same store can make this request.")
            await problem.to_response(path)(scope, receive, send)
        elif is_message:
            for message in orjson.loads(await read_body(receive)):
                self._fleet.receive(message)
            await send_json(send, 200, b"{}")
        else:
            await self._endpoint(scope, receive, send)


class InternalEndpoint:
    """An MCP server whose only clients are the other servers of the store."""

    def __init__(
        self, engine: ToolEngine, executors: Mapping[str, ToolExecutor], is_owner: Callable[[str], bool]
    ) -> None:
        """`executors` run calls here. `is_owner` says whether this server has the process of a tool."""
        from mcp.server import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        self._engine, self._executors, self._is_owner = engine, executors, is_owner
        server = Server[Any](
            "ferrule-internal",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_read_resource=self._read_resource,
            on_get_prompt=self._get_prompt,
        )
        self._manager = StreamableHTTPSessionManager(server, max_request_body_size=MAX_MESSAGE_SIZE)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve until the block ends."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":  # the stream of a session, for messages that answer no request
            mark_endless(scope)
        disconnected = scope[_DISCONNECTED] = asyncio.Event()

        async def receive_and_notice() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                disconnected.set()
            return message

        await self._manager.handle_request(scope, receive_and_notice, send)

    # Requests of the protocol

    async def _list_tools(self, context: Any, params: Any) -> Any:
        """List nothing: each server knows the actions from its own listing, by which it decides about calls."""
        from mcp.types import ListToolsResult

        return ListToolsResult(tools=[])

    async def _call_tool(self, context: Any, params: Any) -> Any:
        details = _read_call(context)
        capability = dict(details["capability"])
        effects = Effects(**capability.pop("effects"))
        action = ToolCapability(name=params.name, **capability, effects=effects)
        return await self._run(context, details, HANDLER, action, params.arguments or {})

    async def _read_resource(self, context: Any, params: Any) -> Any:
        arguments = {"uri": str(params.uri)}
        return await self._run(context, _read_call(context), REQUEST_HANDLER, RESOURCES, arguments)

    async def _get_prompt(self, context: Any, params: Any) -> Any:
        arguments = {"name": params.name} | ({} if params.arguments is None else {"arguments": params.arguments})
        return await self._run(context, _read_call(context), REQUEST_HANDLER, PROMPTS, arguments)

    async def _run(
        self, context: Any, details: Mapping[str, Any], handler: str, action: ToolCapability, params: dict[str, Any]
    ) -> Any:
        """Run a call, and end it when the server that asks for it disconnects, which the protocol of 2025 does not."""
        scope = context.request.scope
        tool = self._find_tool(scope["path"].removeprefix(INTERNAL_PATH))
        request = ForwardedRequest(context, details)
        messages = OrderedMessages(request)
        call = ClientCall(request=request, identity=None, messages=messages)
        calling = ToolExecutionContext(principal=Principal(**details["principal"]))
        calling.is_approved = details["is_approved"]
        invocation = Invocation(
            details["call_id"], tool, action, params, calling, messages.add_progress, _refuse_nested_call
        )
        running = asyncio.ensure_future(answer_call(call, lambda _: self._execute(handler, invocation)))
        leaving = asyncio.ensure_future(scope[_DISCONNECTED].wait())
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise _make_error(CallCancelled("The server that made this call has gone."))
            return running.result()
        finally:
            await cancel_all([running, leaving])

    async def _execute(self, handler: str, invocation: Invocation) -> Any:
        """Run the executor. Raises MCPError for what the executor raises, unless the MCP server itself answered."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import CallToolResult

        if not self._is_owner(invocation.tool.id):
            raise _make_failure(NOT_OWNER, "This server does not have the process.")
        try:
            return (await self._executors[handler].execute(invocation)).original
        except Exception as error:
            failure = to_call_error(error)
            if isinstance(failure.original, CallToolResult):
                return failure.original
            if isinstance(failure.original, MCPError):
                raise failure.original from None
            raise _make_error(failure) from None

    def _find_tool(self, tool_id: str) -> Tool:
        for tool in self._engine.registry:
            if tool.id == tool_id and is_stateful(tool):
                return tool
        raise _make_error(
            ExecutionFailed(
                f"The server that has the process of {tool_id!r} does not have it in its mcp.json any more. Give all "
                "servers the same configuration."
            )
        )


class ForwardedRequest(IncomingRequest):
    """The request of another server, which makes it for one of its clients."""

    def __init__(self, context: Any, details: Mapping[str, Any]) -> None:
        client = details["client"]
        key = None if client["key"] is None else (details["server_id"], client["key"])
        super().__init__(context, Principal(**details["principal"]), client_key=key or object())
        self.capabilities, self._log_level = client["capabilities"], client["log_level"]

    @property
    def meta(self) -> Mapping[str, Any]:
        return {key: value for key, value in super().meta.items() if key != CALL_KEY}

    @property
    def headers(self) -> Mapping[str, str]:
        """Return nothing: only servers that run elsewhere get headers of clients, and those have no process."""
        return {}

    @property
    def log_level(self) -> str | None:
        return self._log_level  # type: ignore[no-any-return]


def _read_call(context: Any) -> Mapping[str, Any]:
    from mcp.shared.exceptions import MCPError
    from mcp.types import INVALID_PARAMS

    details = (context.meta or {}).get(CALL_KEY)
    if not isinstance(details, dict):
        raise MCPError(code=INVALID_PARAMS, message="The request does not say for whom it is made.")
    return details


async def _refuse_nested_call(tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult:
    raise ExecutionFailed("An action of an MCP server calls no other tools.")


# What a request and an error contain besides what the protocol says


def describe_call(invocation: Invocation, client: ClientRequest | None, server_id: str) -> dict[str, Any]:
    """Describe a call for the server that is to run it. `server_id` is the server that makes the request."""
    capability, context = invocation.capability, invocation.context
    decided = capability.listed or capability
    effects = invocation.tool.spec.effects_of(capability)
    principal = context.principal
    return {
        "server_id": server_id,
        "call_id": invocation.call_id,
        "capability": {**pinned_parts(decided), "effects": asdict(effects)},
        "principal": {
            "kind": principal.kind,
            "name": principal.name,
            "tenant": principal.tenant,
            "account": principal.account,
        },
        "is_approved": context.is_approved,
        "client": {
            "key": None if client is None else str(hash(client.client_key)),
            "capabilities": {} if client is None else dict(client.capabilities),
            "log_level": None if client is None else client.log_level,
        },
    }


def _make_error(error: CallError) -> Exception:
    original = asdict(error.original) if isinstance(error.original, ProtocolError) else None
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _FAILURES), "")
    return _make_failure(kind, str(error), dict(error.details), original)


def _make_failure(
    kind: str, message: str, details: Mapping[str, Any] | None = None, original: Mapping[str, Any] | None = None
) -> Exception:
    from mcp.shared.exceptions import MCPError
    from mcp.types import INTERNAL_ERROR

    failure = {"type": kind, "details": dict(details or {}), "original": original}
    return MCPError(code=INTERNAL_ERROR, message=message, data={FAILURE_KEY: failure})


def read_failure(error: CallError) -> CallError | None:
    """Return what the executor of the other server raised.

    None if the MCP server answered, or if this server could not ask. The failure of a call that the other server has
    not made, because it does not have the process, is a NotOwner.
    """
    answer = error.original if isinstance(error.original, ProtocolError) else getattr(error.original, "error", None)
    data = getattr(answer, "data", None)
    if answer is None or not isinstance(data, dict) or FAILURE_KEY not in data:
        return None
    failure = data[FAILURE_KEY]
    if failure["type"] == NOT_OWNER:
        return NotOwner(answer.message)
    decoded = _FAILURES.get(failure["type"], ExecutionFailed)(answer.message)
    decoded.details = failure["details"]
    if failure["original"] is not None:
        decoded.original = ProtocolError(**failure["original"])
    return decoded


class NotOwner(CallError):
    """The other server does not have the process, and has made no call."""
