"""What passes between an MCP server behind Ferrule and the MCP client that makes the call.

A server may ask the client's user, its model or its folders (`elicitation/create`, `sampling/createMessage`,
`roots/list`), and write log messages for it. Such messages are passed on unchanged, and only to the client whose
request they belong to. A server of the older protocol does not say which request that is: then they are passed on only
while all its running requests were made for the same client. Outside of calls, a server may ask for the folders of the
client on standard input alone: it started this process, and so is the user that the server runs for. A server also
announces that it offers other actions, prompts or resources, or that a resource has changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from ferrule.core.aio import cancel_all, wait_at_most
from ferrule.core.content import plain_json, replace_surrogates
from ferrule.core.elicitation import ClientReply, Elicitation, OnElicit
from ferrule.core.secrets import Secrets
from ferrule.errors import CallCancelled, CallError, ExecutionFailed
from ferrule.kinds.mcp.config import McpServerConfig, TransportKind
from ferrule.kinds.mcp.listing import ServerListing, list_actions
from ferrule.kinds.mcp.results import describe_cause

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.message import SessionMessage

logger = logging.getLogger("ferrule.mcp")

FIRST_MODERN_VERSION: Final = "2026-07-28"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
_RESERVED_META: Final = "io.modelcontextprotocol/"
_PROGRESS_TOKEN: Final = "progressToken"
PASSED_CAPABILITIES: Final = ("elicitation", "sampling", "roots")
"""What a client can do for a server behind Ferrule."""
_METHODS: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The capability that a client needs for each request of a server."""
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
MAX_QUESTIONS: Final = 32
"""Of one request of a client that may wait for answers; further ones are refused."""


class ClientRequest(Protocol):
    """A request of an MCP client, for which a server behind Ferrule is asked something."""

    @property
    def client_key(self) -> object:
        """Return a key that is equal for requests of the same client."""

    @property
    def uses_older_protocol(self) -> bool:
        """Return whether the client speaks the protocol before 2026, in which servers send requests."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """Return what the client declares that it can do."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """Return the `_meta` of the request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers of the client's request. A server gets the headers that its entry names."""

    @property
    def log_level(self) -> str | None:
        """Return the least important log messages that the client wants; None if it did not say."""

    async def ask(self, key: str, request: Any) -> Any:
        """Pass a request of the server on; returns the result, or raises MCPError as the client answers."""

    async def send_log(self, params: Any) -> None:
        """Pass a log message on."""


current_request: ContextVar[ClientRequest | None] = ContextVar("ferrule_mcp_client_request", default=None)
"""The request of a client that is being answered."""


async def ask_client(question: Elicitation) -> dict[str, Any] | None:
    """Ask the client whose request is being answered; None when its user declines.

    Given to an engine as `on_elicit`, it lets tools and MCP servers ask the users of `McpServer`.
    """
    request = current_request.get()
    message = _make_request(question) if question.request is None else question.request
    if request is None or _METHODS[message.method] not in request.capabilities:
        raise CallError("The client of this call cannot ask its user. Continue with what is known.")
    result = await request.ask(question.key, message)
    action = getattr(result, "action", "accept")
    if question.request is None and action != "accept":
        if action == "decline":
            return None
        raise CallCancelled("The user did not answer.")
    return ClientReply(result)


def _make_request(question: Elicitation) -> Any:
    import secrets

    from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams

    text = replace_surrogates(question.message)
    if question.url is not None:
        token = secrets.token_urlsafe(12)
        return ElicitRequest(params=ElicitRequestURLParams(message=text, url=question.url, elicitation_id=token))
    form = plain_json(question.schema) or {"type": "object", "properties": {}}
    return ElicitRequest(params=ElicitRequestFormParams(message=text, requested_schema=form))


class ServerRequestCallbacks:
    """The callbacks of the SDK's client for what a server asks, which pass it on through `ask`."""

    def __init__(self, tool_id: str, ask: OnElicit) -> None:
        self._tool_id, self._ask = tool_id, ask
        self._waiting = 0

    async def elicit(self, context: Any, params: Any) -> Any:
        from mcp.types import ElicitRequest

        details = {"schema": getattr(params, "requested_schema", None), "url": getattr(params, "url", None)}
        return await self.pass_on(str(context.request_id), ElicitRequest(params=params), params.message, **details)

    async def create_message(self, context: Any, params: Any) -> Any:
        from mcp.types import CreateMessageRequest

        return await self.pass_on(str(context.request_id), CreateMessageRequest(params=params), "asks the model")

    async def list_roots(self, context: Any) -> Any:
        from mcp.types import ListRootsRequest

        return await self.pass_on(str(context.request_id), ListRootsRequest(), "asks for the folders")

    async def pass_on(self, key: str, request: Any, message: str, **details: Any) -> Any:
        """Return the client's result, or the error to answer the server with."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import INVALID_REQUEST, ErrorData

        if self._waiting >= MAX_QUESTIONS:
            return ErrorData(code=INVALID_REQUEST, message="Too many questions wait for answers.")
        question = Elicitation(tool_id=self._tool_id, message=message, request=request, key=key, **details)
        self._waiting += 1
        try:
            reply = await self._ask(question)
        except MCPError as error:  # as the client answered
            return error.error
        except (CallError, CallCancelled) as error:
            return ErrorData(code=INVALID_REQUEST, message=str(error))
        except Exception:
            logger.exception("tool=<%s> | a question could not be passed on", self._tool_id)
            return ErrorData(code=INVALID_REQUEST, message="The question could not be passed on.")
        finally:
            self._waiting -= 1
        if isinstance(reply, ClientReply):
            return reply.result
        return ErrorData(code=INVALID_REQUEST, message="There is no client that could answer.")


def add_client_details(params: dict[str, Any]) -> None:
    """Let a request to a server say what the client in front of it can do, and pass on the client's own `_meta`."""
    request = current_request.get()
    if request is None:
        return
    meta = params.setdefault("_meta", {})
    for key, value in request.meta.items():
        if key != _PROGRESS_TOKEN and not key.startswith(_RESERVED_META):
            meta.setdefault(key, value)
    if CAPABILITIES_KEY in meta:  # the newer protocol declares them with each request
        own = {key: value for key, value in meta[CAPABILITIES_KEY].items() if key not in PASSED_CAPABILITIES}
        passed = {key: request.capabilities[key] for key in PASSED_CAPABILITIES if key in request.capabilities}
        meta[CAPABILITIES_KEY] = own | passed
        if request.log_level is not None:
            meta[LOG_LEVEL_KEY] = request.log_level


def add_client_details_to_request(message: SessionMessage) -> None:
    """Do the same for a message of the SDK, if it is a request."""
    params = getattr(message.message, "params", None)
    if getattr(message.message, "id", None) is not None and isinstance(params, dict):
        add_client_details(params)


def is_logged(level: str, lowest: str | None) -> bool:
    """Return whether a message of this level is wanted by a client that asked for `lowest` and above."""
    if lowest is None or level not in LOG_LEVELS or lowest not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(lowest)


# Changes that a server announces

RELIST_INTERVAL: Final = 300.0
"""Seconds after which the actions are listed again, unless the server says how long its listing stays valid."""
MIN_RELIST_INTERVAL: Final = 5.0
RELIST_TIMEOUT: Final = 30.0
MIN_RELIST_PAUSE: Final = 0.2
MAX_RELIST_PAUSE: Final = 60.0
MIN_LISTEN_PAUSE: Final = 5.0
"""Seconds before a stream of changes that a server has ended is opened again; twice as long each time it fails."""
MAX_LISTEN_PAUSE: Final = 600.0
MAX_SUBSCRIPTIONS: Final = 1_000
"""Resources of one server."""
MAX_RELIST_SHARE: Final = 0.05
"""The share of time spent on listing for a server that keeps announcing changes."""

OnChange: TypeAlias = Callable[[str, str, str | None], Awaitable[None]]
"""Called with the id of a tool, what its server has changed (`tools`, `prompts`, `resources`, `resource`), and the
address of the resource."""
ProtocolMode: TypeAlias = Literal["auto", "legacy"]
"""`auto` tries the newest protocol first; `legacy` starts with the handshake used before 2026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """Which server to connect to, and how."""

    tool_id: str
    config: McpServerConfig
    """Has its variables filled in when a connection is opened."""
    on_elicit: OnElicit | None
    on_listing: Callable[[ServerListing], Awaitable[None]]
    on_change: OnChange | None = None
    location: str = ""
    """The command or the address, for messages."""
    secrets: Secrets = field(default_factory=Secrets)
    kind: TransportKind = "stdio"
    protocol_mode: ProtocolMode = "auto"
    relays: bool = False
    """What the server asks is passed on to the MCP clients for which it is called."""
    find_local_client: Callable[[], ClientRequest | None] = lambda: None
    """Returns the client that is asked for its folders when the server asks outside a call."""
    log_level: str | None = None
    """The least important log messages that clients want."""
    auth: Any = None
    """What adds tokens to HTTP requests: an `httpx2.Auth`."""


class ToolListRefresher:
    """Keeps the listing of one session up to date."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._stale = asyncio.Event()
        self.listing = ServerListing()

    def mark_stale(self) -> None:
        """Let the actions be listed again soon: the server may have changed them."""
        self._stale.set()

    async def list_now(self, client: Client) -> ServerListing:
        """Ask for the actions; secrets are removed from the texts."""
        return await list_actions(client.session, self._options.config.max_actions, self._options.secrets.hide)

    async def refresh_forever(self, client: Client) -> None:
        """List the actions again whenever the server announces a change, and from time to time."""
        from mcp.shared.exceptions import MCPError

        while True:
            await wait_at_most(self._stale, max(self.listing.ttl or RELIST_INTERVAL, MIN_RELIST_INTERVAL))
            self._stale.clear()
            started = time.monotonic()
            try:
                async with asyncio.timeout(RELIST_TIMEOUT):
                    listing = await self.list_now(client)
            except (MCPError, RuntimeError, ValueError, TimeoutError) as error:
                reason = self._options.secrets.hide(describe_cause(error))
                message = "tool=<%s> | the server's actions could not be listed again: %s"
                logger.warning(message, self._options.tool_id, reason)
            else:
                is_changed, self.listing = listing.capabilities != self.listing.capabilities, listing
                if is_changed:
                    await self._options.on_listing(listing)
            pause = (time.monotonic() - started) / MAX_RELIST_SHARE
            await asyncio.sleep(min(max(pause, MIN_RELIST_PAUSE), MAX_RELIST_PAUSE))


class ChangeListener:
    """Hears of the changes that a server announces: of its lists, and of resources that clients have subscribed to."""

    def __init__(self, options: ConnectOptions, on_tools_changed: Callable[[], None]) -> None:
        self._options, self._on_tools_changed = options, on_tools_changed
        self._resources: Counter[str] = Counter()
        """How many clients have subscribed to each address."""
        self._resources_changed = asyncio.Event()
        self._open_addresses: frozenset[str] = frozenset()
        """Those that the stream of the newer protocol is open for."""
        self._stream_opened = asyncio.Event()
        self._pause = MIN_LISTEN_PAUSE

    async def handle(self, message: Any) -> None:
        match getattr(message, "method", ""):
            case "notifications/tools/list_changed":
                self._on_tools_changed()
            case "notifications/prompts/list_changed":
                await self._report("prompts")
            case "notifications/resources/list_changed":
                await self._report("resources")
            case "notifications/resources/updated":
                await self._report("resource", str(message.params.uri))

    async def subscribe_resource(self, client: Client, uri: str) -> None:
        """Hear of changes of a resource too."""
        if len(self._resources) >= MAX_SUBSCRIPTIONS and uri not in self._resources:
            message = f"{self._options.tool_id!r} has {MAX_SUBSCRIPTIONS} subscriptions, which is the limit"
            raise ExecutionFailed(message)
        self._resources[uri] += 1
        if self._resources[uri] > 1:
            return
        try:
            if client.session.initialize_result is not None:
                await client.subscribe_resource(uri)
        except BaseException:
            del self._resources[uri]
            raise
        self._resources_changed.set()
        if client.session.initialize_result is None:
            while uri in self._resources and uri not in self._open_addresses:
                await self._stream_opened.wait()

    async def unsubscribe_resource(self, client: Client, uri: str) -> None:
        if uri not in self._resources:
            return
        self._resources[uri] -= 1
        if self._resources[uri]:
            return
        del self._resources[uri]
        self._resources_changed.set()
        if client.session.initialize_result is not None:
            await client.unsubscribe_resource(uri)

    async def listen_forever(self, client: Client) -> None:
        """Listen for changes. Since 2026 servers announce changes only to clients that listen; before, to all."""
        if client.session.initialize_result is not None:
            return
        lists = {
            f"{name}_list_changed": getattr(getattr(client.server_capabilities, name), "list_changed", None) is True
            for name in ("tools", "prompts", "resources")
        }
        stream: asyncio.Task[None] | None = None
        try:
            while True:
                self._resources_changed.clear()
                addresses = list(self._resources)
                stream = await self._replace_stream(client, stream, lists, addresses)
                waiting = asyncio.ensure_future(self._resources_changed.wait())
                try:
                    ends = {waiting} if stream is None else {waiting, stream}
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                if stream is not None and stream.done():  # the server has ended it
                    await asyncio.sleep(self._pause)
        finally:
            if stream is not None:
                await cancel_all([stream])

    async def _replace_stream(
        self, client: Client, earlier: asyncio.Task[None] | None, lists: dict[str, bool], addresses: list[str]
    ) -> asyncio.Task[None] | None:
        """Open a stream for these changes, and only then end the earlier one."""
        stream = None
        if addresses or any(lists.values()):
            is_open = asyncio.Event()
            stream = asyncio.create_task(self._listen(client, is_open, **lists, resource_subscriptions=addresses))
            opening = asyncio.ensure_future(is_open.wait())
            try:
                await asyncio.wait({stream, opening}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                stream.cancel()
                raise
            finally:
                opening.cancel()
            self._pause = MIN_LISTEN_PAUSE if is_open.is_set() else min(self._pause * 2, MAX_LISTEN_PAUSE)
        if earlier is not None:
            await cancel_all([earlier])
        self._open_addresses = frozenset(addresses)
        self._stream_opened.set()
        self._stream_opened = asyncio.Event()
        return stream

    async def _listen(self, client: Client, is_open: asyncio.Event, **kinds: Any) -> None:
        try:
            async with client.listen(**kinds) as changes:
                is_open.set()
                async for _ in changes:  # each is also given to `handle`
                    pass
        except Exception as error:
            reason = self._options.secrets.hide(describe_cause(error))
            logger.info("tool=<%s> | the server does not announce changes: %s", self._options.tool_id, reason)

    async def _report(self, kind: str, uri: str | None = None) -> None:
        if self._options.on_change is not None:
            await self._options.on_change(self._options.tool_id, kind, uri)
