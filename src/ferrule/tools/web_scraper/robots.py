"""What the robots.txt of a site allows, as RFC 9309 has it: read once, and kept for a while.

A site without one allows everything. One whose robots.txt cannot be read for now allows nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, Retry, Transient, TransportFault
from ferrule.executors.http.guarded_client import GuardedClient, shown_url

if TYPE_CHECKING:
    from protego import Protego

KEPT: Final = 3_600.0
"""Seconds that the rules of a site are kept."""
MOST_SITES: Final = 500
LONGEST: Final = 512_000
"""Bytes that are read of one."""
PATIENCE: Final = 10.0


class Robots:
    """Knows for one reader where it may go."""

    def __init__(self, client: GuardedClient, user_agent: str) -> None:
        self._client, self._user_agent = client, user_agent
        self._known: OrderedDict[str, tuple[float, Protego]] = OrderedDict()

    async def check(self, url: str) -> None:
        """PermissionDenied for a page that must not be read."""
        parts = urlsplit(url)
        site = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        rules = self._remembered(site)
        if rules is None:
            rules = await self._read(site)
            self._remember(site, rules)
        if not rules.can_fetch(url, self._user_agent):
            raise PermissionDenied(
                f"the robots.txt of {site} does not let {self._user_agent!r} read {shown_url(url)}. Read another page; "
                "or, if you may, set [tools.web_scraper] respect_robots = false in ferrule.toml."
            )

    async def _read(self, site: str) -> Protego:
        from protego import Protego

        try:
            response = await self._client.send(
                "GET",
                f"{site}/robots.txt",
                what=f"GET {site}/robots.txt",
                headers={"User-Agent": self._user_agent},
                timeout=PATIENCE,
            )
        except (TransportFault, PermissionDenied, Retry):
            raise  # so it is with the page itself
        except ExecutionFailed:  # it is too large, or leads round in circles: there is none that could be read
            return Protego.parse("")
        except CallError as error:
            raise Transient(f"whether {site} may be read cannot be told for now: {error}") from error
        if response.status_code >= 500:
            raise Transient(
                f"whether {site} may be read cannot be told for now: its robots.txt has status {response.status_code}."
            )
        is_there = response.status_code < 300
        return Protego.parse(response.content[:LONGEST].decode("utf-8", "replace") if is_there else "")

    def _remembered(self, site: str) -> Protego | None:
        at, rules = self._known.get(site, (0.0, None))
        return rules if time.monotonic() - at < KEPT else None

    def _remember(self, site: str, rules: Protego) -> None:
        self._known[site] = time.monotonic(), rules
        self._known.move_to_end(site)
        while len(self._known) > MOST_SITES:
            self._known.popitem(last=False)
