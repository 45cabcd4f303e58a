"""What a server announces: that it offers other actions, prompts or resources, or that a resource has changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ferrule.core.aio import cancel_all, wait_at_most
from ferrule.core.elicitation import OnElicit
from ferrule.core.secrets import Secrets
from ferrule.errors import ExecutionFailed
from ferrule.kinds.mcp.config import McpServerConfig, TransportKind
from ferrule.kinds.mcp.listing import ServerListing, list_actions
from ferrule.kinds.mcp.relay import OnChange
from ferrule.kinds.mcp.results import describe_cause

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger("ferrule.mcp")

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

ProtocolMode: TypeAlias = Literal["auto", "legacy"]
"""`auto` tries the newest protocol first; `legacy` starts with the handshake used before 2026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """Which server to connect to, and how."""

    tool_id: str
    config: McpServerConfig
    """With its variables filled in."""
    location: str
    """Its command or address, for messages."""
    secrets: Secrets
    kind: TransportKind
    protocol_mode: ProtocolMode
    on_elicit: OnElicit | None
    on_listing: Callable[[ServerListing], Awaitable[None]]
    on_change: OnChange | None = None
    relays: bool = False
    """What the server asks is passed on to the MCP clients for which it is called."""
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
        """The server may have changed its actions."""
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
                logger.warning(
                    "tool=<%s> | the server's actions could not be listed again: %s", self._options.tool_id, reason
                )
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
        """A notification of the server."""
        from mcp.types import (
            PromptListChangedNotification,
            ResourceListChangedNotification,
            ResourceUpdatedNotification,
            ToolListChangedNotification,
        )

        if isinstance(message, ToolListChangedNotification):
            self._on_tools_changed()
        elif isinstance(message, PromptListChangedNotification):
            await self._report("prompts")
        elif isinstance(message, ResourceListChangedNotification):
            await self._report("resources")
        elif isinstance(message, ResourceUpdatedNotification):
            await self._report("resource", str(message.params.uri))

    async def subscribe_resource(self, client: Client, uri: str) -> None:
        """Hear of changes of a resource too."""
        if len(self._resources) >= MAX_SUBSCRIPTIONS and uri not in self._resources:
            raise ExecutionFailed(
                f"{self._options.tool_id!r} has {MAX_SUBSCRIPTIONS} subscriptions, which is the limit"
            )
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
            await self._wait_until_open(uri)

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
        """Since 2026 servers announce changes only to clients that listen; before, to all of them."""
        if client.session.initialize_result is not None:
            return
        offers = client.server_capabilities
        tools, prompts, resources = (
            bool(each and each.list_changed) for each in (offers.tools, offers.prompts, offers.resources)
        )
        lists = {"tools_list_changed": tools, "prompts_list_changed": prompts, "resources_list_changed": resources}
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

    async def _wait_until_open(self, uri: str) -> None:
        while uri in self._resources and uri not in self._open_addresses:
            await self._stream_opened.wait()

    async def _report(self, kind: str, uri: str | None = None) -> None:
        if self._options.on_change is not None:
            await self._options.on_change(self._options.tool_id, kind, uri)
