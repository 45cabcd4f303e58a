"""What the page asks a person, and whether what it shows then is true, in a real browser."""

import re
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from tests.server.serving import RunningServer
from tests.support.waiting import until_sync
from tests.web.conftest import OpenPage, ask, expect, find_barriers
from tests.web.demo import DemoProject

pytestmark = pytest.mark.integration


def test_a_destructive_call_is_made_after_a_question_and_others_at_once(
    demo: DemoProject, server: RunningServer, open_page: OpenPage
):
    page = open_page(f"{server.url}/tools/remove")
    page.get_by_label("name").fill("old-backup")
    page.get_by_role("button", name="Call").click()
    dialog = page.get_by_role("dialog")
    for text in ("Really call remove?", "Remove a backup for good.", "old-backup"):
        expect(dialog).to_contain_text(text)
    assert find_barriers(page) == []
    with server.client() as http:
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        assert http.get("/v1/calls", params={"tool": "remove"}).json()["calls"] == []
        page.get_by_role("button", name="Call").click()
        dialog.get_by_role("button", name="Call").click()
        expect(page.get_by_role("region", name="Result")).to_contain_text("removed old-backup")
        assert len(http.get("/v1/calls", params={"tool": "remove"}).json()["calls"]) == 1
    page.goto(f"{server.url}/tools/exchange_rate")
    page.get_by_label("currency").fill("USD")
    page.get_by_role("button", name="Call").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("1.09")


def test_a_question_before_a_destructive_call_is_in_chinese_too(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/tools/remove", locale="zh-CN")
    page.get_by_label("name").fill("old-backup")
    page.get_by_role("button", name="调用", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("确定要调用 remove 吗？")
    expect(page.get_by_role("dialog")).to_contain_text("old-backup")


def _shows_end(conversation: Any) -> bool:
    from playwright.sync_api import Error

    with suppress(Error):  # of a request that the page has given up there is no body
        return any(turn["state"] == "finished" for turn in conversation.json().get("turns", ()))
    return False


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_run_that_was_approved_with_changes_shows_what_was_made(
    demo: DemoProject, server: RunningServer, open_page: OpenPage, has_ended: bool
):
    page = open_page(f"{server.url}/ask")
    resumptions: list[Any] = []
    conversations: list[Any] = []
    if has_ended:  # the server continues the run automatically, and may end it before the page follows
        page.route("**/v1/runs/*/resume", lambda route: resumptions.append(route))
        page.on(
            "response", lambda response: conversations.append(response) if "/conversations/" in response.url else None
        )
    ask(page, "Refund order 1003 please")
    expect(page.get_by_text("Waits for your decision")).to_be_visible()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("amount").fill("5")
    with page.expect_request("**/v1/runs/*/resume"):
        page.get_by_role("button", name="Approve with changes").click()
    while has_ended and not any(map(_shows_end, conversations)):
        page.wait_for_timeout(20)  # lets the page go on, until it has read the end from the store
    for route in resumptions:
        route.continue_()
    expect(page.locator(".markdown", has_text="refunded 5 of order 1003")).to_be_visible()
    made = page.locator("details.call", has_text="refund").last
    expect(made).to_contain_text('"amount":5')
    assert page.get_by_text('"amount":39').count() == 0
    page.get_by_role("link", name="Open run").click()
    trace = page.get_by_role("listbox", name="Trace")
    expect(trace.get_by_role("option", name=re.compile("refund")).first).to_contain_text("approved")
    assert page.get_by_text("What failed").count() == page.get_by_text("waits for approval").count() == 0
    page.goto(f"{server.url}/calls")
    asked = page.get_by_role("option", name=re.compile("refund")).filter(has_text="approved")
    asked.first.click()
    assert page.get_by_text("waits for approval").count() == 0
    page.get_by_role("link", name="Open the call that was made").click()
    expect(page.locator(".trace-detail")).to_contain_text("refunded 5 of order 1003")


def test_a_run_ends_although_its_tab_was_closed_and_shows_its_answer_later(
    demo: DemoProject, server: RunningServer, open_page: OpenPage
):
    asking = open_page(f"{server.url}/ask")
    ask(asking, "Refund order 1004 please")
    expect(asking.get_by_text("Waits for your decision")).to_be_visible()
    address = asking.url
    asking.close()
    deciding = open_page(f"{server.url}/approvals")
    deciding.locator(".item", has_text="1004").click()
    deciding.get_by_role("button", name="Approve").click()
    with server.client() as http:
        until_sync(lambda: http.get("/v1/runs").json()["runs"][0]["state"] == "finished")
    expect(open_page(address).get_by_text("refunded 39 of order 1004").last).to_be_visible()
    assert (demo.folder / "refunds.txt").read_text().count("1004") == 1
