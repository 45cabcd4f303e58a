"""`web_scraper` as a project sets it up."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from ferrule.executors.http.address_guard import AddressGuard
from ferrule.sources.function import tools_of
from ferrule.spec import Tool
from ferrule.tools.web_scraper.config import ScraperConfig
from ferrule.tools.web_scraper.scraper import WebScraper


def scraper_tools(config: ScraperConfig | None = None, *, guard: AddressGuard | None = None) -> list[Tool]:
    missing = [package for package in ("trafilatura", "protego") if find_spec(package) is None]
    needs = f"the package {' and '.join(missing)}: pip install 'ferrule[scrape]'" if missing else ""
    return [replace(tool, needs=needs) for tool in tools_of(WebScraper(config, guard=guard))]
