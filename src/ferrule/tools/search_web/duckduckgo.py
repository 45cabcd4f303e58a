"""DuckDuckGo, through the package ddgs, which reads its pages.

ddgs makes its own connections: the address guard does not see them. All that a caller decides is the query, without
the signs by which a query leads to another site, so the hosts are those of the package. It waits in its own threads, so
it runs in a process that can be ended.
"""

from __future__ import annotations

from typing import Any, Final

from ferrule.errors import Retry, Transient, TransportFault
from ferrule.executors.worker.aside import Aside
from ferrule.tools.search_web.search import Found, Row, Search

TIMEOUT: Final = 10
"""Seconds for one page."""
ANYWHERE: Final = "wt-wt"

_LEADS_ELSEWHERE: Final = str.maketrans("!！\\", "   ")
"""`!w` and a leading backslash are answered with a redirect to another site, which ddgs follows unguarded."""
_REGIONS: Final = {"GB": "uk"}
_LANGUAGES: Final = {"JP": "jp", "KR": "kr", "TW": "tzh", "HK": "tzh"}


class DuckDuckGo:
    name = "duckduckgo"

    def __init__(self) -> None:
        self._ask = Aside(ask)

    async def find(self, search: Search, /) -> Found:
        region = region_of(search)
        unknown = ("safe", "language", "region") if region == ANYWHERE else ("safe",)
        cannot = [name for name in unknown if getattr(search, name)]
        answer = await self._ask(
            query=search.operators, region=region, time_range=search.time_range, limit=search.limit
        )
        pages = answer["pages"]
        return Found(rows=[Row(title=p["title"], url=p["href"], snippet=p["body"]) for p in pages], cannot=cannot)

    async def aclose(self) -> None:
        await self._ask.aclose()


def ask(query: str, region: str, time_range: str | None, limit: int) -> dict[str, Any]:
    """What ddgs finds."""
    from ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    words = " ".join(query.translate(_LEADS_ELSEWHERE).split())
    if not words:
        raise Retry("The query has no words. Say what to search for.")
    try:
        found = DDGS(timeout=TIMEOUT).text(
            words,
            region=region,
            timelimit=time_range and time_range[0],
            max_results=limit,
            backend=DuckDuckGo.name,
        )
    except RatelimitException as error:
        raise Transient(f"duckduckgo has had too many searches: {error}") from error
    except TimeoutException as error:
        raise Transient(f"duckduckgo did not answer in time: {error}") from error
    except DDGSException as error:
        if "No results" not in str(error):
            raise TransportFault(f"duckduckgo cannot be reached: {str(error)[:300]}") from error
        raise Retry(
            "duckduckgo found nothing, or answers no programs just now: it does not tell which. Use other words."
        ) from error
    return {"pages": found}


def region_of(search: Search) -> str:
    """Country and language as it names them: it must know both."""
    if search.region is None:
        return ANYWHERE
    country = _REGIONS.get(search.region, search.region.lower())
    language = _LANGUAGES.get(search.region) or (search.language or "").partition("-")[0]
    return f"{country}-{language}" if language else ANYWHERE
