"""Tells MCP clients that tools, prompts or resources have changed.

Clients of the older protocol are told on their connection, clients of the newer one on the streams that they have
opened for it. A client that does not read has at most one message of each kind waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from ferrule.kinds.mcp.relay import LOG_LEVELS

logger = logging.getLogger("ferrule.server")

SEND_TIMEOUT: Final = 30.0
MAX_SUBSCRIPTIONS: Final = 1_000
"""Of one client."""

Unsubscribe = Callable[[], Awaitable[None]]


class ChangeNotifications:
    """The clients that want to know of changes."""

    def __init__(self) -> None:
        self._connections: WeakKeyDictionary[Any, dict[str, tuple[str, str, Unsubscribe]]] = WeakKeyDictionary()
        """The connections of the older protocol, and the resources that each has subscribed to, by their addresses."""
        self._sending: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._publishing: set[asyncio.Task[None]] = set()
        self._log_level: str | None = None
        self._bus: Any = None
        self._listener: Any = None

    def add(self, connection: Any) -> None:
        if connection not in self._connections:
            self._connections[connection] = {}
            connection.exit_stack.push_async_callback(self._remove, connection)

    async def report(self, tool_id: str, kind: str, uri: str | None) -> None:
        """Report a change that a server behind this one has announced."""
        if kind != "tools":  # the registry says so once the actions have been listed again
            self.notify_clients(kind, tool_id, uri)

    def notify_clients(self, kind: str, tool_id: str = "", address: str | None = None) -> None:
        """Tell the clients: `kind` is tools, prompts, resources, or resource for one of them."""
        for connection, subscriptions in list(self._connections.items()):
            if kind != "resource":
                self._send(connection, kind, None)
                continue
            for uri, (owner, own_address, _) in subscriptions.items():
                if (owner, own_address) == (tool_id, address):
                    self._send(connection, kind, uri)
        if self._bus is not None:
            self._publish(kind, tool_id, address)

    # The older protocol

    async def subscribe(self, connection: Any, tool_id: str, address: str, uri: str, unsubscribe: Unsubscribe) -> None:
        self.add(connection)
        subscriptions = self._connections[connection]
        if uri in subscriptions or len(subscriptions) >= MAX_SUBSCRIPTIONS:
            await unsubscribe()
            return
        subscriptions[uri] = (tool_id, address, unsubscribe)

    async def unsubscribe(self, connection: Any, uri: str) -> None:
        entry = self._connections.get(connection, {}).pop(uri, None)
        if entry is not None:
            await entry[2]()

    async def lower_log_level(self, level: str, apply: Callable[[str], Awaitable[None]]) -> None:
        """Servers behind this one send what any client wants; each client gets what it asked for."""
        current = self._log_level
        if current is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(current):
            self._log_level = level
            await apply(level)

    async def aclose(self) -> None:
        for task in list(self._sending.values()):
            task.cancel()

    async def _remove(self, connection: Any) -> None:
        for _, _, unsubscribe in self._connections.pop(connection, {}).values():
            try:
                await unsubscribe()
            except Exception as error:  # the server has ended meanwhile
                logger.debug("error=<%s> | a subscription could not be ended", error)

    def _send(self, connection: Any, kind: str, uri: str | None) -> None:
        key = (id(connection), kind if uri is None else uri)
        if key not in self._sending:
            task = self._sending[key] = asyncio.ensure_future(_notify(connection, kind, uri))
            task.add_done_callback(lambda _: self._sending.pop(key, None))

    # The newer protocol

    async def listen(self, context: Any, params: Any) -> Any:
        """Send what a client listens to, until it ends the request."""
        from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

        if self._bus is None:
            self._bus = InMemorySubscriptionBus()
            self._listener = ListenHandler(self._bus)
        return await self._listener(context, params)

    def _publish(self, kind: str, tool_id: str, address: str | None) -> None:
        from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged

        lists: dict[str, Any] = {
            "tools": ToolsListChanged(),
            "prompts": PromptsListChanged(),
            "resources": ResourcesListChanged(),
        }
        addresses = (address or "", f"{tool_id}+{address}")
        events = [lists[kind]] if kind in lists else [ResourceUpdated(uri=uri) for uri in addresses]
        for event in events:
            task = asyncio.ensure_future(self._bus.publish(event))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)


async def _notify(connection: Any, kind: str, uri: str | None) -> None:
    sends = {
        "tools": connection.send_tool_list_changed,
        "prompts": connection.send_prompt_list_changed,
        "resources": connection.send_resource_list_changed,
    }
    try:
        async with asyncio.timeout(SEND_TIMEOUT):
            await (connection.send_resource_updated(uri) if uri is not None else sends[kind]())
    except Exception as error:  # the client has disconnected, or does not read
        logger.debug("error=<%s> | a client could not be notified of changed %s", error, kind)
