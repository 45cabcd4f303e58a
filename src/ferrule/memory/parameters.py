"""What parameters are for, as far as their names tell."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

COSMETIC: Final = frozenset(
    {
        "comment",
        "explanation",
        "justification",
        "rationale",
        "reason",
        "reasoning",
        "request_id",
        "thinking",
        "thought",
        "thoughts",
        "trace_id",
    }
)
"""Parameters in which models explain themselves; a schema may mark others with `x-cosmetic: true`, or say false."""
TIMING: Final = frozenset(
    {"timeout", "timeout_ms", "timeout_s", "timeout_seconds", "max_wait", "wait", "wait_ms", "wait_time"}
)
LOCATORS: Final = ("selector", "xpath", "css", "locator", "element", "ref")
"""Parameters that only point at something: what they point at is there for every action or for none."""

ADDRESSES: Final = frozenset({"directory", "file", "filename", "folder", "path", "uri", "url"})
"""Parameters that name a thing by where it is: it is the same thing in every action."""

_PLACES: Final = frozenset(
    (*ADDRESSES, "account", "branch", "browser", "bucket", "chat", "collection", "database", "db", "dir", "domain")
    + ("frame", "host", "iframe", "namespace", "org", "organization", "page", "profile", "project", "region", "repo")
    + ("repository", "server", "session", "sheet", "site", "tab", "table", "tenant", "user", "window", "workspace")
)
_SEARCHES: Final = frozenset({"keyword", "keywords", "q", "query", "search", "term", "terms"})
_SPACES_DO_NOT_COUNT: Final = ADDRESSES | _SEARCHES | {*LOCATORS, "domain", "host"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@lru_cache(maxsize=4096)
def is_place(name: str) -> bool:
    """Whether it says where something is looked for: the same thing may be there in another place."""
    return not _PLACES.isdisjoint(word.lower() for word in _WORD.findall(name))


def spaces_count(name: str) -> bool:
    """Whether spaces around and between words are part of what it says, as in code and in text to be replaced."""
    return name not in _SPACES_DO_NOT_COUNT
