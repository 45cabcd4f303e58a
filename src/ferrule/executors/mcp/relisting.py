"""What a server lists, kept true while its session lasts."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ferrule.executors.mcp.failures import reason_of
from ferrule.executors.mcp.listing import Listing, list_actions
from ferrule.executors.mcp.way import Way

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger("ferrule.mcp")

RELIST_AFTER: Final = 300.0
"""Seconds after which the actions are listed again, unless the server says how long they hold."""
SHORTEST_TTL: Final = 5.0
RELIST_PATIENCE: Final = 30.0
RELIST_AT_MOST_EVERY: Final = 0.2
LONGEST_PAUSE: Final = 60.0
RELIST_SHARE: Final = 0.05
"""How much of its time a server that announces changes again and again may have us spend on listing."""


class Relisting:
    """The actions of one session."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._stale = asyncio.Event()
        self.listing = Listing()

    def doubt(self) -> None:
        """The server may have other actions by now."""
        self._stale.set()

    async def keep(self, client: Client) -> None:
        """List the actions again when the server says they changed, and from time to time."""
        from mcp.shared.exceptions import MCPError

        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self.listing.ttl or RELIST_AFTER, SHORTEST_TTL)):
                    await self._stale.wait()
            self._stale.clear()
            since = time.monotonic()
            try:
                async with asyncio.timeout(RELIST_PATIENCE):
                    listing = await self.ask(client)
            except (MCPError, RuntimeError, ValueError, TimeoutError) as error:
                why = self._way.secrets.hide(reason_of(error))
                logger.warning("tool=<%s> | its actions could not be listed again: %s", self._way.tool_id, why)
            else:
                changed, self.listing = listing.capabilities != self.listing.capabilities, listing
                if changed:
                    self._way.on_listing(listing)
            pause = (time.monotonic() - since) / RELIST_SHARE
            await asyncio.sleep(min(max(pause, RELIST_AT_MOST_EVERY), LONGEST_PAUSE))

    async def ask(self, client: Client) -> Listing:
        """What it lists now, without what it must not repeat."""
        listing = await list_actions(client.session)
        hide = self._way.secrets.hide
        return replace(
            listing,
            instructions=hide(listing.instructions),
            capabilities=tuple(replace(c, description=hide(c.description)) for c in listing.capabilities),
        )

    async def listen(self, client: Client) -> None:
        """Since 2026 servers tell about changes only those who ask for it; before, they tell everybody."""
        tools = client.server_capabilities.tools
        if client.session.initialize_result is not None or tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._stale.set()
        except Exception as error:
            logger.info(
                "tool=<%s> | it does not tell about changes: %s",
                self._way.tool_id,
                self._way.secrets.hide(reason_of(error)),
            )
