"""The browser: the system's Chromium, started through Playwright, and stopped reliably.

Chromium runs below Playwright's driver, which ends it when our process ends for any reason. Everything it
fetches goes through our own proxy, which decides where it may connect to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferrule.errors import MissingExtra, SetupError
from ferrule.http.guard import AddressGuard
from ferrule_tools.browser.proxy import GuardedProxy

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright


logger = logging.getLogger("ferrule_tools")

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
    """The program to run: `path`, else the one in the environment variable, else the first that is installed."""
    named = path or os.environ.get(CHROMIUM_VARIABLE)
    if named:
        program = shutil.which(named)
        if program is None:
            raise SetupError(f"{named!r} is not a program that can be run. Give the path of a Chromium or Chrome.")
        return program
    for name in CHROMIUM_PROGRAMS:
        if (program := shutil.which(name)) is not None:
            return program
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
        proxy = await GuardedProxy.start(guard)
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
            raise SetupError(f"{path} could not be started as a browser: {_first_line(error)}") from error
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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
