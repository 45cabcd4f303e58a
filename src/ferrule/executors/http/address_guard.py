"""Which hosts a tool may connect to.

A caller who can choose a URL must not get behind the firewall with it: not to this machine, not to the private
network, not to the metadata service of a cloud. A name is resolved once, every address it has is checked, and
the connection is made to a checked address; a second look-up could give another answer (DNS rebinding). However
an address is spelled (`0x7f.1`, `2130706433`, `::ffff:127.0.0.1`), what is checked is what would be dialled.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol, TypeAlias

from ferrule.errors import PermissionDenied, SetupError, TransportFault
from ferrule.executors.places import Places

IPAddress: TypeAlias = IPv4Address | IPv6Address

_places = Places(32)
"""Names that are looked up at the same time."""

# Special ranges that `ipaddress` does not know in every Python we support, or takes for public.
_SPECIAL_V4 = (
    IPv4Network("192.0.0.0/24"),  # protocol assignments, among them a cloud's metadata service
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv4Network("168.63.129.16/32"),  # a cloud's host, reachable from each of its virtual machines
)
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
_DOCUMENTATION_V6 = IPv6Network("3fff::/20")
_NAT64 = IPv6Network("64:ff9b::/96")
_LONGEST_NAME = 253


class Resolver(Protocol):
    """Finds the addresses of a name; OSError when it has none."""

    async def __call__(self, host: str, port: int, /) -> Sequence[str]: ...


async def system_resolver(host: str, port: int, /) -> list[str]:
    """As this machine resolves names, with its hosts file and its DNS servers."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()
    await _places.take()
    try:
        # A thread of its own, not one of those asyncio has for everybody: while a DNS server keeps us waiting,
        # others must not wait too. A daemon: nor must the end of the program.
        threading.Thread(target=_look_up, args=(host, port, loop, answer), name="ferrule-dns", daemon=True).start()
    except RuntimeError as error:
        _places.leave()
        raise OSError(f"no thread can be started: {error}") from error
    return await answer


def _look_up(host: str, port: int, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[list[str]]) -> None:
    settle: Callable[[], None]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        settle = partial(answer.set_result, [str(sockaddr[0]) for *_, sockaddr in found])
    except Exception as error:
        settle = partial(answer.set_exception, error)
    finally:
        _places.leave()
    with suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(lambda: None if answer.done() else settle())


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressGuard:
    """Lets connections out to public addresses, and to what is allowed beyond them."""

    allow_private: bool = False
    """Everything may be connected to: private networks and this machine too."""
    allowed_hosts: Sequence[str] = ()
    """Names (`intranet.example`), addresses (`10.0.0.7`) and networks (`10.0.0.0/8`) allowed though private."""
    resolver: Resolver = system_resolver

    def __post_init__(self) -> None:
        for entry in self.allowed_hosts:
            if _as_network(entry) is None and (not entry or set(entry) & set("/:@*")):
                raise SetupError(
                    f"allowed_hosts cannot contain {entry!r}: write a host name such as intranet.example, "
                    "an address or a network such as 10.0.0.0/8"
                )

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses to connect to for a host, each of them checked."""
        if len(host) > _LONGEST_NAME:
            raise TransportFault(f"{host[:50]!r}… is longer than the name of a host can be.", unknown_host=True)
        is_free = self.allow_private or self._is_allowed_name(host)
        if not is_free and _is_local_name(host):
            raise self._refusal(host, "is this machine")
        try:
            found = [ip_address(text) for text in dict.fromkeys(await self.resolver(host, port))]
        except (OSError, UnicodeError) as error:
            is_unknown = isinstance(error, UnicodeError) or error.errno == socket.EAI_NONAME
            raise TransportFault(
                f"the host {host!r} cannot be found: {error}. Check its name.", unknown_host=is_unknown
            ) from error
        if not found:
            raise TransportFault(f"the host {host!r} has no address. Check its name.")
        for address in found:
            kind = special_kind(address)
            if kind is not None and not is_free and not self._is_allowed_address(address):
                where = "" if str(address) == host.strip("[]") else f"leads to {address}, which "
                raise self._refusal(host, f"{where}is {kind}")
        return [str(address) for address in found]

    def _is_allowed_name(self, host: str) -> bool:
        return _folded(host) in {_folded(entry) for entry in self.allowed_hosts}

    def _is_allowed_address(self, address: IPAddress) -> bool:
        networks = [_as_network(entry) for entry in self.allowed_hosts]
        return any(network is not None and address in network for network in networks)

    def _refusal(self, host: str, why: str) -> PermissionDenied:
        return PermissionDenied(
            f"connecting to {host!r} is not allowed: it {why}. Use a public address; or, to allow it, "
            f"set allow_private_addresses = true or add {host!r} to allowed_hosts in the configuration."
        )


def special_kind(address: IPAddress) -> str | None:
    """What makes an address other than public, in words; None for a public one."""
    embedded = _embedded_v4(address)
    if embedded is not None:
        kind = special_kind(embedded)
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


def _embedded_v4(address: IPAddress) -> IPv4Address | None:
    """The IPv4 address that packets to an IPv6 address would end at."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _as_network(entry: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


def _is_local_name(host: str) -> bool:
    name = _folded(host)
    return name == "localhost" or name.endswith((".localhost", ".localdomain"))


def _folded(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()
