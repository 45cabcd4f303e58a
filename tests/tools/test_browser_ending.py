"""How a browser begins and ends: on first use, with the run or the engine, and never later."""

import asyncio
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.errors import MissingExtra, SetupError
from ferrule.testing import ScriptedModel
from ferrule.tools.browser import BrowserNavigator
from ferrule.tools.browser.chromium import VARIABLE, find_chromium
from tests.executors.local_server import local_server
from tests.tools.sites import Page, answer, browsers_of
from tests.tools.sites import site as serve

shop_closed = b"yes"
PAGES: dict[str, Page] = {
    "/": "<title>Here</title>",
    "/slow": "<title>Slow</title><script>setTimeout(() => fetch('/effect'), 1200)</script>",
    "/soon": "<button disabled onclick='fetch(\"/bought\")'>Buy</button><script>setInterval(async () => "
    "document.querySelector('button').disabled = await (await fetch('/closed')).text() === 'yes', 50)</script>",
    "/closed": lambda request: (200, {}, shop_closed),
    "/silent": None,
}
KILLED = """
import asyncio, sys
from ferrule.tools.browser import BrowserNavigator
async def main():
    print((await BrowserNavigator(allow_private=True).navigate(sys.argv[1]))["title"], flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def web(runner):
    with serve(runner, PAGES, BrowserNavigator(allow_private=True, patience=0.2)) as opened:
        yield opened


async def nothing_is_left(process=None, seconds=5.0):
    """No process of a browser is alive, after the moment the last of them take to go."""
    until = time.monotonic() + seconds
    while left := browsers_of(process or os.getpid()):
        assert time.monotonic() < until, left
        await asyncio.sleep(0.05)


async def test_it_starts_when_it_is_used_and_ends_without_a_trace(runner, web):
    profiles = set(glob.glob(f"{tempfile.gettempdir()}/*playwright*"))
    assert browsers_of(os.getpid()) == []
    await web.open("/")
    assert browsers_of(os.getpid()) != []
    await web.browser.cleanup()
    await nothing_is_left()
    assert set(glob.glob(f"{tempfile.gettempdir()}/*playwright*")) <= profiles
    assert "No page is open" in str((await web.do("extract")).error)  # it may be used again


async def test_a_browser_that_is_killed_is_started_anew(runner, web):
    await web.open("/")
    for process in browsers_of(os.getpid(), (b"--headless",)):
        os.kill(process, signal.SIGKILL)
    await asyncio.sleep(0.3)
    assert (await web.open("/")).output["title"] == "Here"


async def test_a_browser_that_is_killed_in_the_middle_of_a_call_fails_that_call_only(runner, web):
    await web.open("/")
    call = asyncio.create_task(web.do("wait", selector="#never"))
    await asyncio.sleep(0.3)
    for process in browsers_of(os.getpid()):
        os.kill(process, signal.SIGKILL)  # the driver too
    result = await call
    assert not result.is_success and "the browser ended and was started anew" in str(result.error)
    assert (await web.open("/")).output["title"] == "Here"


async def test_a_call_that_is_cancelled_does_nothing_later(runner, web, monkeypatch):
    await web.open("/soon")
    click = asyncio.create_task(web.do("click", selector="button"))
    await asyncio.sleep(0.4)
    click.cancel()
    await asyncio.wait({click})
    monkeypatch.setitem(globals(), "shop_closed", b"no")
    await asyncio.sleep(1.2)
    assert web.asked("/bought") == 0
    assert "was cut off, and the page was closed" in str((await web.do("extract")).error)


async def test_a_navigation_that_times_out_does_nothing_later(runner, web):
    await web.open("/")
    result = await web.engine.execute(
        "browser_navigator", {"url": f"{web.server.url}/silent"}, action="navigate", timeout=0.5
    )
    assert result.error_type == "timeout"
    before = len(web.server.requests)
    await asyncio.sleep(0.5)
    assert len(web.server.requests) == before


async def test_the_end_of_one_run_leaves_the_others_alone(runner, web):
    await web.open("/", run="one")
    await web.open("/slow", run="two")
    effects = web.asked("/effect")
    await web.browser.cleanup("two")
    await asyncio.sleep(1.4)
    assert web.asked("/effect") == effects
    assert (await web.do("extract", run="one")).output["title"] == "Here"
    assert "No page is open" in str((await web.do("extract", run="two")).error)


async def test_runs_that_nobody_ends_are_ended_when_there_are_too_many(runner, web, monkeypatch):
    monkeypatch.setattr("ferrule.tools.browser.runs.MOST_RUNS", 2)
    for run in ("first", "second", "third"):
        await web.open("/", run=run)
    assert (await web.do("extract", run="third")).is_success and (await web.do("extract", run="second")).is_success
    assert "No page is open" in str((await web.do("extract", run="first")).error)


async def test_calls_of_many_runs_at_once_share_one_browser(runner, web):
    await web.browser.cleanup()
    results = await asyncio.gather(*(web.open("/", run=str(n)) for n in range(5)))
    assert {result.output["title"] for result in results} == {"Here"}
    assert len(web.browser._runs._tabs) == 5


async def test_the_end_of_an_agents_run_ends_its_browser(runner, web):
    await web.browser.cleanup()
    async with UnifiedToolLibrary() as library:
        library.register(BrowserNavigator(allow_private=True))
        opening = {"name": "browser_navigator__navigate", "arguments": {"url": web.server.url}}
        answered = await Agent(library, ScriptedModel([opening, "Done."])).run("Open it")
        assert answered.steps[0].is_success
        await nothing_is_left()


async def test_a_caller_who_leaves_while_it_starts_leaves_no_half_browser(runner, web):
    await web.browser.cleanup()
    call = asyncio.create_task(web.do("navigate", url=web.server.url))
    await asyncio.sleep(0.3)
    call.cancel()
    await asyncio.wait({call})
    await web.browser.cleanup()
    await nothing_is_left()


async def test_a_killed_program_leaves_no_browser(runner, web):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, web.server.url, stdout=subprocess.PIPE)
    assert process.stdout is not None and await process.stdout.readline() == b"Here\n"
    browsers = browsers_of(process.pid)
    process.kill()
    await process.wait()
    until = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{one}") for one in browsers):
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    assert browsers


async def test_the_end_of_the_engine_ends_it(runner):
    async with local_server(lambda request: answer(PAGES, request)) as server:
        async with ToolEngine() as engine:
            engine.register(BrowserNavigator(allow_private=True))
            result = await engine.execute("browser_navigator", {"url": server.url}, action="navigate")
            assert result.is_success, result.error
        await nothing_is_left()


def test_without_chromium_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SetupError, match="install chromium .* or say in FERRULE_CHROMIUM where it is"):
        find_chromium()
    monkeypatch.setenv(VARIABLE, "/nowhere/chrome")
    with pytest.raises(SetupError, match="'/nowhere/chrome' is no program that can be run"):
        find_chromium()


async def test_a_program_that_is_no_browser_is_named():
    browser = BrowserNavigator(chromium=sys.executable)
    with pytest.raises(SetupError, match="could not be started as a browser"):
        await browser.navigate("http://93.184.216.34/")
    await browser.cleanup()


async def test_without_playwright_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(MissingExtra, match=r'pip install "ferrule\[browser\]"'):
        await BrowserNavigator(chromium=sys.executable).navigate("http://93.184.216.34/")
