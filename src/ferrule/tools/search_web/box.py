"""`search_web` and `advanced_web_search` as a project sets them up: a candidate of each for every provider.

A provider stands in a tool's `source`. So the tools of all providers have the same name, each has a circuit breaker and
records of its own, and the hub lets them back each other up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from ferrule.executors.http.address_guard import AddressGuard
from ferrule.sources.function import tools_of
from ferrule.spec import Tool
from ferrule.tools.search_web.brave import Brave
from ferrule.tools.search_web.config import SearchConfig
from ferrule.tools.search_web.duckduckgo import DuckDuckGo
from ferrule.tools.search_web.http_provider import HttpProvider
from ferrule.tools.search_web.search import Provider
from ferrule.tools.search_web.searxng import SearxNG
from ferrule.tools.search_web.tavily import Tavily
from ferrule.tools.search_web.web_search import WebSearch

NO_PACKAGE: Final = "the package ddgs: pip install 'ferrule[search]'"


def search_tools(
    config: SearchConfig | None = None, *, guard: AddressGuard | None = None, environ: Mapping[str, str] = os.environ
) -> list[Tool]:
    """`search_web` and `advanced_web_search`, once for each provider; without one, once to say what they need."""
    config = config or SearchConfig()
    providers = list(_providers(config, guard or AddressGuard(), environ))
    if not providers:
        return [replace(tool, needs=_needs(config)) for tool in tools_of(WebSearch(DuckDuckGo()))]
    strategy = {"strategy": "synthesize" if config.combine else "best"}
    tools = []
    for provider in providers:
        needs = NO_PACKAGE if isinstance(provider, DuckDuckGo) and find_spec("ddgs") is None else ""
        for tool in tools_of(WebSearch(provider)):
            spec = replace(tool.spec, metadata={**tool.spec.metadata, **strategy})
            tools.append(replace(tool, spec=spec, source=provider.name, needs=needs))
    return tools


def _providers(config: SearchConfig, guard: AddressGuard, environ: Mapping[str, str]) -> Iterator[Provider]:
    if config.searxng:
        yield HttpProvider(SearxNG(), url=config.searxng, guard=guard)
    if key := environ.get(config.brave_key, "").strip():
        yield HttpProvider(Brave(key, config.brave_key), url=config.brave_url, guard=guard, key=key)
    if key := environ.get(config.tavily_key, "").strip():
        yield HttpProvider(Tavily(key, config.tavily_key), url=config.tavily_url, guard=guard, key=key)
    if config.duckduckgo:
        yield DuckDuckGo()


def _needs(config: SearchConfig) -> str:
    return (
        'a search provider: set [tools.search_web] searxng = "https://…" or duckduckgo = true in ferrule.toml, or the '
        f"environment variable {config.brave_key} or {config.tavily_key}"
    )
