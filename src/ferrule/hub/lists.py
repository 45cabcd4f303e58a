"""Answers that are lists of pages, made into one: each page once, the best of each list first.

Texts must be read to be combined; lists need not be. An answer is such a list when its `results` all have a `url`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

_SAYS_WHO_CAME: Final = frozenset(
    {"fbclid", "gclid", "dclid", "gbraid", "wbraid", "msclkid", "yclid", "igshid", "mc_eid"}
)
"""Parts of a query that tell a page who its reader is; the page is the same."""


def merged_lists(outputs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """One answer out of several that are lists of pages; None where one of them is not."""
    if not all(map(_is_list, outputs)):
        return None
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(chain.from_iterable(outputs)):
        values = [output[name] for output in outputs if name in output]
        is_listed = all(isinstance(value, list) for value in values)
        merged[name] = list(chain.from_iterable(values)) if is_listed else values[0]
    by_rank = chain.from_iterable(zip_longest(*(output["results"] for output in outputs)))
    return {**merged, "results": merged_pages([page for page in by_rank if page is not None])}


def merged_pages(pages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pages, of those with the same address the first, with what only the others know and all their sources."""
    found: dict[str, dict[str, Any]] = {}
    for page in pages:
        first = found.setdefault(page_key(page["url"]), dict(page))
        for name, value in page.items():
            if first.get(name) in (None, ""):
                first[name] = value
        if page.get("source") and page["source"] not in first["source"].split(", "):
            first["source"] += f", {page['source']}"
    return list(found.values())


def page_key(url: str) -> str:
    """The same for addresses that lead to the same page, whichever of them is written."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").removeprefix("www.").rstrip("."), parts.port
    except ValueError:
        return url
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if not _is_personal(name)]
    place = host if port in (None, 80, 443) else f"{host}:{port}"
    # What stands behind # is a place in the page, except in pages that are programs.
    fragment = parts.fragment if parts.fragment[:1] in ("!", "/") else ""
    return f"{place}{unquote(parts.path).rstrip('/')}?{urlencode(sorted(query), errors='replace')}#{fragment}"


def _is_personal(name: str) -> bool:
    return name.startswith("utm_") or name in _SAYS_WHO_CAME


def _is_list(output: dict[str, Any]) -> bool:
    results = output.get("results")
    return isinstance(results, list) and all(
        isinstance(page, dict) and isinstance(page.get("url"), str) and isinstance(page.get("source", ""), str)
        for page in results
    )
