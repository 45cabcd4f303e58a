"""Results of whatever provider in one form: plain text, addresses of pages, dates of ISO 8601, each page once.

Titles and snippets are written by whoever wants to be found. Marks that a reader does not see (tags, control
characters, changes of direction, hidden letters) are taken out; what is left is still only what somebody said.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime, time
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from ferrule.hub.lists import merged_pages
from ferrule.tools.search_web.search import Found, Search

MOST_ROWS: Final = 200
"""Results of a provider that are looked at: all that stand in an answer could be tens of thousands."""
LONGEST_TITLE: Final = 300
LONGEST_SNIPPET: Final = 1_000
LONGEST_URL: Final = 2_000

_EMPHASIS: Final = re.compile(r"</?(?:strong|b|em|i|mark|span)\b[^<>]{0,100}>", re.I)
_JOINERS: Final = "\u200c\u200d"
"""Letters of some scripts, and the parts of some signs, need them."""


def results_of(found: Found, search: Search, provider: str) -> list[dict[str, Any]]:
    """At most as many as were asked for, of the sites that were."""
    pages = []
    for row in found.rows[:MOST_ROWS]:
        url = page_url(row.url)
        if url is None or not _is_wanted(url, search):
            continue
        title, snippet = plain_text(row.title, LONGEST_TITLE), plain_text(row.snippet, LONGEST_SNIPPET)
        page = {"title": title or url, "url": url, "snippet": snippet, "date": iso_date(row.date), "source": provider}
        pages.append(page)
    return merged_pages(pages)[: search.limit]


def plain_text(value: Any, most: int) -> str:
    """The text that a reader would see, on one line."""
    if not isinstance(value, str):
        return ""
    text = html.unescape(_EMPHASIS.sub("", value[: 4 * most]))
    seen = "".join(" " if char.isspace() else char for char in text if char.isspace() or _is_seen(char))
    line = " ".join(seen.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def page_url(value: Any) -> str | None:
    """The address of a page; None for what is no address, or of anything else: a script, data, a file."""
    if not isinstance(value, str) or len(value) > LONGEST_URL or not value.strip().isprintable():
        return None
    try:
        parts = urlsplit(value.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme.lower() not in ("http", "https") or not host or " " in parts.netloc:
        return None
    # Without what stands before @: it is there to look like another host.
    return urlunsplit(parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.rpartition("@")[2]))


def iso_date(value: Any) -> str | None:
    """A date as ISO 8601 has it; None where there is none, or none that can be read."""
    if not isinstance(value, str) or not value.strip():
        return None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            found = read(value.strip())
        except (ValueError, OverflowError):
            continue
        return found.date().isoformat() if found.timetz() == time() else found.isoformat(timespec="seconds")
    return None


def host_of(site: str) -> str:
    """The host a caller means by `example.com`, `www.example.com/docs` or a whole address; empty for none."""
    try:
        host = urlsplit(site if "://" in site else f"//{site}").hostname or ""
    except ValueError:
        return ""
    host = host.removeprefix("*.").removeprefix("www.").rstrip(".")
    return host if re.fullmatch(r"[\w-]+(?:\.[\w-]+)*", host) else ""


def _is_wanted(url: str, search: Search) -> bool:
    # Providers take sites for a hint, or do not know them; here they are meant.
    host = host_of(url)
    return (search.site is None or _is_at(host, [search.site])) and not _is_at(host, search.exclude_sites)


def _is_at(host: str, sites: Sequence[str]) -> bool:
    host = _in_ascii(host)
    return any(host == site or host.endswith(f".{site}") for site in map(_in_ascii, sites))


def _in_ascii(host: str) -> str:
    """The same for `例子.中国` and `xn--fsqu00a.xn--fiqs8s`."""
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def _is_seen(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn")
