"""Connections for httpx that go only to addresses a guard has checked.

A name is looked up and checked here, and one of the checked addresses is dialled; TLS and the Host header keep
the name. Proxies of the environment are not used: they would look names up themselves, behind the guard's back.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ferrule.errors import SetupError
from ferrule.executors.http.address_guard import AddressGuard

if TYPE_CHECKING:
    import ssl

    import httpcore
    import httpx

NEXT_ADDRESS_AFTER = 1.0
"""Seconds an address may keep us waiting when the host has others: IPv6 may be announced but broken."""


def open_transport(guard: AddressGuard) -> httpx.AsyncHTTPTransport:
    """A pool of connections, each of which the guard has checked."""
    import httpcore
    import httpx

    transport = httpx.AsyncHTTPTransport(verify=_certificates())
    if not isinstance(getattr(transport, "_pool", None), httpcore.AsyncConnectionPool):
        # httpx has no public way to give its pool a network backend, and without ours there would be no guard.
        raise SetupError(f"httpx {httpx.__version__} cannot be guarded: install httpx 0.28")
    transport._pool = httpcore.AsyncConnectionPool(
        ssl_context=_certificates(),
        max_connections=None,  # the engine's limits are the limits
        keepalive_expiry=5.0,
        network_backend=_checked_backend(guard),
    )
    return transport


def _checked_backend(guard: AddressGuard) -> httpcore.AsyncNetworkBackend:
    import httpcore

    class CheckedBackend(httpcore.AnyIOBackend):
        async def connect_tcp(
            self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
        ) -> httpcore.AsyncNetworkStream:
            *others, last = await guard.addresses(host, port)
            for address in others:
                try:
                    return await super().connect_tcp(address, port, NEXT_ADDRESS_AFTER, *args, **options)
                except (httpcore.ConnectError, httpcore.ConnectTimeout):
                    continue
            return await super().connect_tcp(last, port, timeout, *args, **options)

    return CheckedBackend()


@cache
def _certificates() -> ssl.SSLContext:
    # Making one takes 20 ms. SSL_CERT_FILE and SSL_CERT_DIR hold.
    import httpx

    return httpx.create_ssl_context()
