"""SearXNG: `GET /search?format=json` of an instance of one's own, or of one that allows programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ferrule.errors import CallError, ExecutionFailed, Refuse
from ferrule.executors.http.guarded_client import Response
from ferrule.tools.search_web.search import Request, Row, Search

_SAFE: Final = {"off": "0", "moderate": "1", "strict": "2"}


class SearxNG:
    name = "searxng"

    def request(self, search: Search, /) -> Request:
        params = {
            "q": search.operators,
            "format": "json",
            "language": _language(search),
            "time_range": search.time_range,
            "safesearch": _SAFE.get(search.safe or ""),
        }
        cannot = ["region"] if search.region and not search.language else []
        given = {name: value for name, value in params.items() if value}
        return Request(url="/search", params=given, cannot=cannot)

    def rows(self, answer: dict[str, Any], /) -> Sequence[Row]:
        pages, silent = answer["results"], answer.get("unresponsive_engines") or []
        if not pages and silent and not answer.get("answers"):
            engines = ", ".join(f"{engine[0]} ({engine[1]})"[:100] for engine in silent[:10])
            told = f"searxng found nothing, because its engines did not answer: {engines}"
            raise ExecutionFailed(told, untrusted=True)
        return [
            Row(title=p.get("title"), url=p.get("url"), snippet=p.get("content"), date=p.get("publishedDate"))
            for p in pages
        ]

    def failure(self, response: Response, answer: Any, /) -> CallError | None:
        if response.status_code == 403 and answer is None:
            return Refuse(
                "searxng does not answer programs (status 403). A person must add json to search.formats in the "
                "settings.yml of the instance, or set another one in [tools.search_web] searxng."
            )
        return None


def _language(search: Search) -> str | None:
    if search.language is None or search.region is None:
        return search.language
    return f"{search.language.partition('-')[0]}-{search.region}"
