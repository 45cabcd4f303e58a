"""The browser itself: the system's Chromium, started through Playwright and ended for good.

Chromium runs below Playwright's driver, which ends it when our process goes away in whatever way. Everything it
fetches goes through a proxy of ours, which decides where it may connect to.
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
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.tools.browser.proxy import GuardedProxy

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

logger = logging.getLogger("ferrule.tools")

VARIABLE: Final = "FERRULE_CHROMIUM"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS: Final = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    # Calls between browsers go past proxies unless they are told not to; not all builds know both names.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
TIME_TO_END: Final = 5.0
"""Seconds a browser is given to close by itself."""
VIEWPORT: Final = (1280, 800)


def find_chromium(path: str | None = None) -> str:
    """The program to run: the one that is named, here or in the environment, else the first that is installed."""
    named = path or os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise SetupError(f"{named!r} is no program that can be run. Give the path of a Chromium or Chrome.")
        return found
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise SetupError(
        f"There is no Chromium on this machine: install chromium (such as: apt install chromium), "
        f"or say in {VARIABLE} where it is."
    )


class Chromium:
    """A running browser and the proxy before it."""

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
                args=[*FLAGS, *(["--no-sandbox"] if os.getuid() == 0 else [])],
                proxy={"server": proxy.address, "bypass": "<-loopback>"},
                handle_sigint=False,  # who asked for the browser is asked first, and ends it
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Exception as error:
            await _end(driver, proxy)
            raise SetupError(f"{path} could not be started as a browser: {_first_line(error)}") from error
        logger.info("path=<%s>, version=<%s> | browser started", Path(path).name, browser.version)
        return cls(driver, browser, proxy)

    @property
    def is_alive(self) -> bool:
        return self._browser.is_connected() and not self._is_lost

    async def check(self) -> None:
        """Find out whether it still answers: of a driver that was killed nobody tells."""
        try:
            session = await asyncio.wait_for(self._browser.new_browser_cdp_session(), TIME_TO_END)
            await session.detach()
        except Exception:
            self._is_lost = True

    async def new_context(self) -> BrowserContext:
        """A profile of its own: cookies, storage and pages that no other context sees."""
        width, height = VIEWPORT
        return await self._browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=False, service_workers="block"
        )

    async def close(self) -> None:
        """End everything; also what is left of a browser that has died."""
        with suppress(Exception):  # it may be gone already; the driver ends what is left of it
            await asyncio.wait_for(self._browser.close(), TIME_TO_END)
        await _end(self._driver, self.proxy)


async def _end(driver: Playwright, proxy: GuardedProxy) -> None:
    with suppress(Exception):
        await asyncio.wait_for(driver.stop(), TIME_TO_END)
    await proxy.close()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
