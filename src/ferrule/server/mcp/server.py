"""Serves the tools of a library to MCP clients; every call goes through the library like any other.

A client that disconnects or cancels ends its calls. What MCP servers behind the library offer and ask is passed on.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from ferrule.core.aio import cancel_all
from ferrule.core.call import CALLER_CONVERSATION_AGENT, Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.events import ToolEngineEventType
from ferrule.core.names import did_you_mean
from ferrule.core.permission import CallPolicy, Principal
from ferrule.core.spec import Tool, ToolCapability
from ferrule.engine import ToolEngineConfig
from ferrule.engine.config import NO_FOLDER
from ferrule.errors import FerruleError, SetupError, ToolNotFound
from ferrule.kinds.mcp.relay import FIRST_MODERN_VERSION, ask_client
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory import RunMemory
from ferrule.memory.failures import POLICIES, FailureClassifier
from ferrule.server.mcp.change_notifications import ChangeNotifications
from ferrule.server.mcp.content import ToolNames, fit_result_to_older_protocol, fit_to_older_protocol, make_mcp_result
from ferrule.server.mcp.direct_calls import McpSessions
from ferrule.server.mcp.requests import (
    LOG_LEVEL_STATE,
    ApprovalQuestions,
    ClientCall,
    IncomingRequest,
    PausedCalls,
    StdioClient,
    connection_of,
)
from ferrule.server.mcp.resources_and_prompts import ResourcesAndPrompts, unwrap_answer, wait_for_servers
from ferrule.server.responses import mark_endless

if TYPE_CHECKING:
    from mcp.server import Server

TOOL_CHANGE_EVENTS: Final = frozenset(
    {ToolEngineEventType.TOOL_ADDED, ToolEngineEventType.TOOL_UPDATED, ToolEngineEventType.TOOL_REMOVED}
)
RETRY_INTERVAL: Final = 60.0
"""Seconds after which a failed call may be repeated, doubled each time: a client does not say that its user insists."""
MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
SKIP_SIZE: Final = 1024 * 1024
_STDIO: Final = "stdio"


class McpServer:
    """Serves a library. To let its tools ask users, open the library with `on_elicit=ask_client`."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        *,
        tools: Collection[str] | None = None,
        name: str = "ferrule",
        policy: CallPolicy | None = None,
        memory: bool = False,
        search: bool = False,
        plain_names: bool = False,
    ) -> None:
        """`tools` are the only ones that clients see and may call; by default all.

        `policy` decides about their calls instead of the library's. The default of both is to allow them: a client
        asks its own user. With `memory`, the one client of `serve_stdio` does not repeat a failed call immediately;
        other transports have several clients, which must not be refused what failed for another. With `search`, clients
        are shown two tools, which find and call the others. With `plain_names`, actions and prompts of MCP servers have
        their own names, without that of the server, where these are unique.
        """
        self._library, self._name, self._policy = library, name, policy
        self._tools = None if tools is None else frozenset(tools)
        self._principal = Principal(kind="client", name="mcp", tools=self._tools)
        self._principals: dict[Principal, Principal] = {}
        """The principals of HTTP clients, restricted to the tools that are offered here."""
        self._remembers = memory
        self._memory: RunMemory | None = None
        self._client_key: object = None
        """Of the only client, on standard input."""
        self.paused_calls = PausedCalls()
        self.names = ToolNames(library, policy, self._tools, has_plain_names=plain_names, is_search=search)
        self._resources_and_prompts = ResourcesAndPrompts(library, policy, has_plain_names=plain_names)
        self._changes = ChangeNotifications()
        self.sessions = McpSessions()
        self._local_client: StdioClient | None = None
        """The client on standard input, if it has folders to name."""
        self._announcing: asyncio.Task[None] | None = None
        self._approvals = ApprovalQuestions(library.engine.approvals)
        library.engine.mcp.relays = True
        library.engine.mcp.change_listeners.append(self._changes.report)
        self._unsubscribe = library.engine.subscribe(
            lambda _: self._changes.notify_clients("tools"), TOOL_CHANGE_EVENTS
        )

    async def serve_stdio(self, *, max_message_size: int = MAX_MESSAGE_SIZE) -> None:
        """Serve the client that started this process, until it disconnects.

        A message of more than `max_message_size` bytes is skipped. Raises SetupError if a tool to offer does not exist.
        """
        tool_ids = self._library.engine.registry.snapshot().by_id
        for name in self._tools or ():
            if name not in tool_ids and name.isidentifier() and "__" not in name:  # neither a pattern nor an action
                raise SetupError(f"The library has no tool {name!r}.{did_you_mean(name, tool_ids)}")
        if self._remembers:
            policies = {kind: replace(policy, rest=policy.rest or RETRY_INTERVAL) for kind, policy in POLICIES.items()}
            self._memory = RunMemory(classifier=FailureClassifier(policies=policies))
        self._client_key = _STDIO
        try:
            await serve_on_stdio(self.server(), max_message_size)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End the calls that wait for answers of clients."""
        self._unsubscribe()
        if self._announcing is not None:
            await cancel_all([self._announcing])
        await self.paused_calls.aclose()
        await self._changes.aclose()

    def server(self) -> Server[Any]:
        """Return the server of the SDK, for other transports."""
        from ferrule.server.mcp.sdk_server import make_sdk_server

        return make_sdk_server(self._name, self, self._resources_and_prompts)

    # Tools

    async def list_tools(self, context: Any, params: Any) -> Any:
        from mcp.types import ListToolsResult

        await wait_for_servers(self._library.engine)
        tools = self.names.list_tools(self.find_principal(context))
        is_older = context.protocol_version < FIRST_MODERN_VERSION
        return ListToolsResult(tools=fit_to_older_protocol(tools) if is_older else tools)

    async def describe_tools(self, principal: Principal, version: str) -> dict[str, Any]:
        """Return the result of `tools/list` as JSON, for a principal of this server; not to be changed."""
        await wait_for_servers(self._library.engine)
        return self.names.describe_tools(principal, version)

    def find_schema(self, name: str, principal: Principal | None = None) -> Mapping[str, Any] | None:
        """Return the input schema of a tool that a client may call.

        The SDK checks headers by it and does not say whose they are; who makes the call is checked later.
        """
        return self.names.find_schema(self._principal if principal is None else self.restrict(principal), name)

    async def call_tool(self, context: Any, params: Any) -> Any:
        from mcp.types import CallToolResult

        result = await self.call(self.make_request(context), params.name, params.arguments, params)
        return CallToolResult.model_validate(result) if isinstance(result, dict) else result

    async def call(
        self, request: IncomingRequest, name: str, arguments: dict[str, Any] | None, params: Any = None
    ) -> Any:
        """Call a tool; returns its result as JSON or as its server gave it, or what the client is asked first."""
        execute = partial(self._call, name=name, arguments=arguments or {})
        return await self.paused_calls.run(request, ("tools/call", name, arguments), execute, params)

    async def _call(self, call: ClientCall, *, name: str, arguments: dict[str, Any]) -> Any:
        principal = call.request.principal
        try:
            if self.names.is_search and name == "search_tools":
                return await self.names.search(principal, arguments)
            if self.names.is_search and name == "call_tool":
                name, arguments = arguments.get("name", ""), arguments.get("arguments") or {}
                if not name or not isinstance(name, str) or not isinstance(arguments, dict):
                    raise ToolNotFound(
                        'call_tool needs the "name" of a tool that search_tools found, and its "arguments".'
                    )
            tool_name, action = self.names.resolve(principal, name)
            result = await self._execute(call, tool_name, action, arguments)
        except FerruleError as error:
            return make_mcp_result(error)
        converted = make_mcp_result(result)
        if result.original is converted:
            self._resources_and_prompts.remember_links(result.tool_name.partition("__")[0], converted)
        return fit_result_to_older_protocol(converted) if call.uses_older_protocol else converted

    async def _execute(
        self, call: ClientCall, name: str, action: str | None, arguments: dict[str, Any]
    ) -> ToolExecutionResult:
        context = self._make_context(call.request.principal, leaves_validation_to_tool=True, memory=self._memory)
        execute = partial(execute_named, self._library, name, arguments, action=action, on_progress=call.add_progress)
        async with call.request.limit():
            label = name if action is None else f"{name}__{action}"
            return await self._approvals.execute(call, label, context, execute)

    def _make_context(self, principal: Principal, **options: Any) -> ToolExecutionContext:
        return ToolExecutionContext(
            caller_id=principal.name,
            caller_type=CALLER_CONVERSATION_AGENT,
            conversation_id=_conversation_of(principal),
            principal=principal,
            policy=self._policy,
            **options,
        )

    # Who asks

    def make_request(self, context: Any) -> IncomingRequest:
        principal = self.find_principal(context)
        if context.request is None:
            return IncomingRequest(context, principal, client_key=self._client_key)
        client = context.request.scope["state"]["client"]
        return IncomingRequest(context, principal, limit=client.calls.slot, may_approve=client.may("approve"))

    def find_principal(self, context: Any) -> Principal:
        """Return who makes a request: over HTTP the authenticated client, else the client on standard input."""
        if context.request is None:
            params = context.session.client_params
            client_id = identify_stdio_client("" if params is None else params.client_info.name)
            return replace(self._principal, client_id=client_id)
        return self.restrict(context.request.scope["state"]["client"].principal)

    def restrict(self, principal: Principal) -> Principal:
        """Return a client's principal, restricted to the tools that are offered here."""
        if self._tools is None:
            return principal
        if principal not in self._principals:
            self._principals[principal] = principal.restricted_to(self._tools)
        return self._principals[principal]

    async def join_instructions(self, context: Any) -> str | None:
        """Join the instructions of the servers behind this one, as far as the user has accepted them."""
        await self._library.engine.wait_for_pins()
        return self.names.join_instructions(self.find_principal(context))

    def on_initialized(self, context: Any) -> None:
        """Register a client of the older protocol for changes, and its session for direct answers."""
        connection = connection_of(context)
        self._changes.add(connection)
        if context.request is not None:
            self.sessions.add(connection, context.request.scope["state"]["client"])
        else:
            self._announcing = asyncio.create_task(self._announce_roots(context))

    async def _announce_roots(self, context: Any) -> None:
        """Let the servers ask for the folders of the local client, if it has any, once its handshake has ended."""
        await connection_of(context).initialized.wait()
        key = self._client_key or connection_of(context)
        client = StdioClient(context, self.find_principal(context), client_key=key)
        if "roots" in client.capabilities:
            self._local_client = client
            await self.on_roots_changed()

    async def on_roots_changed(self, *_: Any) -> None:
        """Let the servers behind this one ask for the folders of the local client again."""
        if self._local_client is not None:
            await self._library.engine.mcp.use_roots_of(self._local_client)

    # Resources, prompts and completions

    async def list_resources(self, context: Any, params: Any) -> Any:
        return await self._resources_and_prompts.list_resources(self.find_principal(context))

    async def list_templates(self, context: Any, params: Any) -> Any:
        return await self._resources_and_prompts.list_templates(self.find_principal(context))

    async def list_prompts(self, context: Any, params: Any) -> Any:
        return await self._resources_and_prompts.list_prompts(self.find_principal(context))

    async def read_resource(self, context: Any, params: Any) -> Any:
        uri = str(params.uri)

        def read(call: ClientCall) -> Awaitable[Any]:
            make_call = partial(self._make_request_call, call)
            return self._resources_and_prompts.read(call.request.principal, uri, make_call)

        return await self._forward_request(context, params, ("resources/read", uri), read)

    async def get_prompt(self, context: Any, params: Any) -> Any:
        def get(call: ClientCall) -> Awaitable[Any]:
            make_call, principal = partial(self._make_request_call, call), call.request.principal
            return self._resources_and_prompts.get_prompt(principal, params.name, params.arguments, make_call)

        return await self._forward_request(context, params, ("prompts/get", params.name, params.arguments), get)

    async def complete(self, context: Any, params: Any) -> Any:
        def complete(call: ClientCall) -> Awaitable[Any]:
            return self._resources_and_prompts.complete(call.request.principal, params)

        return await self._forward_request(context, params, ("complete",), complete)

    async def _make_request_call(
        self, call: ClientCall, tool: Tool, action: ToolCapability, params: Mapping[str, Any]
    ) -> Any:
        """Ask a server for a resource or a prompt, as a call of the client."""
        execute = partial(self._resources_and_prompts.execute, tool, action, params)
        context = self._make_context(call.request.principal)
        return unwrap_answer(await self._approvals.execute(call, f"{tool.id}__{action.name}", context, execute))

    async def _forward_request(
        self, context: Any, params: Any, identity: object, operation: Callable[[ClientCall], Awaitable[Any]]
    ) -> Any:
        """Ask a server behind this one, which may ask the client meanwhile."""

        async def execute(call: ClientCall) -> Any:
            async with call.request.limit():
                return await operation(call)

        return await self.paused_calls.run(self.make_request(context), identity, execute, params)

    async def subscribe_resource(self, context: Any, params: Any) -> Any:
        from mcp.types import EmptyResult

        uri = str(params.uri)
        principal = self.find_principal(context)
        tool, address = await self._resources_and_prompts.subscribe(principal, uri)
        await self._changes.subscribe(
            connection_of(context),
            tool.id,
            address,
            uri,
            partial(self._resources_and_prompts.unsubscribe, principal, tool, address),
        )
        return EmptyResult()

    async def unsubscribe_resource(self, context: Any, params: Any) -> Any:
        from mcp.types import EmptyResult

        await self._changes.unsubscribe(connection_of(context), str(params.uri))
        return EmptyResult()

    async def listen(self, context: Any, params: Any) -> Any:
        """Send changes to a client of the newer protocol until it ends the request."""
        principal = self.find_principal(context)
        if context.request is not None:
            mark_endless(context.request.scope)
        subscriptions = []
        for uri in list(params.notifications.resource_subscriptions or ())[:1_000]:
            subscriptions.append(await self._resources_and_prompts.subscribe(principal, str(uri)))
        try:
            return await self._changes.listen(context, params)
        finally:
            for tool, address in subscriptions:
                await asyncio.shield(self._resources_and_prompts.unsubscribe(principal, tool, address))

    async def set_log_level(self, context: Any, params: Any) -> Any:
        from mcp.types import EmptyResult

        connection_of(context).state[LOG_LEVEL_STATE] = params.level
        await self._changes.lower_log_level(params.level, self._library.engine.mcp.set_log_level)
        return EmptyResult()


@lru_cache(1_000)
def _conversation_of(principal: Principal) -> str:
    """Return a conversation id that is the same on every server and for every connection, so that approvals match."""
    caller = f"{principal.tenant}/{principal.identity}/{principal.client_id}"
    return f"mcp-{sha256(caller.encode()).hexdigest()[:16]}"


async def execute_named(
    library: UnifiedToolLibrary,
    name: str,
    arguments: Mapping[str, Any],
    context: ToolExecutionContext,
    *,
    action: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ToolExecutionResult:
    """Call a tool that a client names, or an action by its name for models."""
    engine = library.engine
    permissions = engine.permissions(context.principal, context.policy)
    permitted_action = permissions.find_permitted_action(engine.registry.snapshot(), name, action)
    if permitted_action is None:  # a server that is being discovered may list it
        await engine.wait_for_discovery(name)
        permitted_action = permissions.find_permitted_action(engine.registry.snapshot(), name, action)
    if permitted_action is None:  # the engine says the same of what is missing and of what the client may not see
        return await engine.execute(name, arguments, context, action=action)
    tool, capability = permitted_action
    # With its action: without one the hub would also try other tools' actions of that name, which are not offered.
    return await library.execute(tool.id, arguments, context, action=capability.name, on_progress=on_progress)


logger = logging.getLogger("ferrule.server")

# Standard input and output as a transport


@lru_cache(100)
def identify_stdio_client(name: str) -> str:
    """Return an id for the client of this process that stays the same when the client is started again.

    It is made from the user, the machine, the name of the client, the folder, and how the client starts this process.
    """
    user = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()  # Windows has no ids
    parts = [platform.node(), user, name, os.getcwd(), *sys.argv[1:]]
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


async def serve_on_stdio(server: Any, max_message_size: int) -> None:
    """Serve the client that started this process, until it disconnects. A longer message is skipped."""
    import anyio
    from mcp.server.stdio import stdio_server

    with _claim_standard_input() as file:
        stdin: Any = anyio.wrap_file(cast("Any", MessageLines(file, max_message_size)))
        async with stdio_server(stdin=stdin) as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())


class MessageLines:
    """The lines of a file as the SDK reads them. A line that is too long is replaced by a short one."""

    def __init__(self, file: BinaryIO, max_size: int) -> None:
        self._file, self._max_size = file, max_size

    def readline(self) -> str:
        line = self._file.readline(self._max_size + 1)
        if len(line) <= self._max_size or line.endswith(b"\n"):
            return line.decode("utf-8", "replace")
        del line
        while (rest := self._file.readline(SKIP_SIZE)) and not rest.endswith(b"\n"):
            pass
        logger.warning("size=<%d> | a message of the client is longer and was skipped", self._max_size)
        return "a message that is too long\n"  # which the SDK reports as invalid


@contextmanager
def _claim_standard_input() -> Iterator[BinaryIO]:
    """Yield standard input for the protocol alone: tools and the processes they start read an empty file instead."""
    copy, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    try:
        yield open(copy, "rb", closefd=False)  # noqa: SIM115  a thread may still be reading from it at the end
    finally:
        os.dup2(copy, 0)


def serve_stdio(tools: Collection[Any], *, name: str = "ferrule") -> None:
    """Serve functions, and other things that can be tools, to the MCP client that has started this program.

    Returns when the client disconnects.
    """
    if isinstance(tools, str) or not isinstance(tools, Collection):
        raise SetupError(f"serve_stdio takes a list of tools: write serve_stdio([{getattr(tools, '__name__', tools)}])")
    config = ToolEngineConfig(tools_directory=NO_FOLDER, auto_reload=False, builtin_tools=False)

    async def serve() -> None:
        async with UnifiedToolLibrary(config, on_elicit=ask_client) as library:
            library.register(*tools)
            await McpServer(library, name=name).serve_stdio()

    asyncio.run(serve())
