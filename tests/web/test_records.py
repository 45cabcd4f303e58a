"""Calls, tools and what was learned from failures, in a real browser."""

import asyncio
import re
import threading

import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from ferrule import ToolKnowledgeStore
from ferrule.store import ToolCallRecord
from tests.server.serving import RunningServer
from tests.support.waiting import until_sync
from tests.web.conftest import OpenPage, expect, find_barriers
from tests.web.demo import DemoProject

pytestmark = pytest.mark.long


def test_ten_thousand_calls_are_listed_with_few_elements(server: RunningServer, open_page: OpenPage):
    with server.client() as http:
        batch = [{"tool": "add", "arguments": {"a": n, "b": 1}} for n in range(1_000)]
        for _ in range(10):
            assert http.post("/v1/calls", json={"calls": batch}).status_code == 200
        http.post("/v1/tools/exchange_rate/call", json={"arguments": {"currency": "ABC"}})
    page = open_page(f"{server.url}/calls")
    rows = page.get_by_role("listbox", name="Calls")
    expect(rows.get_by_role("option").first).to_contain_text("exchange_rate")
    assert find_barriers(page) == []

    def scrolled_to_the_end() -> bool:
        rows.evaluate("pane => { pane.scrollTop = pane.scrollHeight }")
        return page.get_by_text("10,001 calls").count() == 1

    until_sync(scrolled_to_the_end, seconds=120)
    assert rows.get_by_role("option").count() < 100
    page.get_by_label("Status").select_option("failed")
    page.get_by_label("Tool", exact=True).fill("exchange_rate")
    expect(rows.get_by_role("option")).to_have_count(1)
    rows.get_by_role("option").click()
    expect(page.locator(".trace-detail")).to_contain_text("There is no currency 'ABC'")
    page.get_by_label("Status").select_option("success")
    expect(page.get_by_text("Nothing matches")).to_be_visible()


def test_a_call_is_repeated_after_a_confirmation(server: RunningServer, open_page: OpenPage):
    with server.client() as http:
        http.post("/v1/tools/note/call", json={"arguments": {"text": "again"}})
        page = open_page(f"{server.url}/calls")
        page.get_by_role("option", name=re.compile("note")).first.click()
        page.get_by_role("button", name="Repeat").click()
        expect(page.get_by_role("dialog")).to_contain_text("again")
        page.get_by_role("dialog").get_by_role("button", name="Repeat").click()
        expect(page.get_by_text("The call was repeated.")).to_be_visible()
        calls = http.get("/v1/calls", params={"tool": "note"}).json()["calls"]
    assert [call["params"] for call in calls] == [{"text": "again"}] * 2


def test_a_tool_is_found_and_called_with_a_form(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/tools")
    page.get_by_label("Search tools").fill("orders of a customer")
    page.locator(".item", has_text="search_orders").click()
    page.get_by_label("customer").fill("Ann")
    page.get_by_label("limit").fill("2")
    assert find_barriers(page) == []
    page.get_by_role("button", name="Call").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text('"order": 1001')
    page.get_by_role("button", name="As JSON").click()
    field = page.get_by_label("Arguments as JSON")
    assert '"limit": 2' in field.input_value()
    field.fill('{"customer": "Bob", "limit": 1}')
    page.get_by_role("button", name="Call").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("Bob")


def test_a_tool_that_asks_leads_to_its_approval(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/tools/refund")
    expect(page.get_by_text("needs approval")).to_be_visible()
    page.get_by_label("order").fill("7")
    page.get_by_label("amount").fill("1.5")
    page.get_by_role("button", name="Call").click()
    page.get_by_role("dialog").get_by_role("button", name="Call").click()
    page.get_by_role("link", name="Waits for an approval").click()
    expect(page.locator(".detail-pane")).to_contain_text("1.5")


def test_what_was_learned_is_shown_pinned_and_forgotten(server: RunningServer, open_page: OpenPage):
    with server.client() as http:
        http.post("/v1/ask", json={"question": "the rates", "conversation_id": "learned"})
        until_sync(lambda: http.get("/v1/failures").json()["failures"])
        page = open_page(f"{server.url}/failures")
        pattern = page.locator(".pattern", has_text="exchange_rate")
        expect(pattern).to_contain_text(re.compile(r"Prevented[2-9]×"))
        assert find_barriers(page) == []
        pattern.get_by_role("button", name="Pin").click()
        expect(pattern.get_by_text("pinned", exact=True)).to_be_visible()
        assert http.get("/v1/failures").json()["failures"][0]["pinned"]
        pattern.get_by_role("button", name="Forget").click()
        page.get_by_role("dialog").get_by_role("button", name="Forget").click()
        expect(page.get_by_text("Nothing was learned yet")).to_be_visible()
        assert http.get("/v1/failures").json()["failures"] == []


def test_figures_of_all_calls_are_plotted_and_follow_the_filter(server: RunningServer, open_page: OpenPage):
    with server.client() as http:
        http.post("/v1/tools/fail/call", json={"arguments": {}})
    page = open_page(f"{server.url}/calls")
    errors = page.locator(".chart", has_text="Errors")
    expect(errors.locator("path.line-2")).to_have_attribute("d", re.compile("L"))
    expect(page.locator(".slots tbody")).to_contain_text("general")
    page.get_by_label("Tool", exact=True).fill("fail")
    expect(errors.locator("strong")).to_have_text("1")
    page.get_by_label("Caller").select_option("http")
    expect(page.get_by_role("listbox", name="Calls").get_by_role("option")).to_have_count(1)
    page.get_by_label("Token or user").fill("token:nobody")
    expect(page.get_by_text("Nothing matches")).to_be_visible()


def test_names_and_descriptions_of_tools_stay_text(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/tools")
    page.get_by_label("Search tools").fill("evil")
    item = page.locator(".item", has_text="evil")
    expect(item).to_contain_text("<img src=x")
    item.click()
    expect(page.locator(".detail-pane h2")).to_contain_text("\\u202egpj")
    page.get_by_label("message").fill("hello")
    page.get_by_role("button", name="Call").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("hello")
    page.goto(f"{server.url}/calls")
    expect(page.get_by_role("option", name=re.compile("evil"))).to_contain_text("onerror")
    assert page.locator("main img, main script").count() == 0
    assert "\u202e" not in (page.locator("main").text_content() or "") and "attacked" not in page.title()


def test_a_trace_of_ten_thousand_calls_has_few_elements(demo: DemoProject, server: RunningServer, open_page: OpenPage):
    with server.client() as http:
        asked = http.post("/v1/ask", json={"question": "the rates", "conversation_id": "long"}).json()
    run_id = asked["run_id"]

    async def write_records() -> None:
        async with ToolKnowledgeStore(f"sqlite:///{demo.folder}/calls.db") as store:
            for number in range(10_000):
                record = ToolCallRecord(store.new_record_id(), f"tool_{number % 7}", conversation_id=run_id)
                record.started_at += number / 100
                store.record_started(record)
                record.status, record.execution_time, record.wait_time = "success", 0.02, 0.005
                store.record_finished(record)

    writing = threading.Thread(target=lambda: asyncio.run(write_records()))
    writing.start()  # this thread has the event loop of Playwright
    writing.join()
    page = open_page(f"{server.url}/runs/{run_id}")
    trace = page.get_by_role("listbox", name="Trace")
    expect(trace.get_by_role("option").first).to_have_attribute("aria-setsize", re.compile(r"100\d\d"))
    assert trace.get_by_role("option").count() < 100
    trace.evaluate("pane => { pane.scrollTop = pane.scrollHeight }")
    last = trace.locator("[aria-posinset='10000']")
    expect(last).to_be_visible()
    last.click()
    expect(page.locator(".trace-detail h2")).to_contain_text("tool_")
    expect(page.get_by_role("region", name="What failed")).to_contain_text("exchange_rate")
    assert trace.get_by_role("option").count() < 100
