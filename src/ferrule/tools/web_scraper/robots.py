"""What the robots.txt of a site allows, as RFC 9309 has it: read once, and kept for a while.

A site without one allows everything. One whose robots.txt cannot be read for now allows nothing. What it says is
looked at in a process of its own, which is ended when that takes too long: half a megabyte can be written so that its
rules are hundreds of millions.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any, Final
from urllib.parse import urlsplit

from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, Retry, Transient, TransportFault
from ferrule.executors.http.guarded_client import GuardedClient, shown_url
from ferrule.executors.worker.aside import Aside

KEPT: Final = 3_600.0
"""Seconds that the rules of a site are kept."""
MOST_SITES: Final = 100
LONGEST: Final = 512_000
"""Bytes that are read of one."""
PATIENCE: Final = 10.0
LOOKING = 5.0
"""Seconds to find out what the rules say about an address."""


class Robots:
    """Knows for one reader where it may go. Rules are looked at beside what else the reader has done aside."""

    def __init__(self, client: GuardedClient, user_agent: str, *, beside: Aside) -> None:
        self._client, self._user_agent = client, user_agent
        self._look = Aside(look, beside=beside)
        self._known: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    async def check(self, url: str) -> None:
        """PermissionDenied for a page that must not be read."""
        site = _site(url)
        rules = self._remembered(site)
        if rules is None:
            rules = await self._read(site)
            self._remember(site, rules)
        if rules and not await self._allows(site, rules, url):
            raise PermissionDenied(
                f"the robots.txt of {site} does not let {self._user_agent!r} read {shown_url(url)}. Read another page; "
                "or, if you may, set [tools.web_scraper] respect_robots = false in ferrule.toml."
            )

    async def _allows(self, site: str, rules: bytes, url: str) -> bool:
        try:
            async with asyncio.timeout(LOOKING):
                found = await self._look(rules=rules, url=url, user_agent=self._user_agent)
        except (TimeoutError, TransportFault):  # there is no end to them, or they have brought the process down
            raise ExecutionFailed(
                f"whether {site} may be read cannot be told: its robots.txt cannot be read. Read another page."
            ) from None
        return bool(found["allowed"])

    async def _read(self, site: str) -> bytes:
        """The rules; none where there are none."""
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
            return b""
        except CallError as error:
            raise Transient(f"whether {site} may be read cannot be told for now: {error}") from error
        if response.status_code >= 500:
            raise Transient(
                f"whether {site} may be read cannot be told for now: its robots.txt has status {response.status_code}."
            )
        return response.content[:LONGEST] if response.status_code < 300 else b""

    def _remembered(self, site: str) -> bytes | None:
        at, rules = self._known.get(site, (0.0, None))
        return rules if time.monotonic() - at < KEPT else None

    def _remember(self, site: str, rules: bytes) -> None:
        self._known[site] = time.monotonic(), rules
        self._known.move_to_end(site)
        while len(self._known) > MOST_SITES:
            self._known.popitem(last=False)


# `rules` are bytes; as a hint that would mean base64.
def look(rules: Any, url: str, user_agent: str) -> dict[str, Any]:
    """Whether the rules of a site let somebody read a page of it."""
    from protego import Protego

    return {"allowed": Protego.parse(rules.decode("utf-8", "replace")).can_fetch(url, user_agent)}


def _site(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Retry(f"{url[:100]!r} is no address of a page: {error}. Check it.") from error
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
