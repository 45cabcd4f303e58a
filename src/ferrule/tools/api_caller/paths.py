"""Joining a path to the base of an API, so that it cannot lead anywhere else.

Servers, and what stands before them, undo percent-encoding once or twice, take `\\` for `/` and wide letters for plain
ones, and cut off what follows a `;` or a zero in a segment. A path that would lead up in any of these readings is
refused, however it is written.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from ferrule.errors import Retry

LONGEST: Final = 4_000

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MOST_ENCODINGS: Final = 3


def address_below(base_url: str, path: str) -> tuple[str, str]:
    """The address that a path means, and the query that stood in it; `Retry` for a path that leads elsewhere."""
    path, _, query = path.partition("#")[0].partition("?")
    if len(path) + len(query) > LONGEST:
        raise Retry(f"the path is longer than {LONGEST} characters.")
    _check(path)
    encoded = quote(_BARE_PERCENT.sub("%25", path), safe="/%:@!$&'()*+,;=~", errors="replace")
    base = base_url.rstrip("/")
    address = f"{base}/{encoded.lstrip('/')}" if encoded.strip("/") else base_url
    wanted, got = urlsplit(base), urlsplit(address)
    if (got.scheme, got.netloc) != (wanted.scheme, wanted.netloc) or not got.path.startswith(wanted.path):
        raise _leads_elsewhere(path)
    return address, query


def _check(path: str) -> None:
    said = path
    for _ in range(_MOST_ENCODINGS + 1):
        if any(char < " " or char == "\x7f" for char in said):
            raise Retry("the path has control characters in it.")
        plain = unicodedata.normalize("NFKC", said).replace("\\", "/")
        if plain.startswith("//") or _SCHEME.match(plain.lstrip("/ ")):
            raise _leads_elsewhere(path)
        if any(segment.partition(";")[0].strip() in (".", "..") for segment in plain.split("/")):
            raise _leads_elsewhere(path)
        said, before = _decoded(said), said
        if said == before:
            return
    raise Retry(f"the path {path[:100]!r} is encoded again and again: write it as it is.")


def _decoded(path: str) -> str:
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise Retry(f"the path {path[:100]!r} is not UTF-8 where it is percent-encoded.") from None


def _leads_elsewhere(path: str) -> Retry:
    return Retry(
        f"the path {path[:100]!r} leads away from the API. Give a path below its base address, such as 'users/7', "
        "without a host, '.' or '..'."
    )
