"""Where an address leads: which server, reached in which way."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_base_address(text: str) -> bool:
    """Whether a configuration may name this as the address of a server: no password, nothing left open."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and not any(sign in text for sign in "*${}@\\ ")
    return parts.scheme in ("http", "https") and bool(host) and is_plain


def origin_of(place: str) -> str | None:
    """Scheme, host and port of a URL or a host, in one way of writing; None for what is neither.

    As httpx reads it, which is what a request goes by.
    """
    import httpx

    try:
        url = httpx.URL(place if "://" in place else f"https://{place}")
        host = url.host
    except (httpx.InvalidURL, UnicodeError):
        return None
    if url.scheme not in ("http", "https") or not host or url.userinfo or any(sign in place for sign in "*${} "):
        return None
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    return f"{url.scheme}://{host.rstrip('.')}:{port}"
