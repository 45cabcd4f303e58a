"""What MCP servers behind Ferrule offer besides actions: resources, prompts and completions, passed on to clients.

A prompt is called `server__prompt`. A resource keeps its address, because results refer to it; one that two servers
list is offered a second time as `server+address`. Rules and tokens name them like actions of the server,
`files__resources` and `files__prompts`: a client sees those that it may call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.call import Invocation, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Output
from ferrule.core.names import ACTION_SEPARATOR, model_name
from ferrule.core.patterns import lazy_pattern
from ferrule.core.permission import CallPolicy, Principal
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.engine.engine import ToolEngine
from ferrule.errors import CallError, ExecutionFailed
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import HANDLER
from ferrule.library.library import UnifiedToolLibrary
from ferrule.server.mcp.content import without_server_info
from ferrule.server.mcp.requests import ANSWER_TIMEOUT, invalid_params

if TYPE_CHECKING:
    from ferrule.kinds.mcp.connection import Connection

logger = logging.getLogger("ferrule.server")

MAX_ENTRIES: Final = 5_000
"""Resources, templates or prompts of one server; further ones are not listed."""
MAX_PAGES: Final = 500
MAX_LINKS: Final = 10_000
"""Addresses in results that are remembered, so that clients can read them."""
DISCOVERY_WAIT: Final = 10.0
"""How long clients wait for servers that are being started."""
ROUTE_SECONDS: Final = 5.0
"""Seconds for which an unknown address is not looked for again."""
_SCHEME: Final = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*\Z")

MakeCall = Callable[[Tool, ToolCapability, Mapping[str, Any]], Awaitable[Any]]
"""Asks a server for something, as a call in the name of the client; raises MCPError as it answers."""


class ResourcesAndPrompts:
    """The resources, prompts and completions of the servers of a library, for one selection of tools."""

    def __init__(
        self, library: UnifiedToolLibrary, policy: CallPolicy | None, *, has_plain_names: bool = False
    ) -> None:
        """`has_plain_names`: prompts have the names that their servers use, if these are unique."""
        self._library, self._policy, self._has_plain_names = library, policy, has_plain_names
        self._addresses: dict[str, frozenset[str]] = {}
        self._templates: dict[str, list[str]] = {}
        """What each server has listed."""
        self._prompt_servers: dict[str, tuple[str, str]] = {}
        """The server and the own name of a prompt, by the name for clients."""
        self._links: OrderedDict[str, str] = OrderedDict()
        self._listed_at = float("-inf")
        self._request_tools: dict[str, tuple[Tool, Tool]] = {}
        """The servers, and each with the actions that are listed nowhere."""
        library.engine.register_executor(REQUEST_HANDLER, RequestExecutor(library.engine.mcp))

    def has_any(self, kind: str) -> bool:
        """Return whether a server offers something of this kind, or may do so once it is connected."""
        return any(
            tool.spec.enabled and kind in tool.spec.metadata.get("offers", (kind,))
            for tool in self._library.engine.registry
            if tool.handler == HANDLER
        )

    def servers(self, principal: Principal, kind: str) -> dict[str, Tool]:
        """Return the servers whose resources or prompts a client may use."""
        permissions = self._library.engine.permissions(principal, self._policy)
        action = RESOURCES if kind == RESOURCES.name else PROMPTS
        return {
            tool.id: tool
            for tool in sorted(self._library.engine.registry, key=lambda tool: tool.id)
            if tool.handler == HANDLER
            and tool.spec.enabled
            and kind in tool.spec.metadata.get("offers", ())
            and permissions.decide(tool, action).verdict != "deny"
        }

    # Resources

    async def list_resources(self, principal: Principal) -> Any:
        from mcp.types import ListResourcesResult

        entries: dict[str, Any] = {}
        for tool, resources in await self._list_all(principal, "resources", "list_resources", "resources"):
            self._addresses[tool.id] = frozenset(str(each.uri) for each in resources)
            for each in resources:
                uri = str(each.uri)
                if uri in entries:
                    uri = f"{tool.id}+{uri}"
                    each = each.model_copy(update={"uri": uri})
                if uri not in entries and _SCHEME.match(uri.partition(":")[0]):
                    entries[uri] = each
        return ListResourcesResult(resources=list(entries.values()))

    async def list_templates(self, principal: Principal) -> Any:
        from mcp.types import ListResourceTemplatesResult

        entries: dict[str, Any] = {}
        listed = await self._list_all(principal, "resources", "list_resource_templates", "resource_templates")
        for tool, templates in listed:
            self._templates[tool.id] = [each.uri_template for each in templates]
            for each in templates:
                entries.setdefault(each.uri_template, each)
        return ListResourceTemplatesResult(resource_templates=list(entries.values()))

    async def read(self, principal: Principal, uri: str, make_call: MakeCall) -> Any:
        tool, address = await self._find_owner(principal, uri)
        result = await make_call(tool, RESOURCES, {"uri": address})
        if address != uri:
            contents = [
                each.model_copy(update={"uri": uri}) if str(each.uri) == address else each for each in result.contents
            ]
            result = result.model_copy(update={"contents": contents})
        return without_server_info(result)

    async def subscribe(self, principal: Principal, uri: str) -> tuple[Tool, str]:
        """Hear of changes of a resource; returns what `unsubscribe` needs."""
        tool, address = await self._find_owner(principal, uri)
        await self._ask(principal, tool, lambda connection: connection.subscribe_resource(address))
        return tool, address

    async def unsubscribe(self, principal: Principal, tool: Tool, address: str) -> None:
        if self._library.engine.mcp.is_connected(tool.id):  # a server that has ended has no subscriptions
            await self._ask(principal, tool, lambda connection: connection.unsubscribe_resource(address))

    def remember_links(self, tool_id: str, result: Any) -> None:
        """Remember the resources that a result refers to: they can be read, whether they are listed or not."""
        for block in result.content:
            if block.type in ("resource_link", "resource"):
                uri = str(block.uri if block.type == "resource_link" else block.resource.uri)
                self._links[uri] = tool_id
                self._links.move_to_end(uri)
                if len(self._links) > MAX_LINKS:
                    self._links.popitem(last=False)

    async def _find_owner(self, principal: Principal, uri: str) -> tuple[Tool, str]:
        """Find the server that has a resource, and the address there. Raises MCPError for an unknown resource."""
        servers = self.servers(principal, "resources")
        prefix, plus, rest = uri.partition("+")
        if plus and prefix in servers and ":" in rest:
            return servers[prefix], rest
        owner = self._find_known(servers, uri)
        if owner is None and self._library.engine.is_discovering:
            await wait_for_servers(self._library.engine)
            servers = self.servers(principal, "resources")
        if owner is None and len(servers) > 1 and time.monotonic() - self._listed_at >= ROUTE_SECONDS:
            self._listed_at = time.monotonic()
            await self.list_resources(principal)
            await self.list_templates(principal)
            owner = self._find_known(servers, uri)
        if owner is None and len(servers) == 1:
            [owner] = servers.values()
        if owner is None:
            raise invalid_params(f"Resource not found: {uri}", {"uri": uri})
        return owner, uri

    def _find_known(self, servers: Mapping[str, Tool], uri: str) -> Tool | None:
        for name, tool in servers.items():
            if uri in self._addresses.get(name, ()):
                return tool
        if (link := self._links.get(uri, "")) in servers:
            return servers[link]
        for name, tool in servers.items():
            if any(_matches(template, uri) for template in self._templates.get(name, ())):
                return tool
        return None

    # Prompts and completions

    async def list_prompts(self, principal: Principal) -> Any:
        from mcp.types import ListPromptsResult

        listed = await self._list_all(principal, "prompts", "list_prompts", "prompts")
        own_names = Counter(each.name for _, prompts in listed for each in prompts)
        listed_ids = {tool.id for tool, _ in listed}
        self._prompt_servers = {n: each for n, each in self._prompt_servers.items() if each[0] not in listed_ids}
        prompts = []
        for tool, entries in listed:
            for each in entries:
                is_plain = self._has_plain_names and own_names[each.name] == 1
                name = each.name if is_plain else model_name(tool.id, each.name)
                self._prompt_servers[name] = (tool.id, each.name)
                prompts.append(each if is_plain else each.model_copy(update={"name": name}))
        return ListPromptsResult(prompts=prompts)

    async def get_prompt(
        self, principal: Principal, name: str, arguments: dict[str, str] | None, make_call: MakeCall
    ) -> Any:
        tool, own_name = await self._find_prompt(principal, name)
        params = {"name": own_name} if arguments is None else {"name": own_name, "arguments": arguments}
        return without_server_info(await make_call(tool, PROMPTS, params))

    async def complete(self, principal: Principal, params: Any) -> Any:
        """Suggest values for an argument of a prompt or of the address of a resource."""
        from mcp.types import PromptReference

        reference, address = params.ref, getattr(params.ref, "uri", None)
        if isinstance(reference, PromptReference):
            tool, own_name = await self._find_prompt(principal, reference.name)
            reference = reference.model_copy(update={"name": own_name})
        else:
            tool, _ = await self._find_template(principal, str(address))
        argument = params.argument.model_dump()
        values = None if params.context is None else params.context.arguments
        return without_server_info(
            await self._ask(
                principal,
                tool,
                lambda connection: connection.request(lambda client: client.complete(reference, argument, values)),
            )
        )

    async def _find_prompt(self, principal: Principal, name: str) -> tuple[Tool, str]:
        servers = self.servers(principal, "prompts")
        if name not in self._prompt_servers and name.partition(ACTION_SEPARATOR)[0] not in servers:
            await wait_for_servers(self._library.engine)
            servers = self.servers(principal, "prompts")
        if name not in self._prompt_servers and not any(name.startswith(f"{s}{ACTION_SEPARATOR}") for s in servers):
            await self.list_prompts(principal)
        server, own_name = self._prompt_servers.get(name, ("", ""))
        if not server:
            server, _, own_name = name.partition(ACTION_SEPARATOR)
        if server not in servers:
            raise invalid_params(f"There is no prompt {name!r} here.")
        return servers[server], own_name

    async def _find_template(self, principal: Principal, template: str) -> tuple[Tool, str]:
        for is_listed in (False, True):
            for name, tool in self.servers(principal, "resources").items():
                if template in self._templates.get(name, ()):
                    return tool, template
            if not is_listed:
                await self.list_templates(principal)
        return await self._find_owner(principal, template)

    # Asking servers

    async def _list_all(
        self, principal: Principal, kind: str, method: str, field_name: str
    ) -> list[tuple[Tool, list[Any]]]:
        """List entries of all permitted servers. A server that cannot be asked is left out."""
        await wait_for_servers(self._library.engine)
        servers = self.servers(principal, kind)
        results = await asyncio.gather(
            *(self._list_pages(principal, tool, method, field_name) for tool in servers.values()),
            return_exceptions=True,
        )
        listed = []
        for tool, result in zip(servers.values(), results, strict=True):
            if isinstance(result, BaseException):
                if not isinstance(result, Exception):
                    raise result
                logger.warning("tool=<%s> | its %s could not be listed: %s", tool.id, kind, result)
            else:
                listed.append((tool, result))
        return listed

    async def _list_pages(self, principal: Principal, tool: Tool, method: str, field_name: str) -> list[Any]:
        from mcp.shared.exceptions import MCPError
        from mcp.types import METHOD_NOT_FOUND

        async def list_pages(connection: Connection) -> list[Any]:
            entries: list[Any] = []
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page = await connection.request(methodcaller(method, cursor=cursor))
                entries += getattr(page, field_name)
                cursor = page.next_cursor
                if cursor is None or len(entries) >= MAX_ENTRIES:
                    break
            return entries[:MAX_ENTRIES]

        try:
            return await self._library.engine.mcp.request(tool, list_pages, principal.account)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:  # many servers have resources and no templates
                return []
            raise

    async def _ask(self, principal: Principal, tool: Tool, operation: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Ask a server, which may ask its user meanwhile. Raises MCPError also when the server cannot be reached."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import INTERNAL_ERROR

        try:
            return await self._library.engine.mcp.request(tool, operation, principal.account, timeout=ANSWER_TIMEOUT)
        except CallError as error:
            raise MCPError(code=INTERNAL_ERROR, message=str(error)) from None

    async def execute(
        self, tool: Tool, action: ToolCapability, params: Mapping[str, Any], context: ToolExecutionContext
    ) -> ToolExecutionResult:
        """Read a resource or get a prompt, as a call of one of the actions below."""
        original, derived = self._request_tools.get(tool.id, (None, tool))
        if original is not tool:
            spec = replace(tool.spec, capabilities=[RESOURCES, PROMPTS])
            derived = replace(tool, spec=spec, handler=REQUEST_HANDLER)
            self._request_tools[tool.id] = tool, derived
        return await self._library.engine.execute_candidate(derived, action.name, params, context)


async def wait_for_servers(engine: ToolEngine) -> None:
    """Wait a while for the servers that are being started: what they offer is known once they have responded."""
    if engine.is_discovering:
        try:
            async with asyncio.timeout(DISCOVERY_WAIT):
                await engine.wait_for_discovery()
        except TimeoutError:
            logger.warning("servers that are still starting are not listed yet")


def _matches(template: str, uri: str) -> bool:
    from mcp.shared.uri_template import UriTemplate

    try:
        return UriTemplate.parse(template).match(uri) is not None
    except ValueError:  # a template that a server has misspelt
        return False


# Reading resources and getting prompts as calls: with policy, slots, timeouts, approvals and records. To the engine
# they are two more actions of a server, `files__resources` and `files__prompts`, which are listed nowhere.

REQUEST_HANDLER: Final = "mcp_request"
_READING: Final = Effects(read_only=True, open_world=True)
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
RESOURCES: Final = ToolCapability(
    name="resources",
    description="Read a resource.",
    parameters={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    effects=_READING,
)
PROMPTS: Final = ToolCapability(
    name="prompts",
    description="Get a prompt.",
    parameters={
        "type": "object",
        "properties": {"name": {"type": "string"}, "arguments": _TEXTS},
        "required": ["name"],
    },
    effects=_READING,
)


def unwrap_answer(result: ToolExecutionResult) -> Any:
    """Return the answer of the server. Raises MCPError for its error, or if the request was not allowed."""
    from mcp.shared.exceptions import MCPError
    from mcp.types import INTERNAL_ERROR

    if result.is_success:
        return result.original
    if isinstance(result.original, MCPError):
        raise result.original
    raise MCPError(code=INTERNAL_ERROR, message=result.error or "The request failed.")


class RequestExecutor:
    """The executor of these calls."""

    def __init__(self, mcp: McpExecutor) -> None:
        self._mcp = mcp

    async def execute(self, invocation: Invocation, /) -> Output:
        from mcp.shared.exceptions import MCPError

        params = invocation.params

        async def ask(client: Any) -> Any:
            if invocation.capability.name == RESOURCES.name:
                return await client.read_resource(params["uri"])
            return await client.get_prompt(params["name"], params.get("arguments"))

        account = invocation.context.principal.account
        try:
            answer = await self._mcp.request(
                invocation.tool, lambda connection: connection.request(ask), account, timeout=ANSWER_TIMEOUT
            )
        except MCPError as error:
            failure = ExecutionFailed(f"{invocation.tool.id!r} answered with an error: {error.message}")
            failure.original = error
            raise failure from None
        return Output(data=answer.model_dump(mode="json", by_alias=True, exclude_none=True), original=answer)
