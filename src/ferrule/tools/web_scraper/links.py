"""Where the links of a page lead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urldefrag, urljoin, urlsplit

if TYPE_CHECKING:
    from lxml.html import HtmlElement  # type: ignore[import-untyped]

MOST_LINKS: Final = 300
LONGEST_TEXT: Final = 200
LONGEST_URL: Final = 2_000


def links_of(page: HtmlElement, url: str) -> tuple[list[dict[str, str]], int]:
    """Every address once, with the first text it is linked by, and how many more there are."""
    base = _base(page, url)
    found: dict[str, str] = {}
    for anchor in page.iter("a", "area"):
        address = _absolute(base, anchor.get("href") or "")
        if address is None:
            continue
        text = found.get(address) or " ".join(" ".join(anchor.itertext()).split())
        text = text or anchor.get("aria-label") or anchor.get("title") or anchor.get("alt") or ""
        found[address] = text[:LONGEST_TEXT]
    listed = [{"url": address, "text": text} for address, text in found.items()]
    return listed[:MOST_LINKS], len(listed[MOST_LINKS:])


def _base(page: HtmlElement, url: str) -> str:
    for element in page.iter("base"):
        if element.get("href"):
            return _absolute(url, element.get("href")) or url
    return url


def _absolute(base: str, href: str) -> str | None:
    """The address of a page; None for a place in the same page, a script, a mail address."""
    href = "".join(href.split())
    if not href or href.startswith("#"):
        return None
    try:
        address = urldefrag(urljoin(base, href)).url
        parts = urlsplit(address)
        is_page = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return None
    return address if is_page and address.isprintable() and len(address) <= LONGEST_URL else None
