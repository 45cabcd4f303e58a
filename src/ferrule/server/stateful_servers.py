"""Stateful MCP servers, such as a browser: one server of the fleet has the process, and makes the calls of all.

The first server that gets such a call has the process from then on, until its lease ends: nothing else decides that it
is dead. Wherever a call comes from (HTTP, MCP, an agent), the server that got it applies its policy and limits and
records it; only what the executor does is done by the server that has the process.

To the other servers, that server is a remote MCP server: it runs their calls at `/internal/mcp/NAME` of its internal
listener. Progress, log messages, questions and cancellation pass as in the protocol of 2025, in which questions arrive
while a call waits. What MCP has no place for is in the `_meta` of a request: for whom the call is made, and what was
decided about.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.core.aio import cancel_all
from ferrule.core.call import Invocation, ToolExecutionContext, ToolExecutionResult, ToolExecutor
from ferrule.core.content import Output
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
    StoreError,
    TimedOut,
    Transient,
    TransportFault,
)
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import HANDLER, pinned_parts
from ferrule.kinds.mcp.relay import FIRST_MODERN_VERSION, ClientRequest, current_request
from ferrule.kinds.mcp.results import CallNotSent, CallRefused, ProtocolError
from ferrule.server.fleet import MESSAGES_PATH, ServerFleet, ServerGone, ServerOutOfReach
from ferrule.server.listening import is_internal
from ferrule.server.mcp.requests import ClientCall, IncomingRequest, answer_call
from ferrule.server.mcp.resources_and_prompts import PROMPTS, REQUEST_HANDLER, RESOURCES, RequestExecutor
from ferrule.server.responses import Problem, mark_endless, read_body, send_json
from ferrule.store.servers import PROCESS_PREFIX, claim_process

OWNER_LIFETIME: Final = 2.0
"""Seconds for which the owner of a process is remembered."""
CONNECT_TIMEOUT: Final = 10.0
MAX_TRIES: Final = 5
"""How many servers in a row may turn out to be gone, or to have lost the process to another."""
UNREACHABLE: Final = "server_unreachable"
"""The reason of calls that were not made, because the server with the process cannot be reached."""
INTERNAL_PATH: Final = "/internal/mcp/"
MAX_MESSAGE_SIZE: Final = 256 * 1024 * 1024
"""Bytes; what clients and models may send is limited before."""


def is_stateful(tool: Tool) -> bool:
    return isinstance(tool.target, McpServerConfig) and tool.target.is_stateful


class StatefulServers:
    """Runs the calls of stateful MCP servers where their processes are: here, or on another server of the store."""

    def __init__(self, engine: ToolEngine, fleet: ServerFleet) -> None:
        self._store, self._fleet = engine.store, fleet
        self._owners: dict[str, tuple[str, float]] = {}
        """The servers that have the processes, and until when that is believed."""
        self._peers = McpExecutor(on_elicit=engine.on_elicit)
        """For the internal endpoints of the other servers, which are remote MCP servers."""
        self._peers.relays = True
        self._peer_requests = RequestExecutor(self._peers)
        executors: dict[str, ToolExecutor] = {HANDLER: engine.mcp, REQUEST_HANDLER: RequestExecutor(engine.mcp)}
        for name, executor in executors.items():
            engine.register_executor(name, StatefulExecutor(executor, self))
        self.endpoint = InternalEndpoint(engine, executors, self._has_process)

    async def aclose(self) -> None:
        await self._peers.aclose()

    async def execute(self, invocation: Invocation, executor: ToolExecutor) -> Output:
        """Run a call where the process is; `executor` runs the call here."""
        tool_id = invocation.tool.id
        try:
            owner = await self._find_owner(tool_id)
            for _ in range(MAX_TRIES):
                if owner == self._fleet.server_id:
                    return await executor.execute(invocation)  # type: ignore[no-any-return]
                try:
                    return await self._execute_elsewhere(owner, invocation)
                except ServerGone as error:
                    silent, owner = owner, await self._claim(tool_id)
                    if owner == silent:
                        raise ServerOutOfReach(str(error)) from error
                except NotOwner:
                    owner = await self._claim(tool_id)
            raise ServerOutOfReach("the servers that had it are gone")
        except ServerOutOfReach as error:
            raise Rejected(
                f"{tool_id!r} runs on a server that cannot be reached from here ({error}), so the call was not made. "
                "Set internal_url on each server.",
                reason=UNREACHABLE,
            ) from error
        except StoreError as error:
            raise Rejected(
                f"The call of {tool_id!r} was not made: the store does not say where it runs: {error}",
                reason=UNREACHABLE,
            ) from error

    async def _find_owner(self, tool_id: str) -> str:
        """Return the server that has the process; this one if no server has it."""
        owner, valid_until = self._owners.get(tool_id, ("", 0.0))
        is_known = time.monotonic() < valid_until and (owner != self._fleet.server_id or self._has_process(tool_id))
        return owner if is_known else await self._claim(tool_id)

    async def _claim(self, tool_id: str) -> str:
        """Ask the store which server has the process, and take it if no server has it."""
        owner = await self._store.query_leases(claim_process, tool_id, self._fleet.server_id)
        self._owners[tool_id] = (owner, time.monotonic() + OWNER_LIFETIME)
        return owner

    def _has_process(self, tool_id: str) -> bool:
        """Return whether this server has the process, by a lease that no other server can have taken meanwhile."""
        return self._store.leases.is_confirmed(PROCESS_PREFIX + tool_id)

    async def _execute_elsewhere(self, server_id: str, invocation: Invocation) -> Output:
        """Let a server make a call. Raises ServerGone, NotOwner or ServerOutOfReach if it was not made."""
        tool = await self._find_remote_tool(server_id, invocation.tool)
        try:
            await self._peers.connect(tool)
        except CallError as error:
            await self._forget(server_id, tool)
            raise ServerGone(str(error)) from error
        client = current_request.get()
        call = describe_call(invocation, client, self._fleet.server_id)
        executor = self._peer_requests if invocation.tool.handler == REQUEST_HANDLER else self._peers
        token = current_request.set(RequestForPeer(client, call))
        try:
            return await executor.execute(replace(invocation, tool=tool))
        except CallNotSent as error:
            await self._forget(server_id, tool)
            raise ServerGone(str(error)) from error
        except CallRefused as error:  # what is there has another secret; calls that it has begun go on
            self._fleet.forget(server_id)
            raise ServerGone(str(error)) from error
        except CallError as error:
            raise read_failure(error) or error from None
        finally:
            current_request.reset(token)

    async def _find_remote_tool(self, server_id: str, tool: Tool) -> Tool:
        """Return a tool whose MCP server is the internal endpoint of another server."""
        route = await self._fleet.find_route(server_id)
        config = McpServerConfig(
            url=f"{route.url}{INTERNAL_PATH}{tool.id}",
            kind="http",
            headers={"Authorization": f"Bearer {route.secret}"},
            peer_socket=route.socket,
            start_timeout=CONNECT_TIMEOUT,
            max_message_size=MAX_MESSAGE_SIZE,
            is_stateful=True,
        )
        metadata = {**tool.spec.metadata, "protocol_version": FIRST_MODERN_VERSION}
        return replace(tool, spec=replace(tool.spec, metadata=metadata), target=config)

    async def _forget(self, server_id: str, tool: Tool) -> None:
        """Let the next call look for the server again, and connect without a delay."""
        self._fleet.forget(server_id)
        await self._peers.disconnect(tool.id)


class StatefulExecutor:
    """The executor of MCP servers, or of their resources and prompts, in a fleet."""

    def __init__(self, executor: ToolExecutor, servers: StatefulServers) -> None:
        self._executor, self._servers = executor, servers
        self.prepare = getattr(executor, "prepare", None)
        self.validates_itself = getattr(executor, "validates_itself", None)
        self.ping = getattr(executor, "ping", None)

    async def execute(self, invocation: Invocation, /) -> Output:
        if is_stateful(invocation.tool):
            return await self._servers.execute(invocation, self._executor)
        return await self._executor.execute(invocation)  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        if isinstance(self._executor, McpExecutor):
            await self._executor.aclose()


# The side of the server that has the process


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
        self.run = self._manager.run
        """Serves until the block ends."""

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
        call = ClientCall(request=request, identity=None)
        calling = ToolExecutionContext(principal=Principal(**details["principal"]))
        calling.is_approved = details["is_approved"]
        invocation = Invocation(
            details["call_id"], tool, action, params, calling, call.add_progress, _refuse_nested_call
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
            raise _make_error(NotOwner("This server does not have the process."))
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


class NotOwner(CallError):
    """The other server does not have the process, and has made no call."""


CALL_KEY: Final = "ferrule.internal/call"
"""The `_meta` of a request: for whom it is made."""
FAILURE_KEY: Final = "ferrule.internal/failure"
"""The data of an error: what the executor raised."""
_DISCONNECTED: Final = "ferrule.disconnected"
_FAILURES: Final[Mapping[str, type[CallError]]] = {
    kind.__name__: kind
    for kind in (
        CallCancelled,
        ExecutionFailed,
        InvalidArguments,
        NeedsApproval,
        NotOwner,
        PermissionDenied,
        Rejected,
        TimedOut,
        Transient,
        TransportFault,
    )
}
"""Any other type arrives as ExecutionFailed."""


class RequestForPeer:
    """The request of a client, if there is one, as another server gets it: with the call that it is made for."""

    uses_older_protocol = True

    def __init__(self, client: ClientRequest | None, call: Mapping[str, Any]) -> None:
        self._client = client
        self.client_key: object = self if client is None else client.client_key
        self.capabilities: Mapping[str, Any] = {} if client is None else client.capabilities
        self.meta: Mapping[str, Any] = {**({} if client is None else client.meta), CALL_KEY: call}
        self.headers: Mapping[str, str] = {}
        self.log_level = None if client is None else client.log_level

    async def ask(self, key: str, request: Any) -> Any:
        if self._client is None:
            raise CallCancelled("There is no client that could answer.")
        return await self._client.ask(key, request)

    async def send_log(self, params: Any) -> None:
        if self._client is not None:
            await self._client.send_log(params)


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
    from mcp.shared.exceptions import MCPError
    from mcp.types import INTERNAL_ERROR

    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _FAILURES), "")
    original = asdict(error.original) if isinstance(error.original, ProtocolError) else None
    failure = {"type": kind, "details": dict(error.details), "original": original}
    return MCPError(code=INTERNAL_ERROR, message=str(error), data={FAILURE_KEY: failure})


def read_failure(error: CallError) -> CallError | None:
    """Return what the executor of the other server raised, or NotOwner if that server does not have the process.

    None if the MCP server answered, or if this server could not ask.
    """
    answer = error.original if isinstance(error.original, ProtocolError) else getattr(error.original, "error", None)
    data = getattr(answer, "data", None)
    if answer is None or not isinstance(data, dict) or FAILURE_KEY not in data:
        return None
    failure = data[FAILURE_KEY]
    decoded = _FAILURES.get(failure["type"], ExecutionFailed)(answer.message)
    decoded.details = failure["details"]
    if failure["original"] is not None:
        decoded.original = ProtocolError(**failure["original"])
    return decoded
