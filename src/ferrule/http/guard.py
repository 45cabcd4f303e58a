"""Which hosts a tool may connect to, and a transport for httpx that connects nowhere else.

A caller that can choose a URL must not reach anything behind the firewall with it: not this machine, not the private
network, not the metadata service of a cloud. A name is resolved once, every address it has is checked, and the
connection is made to a checked address; a second look-up could give another address (DNS rebinding). However an address
is spelled (`0x7f.1`, `2130706433`, `::ffff:127.0.0.1`), the check applies to the one that would be connected to.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from ferrule.concurrency.semaphore import ThreadsafeSemaphore
from ferrule.errors import PermissionDenied, SetupError, TransportFault

if TYPE_CHECKING:
    import ssl

    import httpcore
    import httpx

IPAddress: TypeAlias = IPv4Address | IPv6Address

_lookups = ThreadsafeSemaphore(32)
"""Limits how many names are looked up concurrently."""

# Special ranges that `ipaddress` does not know in every Python we support, or considers public.
_SPECIAL_V4 = (
    IPv4Network("192.0.0.0/24"),  # protocol assignments, among them a cloud's metadata service
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv4Network("168.63.129.16/32"),  # a cloud's host, reachable from each of its virtual machines
)
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
_DOCUMENTATION_V6 = IPv6Network("3fff::/20")
_NAT64 = IPv6Network("64:ff9b::/96")
MAX_HOST_LENGTH = 253


Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a name, for a port. Raises OSError when the name has none."""


async def system_resolver(host: str, port: int, /) -> list[str]:
    """Resolve a name as this machine does, with its hosts file and its DNS servers."""
    loop = asyncio.get_running_loop()
    addresses: asyncio.Future[list[str]] = loop.create_future()
    await _lookups.acquire()
    try:
        # A thread of its own, not one of asyncio's shared threads: a slow DNS server must not block other work in
        # these. A daemon thread: it must not keep the program from exiting either.
        threading.Thread(
            target=_look_up_host, args=(host, port, loop, addresses), name="ferrule-dns", daemon=True
        ).start()
    except RuntimeError as error:
        _lookups.release()
        raise OSError(f"no thread can be started: {error}") from error
    return await addresses


def _look_up_host(host: str, port: int, loop: asyncio.AbstractEventLoop, addresses: asyncio.Future[list[str]]) -> None:
    set_outcome: Callable[[], None]
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        set_outcome = partial(addresses.set_result, [str(sockaddr[0]) for *_, sockaddr in entries])
    except Exception as error:
        set_outcome = partial(addresses.set_exception, error)
    finally:
        _lookups.release()
    with suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(lambda: None if addresses.done() else set_outcome())


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressGuard:
    """Allows connections to public addresses, and to the private hosts that are configured."""

    allow_private: bool = False
    """Allow all addresses: private networks and this machine too."""
    allowed_hosts: Sequence[str] = ()
    """Names (`intranet.example`), addresses (`10.0.0.7`) and networks (`10.0.0.0/8`) allowed though private."""
    resolver: Resolver = system_resolver

    def __post_init__(self) -> None:
        for entry in self.allowed_hosts:
            if _parse_network(entry) is None and (not entry or set(entry) & set("/:@*")):
                raise SetupError(
                    f"allowed_hosts cannot contain {entry!r}: write a host name such as intranet.example, "
                    "an address or a network such as 10.0.0.0/8"
                )

    def allowing_host_of(self, url: str) -> AddressGuard:
        """Return the guard that also allows the host of a URL, which the user has configured."""
        host = urlsplit(url).hostname or ""
        return replace(self, allowed_hosts=(*self.allowed_hosts, host))

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses to connect to for a host, each of them checked."""
        if len(host) > MAX_HOST_LENGTH:
            raise TransportFault(f"{host[:50]!r}… is longer than a host name can be.", unknown_host=True)
        name = _normalize_host(host)
        is_unrestricted = self.allow_private or name in map(_normalize_host, self.allowed_hosts)
        if not is_unrestricted and (name == "localhost" or name.endswith((".localhost", ".localdomain"))):
            raise self._denied_error(host, "is this machine")
        try:
            addresses = [ip_address(text) for text in dict.fromkeys(await self.resolver(host, port))]
        except (OSError, UnicodeError) as error:
            is_unknown = isinstance(error, UnicodeError) or error.errno == socket.EAI_NONAME
            reason = f" ({error.strerror or error})" if isinstance(error, OSError) and not is_unknown else ""
            raise TransportFault(
                f"the host {host!r} cannot be found{reason}. Check its name.", unknown_host=is_unknown
            ) from error
        if not addresses:
            raise TransportFault(f"the host {host!r} has no address. Check its name.")
        networks = [network for entry in self.allowed_hosts if (network := _parse_network(entry)) is not None]
        for address in addresses:
            kind = describe_special_address(address)
            if kind is not None and not is_unrestricted and not any(address in network for network in networks):
                prefix = "" if str(address) == host.strip("[]") else f"resolves to {address}, which "
                raise self._denied_error(host, f"{prefix}is {kind}")
        return [str(address) for address in addresses]

    def _denied_error(self, host: str, reason: str) -> PermissionDenied:
        return PermissionDenied(
            f"connecting to {host!r} is not allowed: it {reason}. Use a public address; or, to allow it, "
            f"set allow_private_addresses = true or add {host!r} to allowed_hosts in [http] of ferrule.toml."
        )


def describe_special_address(address: IPAddress) -> str | None:
    """Return what kind of address it is, for messages; None for a public one."""
    embedded = _find_embedded_v4(address)
    if embedded is not None:
        kind = describe_special_address(embedded)
        return None if kind is None else f"{kind} in another form"
    if address.is_unspecified:
        return "the unspecified address"
    if address.is_loopback:
        return "a loopback address (this machine)"
    if address.is_link_local:
        return "a link-local address (such as a cloud's metadata service)"
    if address.is_multicast:
        return "a multicast address"
    if isinstance(address, IPv4Address):
        is_special = not address.is_global or address.is_reserved or any(address in net for net in _SPECIAL_V4)
    else:
        is_special = not address.is_global or address not in _GLOBAL_UNICAST_V6 or address in _DOCUMENTATION_V6
    return "a private or reserved address" if is_special else None


def _find_embedded_v4(address: IPAddress) -> IPv4Address | None:
    """Return the IPv4 address to which packets for an IPv6 address would be sent."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _parse_network(entry: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


def _normalize_host(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


# Connections

NEXT_ADDRESS_TIMEOUT = 1.0
"""Seconds to wait for an address when the host has others: IPv6 may be announced but broken."""


def open_transport(guard: AddressGuard) -> httpx.AsyncHTTPTransport:
    """Return a pool of connections to addresses that the guard has checked.

    TLS and the Host header keep the name. Proxies of the environment are not used: they would look up names themselves,
    without the guard.
    """
    import httpcore
    import httpx

    transport = httpx.AsyncHTTPTransport(verify=_load_certificates())
    if not isinstance(getattr(transport, "_pool", None), httpcore.AsyncConnectionPool):
        # httpx has no public option for the network backend of its pool, and without ours there would be no guard.
        raise SetupError(f"httpx {httpx.__version__} cannot be guarded: install httpx 0.28")
    transport._pool = httpcore.AsyncConnectionPool(
        ssl_context=_load_certificates(),
        max_connections=None,  # the engine limits concurrent calls
        keepalive_expiry=5.0,
        network_backend=_make_checked_backend(guard),
    )
    return transport


def _make_checked_backend(guard: AddressGuard) -> httpcore.AsyncNetworkBackend:
    import httpcore

    class GuardedNetworkBackend(httpcore.AnyIOBackend):
        async def connect_tcp(
            self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
        ) -> httpcore.AsyncNetworkStream:
            *others, last = await guard.addresses(host, port)
            for address in others:
                try:
                    return await super().connect_tcp(address, port, NEXT_ADDRESS_TIMEOUT, *args, **options)
                except (httpcore.ConnectError, httpcore.ConnectTimeout):
                    continue
            return await super().connect_tcp(last, port, timeout, *args, **options)

    return GuardedNetworkBackend()


@cache
def _load_certificates() -> ssl.SSLContext:
    # Cached, because creating one takes 20 ms. SSL_CERT_FILE and SSL_CERT_DIR are respected.
    import httpx

    return httpx.create_ssl_context()


# Origins


def is_base_address(text: str) -> bool:
    """Return whether a configuration may contain this as the address of a server: no password, no placeholder."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and not any(character in text for character in "*${}@\\ ")
    return parts.scheme in ("http", "https") and bool(host) and is_plain


def origin_of(address: str) -> str | None:
    """Return scheme, host and port of a URL or a host name, normalized; None for anything else.

    Parsed by httpx, like the requests themselves.
    """
    import httpx

    try:
        url = httpx.URL(address if "://" in address else f"https://{address}")
        host = url.host
    except (httpx.InvalidURL, UnicodeError):
        return None
    if (
        url.scheme not in ("http", "https")
        or not host
        or url.userinfo
        or any(character in address for character in "*${} ")
    ):
        return None
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    return f"{url.scheme}://{host.rstrip('.')}:{port}"
