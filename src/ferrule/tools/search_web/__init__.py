"""Searching the web: `library.register(*search_tools(SearchConfig(searxng="https://search.example.com")))`."""

from ferrule.tools.search_web.box import search_tools
from ferrule.tools.search_web.config import SearchConfig

__all__ = ["SearchConfig", "search_tools"]
