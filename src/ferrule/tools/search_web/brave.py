"""Brave Search: `GET /res/v1/web/search`, the key in a header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ferrule.errors import CallError, Refuse, Retry, Transient
from ferrule.executors.http.guarded_client import Response
from ferrule.executors.http.patience import retry_after
from ferrule.tools.search_web.countries import COUNTRIES
from ferrule.tools.search_web.search import Request, Row, Search

MOST: Final = 20
LONGEST_QUERY: Final = 400
MOST_WORDS: Final = 50

_FRESHNESS: Final = {"day": "pd", "week": "pw", "month": "pm", "year": "py"}
_LANGUAGES: Final = (
    *("ar", "bg", "bn", "ca", "cs", "da", "de", "en", "en-gb", "es", "et", "eu", "fi", "fr", "gl", "gu", "he", "hi"),
    *("hr", "hu", "is", "it", "jp", "kn", "ko", "lt", "lv", "ml", "mr", "ms", "nb", "nl", "pa", "pl", "pt-br", "pt-pt"),
    *("ro", "ru", "sk", "sl", "sr", "sv", "ta", "te", "th", "tr", "uk", "vi", "zh-hans", "zh-hant"),
)
_ITS_OWN_NAMES: Final = {
    "ja": "jp",
    "no": "nb",
    "pt": "pt-pt",
    "zh": "zh-hans",
    "zh-cn": "zh-hans",
    "zh-sg": "zh-hans",
    "zh-hk": "zh-hant",
    "zh-mo": "zh-hant",
    "zh-tw": "zh-hant",
}


class Brave:
    name = "brave"

    def __init__(self, key: str, variable: str) -> None:
        self._key, self._variable = key, variable

    def request(self, search: Search, /) -> Request:
        query = search.operators
        if len(query) > LONGEST_QUERY or len(query.split()) > MOST_WORDS:
            raise Retry(f"brave takes queries of {LONGEST_QUERY} characters and {MOST_WORDS} words at most: say less.")
        language, cannot = _language(search.language), []
        if search.language and language is None:
            cannot.append("language")
        if search.region and search.region not in COUNTRIES:
            cannot.append("region")
        params = {
            "q": query,
            "count": str(min(search.limit, MOST)),
            "text_decorations": "false",
            "result_filter": "web",
            "freshness": _FRESHNESS.get(search.time_range or ""),
            "safesearch": search.safe,
            "search_lang": language,
            "country": search.region if search.region in COUNTRIES else None,
        }
        given = {name: value for name, value in params.items() if value}
        headers = {"X-Subscription-Token": self._key}
        return Request(url="/res/v1/web/search", params=given, headers=headers, cannot=cannot)

    def rows(self, answer: dict[str, Any], /) -> Sequence[Row]:
        if answer.get("type") != "search":
            raise ValueError("not an answer to a search")
        pages = (answer.get("web") or {}).get("results") or []
        return [
            Row(title=p["title"], url=p["url"], snippet=p.get("description"), date=p.get("page_age")) for p in pages
        ]

    def failure(self, response: Response, answer: Any, /) -> CallError | None:
        error = answer.get("error") if isinstance(answer, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if code == "SUBSCRIPTION_TOKEN_INVALID":
            return Refuse(f"brave does not know the key in {self._variable}. A person must set a valid one.")
        if response.status_code == 429 and retry_after(response.headers) is None:
            wait = _wait(response.headers)
            return Transient(
                "brave has had too many searches for its plan. Search again later.",
                **({} if wait is None else {"retry_after": wait}),
            )
        return None


def _language(language: str | None) -> str | None:
    said = (language or "").lower()
    named = _ITS_OWN_NAMES.get(said, said)
    if named in _LANGUAGES:
        return named
    first = said.partition("-")[0]
    first = _ITS_OWN_NAMES.get(first, first)
    return first if first in _LANGUAGES else None


def _wait(headers: dict[str, str]) -> float | None:
    """Seconds until all its limits allow a search again: it tells what is left of each, and when each begins anew."""
    left, resets = (headers.get(f"x-ratelimit-{name}", "").split(",") for name in ("remaining", "reset"))
    try:
        return max(float(reset) for some, reset in zip(left, resets, strict=True) if int(some) == 0)
    except ValueError:
        return None
