"""How a browser begins and ends: on first use, with the run or the engine, and never later."""

import asyncio
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.errors import MissingExtra, SetupError
from ferrule.testing import ScriptedModel
from ferrule_tools.browser import BrowserNavigator
from ferrule_tools.browser.chromium import CHROMIUM_VARIABLE, find_chromium
from tests.ferrule_tools.sites import Page, answer, browsers_of
from tests.ferrule_tools.sites import site as serve
from tests.support.http_servers import serve_http
from tests.support.waiting import is_running, time_out_after_start, until

pytestmark = pytest.mark.integration

shop_closed = b"yes"
PAGES: dict[str, Page] = {
    "/": "<title>Here</title>",
    "/later": "<title>Later</title><script>setInterval(async () => { "
    "if (await (await fetch('/closed')).text() === 'no') fetch('/effect') }, 50)</script>",
    "/soon": "<button disabled onclick='fetch(\"/bought\")'>Buy</button><script>setInterval(async () => "
    "document.querySelector('button').disabled = await (await fetch('/closed')).text() === 'yes', 50)</script>",
    "/closed": lambda request: (200, {}, shop_closed),
    "/silent": None,
}
KILLED = """
import asyncio, sys
from ferrule_tools.browser import BrowserNavigator
async def main():
    print((await BrowserNavigator(allow_private=True).navigate(sys.argv[1]))["title"], flush=True)
    await asyncio.sleep(600)  # until it is killed
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def web(runner):
    with serve(runner, PAGES, BrowserNavigator(allow_private=True, element_timeout=60)) as opened:
        yield opened


async def nothing_is_left():
    """The last processes of a browser take a while to end."""
    await until(lambda: not browsers_of(os.getpid()))


def is_in_a_call(web):
    return any(tabs.turn.locked() for tabs in web.browser._runs._tabs.values())


async def test_it_starts_when_it_is_used_and_ends_without_a_trace(runner, web, monkeypatch, request):
    folder = tempfile.mkdtemp(prefix="fb")  # a short path: Chromium puts sockets there
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    monkeypatch.setenv("TMPDIR", folder)  # other browsers use the system's folder at the same time
    await nothing_is_left()  # of other tests
    await web.open("/")
    assert browsers_of(os.getpid()) != []
    await web.browser.cleanup()
    await nothing_is_left()
    assert glob.glob(f"{folder}/*playwright*") == []
    assert "No page is open" in str((await web.do("extract")).error)  # it may be used again


@pytest.mark.long
async def test_a_browser_that_is_killed_is_started_anew(runner, web):
    await web.open("/")
    for process in browsers_of(os.getpid(), (b"--headless",)):
        os.kill(process, signal.SIGKILL)
    await until(lambda: not web.browser._runs._starting.result().is_alive)
    assert (await web.open("/")).output["title"] == "Here"


async def test_a_browser_that_is_killed_in_the_middle_of_a_call_fails_that_call_only(runner, web):
    await web.open("/")
    call = asyncio.create_task(web.do("wait", selector="#never"))
    await until(lambda: is_in_a_call(web))
    for process in browsers_of(os.getpid()):
        os.kill(process, signal.SIGKILL)  # the driver too
    result = await call
    assert not result.is_success and "the browser ended and was started anew" in str(result.error)
    assert (await web.open("/")).output["title"] == "Here"


async def test_a_call_that_is_cancelled_does_nothing_later(runner, web, monkeypatch):
    await web.open("/soon")
    click = asyncio.create_task(web.do("click", selector="button"))
    await until(lambda: is_in_a_call(web))
    click.cancel()
    await asyncio.wait({click})
    monkeypatch.setitem(globals(), "shop_closed", b"no")
    await asyncio.sleep(1)  # a page that was still open would ask every 50 ms
    assert web.asked("/bought") == 0
    assert "was cancelled, and the page was closed" in str((await web.do("extract")).error)


async def test_a_navigation_that_times_out_does_nothing_later(runner, web, monkeypatch):
    async def close_slowly(page):
        await asyncio.sleep(1)  # as on a busy machine; the engine cancels the call several times meanwhile
        await page.close()

    monkeypatch.setattr("ferrule_tools.browser.tabs._close_page", close_slowly)
    await web.open("/later")  # which lives on while the next page does not come
    silent = f"{web.server.url}/silent"
    result = await time_out_after_start(
        lambda seconds: web.do("navigate", url=silent, timeout=seconds), lambda: web.asked("/silent")
    )
    assert result.error_type == "timeout"
    monkeypatch.setitem(globals(), "shop_closed", b"no")
    await asyncio.sleep(1)  # a page that was still open would ask every 50 ms
    assert web.asked("/silent") and web.asked("/effect") == 0


async def test_the_end_of_one_run_leaves_the_others_alone(runner, web, monkeypatch):
    await web.open("/", run="one")
    await web.open("/later", run="two")
    await web.browser.cleanup("two")
    monkeypatch.setitem(globals(), "shop_closed", b"no")
    await asyncio.sleep(1)  # a page that was still open would ask every 50 ms
    assert web.asked("/effect") == 0
    assert (await web.do("extract", run="one")).output["title"] == "Here"
    assert "No page is open" in str((await web.do("extract", run="two")).error)


@pytest.mark.long
async def test_runs_that_nobody_ends_are_ended_when_there_are_too_many(runner, web, monkeypatch):
    monkeypatch.setattr("ferrule_tools.browser.navigator.MAX_RUNS", 2)
    for run in ("first", "second", "third"):
        await web.open("/", run=run)
    assert (await web.do("extract", run="third")).is_success and (await web.do("extract", run="second")).is_success
    assert "No page is open" in str((await web.do("extract", run="first")).error)


@pytest.mark.long
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
    await until(lambda: browsers_of(os.getpid()))
    call.cancel()
    await asyncio.wait({call})
    await web.browser.cleanup()
    await nothing_is_left()
    assert call.cancelled()


async def test_a_killed_program_leaves_no_browser(runner, web):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, web.server.url, stdout=subprocess.PIPE)
    assert process.stdout is not None and await process.stdout.readline() == b"Here\n"
    browsers = browsers_of(process.pid)
    process.kill()
    await process.wait()
    await until(lambda: not any(map(is_running, browsers)))
    assert browsers


@pytest.mark.long
async def test_the_end_of_the_engine_ends_it(runner):
    async with serve_http(lambda request: answer(PAGES, request)) as server:
        async with ToolEngine() as engine:
            engine.register(BrowserNavigator(allow_private=True))
            result = await engine.execute("browser_navigator", {"url": server.url}, action="navigate")
            assert result.is_success, result.error
        await nothing_is_left()


def test_without_chromium_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(CHROMIUM_VARIABLE, raising=False)
    with pytest.raises(SetupError, match="install chromium .* or say in FERRULE_CHROMIUM where it is"):
        find_chromium()
    monkeypatch.setenv(CHROMIUM_VARIABLE, "/nowhere/chrome")
    with pytest.raises(SetupError, match="'/nowhere/chrome' is not a program that can be run"):
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
