"""Reading pages takes a process that takes a second to start, so the tests of a module share one."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ferrule_tools.web.web_scraper.server import Site, site


@pytest.fixture(scope="module", autouse=True)
def trafilatura() -> Any:
    """It takes much memory: it is loaded when it is used, and the tests of a module stay in one process."""
    return pytest.importorskip("trafilatura", reason='trafilatura is not installed: pip install "ferrule[scrape]"')


@pytest.fixture(autouse=True)
def patient_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine even the process that reads may take long to start."""
    for timeout in ("RULES_TIMEOUT", "READ_TIMEOUT", "SECOND_READ_TIMEOUT"):
        monkeypatch.setattr(f"ferrule_tools.web.web_scraper.{timeout}", 60.0)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def web(runner: asyncio.Runner) -> Iterator[Site]:
    """A site whose pages each test says anew."""
    opening = site({})
    opened = runner.run(opening.__aenter__())
    yield opened
    runner.run(opening.__aexit__(None, None, None))
