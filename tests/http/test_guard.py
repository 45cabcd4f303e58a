import asyncio
import socket
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import PermissionDenied, SetupError, TransportFault
from ferrule.http.guard import AddressGuard, Resolver

PUBLIC = "93.184.216.34"


def resolver_of(**addresses: Sequence[str]) -> Resolver:
    """A resolver that knows only these names."""

    async def resolve(host: str, port: int, /) -> Sequence[str]:
        if host not in addresses:
            raise OSError("Name or service not known")
        return addresses[host]

    return resolve


NOT_PUBLIC = """
    127.0.0.1 127.8.8.8 0.0.0.0 0.1.2.3 10.0.0.1 172.16.5.4 192.168.1.1 100.64.0.1
    169.254.169.254 192.0.0.192 192.0.2.1 198.18.0.1 168.63.129.16 100.100.100.200
    224.0.0.1 239.1.2.3 240.0.0.1 255.255.255.255 192.88.99.1
    ::1 :: fe80::1 fc00::1 fd00:ec2::254 fec0::1 ff02::1 2001:db8::1 2001::1 3fff::1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b:1::8.8.8.8
    2002:7f00:0001:: 2002:a9fe:a9fe:: 5f00::1
""".split()


async def test_an_address_that_is_not_public_is_refused():
    for address in NOT_PUBLIC:
        guard = AddressGuard(resolver=resolver_of(target=[address]))
        with pytest.raises(
            PermissionDenied, match=r"'target' is not allowed: it resolves to .*allow_private_addresses"
        ):
            pytest.fail(f"{address} is allowed: {await guard.addresses('target', 80)}")


async def test_a_public_address_is_allowed():
    for address in (PUBLIC, "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"):
        assert len(await AddressGuard(resolver=resolver_of(target=[address])).addresses("target", 443)) == 1


async def test_this_machine_is_refused_however_it_is_spelled():
    for host in """
        127.0.0.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 127.1 0 ::1 ::ffff:127.0.0.1
        localhost LOCALHOST. a.localhost localhost.localdomain
    """.split():
        with pytest.raises(PermissionDenied, match="this machine|unspecified"):
            pytest.fail(f"{host} is allowed: {await AddressGuard().addresses(host, 80)}")


async def test_a_slow_dns_server_does_not_block_other_threads_of_asyncio(monkeypatch):
    is_looking_up, may_answer = threading.Event(), threading.Event()

    def slow(host: str, port: int, **options: object) -> list[object]:
        is_looking_up.set()
        may_answer.wait(120)
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    waiting = [asyncio.create_task(AddressGuard().addresses(f"{n}.example", 80)) for n in range(64)]
    assert await asyncio.to_thread(is_looking_up.wait, 120)
    assert await asyncio.wait_for(asyncio.to_thread(str.upper, "other work"), 60) == "OTHER WORK"
    may_answer.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, TransportFault) for result in results)


async def test_one_private_address_among_public_ones_is_enough_to_refuse():
    guard = AddressGuard(resolver=resolver_of(target=[PUBLIC, "10.0.0.1"]))
    with pytest.raises(PermissionDenied, match=r"resolves to 10\.0\.0\.1"):
        await guard.addresses("target", 80)


async def test_an_allowed_name_may_have_any_address():
    guard = AddressGuard(allowed_hosts=["Intranet.Example"], resolver=resolver_of(**{"intranet.example": ["10.0.0.7"]}))
    assert await guard.addresses("intranet.example", 80) == ["10.0.0.7"]


async def test_an_allowed_network_allows_its_addresses_and_no_others():
    guard = AddressGuard(allowed_hosts=["10.1.0.0/16"], resolver=resolver_of(inside=["10.1.2.3"], outside=["10.2.0.1"]))
    assert await guard.addresses("inside", 80) == ["10.1.2.3"]
    with pytest.raises(PermissionDenied):
        await guard.addresses("outside", 80)


async def test_everything_is_allowed_when_private_addresses_are():
    assert "127.0.0.1" in await AddressGuard(allow_private=True).addresses("localhost", 80)


async def test_an_unknown_name_is_a_transport_fault():
    with pytest.raises(TransportFault, match=r"'nowhere' cannot be found.*Check its name"):
        await AddressGuard(resolver=resolver_of()).addresses("nowhere", 80)
    with pytest.raises(TransportFault, match="cannot be found"):
        await AddressGuard().addresses("a..b", 80)


async def test_a_name_without_addresses_is_a_transport_fault():
    with pytest.raises(TransportFault, match="has no address"):
        await AddressGuard(resolver=resolver_of(empty=[])).addresses("empty", 80)


@pytest.mark.parametrize("entry", ["http://intranet", "intranet:80", "*.example", ""])
def test_an_invalid_allowed_host_is_a_setup_error(entry):
    with pytest.raises(SetupError, match="write a host name"):
        AddressGuard(allowed_hosts=[entry])


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=4, network="127.0.0.0/8"))
def test_an_ipv4_address_hidden_in_an_ipv6_one_is_found(address):
    high, low = int(address) >> 16, int(address) & 0xFFFF
    for hidden in (f"::ffff:{address}", f"2002:{high:x}:{low:x}::", f"64:ff9b::{high:x}:{low:x}"):
        with pytest.raises(PermissionDenied):
            asyncio.run(AddressGuard(resolver=resolver_of(target=[hidden])).addresses("target", 80))


async def test_a_name_that_is_too_long_is_not_looked_up():
    async def never(host: str, port: int) -> list[str]:
        raise AssertionError

    with pytest.raises(TransportFault, match="longer than a host name can be") as failed:
        await AddressGuard(resolver=never).addresses("a" * 60_000, 80)
    assert len(str(failed.value)) < 200
