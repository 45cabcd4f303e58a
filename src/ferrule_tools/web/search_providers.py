"""Search providers: Brave, SearXNG and Tavily over HTTP, DuckDuckGo through the package ddgs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlencode

from ferrule.core.content import encode_json
from ferrule.core.secrets import Secrets
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, Transient, TransportFault
from ferrule.http.bodies import body_excerpt
from ferrule.http.client import GuardedClient, HttpResponse
from ferrule.http.guard import AddressGuard
from ferrule.http.retry import parse_retry_after, retry_details
from ferrule.process.pool import IsolatedFunction

MAX_RESPONSE_BYTES = 3_000_000
_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})


TimeRange: TypeAlias = Literal["day", "week", "month", "year"]
SafeSearch: TypeAlias = Literal["off", "moderate", "strict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    query: str
    limit: int
    language: str | None = None
    """`en` or `zh-CN`: lower case, except for the region."""
    region: str | None = None
    """A two-letter country code in upper case."""
    time_range: TimeRange | None = None
    site: str | None = None
    exclude_sites: Sequence[str] = ()
    safe: SafeSearch | None = None

    @property
    def operators(self) -> str:
        """Return the query with the sites in it, as most search engines understand it."""
        sites = [f"site:{self.site}"] if self.site else []
        return " ".join([self.query, *sites, *(f"-site:{site}" for site in self.exclude_sites)])


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResponse:
    rows: Sequence[Mapping[str, Any]]
    """With `title`, `url`, `snippet` and maybe `date`, as the provider returned them."""
    unsupported: Sequence[str] = ()
    """The names of the query's options that the provider does not support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRequest:
    """A search as a request to a provider's API."""

    url: str
    params: Mapping[str, str | None] = field(default_factory=dict)
    """Those without a value are left out."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    """None for a GET request."""
    unsupported: Sequence[str] = ()


class HttpProvider(ABC):
    """Searches through an API. Its host comes from the configuration, so it may be a private one."""

    name: str

    def __init__(self, *, url: str, guard: AddressGuard, key: str = "", variable: str = "") -> None:
        """`variable` is the environment variable with the key."""
        self._url, self._key, self._variable = url, key, variable
        self._secrets = Secrets([key] if key else [])
        self._client = GuardedClient(guard.allowing_host_of(url), max_response=MAX_RESPONSE_BYTES)

    @abstractmethod
    def request(self, search: SearchQuery, /) -> ProviderRequest: ...

    @abstractmethod
    def rows(self, answer: dict[str, Any], /) -> list[dict[str, Any]]:
        """Return the results in a response. May raise TypeError, LookupError or ValueError for a malformed one."""

    def failure(self, response: HttpResponse, answer: Any, /) -> CallError | None:
        """Return the error for a status of 400 or more, if the provider has a more precise one."""
        return None

    async def find(self, search: SearchQuery, /) -> SearchResponse:
        request = self.request(search)
        with self._secrets.hide_in_errors():
            response = await self._send(request)
            # Before an excerpt is cut, which might begin or end in the middle of the key.
            response = replace(response, content=self._secrets.hide_in_bytes(response.content))
            try:
                answer = self._secrets.hide(json.loads(response.content))
            except (ValueError, RecursionError):
                answer = None
            if response.status_code >= 400:
                raise self.failure(response, answer) or self._failure(response, answer)
            with suppress(TypeError, LookupError, ValueError, AttributeError):
                return SearchResponse(rows=self.rows(answer), unsupported=request.unsupported)
            excerpt = body_excerpt(response, 200)
            raise ExecutionFailed(f"{self.name} did not return search results in JSON but: {excerpt}", untrusted=True)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _send(self, request: ProviderRequest) -> HttpResponse:
        is_get = request.body is None
        params = {name: value for name, value in request.params.items() if value}
        query = f"?{urlencode(params, errors='replace')}" if params else ""
        headers = {"Accept": "application/json", **request.headers}
        return await self._client.send(
            "GET" if is_get else "POST",
            f"{self._url.rstrip('/')}{request.url}{query}",
            what=f"the search with {self.name}",
            headers=headers if is_get else {**headers, "Content-Type": "application/json"},
            content=None if is_get else encode_json(request.body),
        )

    def _failure(self, response: HttpResponse, answer: Any) -> CallError:
        status = response.status_code
        excerpt = error_message(answer) or body_excerpt(response, 200)
        message = f"{self.name} answered with status {status}" + (f": {excerpt}" if excerpt else ".")
        facts: dict[str, Any] = {"untrusted": True} if excerpt else {}
        if status == 429:
            return Transient(message, **facts, **retry_details(response.headers))
        if status in (401, 403):
            return Refuse(f"{message} A person must check the key or the URL in the configuration.", **facts)
        if status in _UNAVAILABLE_STATUSES:
            return TransportFault(message, **facts)
        return Transient(message, **facts) if status >= 500 else ExecutionFailed(message, **facts)


def error_message(answer: Any) -> str:
    """Return the message in an error's JSON, in `error`, `detail` or `message`, possibly nested."""
    for _ in range(4):
        if isinstance(answer, str):
            return " ".join(answer.split())[:300]
        if not isinstance(answer, Mapping):
            return ""
        answer = next((answer[name] for name in ("error", "detail", "message") if name in answer), None)
    return ""


# ---- countries by the names that providers use

COUNTRIES: Final = {
    "AR": "argentina",
    "AT": "austria",
    "AU": "australia",
    "BE": "belgium",
    "BR": "brazil",
    "CA": "canada",
    "CH": "switzerland",
    "CL": "chile",
    "CN": "china",
    "DE": "germany",
    "DK": "denmark",
    "ES": "spain",
    "FI": "finland",
    "FR": "france",
    "GB": "united kingdom",
    "ID": "indonesia",
    "IN": "india",
    "IT": "italy",
    "JP": "japan",
    "KR": "south korea",
    "MX": "mexico",
    "MY": "malaysia",
    "NL": "netherlands",
    "NO": "norway",
    "NZ": "new zealand",
    "PH": "philippines",
    "PL": "poland",
    "PT": "portugal",
    "RU": "russia",
    "SA": "saudi arabia",
    "SE": "sweden",
    "TR": "turkey",
    "TW": "taiwan",
    "US": "united states",
    "ZA": "south africa",
}
"""By their two letters: those that Brave knows, as Tavily calls them."""


# ---- Brave Search: `GET /res/v1/web/search`, the key in a header

BRAVE_MAX_RESULTS: Final = 20
MAX_QUERY_LENGTH: Final = 400
MAX_QUERY_WORDS: Final = 50

_BRAVE_FRESHNESS: Final = {"day": "pd", "week": "pw", "month": "pm", "year": "py"}
_BRAVE_LANGUAGES: Final = (
    *("ar", "bg", "bn", "ca", "cs", "da", "de", "en", "en-gb", "es", "et", "eu", "fi", "fr", "gl", "gu", "he", "hi"),
    *("hr", "hu", "is", "it", "jp", "kn", "ko", "lt", "lv", "ml", "mr", "ms", "nb", "nl", "pa", "pl", "pt-br", "pt-pt"),
    *("ro", "ru", "sk", "sl", "sr", "sv", "ta", "te", "th", "tr", "uk", "vi", "zh-hans", "zh-hant"),
)
_BRAVE_LANGUAGE_NAMES: Final = {
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


class Brave(HttpProvider):
    name = "brave"

    def request(self, search: SearchQuery, /) -> ProviderRequest:
        query = search.operators
        if len(query) > MAX_QUERY_LENGTH or len(query.split()) > MAX_QUERY_WORDS:
            raise Retry(
                f"brave takes queries of {MAX_QUERY_LENGTH} characters and {MAX_QUERY_WORDS} words at most: "
                "shorten the query."
            )
        language, unsupported = _brave_language(search.language), []
        if search.language and language is None:
            unsupported.append("language")
        if search.region and search.region not in COUNTRIES:
            unsupported.append("region")
        params = {
            "q": query,
            "count": str(min(search.limit, BRAVE_MAX_RESULTS)),
            "text_decorations": "false",
            "result_filter": "web",
            "freshness": _BRAVE_FRESHNESS.get(search.time_range or ""),
            "safesearch": search.safe,
            "search_lang": language,
            "country": search.region if search.region in COUNTRIES else None,
        }
        headers = {"X-Subscription-Token": self._key}
        return ProviderRequest(url="/res/v1/web/search", params=params, headers=headers, unsupported=unsupported)

    def rows(self, answer: dict[str, Any], /) -> list[dict[str, Any]]:
        if answer.get("type") != "search":
            raise ValueError("not the response to a search")
        pages = (answer.get("web") or {}).get("results") or []
        return [
            {"title": p["title"], "url": p["url"], "snippet": p.get("description"), "date": p.get("page_age")}
            for p in pages
        ]

    def failure(self, response: HttpResponse, answer: Any, /) -> CallError | None:
        error = answer.get("error") if isinstance(answer, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if code == "SUBSCRIPTION_TOKEN_INVALID":
            return Refuse(f"brave does not know the key in {self._variable}. A person must set a valid one.")
        if response.status_code == 429 and parse_retry_after(response.headers) is None:
            wait = _rate_limit_delay(response.headers)
            return Transient(
                "brave has had too many searches for its plan. Search again later.",
                **({} if wait is None else {"retry_after": wait}),
            )
        return None


def _brave_language(language: str | None) -> str | None:
    code = (language or "").lower()
    for each in (code, code.partition("-")[0]):
        named = _BRAVE_LANGUAGE_NAMES.get(each, each)
        if named in _BRAVE_LANGUAGES:
            return named
    return None


def _rate_limit_delay(headers: dict[str, str]) -> float | None:
    """Return the seconds until all rate limits of Brave allow a search again, as the headers report them."""
    remaining, resets = (headers.get(f"x-ratelimit-{name}", "").split(",") for name in ("remaining", "reset"))
    try:
        return max(float(reset) for count, reset in zip(remaining, resets, strict=True) if int(count) == 0)
    except ValueError:
        return None


# ---- SearXNG: `GET /search?format=json` of your own instance, or of one that allows programs

_SEARXNG_SAFE_LEVELS: Final = {"off": "0", "moderate": "1", "strict": "2"}


class SearxNG(HttpProvider):
    name = "searxng"

    def request(self, search: SearchQuery, /) -> ProviderRequest:
        language = search.language
        if language is not None and search.region is not None:
            language = f"{language.partition('-')[0]}-{search.region}"
        params = {
            "q": search.operators,
            "format": "json",
            "language": language,
            "time_range": search.time_range,
            "safesearch": _SEARXNG_SAFE_LEVELS.get(search.safe or ""),
        }
        unsupported = ["region"] if search.region and not search.language else []
        return ProviderRequest(url="/search", params=params, unsupported=unsupported)

    def rows(self, answer: dict[str, Any], /) -> list[dict[str, Any]]:
        pages, silent = answer["results"], answer.get("unresponsive_engines") or []
        if not pages and silent and not answer.get("answers"):
            engines = ", ".join(f"{engine[0]} ({engine[1]})"[:100] for engine in silent[:10])
            message = f"searxng found nothing, because its engines did not answer: {engines}"
            raise ExecutionFailed(message, untrusted=True)
        return [
            {"title": p.get("title"), "url": p.get("url"), "snippet": p.get("content"), "date": p.get("publishedDate")}
            for p in pages
        ]

    def failure(self, response: HttpResponse, answer: Any, /) -> CallError | None:
        if response.status_code == 403 and answer is None:
            return Refuse(
                "searxng does not answer programs (status 403). A person must add json to search.formats in the "
                "settings.yml of the instance, or set another one in [tools.search_web] searxng."
            )
        return None


# ---- Tavily: `POST /search`, the key as a bearer token

TAVILY_MAX_RESULTS: Final = 20
_QUOTA_STATUSES: Final = frozenset({432, 433})
"""The plan's limit, or the pay-as-you-go limit, is used up."""


class Tavily(HttpProvider):
    name = "tavily"

    def request(self, search: SearchQuery, /) -> ProviderRequest:
        country = COUNTRIES.get(search.region or "")
        # `safe_search` is available only on some plans; on others the request would be refused.
        unsupported = [name for name in ("language", "safe") if getattr(search, name)]
        if search.region and country is None:
            unsupported.append("region")
        body = {
            "query": search.query,
            "max_results": min(search.limit, TAVILY_MAX_RESULTS),
            "search_depth": "basic",
            "topic": "general",
            "time_range": search.time_range,
            "country": country,
            "include_domains": [search.site] if search.site else None,
            "exclude_domains": list(search.exclude_sites) or None,
        }
        fields = {name: value for name, value in body.items() if value is not None}
        return ProviderRequest(
            url="/search", headers={"Authorization": f"Bearer {self._key}"}, body=fields, unsupported=unsupported
        )

    def rows(self, answer: dict[str, Any], /) -> list[dict[str, Any]]:
        pages = answer["results"]
        return [
            {"title": p["title"], "url": p["url"], "snippet": p.get("content"), "date": p.get("published_date")}
            for p in pages
        ]

    def failure(self, response: HttpResponse, answer: Any, /) -> CallError | None:
        if response.status_code == 401:
            return Refuse(f"tavily does not know the key in {self._variable}. A person must set a valid one.")
        if response.status_code in _QUOTA_STATUSES:
            message = f"tavily searches no more for now: {error_message(answer) or 'its limit is used up.'}"
            return Refuse(message, untrusted=True)
        return None


# ---- DuckDuckGo, through the package ddgs, which reads its pages
#
# ddgs makes its own connections, which the address guard does not see. The caller controls only the query, without the
# characters by which a query redirects to another site, so only the hosts of the package are reached. ddgs waits in its
# own threads, so it runs in a worker process that can be killed.

DUCKDUCKGO_TIMEOUT: Final = 10
"""Seconds for one page."""
WORLDWIDE_REGION: Final = "wt-wt"

_REMOVE_BANGS: Final = str.maketrans("!！\\", "   ")
"""`!w` and a leading backslash cause a redirect to another site, which ddgs would follow without the address guard."""
_DUCKDUCKGO_REGIONS: Final = {"GB": "uk"}
_DUCKDUCKGO_LANGUAGES: Final = {"JP": "jp", "KR": "kr", "TW": "tzh", "HK": "tzh"}


class DuckDuckGo:
    name = "duckduckgo"

    def __init__(self) -> None:
        self._search = IsolatedFunction(search_duckduckgo)

    async def find(self, search: SearchQuery, /) -> SearchResponse:
        region = duckduckgo_region(search)
        unknown = ("safe", "language", "region") if region == WORLDWIDE_REGION else ("safe",)
        unsupported = [name for name in unknown if getattr(search, name)]
        answer = await self._search(
            query=search.operators, region=region, time_range=search.time_range, limit=search.limit
        )
        pages = answer["pages"]
        return SearchResponse(
            rows=[{"title": p["title"], "url": p["href"], "snippet": p["body"]} for p in pages], unsupported=unsupported
        )

    async def aclose(self) -> None:
        await self._search.aclose()


def search_duckduckgo(query: str, region: str, time_range: str | None, limit: int) -> dict[str, Any]:
    """Search with ddgs. Runs in a worker process."""
    from ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    words = " ".join(query.translate(_REMOVE_BANGS).split())
    if not words:
        raise Retry("The query has no words. Say what to search for.")
    try:
        pages = DDGS(timeout=DUCKDUCKGO_TIMEOUT).text(
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
            "duckduckgo found nothing, or is refusing programs at the moment; it does not say which. Use other words."
        ) from error
    return {"pages": pages}


def duckduckgo_region(search: SearchQuery) -> str:
    """Return DuckDuckGo's name for country and language, both of which it needs."""
    if search.region is None:
        return WORLDWIDE_REGION
    country = _DUCKDUCKGO_REGIONS.get(search.region, search.region.lower())
    language = _DUCKDUCKGO_LANGUAGES.get(search.region) or (search.language or "").partition("-")[0]
    return f"{country}-{language}" if language else WORLDWIDE_REGION
