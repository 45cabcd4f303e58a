"""Tavily: `POST /search`, the key as a bearer token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ferrule.errors import CallError, Refuse
from ferrule.executors.http.guarded_client import Response
from ferrule.tools.search_web.countries import COUNTRIES
from ferrule.tools.search_web.http_provider import said_in
from ferrule.tools.search_web.search import Request, Row, Search

MOST: Final = 20
_USED_UP: Final = frozenset({432, 433})
"""Of the plan, or of what may be paid beyond it."""


class Tavily:
    name = "tavily"

    def __init__(self, key: str, variable: str) -> None:
        self._key, self._variable = key, variable

    def request(self, search: Search, /) -> Request:
        country = COUNTRIES.get(search.region or "")
        # `safe_search` is for some plans only, and refused to the others.
        cannot = [name for name in ("language", "safe") if getattr(search, name)]
        if search.region and country is None:
            cannot.append("region")
        body = {
            "query": search.query,
            "max_results": min(search.limit, MOST),
            "search_depth": "basic",
            "topic": "general",
            "time_range": search.time_range,
            "country": country,
            "include_domains": [search.site] if search.site else None,
            "exclude_domains": list(search.exclude_sites) or None,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return Request(url="/search", headers={"Authorization": f"Bearer {self._key}"}, body=given, cannot=cannot)

    def rows(self, answer: dict[str, Any], /) -> Sequence[Row]:
        pages = answer["results"]
        return [
            Row(title=p["title"], url=p["url"], snippet=p.get("content"), date=p.get("published_date")) for p in pages
        ]

    def failure(self, response: Response, answer: Any, /) -> CallError | None:
        if response.status_code == 401:
            return Refuse(f"tavily does not know the key in {self._variable}. A person must set a valid one.")
        if response.status_code in _USED_UP:
            told = f"tavily searches no more for now: {said_in(answer) or 'its limit is used up.'}"
            return Refuse(told, untrusted=True)
        return None
