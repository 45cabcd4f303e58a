"""What `[tools.search_web]` in `ferrule.toml` says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ferrule.errors import SetupError
from ferrule.executors.http.origins import is_base_address


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Which providers are asked. One is on when its URL is given, its variable is set, or it is switched on."""

    searxng: str | None = None
    """The address of a SearXNG, which must offer the format json."""
    brave_key: str = "BRAVE_API_KEY"
    """The environment variable with the key for Brave Search."""
    brave_url: str = "https://api.search.brave.com"
    tavily_key: str = "TAVILY_API_KEY"
    """The environment variable with the key for Tavily."""
    tavily_url: str = "https://api.tavily.com"
    duckduckgo: bool = False
    """Ask DuckDuckGo, through the package ddgs."""
    combine: bool = False
    """Ask all providers for each search and merge what they find; else the first that answers is enough."""

    def __post_init__(self) -> None:
        for name in ("brave_key", "tavily_key"):
            if not re.fullmatch(r"\w*", getattr(self, name), re.ASCII):  # it is not shown: it may be the key itself
                raise SetupError(f"{name} must be the name of an environment variable, such as BRAVE_API_KEY")
        for name in ("searxng", "brave_url", "tavily_url"):
            url = getattr(self, name)
            if url is not None and not is_base_address(url):
                raise SetupError(f"{name} must be an address such as https://search.example.com, not {url!r}")
