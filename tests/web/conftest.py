"""A real browser for the tests of the page, and what they need to find in it."""

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ferrule.web.page import STATIC_FOLDER
from ferrule_tools.browser.chromium import CHROMIUM_FLAGS, CHROMIUM_PROGRAMS, CHROMIUM_VARIABLE
from tests.server.serving import RunningServer
from tests.web.demo import DemoProject, demo_project

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage = Callable[..., "Page"]
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


def find_program() -> str | None:
    named = os.environ.get(CHROMIUM_VARIABLE)
    return named or next((path for name in CHROMIUM_PROGRAMS if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Not for the whole session: while Playwright's sync API is open, its event loop counts as running in this thread,
    and every async test after it in the same process would fail."""
    if find_spec("playwright") is None:
        pytest.skip('playwright is not installed: pip install "ferrule[browser]"')
    if (program := find_program()) is None:
        pytest.skip(f"there is no Chromium: install chromium, or say in {CHROMIUM_VARIABLE} where it is")
    if not (STATIC_FOLDER / "index.html").is_file():
        pytest.skip("the web page is not built: make web")
    from playwright.sync_api import expect as expect_of_playwright
    from playwright.sync_api import sync_playwright

    expect_of_playwright.set_options(timeout=60_000)  # only ends a test that would hang

    flags = [*CHROMIUM_FLAGS, *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoProject]:
    with demo_project(tmp_path_factory.mktemp("demo")) as project:
        yield project


@pytest.fixture(scope="module")
def server(demo: DemoProject) -> Iterator[RunningServer]:
    with demo.serve() as server:
        yield server


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[Any]:
    """Opens pages, each with cookies of its own, and fails if any of them reports an error."""
    contexts, problems = [], []

    def open_one(url: str, **options: Any) -> "Page":
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-US", **options})
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: _note_violation(message.text, problems))
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert problems == []


def _note_violation(text: str, problems: list[str]) -> None:
    if "Content Security Policy" in text or "Content-Security-Policy" in text:
        problems.append(text)


def ask(page: "Page", question: str) -> None:
    page.get_by_label("Question").fill(question)
    page.keyboard.press("Enter")


def expect(target: Any) -> Any:
    """Playwright's assertions, which wait; loaded where a browser is used."""
    from playwright.sync_api import expect as expect_of_playwright

    return expect_of_playwright(target)


def find_barriers(page: "Page") -> list[str]:
    """What axe calls serious or critical on the page as it is now."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make web")
    page.evaluate(AXE.read_text())  # in the page's world, where the content security policy does not hold
    violations = page.evaluate("async () => (await axe.run(document)).violations")
    return [
        f"{each['id']}: {node['html'][:160]}"
        for each in violations
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
