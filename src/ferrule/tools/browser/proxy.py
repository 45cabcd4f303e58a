"""Where the browser may connect to: a proxy on this machine that dials only what a guard has checked.

A browser fetches much that nobody asked it for: redirects, frames, pictures, sockets, what scripts want. Looking at
requests inside the browser misses some of these, redirects first of all, and a name that is checked there is looked
up again for the connection (DNS rebinding). Through a proxy everything passes, and the address that was checked is
the one that is dialled.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from ferrule.errors import CallError, TransportFault
from ferrule.executors.http.address_guard import AddressGuard

logger = logging.getLogger("ferrule.tools")

LARGEST_HEAD: Final = 64 * 1024
PIECE: Final = 64 * 1024
CONNECT_TIMEOUT: Final = 10.0
NEXT_ADDRESS_AFTER: Final = 1.0
"""Seconds an address may keep us waiting when the host has others."""
REMEMBERED: Final = 100
_HOP_BY_HOP: Final = (b"connection:", b"proxy-connection:", b"proxy-authorization:", b"keep-alive:")


class GuardedProxy:
    """Serves one browser."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._server: asyncio.Server | None = None
        self._talking: set[asyncio.Task[None]] = set()
        self._refused: dict[str, CallError] = {}

    @classmethod
    async def start(cls, guard: AddressGuard) -> GuardedProxy:
        proxy = cls(guard)
        proxy._server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0, limit=LARGEST_HEAD)
        return proxy

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def refusal(self, url: str) -> CallError | None:
        """Why there was no connection to the host of a URL, if there was none."""
        parts = urlsplit(url)
        return self._refused.get(_place(parts.hostname or "", parts.port or _usual_port(parts.scheme)))

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._talking:
            task.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talking.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("error=<%r> | a connection of the browser ended", error)
        except asyncio.CancelledError:
            pass  # the proxy is closed; a server's task that is cancelled would be reported as a failure
        finally:
            self._talking.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # opened in advance and not used
            return
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        is_tunnel = method == "CONNECT"
        parts = urlsplit(f"//{target}" if is_tunnel else target)
        host, port = parts.hostname or "", parts.port or 80
        try:
            far_reader, far_writer = await self._dial(host, port)
        except CallError as error:
            self._remember(_place(host, port), error)
            if is_tunnel:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            return
        self._refused.pop(_place(host, port), None)
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await _until_one_ends(_carry(reader, far_writer), _carry(far_reader, writer))
            else:
                far_writer.write(_as_for_the_server(head, target))
                await _until_one_ends(_carry(reader, far_writer), _carry_answer(far_reader, writer))
        finally:
            far_writer.close()

    async def _dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        *others, last = await self._guard.addresses(host, port)
        for address in others:
            with suppress(OSError):
                return await _connect(address, port, NEXT_ADDRESS_AFTER)
        try:
            return await _connect(last, port, CONNECT_TIMEOUT)
        except TimeoutError:
            raise TransportFault(f"{host}:{port} did not take the connection in {CONNECT_TIMEOUT:.0f} s") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise TransportFault(f"{host}:{port} cannot be connected to ({reason})") from error

    def _remember(self, place: str, error: CallError) -> None:
        logger.info("place=<%s>, error=<%s> | the browser was not connected", place, error)
        self._refused.pop(place, None)
        self._refused[place] = error
        if len(self._refused) > REMEMBERED:
            del self._refused[next(iter(self._refused))]


async def _connect(address: str, port: int, within: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(asyncio.open_connection(address, port, limit=LARGEST_HEAD), within)


def _place(host: str, port: int) -> str:
    return f"{host.lower()}:{port}"


def _usual_port(scheme: str) -> int:
    return 443 if scheme in ("https", "wss") else 80


def _as_for_the_server(head: bytes, target: str) -> bytes:
    """A request as the server itself would have got it; one for each connection, which may be to one host only."""
    first, *lines = head[:-4].split(b"\r\n")
    method, _, version = first.split(b" ")
    parts = urlsplit(target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in lines if not line.lower().startswith(_HOP_BY_HOP)]
    return b"\r\n".join([b" ".join([method, path.encode("latin-1"), version]), *kept, b"Connection: close", b"", b""])


async def _until_one_ends(*ways: Coroutine[Any, Any, None]) -> None:
    carrying = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(carrying, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)


async def _carry_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer, with the word that none will follow: servers do not always say it, and browsers would ask on."""
    try:
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
            kept = [line for line in lines if not line.lower().startswith(_HOP_BY_HOP)]
            is_last = not first.split(b" ", 2)[1].startswith(b"1")  # others say that the answer is on its way
            writer.write(b"\r\n".join([first, *kept, *([b"Connection: close"] if is_last else []), b"", b""]))
            if is_last:
                break
    except asyncio.IncompleteReadError as error:
        writer.write(error.partial)
    await _carry(reader, writer)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
