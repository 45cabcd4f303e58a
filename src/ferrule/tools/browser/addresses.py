"""Which addresses a browser is sent to: pages of the web, at hosts the guard lets it reach."""

from __future__ import annotations

from urllib.parse import urlsplit

from ferrule.errors import Retry, Transient, TransportFault
from ferrule.executors.http.address_guard import AddressGuard


async def checked_url(url: str, guard: AddressGuard) -> str:
    """A URL that may be opened. What it leads to is checked again by the proxy."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Retry(f"{url!r} is not a valid URL ({error}). Write it like https://example.com/path.") from None
    if parts.scheme not in ("http", "https"):
        raise Retry(f"The URL must begin with http:// or https://, not {parts.scheme or url[:20]!r}.")
    if not host:
        raise Retry(f"The URL {url!r} has no host. Write it like https://example.com/path.")
    try:
        await guard.addresses(host, port or (443 if parts.scheme == "https" else 80))
    except TransportFault as error:
        # No fault of the way to the tool: the browser works, and other hosts are there.
        kind = Retry if error.details.get("unknown_host") else Transient
        raise kind(f"{url} was not opened: {error}") from error
    return url
