"""Search queries, providers' responses, and results in one form."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import SetupError
from ferrule.http.guard import is_base_address
from ferrule.hub.synthesis import merge_pages

TimeRange: TypeAlias = Literal["day", "week", "month", "year"]
SafeSearch: TypeAlias = Literal["off", "moderate", "strict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """A search request."""

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
        """The query with the sites in it, as most search engines understand it."""
        sites = [f"site:{self.site}"] if self.site else []
        return " ".join([self.query, *sites, *(f"-site:{site}" for site in self.exclude_sites)])


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """One result as the provider returned it."""

    title: Any
    url: Any
    snippet: Any
    date: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResponse:
    """The response of a provider."""

    rows: Sequence[SearchRow]
    unsupported: Sequence[str] = ()
    """The names of the query's options that the provider does not support."""


class SearchProvider(Protocol):
    """A search engine."""

    @property
    def name(self) -> str: ...

    async def find(self, search: SearchQuery, /) -> SearchResponse: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRequest:
    """A search as a request to a provider's API."""

    url: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    """None for a GET request."""
    unsupported: Sequence[str] = ()


# ---- results in one form: plain text, URLs of pages, ISO 8601 dates, each page once
#
# Titles and snippets are written by site owners who want to be found. What a reader does not see (tags, control
# characters, direction marks, hidden letters) is removed; the rest is still untrusted.

MAX_ROWS: Final = 200
"""Results of a provider that are used; a response could contain tens of thousands."""
MAX_TITLE_LENGTH: Final = 300
MAX_SNIPPET_LENGTH: Final = 1_000
MAX_URL_LENGTH: Final = 2_000

_EMPHASIS: Final = lazy_pattern(r"</?(?:strong|b|em|i|mark|span)\b[^<>]{0,100}>", re.I)
_JOINERS: Final = "\u200c\u200d"
"""Zero-width joiners, which some scripts and emoji need."""


def convert_results(response: SearchResponse, search: SearchQuery, provider: str) -> list[dict[str, Any]]:
    """Convert a response into up to `search.limit` results from the requested sites."""
    pages = []
    for row in response.rows[:MAX_ROWS]:
        url = to_page_url(row.url)
        if url is None or not _matches_sites(url, search):
            continue
        title, snippet = plain_text(row.title, MAX_TITLE_LENGTH), plain_text(row.snippet, MAX_SNIPPET_LENGTH)
        page = {
            "title": title or url,
            "url": url,
            "snippet": snippet,
            "date": to_iso_date(row.date),
            "source": provider,
        }
        pages.append(page)
    return merge_pages(pages)[: search.limit]


def plain_text(value: Any, limit: int) -> str:
    """The text that a reader would see, on one line."""
    if not isinstance(value, str):
        return ""
    text = html.unescape(_EMPHASIS.sub("", value[: 4 * limit]))
    visible = "".join(" " if char.isspace() else char for char in text if char.isspace() or _is_visible(char))
    line = " ".join(visible.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def to_page_url(value: Any) -> str | None:
    """The URL of a page; None for anything else, such as a script, data or a file."""
    if not isinstance(value, str) or len(value) > MAX_URL_LENGTH or not value.strip().isprintable():
        return None
    try:
        parts = urlsplit(value.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme.lower() not in ("http", "https") or not host or " " in parts.netloc:
        return None
    # Without the user name before @, which can be used to imitate another host.
    return urlunsplit(parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.rpartition("@")[2]))


def to_iso_date(value: Any) -> str | None:
    """A date in ISO 8601; None if there is none or it cannot be parsed."""
    if not isinstance(value, str) or not value.strip():
        return None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            date_ = parse(value.strip())
        except (ValueError, OverflowError):
            continue
        return date_.date().isoformat() if date_.timetz() == time() else date_.isoformat(timespec="seconds")
    return None


def parse_host(site: str) -> str:
    """The host in `example.com`, `www.example.com/docs` or a whole URL; empty if there is none."""
    try:
        host = urlsplit(site if "://" in site else f"//{site}").hostname or ""
    except ValueError:
        return ""
    host = host.removeprefix("*.").removeprefix("www.").rstrip(".")
    return host if re.fullmatch(r"[\w-]+(?:\.[\w-]+)*", host) else ""


def _matches_sites(url: str, search: SearchQuery) -> bool:
    # Providers treat sites as a hint or ignore them, so they are enforced here.
    host = parse_host(url)
    return (search.site is None or _is_host_on_sites(host, [search.site])) and not _is_host_on_sites(
        host, search.exclude_sites
    )


def _is_host_on_sites(host: str, sites: Sequence[str]) -> bool:
    host = _to_ascii_host(host)
    return any(host == site or host.endswith(f".{site}") for site in map(_to_ascii_host, sites))


def _to_ascii_host(host: str) -> str:
    """The host in ASCII, so that `例子.中国` equals `xn--fsqu00a.xn--fiqs8s`."""
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def _is_visible(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn")


# ---- configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Which providers are used. A provider is active if its URL, its variable or its switch is set."""

    searxng: str | None = None
    """The URL of a SearXNG instance, which must have the format json enabled."""
    brave_key: str = "BRAVE_API_KEY"
    """The environment variable with the key for Brave Search."""
    brave_url: str = "https://api.search.brave.com"
    tavily_key: str = "TAVILY_API_KEY"
    """The environment variable with the key for Tavily."""
    tavily_url: str = "https://api.tavily.com"
    duckduckgo: bool = False
    """Use DuckDuckGo, through the package ddgs."""
    combine: bool = False
    """Send each search to all providers and merge the results; otherwise the first response is used."""

    def __post_init__(self) -> None:
        for name in ("brave_key", "tavily_key"):
            if not re.fullmatch(
                r"\w*", getattr(self, name), re.ASCII
            ):  # the value is not shown: it may be the key itself
                raise SetupError(f"{name} must be the name of an environment variable, such as BRAVE_API_KEY")
        for name in ("searxng", "brave_url", "tavily_url"):
            url = getattr(self, name)
            if url is not None and not is_base_address(url):
                raise SetupError(f"{name} must be an address such as https://search.example.com, not {url!r}")
