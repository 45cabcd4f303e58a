"""Requests of this server to another one of its store, for what only that one can answer.

A worker of the same `ferrule serve` is reached by its private socket, another server by its address. What is behind an
address may be several workers: then any of them gets the request and passes it on to the right one by its socket.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import httpx

from ferrule.server.fleet import ServerFleet

FORWARDED_HEADER: Final = b"ferrule-forwarded"
"""`1` after a request was sent to an address, so that it can only be passed on to a worker there; `2`: not at all."""
CONNECT_TIMEOUT: Final = 5.0
WRITE_TIMEOUT: Final = 30.0
KEEPALIVE_SECONDS: Final = 2.0
"""Less than uvicorn's: a request must not be sent on a connection that the other server is just closing."""
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
SOCKET_URL: Final = "http://worker"

Headers = Iterable[tuple[bytes, bytes]]


class ServerGone(Exception):
    """The other server does not run any more; it may, unless `is_proven`, if its address is wrong."""

    def __init__(self, *, is_proven: bool = False) -> None:
        super().__init__()
        self.is_proven = is_proven


class ServerOutOfReach(Exception):
    """The other server may run, but nothing could be sent to it."""


class ServerConnections:
    """Sends requests to the other servers."""

    def __init__(self, fleet: ServerFleet) -> None:
        self._fleet = fleet
        self._clients: dict[str, httpx.AsyncClient] = {}
        """By the path of the socket, which is empty for the network."""

    async def send(
        self, server_id: str, method: str, path: str, headers: Headers, body: bytes, *, hops: int = 0
    ) -> httpx.Response:
        """The response, whose body is to be read and closed; ServerGone or ServerOutOfReach if nothing was sent.

        httpx.TransportError after that: the other server may have got the request. `hops` is how far it has come.
        """
        path_of_socket, url = await self._find_route(server_id, hops)
        fields = [*headers, (FORWARDED_HEADER, b"2" if path_of_socket else b"1")]
        client = self._client(path_of_socket)
        try:
            return await client.send(
                client.build_request(method, url + path, headers=fields, content=body), stream=True
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if not is_refused(error):
                raise ServerOutOfReach(str(error) or type(error).__name__) from error
            self._fleet.forget(server_id)
            raise ServerGone(is_proven=bool(path_of_socket)) from error

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    async def _find_route(self, server_id: str, hops: int) -> tuple[str, str]:
        """The socket, or none, and the address of a server."""
        address = None if hops > 1 else await self._fleet.find_address(server_id)
        if address is None:
            raise ServerGone
        if self._fleet.shares_folder_with(address):
            return address.socket, SOCKET_URL
        if hops:
            raise ServerGone  # this is where it should be
        is_elsewhere = address.machine != socket.gethostname()
        if not address.url or (is_elsewhere and urlsplit(address.url).hostname in LOOPBACK_HOSTS):
            raise ServerOutOfReach("it has no address that can be used from here")
        return "", address.url

    def _client(self, path: str) -> httpx.AsyncClient:
        """Without limits: every stream of a session of another server is a connection."""
        if path not in self._clients:
            limits = httpx.Limits(
                max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE_SECONDS
            )
            self._clients[path] = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=path or None, limits=limits, trust_env=False),
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, write=WRITE_TIMEOUT),
                trust_env=False,
            )
        return self._clients[path]


def count_hops(headers: Headers) -> int:
    """How far a request has come, as the server that sent it says."""
    text = next((value for name, value in headers if name == FORWARDED_HEADER), b"0")
    return {b"0": 0, b"1": 1}.get(text, 2)


def is_refused(error: BaseException | None) -> bool:
    """Whether a connection failed because nobody listens there, on any of the addresses that were tried."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_refused, error.exceptions))
    if error is None or isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return error is not None
    return is_refused(error.__cause__ or error.__context__)
