"""One journey through the web page in a real browser, on a real server; only the language model is played.

`test_views`, `test_records`, `test_access` and `test_permissions` look at every view.
"""

import re

import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from tests.server.serving import RunningServer
from tests.web.conftest import OpenPage, ask, expect, find_barriers
from tests.web.demo import DemoProject

pytestmark = pytest.mark.integration


def test_a_question_is_asked_approved_in_a_second_browser_and_answered(
    demo: DemoProject, server: RunningServer, open_page: OpenPage
):
    asking, deciding = open_page(f"{server.url}/ask"), open_page(f"{server.url}/approvals")
    expect(deciding.get_by_text("Nothing waits for you")).to_be_visible()
    ask(asking, "Refund order 1001 please")
    expect(asking.get_by_text("Waits for your decision")).to_be_visible()
    expect(asking.locator(".call-list")).to_contain_text("search_orders")
    assert find_barriers(asking) == []
    expect(deciding.get_by_role("heading", name="refund")).to_be_visible()  # without reloading
    expect(deciding).to_have_title(re.compile(r"^\(1\) Approvals"))
    asking.reload()
    expect(asking.get_by_text("Waits for your decision")).to_be_visible()
    deciding.get_by_role("button", name="Approve").click()
    expect(asking.get_by_text("refunded 39 of order 1001").last).to_be_visible()
    expect(asking.get_by_text("Waits for your decision")).to_have_count(0)
    assert (demo.folder / "refunds.txt").read_text() == "1001 39\n"
    asking.get_by_role("link", name="Open run").click()
    trace = asking.get_by_role("listbox", name="Trace")
    expect(trace.get_by_role("option", name=re.compile("refund")).first).to_be_visible()


def test_hostile_content_stays_text(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/ask")
    ask(page, "attack <b>me</b> \u202egpj.exe")
    answer = page.locator(".markdown").last
    expect(answer).to_contain_text("<script>")
    expect(answer.locator("a")).to_have_count(1)  # the link with javascript: is none
    assert page.locator("img[src='x'], .turn script, .turn b, .turn img").count() == 0
    link = answer.get_by_role("link", name="a site")
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert link.get_attribute("title") == "Opens https://example.com/page"
    assert "\u202e" not in (page.locator(".turns").text_content() or "")
    expect(answer).to_contain_text("\\u202egpj.exe")
    page.locator("details.call summary").click()
    expect(page.locator("details.call pre").last).to_contain_text("onerror")
    page.get_by_role("link", name="Open run").click()
    page.get_by_role("option", name=re.compile("hostile")).click()
    expect(page.locator(".trace-detail")).to_contain_text("\\u202egpj.exe")
    assert "attacked" not in page.title()
