"""The benchmark `page`: the web page of `ferrule serve` in Chromium, until it shows the list of tools.

    python -m benchmarks.page_load ROUNDS [WORKLOAD as JSON]

A first visit has an empty cache; the next one has the files of the first. The empty page shows what the browser itself
takes. It needs Chromium, and the page (`make web`).
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.interface import Sample, SamplesByVariant, Workload
from benchmarks.server_process import MeasuredServer, find_free_port, make_project, run_server, serve_command
from benchmarks.timing import measure_alternately, print_rounds

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext

TRANSFERRED_BYTES = """
    [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .reduce((sum, entry) => sum + entry.transferSize, 0)
"""
"""What came over the network, and not from the cache."""


async def measure_rounds(rounds: int, workload: Workload) -> list[SamplesByVariant]:
    from playwright.async_api import async_playwright

    from ferrule_tools.browser.chromium import CHROMIUM_FLAGS, find_chromium

    async with AsyncExitStack() as stack:
        folder = make_project(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        port = find_free_port()
        server = stack.enter_context(run_server([*serve_command(), "--port", str(port)], port, folder))
        flags = [*CHROMIUM_FLAGS, *(["--no-sandbox"] if os.getuid() == 0 else [])]
        driver = await stack.enter_async_context(async_playwright())
        browser = await driver.chromium.launch(executable_path=find_chromium(), args=flags)
        stack.push_async_callback(browser.close)
        visited = await browser.new_context()
        await _load(visited, server)

        async def visit_first() -> Sample:
            return await _load_with_empty_cache(browser, server)

        async def visit_again() -> Sample:
            return await _load(visited, server)

        async def open_empty_page() -> Sample:
            return await _load(visited, server, path="/healthz", selector="body")

        measures = {
            "ferrule: the page, first visit": visit_first,
            "ferrule: the page, next visit": visit_again,
            "baseline: GET /healthz in the same browser": open_empty_page,
        }
        return await measure_alternately(measures, rounds, workload.samples)


async def _load_with_empty_cache(browser: Browser, server: MeasuredServer) -> Sample:
    context = await browser.new_context()
    try:
        return await _load(context, server)
    finally:
        await context.close()


async def _load(
    context: BrowserContext, server: MeasuredServer, path: str = "/tools", selector: str = "text=Add two numbers"
) -> Sample:
    page = await context.new_page()
    before, started_at = server.processor_seconds(), time.perf_counter()
    response = await page.goto(server.url + path)
    if response is None or not response.ok:
        raise RuntimeError("The page is not built: make web")
    await page.wait_for_selector(selector)
    wall = time.perf_counter() - started_at
    size = await page.evaluate(TRANSFERRED_BYTES)
    await page.close()
    return {"wall": wall, "cpu": server.processor_seconds() - before, "kilobytes": size / 1000}


if __name__ == "__main__":
    print_rounds(measure_rounds)
