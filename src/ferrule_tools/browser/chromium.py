"""The browser: the system's Chromium, started through Playwright, and stopped reliably.

Chromium runs below Playwright's driver, which ends it when our process ends for any reason. Everything it
fetches goes through our own proxy, which decides where it may connect to.

A browser makes many requests besides the page itself: redirects, frames, images, sockets, requests of scripts.
Intercepting requests inside the browser misses some of them, redirects above all, and the browser resolves a checked
name again when it connects (DNS rebinding). All traffic passes through the proxy, which connects to exactly the
address that it has checked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ferrule.errors import CallError, MissingExtra, SetupError, TransportFault
from ferrule.http.guard import AddressGuard

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

logger = logging.getLogger("ferrule_tools")

MAX_HEADER_BYTES: Final = 64 * 1024
CHUNK_BYTES: Final = 64 * 1024
CONNECT_TIMEOUT: Final = 10.0
NEXT_ADDRESS_DELAY: Final = 1.0
"""Seconds to wait for a connection to one address before the next address of the host is tried."""
MAX_REFUSALS: Final = 100
_HOP_BY_HOP: Final = (b"connection:", b"proxy-connection:", b"proxy-authorization:", b"keep-alive:")


class GuardedProxy:
    """Serves one browser."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._connections: set[asyncio.Task[None]] = set()
        self._refused: dict[str, CallError] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEADER_BYTES)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def refusal(self, url: str) -> CallError | None:
        """Return why the last connection to the host of a URL was not made; None if it was made."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
        return self._refused.get(_format_host_and_port(parts.hostname or "", port))

    async def close(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("error=<%r> | a connection of the browser failed", error)
        except asyncio.CancelledError:
            pass  # the proxy is being closed; asyncio would report the cancelled task as a failure
        finally:
            self._connections.discard(task)
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
            far_reader, far_writer = await self._connect_to_host(host, port)
        except CallError as error:
            place = _format_host_and_port(host, port)
            logger.info("host=<%s>, error=<%s> | a connection of the browser was refused", place, error)
            self._refused.pop(place, None)
            self._refused[place] = error
            if len(self._refused) > MAX_REFUSALS:
                del self._refused[next(iter(self._refused))]
            if is_tunnel:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            return
        self._refused.pop(_format_host_and_port(host, port), None)
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await _wait_until_one_ends(_relay_bytes(reader, far_writer), _relay_bytes(far_reader, writer))
            else:
                far_writer.write(_rewrite_request_head(head, target))
                await _wait_until_one_ends(_relay_bytes(reader, far_writer), _relay_response(far_reader, writer))
        finally:
            far_writer.close()

    async def _connect_to_host(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        *others, last = await self._guard.addresses(host, port)
        for address in others:
            with suppress(OSError):
                return await _connect_to_address(address, port, NEXT_ADDRESS_DELAY)
        try:
            return await _connect_to_address(last, port, CONNECT_TIMEOUT)
        except TimeoutError:
            raise TransportFault(
                f"{host}:{port} did not accept the connection within {CONNECT_TIMEOUT:.0f} s"
            ) from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise TransportFault(f"{host}:{port} cannot be connected to ({reason})") from error


async def _connect_to_address(
    address: str, port: int, within: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(asyncio.open_connection(address, port, limit=MAX_HEADER_BYTES), within)


def _format_host_and_port(host: str, port: int) -> str:
    return f"{host.lower()}:{port}"


def _rewrite_request_head(head: bytes, target: str) -> bytes:
    """Return the head of a request as a browser sends it without a proxy, for a connection of one request."""
    first, *lines = head[:-4].split(b"\r\n")
    method, _, version = first.split(b" ")
    parts = urlsplit(target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [line for line in lines if not line.lower().startswith(_HOP_BY_HOP)]
    return b"\r\n".join(
        [b" ".join([method, path.encode("latin-1"), version]), *headers, b"Connection: close", b"", b""]
    )


async def _wait_until_one_ends(*ways: Coroutine[Any, Any, None]) -> None:
    carrying = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(carrying, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)


async def _relay_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relay a response with `Connection: close`, so that the browser sends no more requests on the connection."""
    try:
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
            headers = [line for line in lines if not line.lower().startswith(_HOP_BY_HOP)]
            is_last = not first.split(b" ", 2)[1].startswith(b"1")  # a status of 1xx announces another response
            writer.write(b"\r\n".join([first, *headers, *([b"Connection: close"] if is_last else []), b"", b""]))
            if is_last:
                break
    except asyncio.IncompleteReadError as error:
        writer.write(error.partial)
    await _relay_bytes(reader, writer)


async def _relay_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(CHUNK_BYTES):
        writer.write(piece)
        await writer.drain()


# ---- Chromium

CHROMIUM_VARIABLE: Final = "FERRULE_CHROMIUM"
CHROMIUM_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM_FLAGS: Final = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    # WebRTC bypasses proxies unless one of these flags is set; not every build knows both names.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
CHROMIUM_CLOSE_TIMEOUT: Final = 5.0
"""Seconds a browser is given to close by itself."""
VIEWPORT_SIZE: Final = (1280, 800)


def find_chromium(path: str | None = None) -> str:
    """Return the program to run: `path`, else that of the environment variable, else the first that is installed."""
    named = path or os.environ.get(CHROMIUM_VARIABLE)
    program = next(filter(None, map(shutil.which, [named] if named else CHROMIUM_PROGRAMS)), None)
    if program is not None:
        return program
    if named:
        raise SetupError(f"{named!r} is not a program that can be run. Give the path of a Chromium or Chrome.")
    raise SetupError(
        f"There is no Chromium on this machine: install chromium (such as: apt install chromium), "
        f"or say in {CHROMIUM_VARIABLE} where it is."
    )


class Chromium:
    """A running browser and its proxy."""

    def __init__(self, driver: Playwright, browser: Browser, proxy: GuardedProxy) -> None:
        self._driver, self._browser, self.proxy = driver, browser, proxy
        self._is_lost = False

    @classmethod
    async def start(cls, path: str, guard: AddressGuard) -> Chromium:
        try:
            from playwright.async_api import async_playwright
        except ModuleNotFoundError as error:
            raise MissingExtra("playwright", "browser") from error
        proxy = GuardedProxy(guard)
        await proxy.start()
        try:
            driver = await async_playwright().start()
        except BaseException:
            await proxy.close()
            raise
        try:
            browser = await driver.chromium.launch(
                executable_path=path,
                args=[*CHROMIUM_FLAGS, *(["--no-sandbox"] if os.getuid() == 0 else [])],
                proxy={"server": proxy.address, "bypass": "<-loopback>"},
                handle_sigint=False,  # our own process handles signals, and closes the browser
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Exception as error:
            await _stop_driver_and_proxy(driver, proxy)
            reason = str(error).strip().partition("\n")[0]
            raise SetupError(f"{path} could not be started as a browser: {reason}") from error
        logger.info("path=<%s>, version=<%s> | browser started", Path(path).name, browser.version)
        return cls(driver, browser, proxy)

    @property
    def is_alive(self) -> bool:
        return self._browser.is_connected() and not self._is_lost

    async def check(self) -> None:
        """Find out whether the browser still responds: Playwright does not report that its driver was killed."""
        try:
            session = await asyncio.wait_for(self._browser.new_browser_cdp_session(), CHROMIUM_CLOSE_TIMEOUT)
            await session.detach()
        except Exception:
            self._is_lost = True

    async def new_context(self) -> BrowserContext:
        """Create a separate profile, whose cookies, storage and pages no other context sees."""
        width, height = VIEWPORT_SIZE
        return await self._browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=False, service_workers="block"
        )

    async def close(self) -> None:
        """End the browser, its driver and the proxy, even if the browser has already died."""
        with suppress(Exception):  # the browser may have ended already; the driver ends remaining processes
            await asyncio.wait_for(self._browser.close(), CHROMIUM_CLOSE_TIMEOUT)
        await _stop_driver_and_proxy(self._driver, self.proxy)


async def _stop_driver_and_proxy(driver: Playwright, proxy: GuardedProxy) -> None:
    with suppress(Exception):
        await asyncio.wait_for(driver.stop(), CHROMIUM_CLOSE_TIMEOUT)
    await proxy.close()
