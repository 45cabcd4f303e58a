"""A search, and what a provider made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

TimeRange: TypeAlias = Literal["day", "week", "month", "year"]
Safe: TypeAlias = Literal["off", "moderate", "strict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is wanted."""

    query: str
    limit: int
    language: str | None = None
    """`en`, `zh-CN`; lower case but for the region in it."""
    region: str | None = None
    """A country, by its two letters in upper case."""
    time_range: TimeRange | None = None
    site: str | None = None
    exclude_sites: Sequence[str] = ()
    safe: Safe | None = None

    @property
    def operators(self) -> str:
        """The query with the sites in it, as most search engines understand it."""
        wanted = [f"site:{self.site}"] if self.site else []
        return " ".join([self.query, *wanted, *(f"-site:{site}" for site in self.exclude_sites)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One result as the provider gave it."""

    title: Any
    url: Any
    snippet: Any
    date: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a provider found."""

    rows: Sequence[Row]
    cannot: Sequence[str] = ()
    """The parts of the search that it knows nothing of, by their names."""


class Provider(Protocol):
    """Somebody who searches the web."""

    @property
    def name(self) -> str: ...

    async def find(self, search: Search, /) -> Found: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A search in the words of a provider's API."""

    url: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    """None: it is a GET."""
    cannot: Sequence[str] = ()
