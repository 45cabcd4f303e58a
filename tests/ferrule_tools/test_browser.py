"""Using pages in a real browser."""

import json
import struct

import pytest

from ferrule import Agent, AgentState, ToolEngine, UnifiedToolLibrary
from ferrule.core.call import ToolExecutionContext
from ferrule.kinds.function.tools import tool_of
from ferrule.memory import RunMemory
from ferrule.memory.failures import FailureClass, FailureClassifier
from ferrule.testing import ScriptedModel
from ferrule_tools.browser import BrowserNavigator
from tests.ferrule_tools.sites import Page
from tests.ferrule_tools.sites import site as serve

pytestmark = pytest.mark.integration

SHOP = """<!doctype html><title>Shop</title><h1>Anvils</h1>
<nav><a href="/about">About us</a> <a href="/about">About us</a> <a href="/new" target="_blank">News</a></nav>
<input type="password" value="s3cret"><form action="/found"><label for="q">Search for</label><input id="q" name="q">
<select name="size"><option value="s">Small</option><option value="l">Large</option></select></form>
<p>Only <b>429</b> left.</p><button disabled>Buy</button><button style="display:none">Hidden</button>
<table><tr><th>Item</th><th>Price</th></tr><tr><td>Anvil</td><td>12.50</td></tr></table>
<a class="more" href="/more">Show more</a>"""

TANGLED = """<!doctype html><title>Tangled</title>
<form id="f"><input name="parentElement"><input name="getAttribute"><input name="id"><input name="id">
<input name='a"b'><input name="c\\d"><input name="semi;colon"></form><img name="querySelectorAll"><img name="body">
<ul><li><a href="#">1</a><li><a href="#">2</a><li><a href="#">3</a></ul>
<div class="x y"><span>7</span><span>8</span></div><div class="x y"><span>9</span></div>
<div id="dup">1</div><div id="dup">2</div>
<div id="12:x">30</div><div id=":r1:">31</div><svg><a href="/s"><text y="20">41</text></a></svg>
<my-card></my-card><my-card></my-card><script>document.querySelectorAll = () => [];
for (const card of document.getElementsByTagName("my-card"))
  card.attachShadow({mode: "open"}).innerHTML = "<p><button>Buy</button><b>5 left</b></p><button id=deep>Deep</button>";
</script>"""

late_has_come = b"no"
PAGES: dict[str, Page] = {
    "/": SHOP,
    "/about": "<title>About</title><h1>About us</h1>",
    "/new": "<title>News</title><a href='/about'>Read on</a>",
    "/more": "<title>More</title>",
    "/found": "<title>Found</title><p>2 results</p>",
    "/tangled": TANGLED,
    "/late": "<title>Late</title><body><script>"
    "setInterval(async () => { if (await (await fetch('/has-come')).text() === 'yes') "
    "document.body.innerHTML = '<p id=late>here</p>' }, 50)</script>",
    "/has-come": lambda request: (200, {}, late_has_come),
    "/covered": "<button id=under onclick='fetch(\"/clicked\")'>Go</button>"
    "<div id=cookies style='position:fixed;inset:0;background:white'>Accept cookies?</div>",
    "/alert": "<title>Alert</title><button onclick='alert(\"Wrong password\")'>Log in</button>",
    "/tall": "<title>Tall</title><div style='height:40000px;background:linear-gradient(red,blue)'></div>",
    "/login": (200, {"Content-Type": "text/html", "Set-Cookie": "user=ada"}, b"<title>In</title>"),
    "/cookie": lambda request: (200, {"Content-Type": "text/html"}, request.headers.get("cookie", "none").encode()),
    "/no-content": (204, {}, b""),
    "/stars": "<p>429 stars, rate limit, too many requests</p>",
}


@pytest.fixture(scope="module")
def shop(runner):
    with serve(runner, PAGES, BrowserNavigator(allow_private=True, element_timeout=60)) as opened:
        yield opened


@pytest.fixture
def impatient(shop, monkeypatch):
    """For tests of elements that are not there."""
    monkeypatch.setattr(shop.browser, "_element_timeout", 0.2)


async def test_a_page_is_opened_and_what_it_says_is_marked_as_untrusted(runner, shop):
    result = await shop.open("/")
    assert result.output == {"url": f"{shop.server.url}/", "title": "Shop", "status": 200, "untrusted": True}
    missing = await shop.open("/nothing")
    assert missing.output["status"] == 404
    nothing = await shop.do("navigate", url=f"{shop.server.url}/no-content")
    assert str(nothing.error).endswith("/no-content was not opened: it leads to no page that can be shown.")


async def test_what_can_be_used_is_listed_with_selectors(runner, shop):
    await shop.open("/")
    seen = (await shop.do("observe")).output["elements"]
    by_selector = {one["selector"]: (one["role"], one["text"]) for one in seen}
    assert by_selector["h1"] == ("heading", "Anvils")
    assert by_selector["input#q"] == ("textbox", "Search for")
    assert by_selector['select[name="size"]'][0] == "combobox"
    assert by_selector["table"] == ("table", "2 rows: Item, Price")
    assert by_selector['a[href="/more"]'] == ("link", "Show more")
    assert ("number", "429") in by_selector.values() and ("number", "12.50") in by_selector.values()
    assert [one["text"] for one in seen].count("About us") == 2
    assert next(one for one in seen if one["text"] == "Buy")["disabled"] is True
    assert "Hidden" not in json.dumps(seen) and "s3cret" not in json.dumps(seen)


@pytest.mark.parametrize("path", ["/", "/tangled"])
async def test_every_selector_of_the_outline_matches_one_element_and_the_right_one(runner, shop, path):
    await shop.open(path)
    seen = (await shop.do("observe")).output["elements"]
    assert len(seen) >= 10
    for one in seen:
        read = await shop.do("extract", selector=one["selector"])
        assert read.output.get("matches") == 1, (one, read.error)
        if one["role"] in ("link", "button", "number", "heading") and read.output["text"]:
            assert read.output["text"].split() == one["text"].split()


async def test_text_attributes_and_many_elements_are_read(runner, shop):
    await shop.open("/")
    assert (await shop.do("extract", selector="h1")).output["text"] == "Anvils"
    assert (await shop.do("extract", selector=".more", attribute="href")).output["text"] == "/more"
    assert (await shop.do("extract", selector="p", attribute="html")).output["text"] == "Only <b>429</b> left."
    many = (await shop.do("extract", selector="nav a", many=True)).output
    assert many["texts"] == ["About us", "About us", "News"] and many["matches"] == 3
    assert "Only 429 left." in (await shop.do("extract")).output["text"]
    assert (await shop.do("extract", selector="select", attribute="value")).output["text"] == "s"


async def test_elements_are_found_in_every_way_that_playwright_knows(runner, shop):
    await shop.open("/")
    for selector in ("nav a", "css=nav a", "nav >> a", "nav a:visible", "xpath=//nav/a", "nav >> role=link"):
        many = (await shop.do("extract", selector=selector, many=True, attribute="href")).output
        assert (many["matches"], many["texts"]) == (3, ["/about", "/about", "/new"]), selector


async def test_an_error_says_what_is_on_the_page_instead(runner, shop, impatient):
    await shop.open("/")
    result = await shop.do("extract", selector="a.show-more")
    assert result.error is not None
    assert result.error.startswith(f"No element matches 'a.show-more' on {shop.server.url}/. On the page: ")
    assert result.error.partition("On the page: ")[2].startswith("a[href=\"/more\"] (link, 'Show more', class 'more')")


async def test_a_missing_element_is_not_found_whatever_the_page_says(runner, shop, impatient):
    await shop.open("/stars")
    result = await shop.do("extract", selector="a.social-count")
    assert "429 stars, rate limit" in str(result.error)
    assert FailureClassifier().classify(result) is FailureClass.NOT_FOUND


async def test_what_cannot_be_read_is_said(runner, shop):
    await shop.open("/")
    for params, said in (
        ({"selector": "h1", "attribute": "href"}, "The element at 'h1' has no 'href'. Use text, html."),
        ({"selector": ".more", "attribute": "src"}, "or one of its attributes: class, href."),
        ({"selector": "a[["}, "'a[[' cannot be read as a selector"),
    ):
        result = await shop.do("extract", **params)
        assert said in str(result.error) and result.metadata["advice"] == "change_arguments"


async def test_a_click_leads_on_and_back_leads_back(runner, shop):
    await shop.open("/")
    assert (await shop.do("click", selector="text=Show more")).output["title"] == "More"
    assert (await shop.do("back")).output["title"] == "Shop"


async def test_a_selector_of_several_elements_is_not_clicked(runner, shop):
    await shop.open("/")
    result = await shop.do("click", selector="nav a")
    assert "'nav a' matches 3 elements" in str(result.error) and ">> nth=0" in str(result.error)
    assert (await shop.do("click", selector="nav a >> nth=0")).output["title"] == "About"


async def reason_after_a_timeout(shop, monkeypatch, reason, action, **params):
    """The error of an action on an element that cannot be used. A browser that is slow needs longer to say why."""
    for seconds in (0.5, 5.0, 50.0):
        with monkeypatch.context() as patched:
            patched.setattr("ferrule_tools.browser.navigator.ACTION_TIMEOUT", seconds)
            error = str((await shop.do(action, **params)).error)
        if reason in error:
            break
    return error


async def test_what_cannot_be_clicked_says_why(runner, shop, monkeypatch):
    for path, selector, reason in (
        ("/covered", "#under", 'something lies over it: <div id="cookies"'),
        ("/", "button:has-text('Buy')", "it is disabled"),
        ("/", "button:has-text('Hidden')", "it is not visible"),
    ):
        await shop.open(path)
        error = await reason_after_a_timeout(shop, monkeypatch, reason, "click", selector=selector)
        assert f"'{selector}' is on " in error and reason in error
    assert shop.asked("/clicked") == 0


async def test_text_is_typed_and_sent_and_options_are_chosen(runner, shop, monkeypatch):
    await shop.open("/")
    assert (await shop.do("type", selector="select", text="Large")).is_success
    reason = "it has no such option"
    assert reason in await reason_after_a_timeout(shop, monkeypatch, reason, "type", selector="select", text="Huge")
    result = await shop.do("type", selector="#q", text="big anvil", submit=True)
    assert result.output["url"].endswith("/found?q=big+anvil&size=l") and result.output["title"] == "Found"


async def test_a_page_that_a_click_opens_comes_to_the_front_and_back_closes_it(runner, shop):
    await shop.open("/")
    assert (await shop.do("click", selector="text=News")).output["title"] == "News"
    assert (await shop.do("click", selector="text=Read on")).output["title"] == "About"
    assert (await shop.do("back")).output["title"] == "News"
    assert (await shop.do("back")).output["title"] == "Shop"


async def test_there_may_be_no_page_to_go_back_to_or_to_look_at(runner, shop):
    assert (await shop.do("observe", run="new")).error == "No page is open. Call navigate with a URL first."
    await shop.open("/more", run="new")
    assert "There is no page before" in str((await shop.do("back", run="new")).error)
    assert (await shop.do("extract", run="new")).output["title"] == "More"


async def test_waiting_for_what_comes_later(runner, shop, impatient, monkeypatch):
    await shop.open("/late")
    assert "No element matches '#late'" in str((await shop.do("extract", selector="#late")).error)
    monkeypatch.setitem(globals(), "late_has_come", b"yes")
    assert (await shop.do("wait", selector="#late")).is_success
    assert (await shop.do("extract", selector="#late")).output["text"] == "here"
    assert "Say what to wait for" in str((await shop.do("wait")).error)
    await shop.open("/")
    hidden = await shop.do("wait", selector="text=Hidden", seconds=0.2)
    assert "is on " in str(hidden.error) and "was not visible within 0.2 seconds" in str(hidden.error)


async def test_what_a_run_knows_as_missing_may_be_tried_again_after_a_wait(runner, shop, impatient, monkeypatch):
    context = ToolExecutionContext(conversation_id="w", memory=RunMemory(), timeout=120)

    async def do(action, **params):
        return await shop.engine.execute("browser_navigator", params, context, action=action)

    await do("navigate", url=f"{shop.server.url}/late")
    assert (await do("extract", selector="#late")).error_type == "execution_error"
    assert (await do("extract", selector="#late")).error_type == "known_failure"
    assert (await do("click", selector="#late")).error_type == "known_failure"
    monkeypatch.setitem(globals(), "late_has_come", b"yes")
    assert (await do("wait", selector="#late")).is_success
    assert (await do("extract", selector="#late")).is_success


async def test_what_a_dialog_says_is_told(runner, shop):
    await shop.open("/alert")
    result = await shop.do("click", selector="button")
    assert result.output["dialogs"] == ["alert: Wrong password"]
    assert "dialogs" not in (await shop.do("extract")).output


async def test_pictures_are_content_and_never_too_tall(runner, shop, monkeypatch):
    monkeypatch.setattr("ferrule_tools.browser.navigator.MAX_SCREENSHOT_HEIGHT", 2_000)
    await shop.open("/tall")
    for full_page, size in ((False, (1280, 800)), (True, (1280, 2_000))):
        result = await shop.do("screenshot", full_page=full_page)
        [image] = result.content
        assert image.mime_type == "image/png" and struct.unpack(">II", image.data[16:24]) == size
        assert result.output["url"].endswith("/tall") and result.output["untrusted"] is True


async def test_each_run_has_cookies_and_pages_of_its_own(runner, shop):
    await shop.open("/login", run="ada")
    await shop.open("/cookie", run="ada")
    await shop.open("/cookie", run="bob")
    assert (await shop.do("extract", run="ada")).output["text"] == "user=ada"
    assert (await shop.do("extract", run="bob")).output["text"] == "none"


async def test_it_says_of_each_action_what_it_does_to_the_world():
    async with ToolEngine() as engine:
        [tool] = engine.register(BrowserNavigator())
        effects = {c.name: tool.spec.effects_of(c) for c in tool.spec.capabilities}
        assert [name for name, one in effects.items() if one.read_only] == ["observe", "extract", "screenshot"]
        assert [name for name, one in effects.items() if not one.repeatable] == ["click", "type", "back"]
        extract = next(c for c in tool.spec.capabilities if c.name == "extract")
        assert list(extract.schema["properties"]) == ["selector", "attribute", "many"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_agent_clicks_without_a_question_only_on_a_page_that_the_user_has_named(runner, shop, host):
    url = shop.server.url
    page = f"{url.replace('127.0.0.1', host)}/"
    replies = [
        {"name": "browser_navigator__navigate", "arguments": {"url": f"{url}/about"}},
        {"name": "browser_navigator__navigate", "arguments": {"url": page}},
        {"name": "browser_navigator__click", "arguments": {"selector": "a.more"}},
        "Done.",
    ]
    async with UnifiedToolLibrary() as library:
        library.register(tool_of(shop.browser, timeout=120))
        answer = await Agent(library, ScriptedModel(replies)).run(f"Show more of {url}")
    if host == "127.0.0.1":
        assert answer.is_finished and answer.steps[-1].is_success, answer.text
    else:
        (request,) = answer.approvals
        assert answer.state is AgentState.WAITING and f"'{page}' as page" in request.reason


async def test_a_link_that_is_typed_into_a_page_nobody_named_is_asked_about(runner, shop):
    url = shop.server.url
    page = f"{url.replace('127.0.0.1', 'localhost')}/"
    replies = [
        {"name": "browser_navigator__navigate", "arguments": {"url": f"{url}/about"}},
        {"name": "browser_navigator__navigate", "arguments": {"url": page}},
        {"name": "browser_navigator__type", "arguments": {"selector": "#q", "text": f"{url}/hunter2"}},
        "Done.",
    ]
    async with UnifiedToolLibrary() as library:
        library.register(tool_of(shop.browser, timeout=120))
        answer = await Agent(library, ScriptedModel(replies)).run(f"Read {url}")
    assert answer.state is AgentState.WAITING and "as page" in answer.approvals[0].reason
