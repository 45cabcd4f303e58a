"""The web page in a real browser, on a real server with a real store; only the language model is played."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import atif
import httpx
import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from tests.server.serving import RunningServer
from tests.support.ports import reserved_port
from tests.support.waiting import until_sync
from tests.web.conftest import OpenPage, ask, expect, find_barriers
from tests.web.demo import DemoProject

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from playwright.sync_api import Route


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def request_refund(http: httpx.Client, **arguments: Any) -> str:
    """A call that waits for a person; returns the id of its request."""
    refused = http.post("/v1/tools/refund/call", json={"arguments": {"order": 1001, "amount": 5, **arguments}})
    return str(refused.json()["metadata"]["approval_id"])


def refuse_all(http: httpx.Client) -> None:
    for request in http.get("/v1/approvals").json()["approvals"]:
        http.post(f"/v1/approvals/{request['approval_id']}", json={"allowed": False})


def test_a_request_appears_without_reloading_and_is_approved_by_keyboard(
    server: RunningServer, http: httpx.Client, open_page: OpenPage
):
    refuse_all(http)
    page = open_page(f"{server.url}/approvals")
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    approval_id = request_refund(http, reason="keyboard")
    expect(page.get_by_role("heading", name="refund")).to_be_visible()
    expect(page).to_have_title(re.compile(r"^\(1\) Approvals"))
    expect(page.locator(".detail-pane")).to_contain_text("Refunds are checked by a person.")
    assert find_barriers(page) == []
    page.keyboard.press("a")
    expect(page.get_by_text("Approved: refund")).to_be_visible()
    assert http.get(f"/v1/approvals/{approval_id}").json()["state"] == "approved"
    expect(page).to_have_title(re.compile(r"^Approvals"))


def test_a_request_is_refused_with_a_reason_and_another_approved_with_other_arguments(
    server: RunningServer, http: httpx.Client, open_page: OpenPage
):
    refuse_all(http)
    first, second = request_refund(http, amount=7), request_refund(http, amount=8)
    page = open_page(f"{server.url}/approvals/{first}")
    page.get_by_role("button", name="Refuse").click()
    page.get_by_label("Reason").fill("not without a receipt")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Refused: refund")).to_be_visible()
    refused = http.get(f"/v1/approvals/{first}").json()
    assert refused["state"] == "refused" and refused["decision_reason"] == "not without a receipt"
    page.goto(f"{server.url}/approvals/{second}")
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("order")).to_have_value("1001")
    page.get_by_label("amount").fill("4")
    page.get_by_role("button", name="As JSON").click()
    field = page.get_by_label("Arguments as JSON")
    expect(field).to_have_value(re.compile('"amount": 4'))
    field.fill("{")
    expect(page.get_by_text("This is not a JSON object.")).to_be_visible()
    field.fill('{"order": 1001, "amount": 3}')
    page.get_by_role("button", name="Approve with changes").click()
    expect(page.get_by_text("Approved: refund")).to_be_visible()
    assert http.get(f"/v1/approvals/{second}").json()["edited_arguments"] == {"order": 1001, "amount": 3}


def test_of_two_simultaneous_decisions_the_second_is_told(
    server: RunningServer, http: httpx.Client, open_page: OpenPage
):
    refuse_all(http)
    approval_id = request_refund(http, amount=11)
    pages = [open_page(f"{server.url}/approvals/{approval_id}") for _ in range(2)]
    for page in pages:
        expect(page.get_by_role("button", name="Approve")).to_be_visible()

    def decide_first(route: "Route") -> None:
        """Somebody else decides after the button was pressed and before its request arrives."""
        http.post(f"/v1/approvals/{approval_id}", json={"allowed": True})
        route.continue_()

    pages[1].route(f"**/v1/approvals/{approval_id}", decide_first, times=1)
    pages[1].get_by_role("button", name="Approve").click()
    expect(pages[1].get_by_text("Somebody else was first.")).to_be_visible()
    for page in pages:  # both show what was decided, without a button for it
        expect(page.locator(".detail-pane").get_by_text("Approved").first).to_be_visible()
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)


def test_a_run_shows_what_failed_first_and_folds_repetitions(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/ask")
    ask(page, "Show the rates of the euro")
    expect(page.locator(".markdown table")).to_be_visible()
    page.get_by_role("link", name="Open run").click()
    failing = page.get_by_role("region", name="What failed")
    expect(failing.locator("li").first).to_contain_text("error in the tool")
    expect(failing.locator("li").nth(1)).to_contain_text(re.compile(r"[2-9]×"))
    expect(failing.locator("li").nth(1)).to_contain_text("not executed")
    trace = page.get_by_role("listbox", name="Trace")
    expect(trace.get_by_role("option", name=re.compile("Model, turn 1"))).to_be_visible()
    failing.locator("button").first.click()
    expect(page.locator(".trace-detail")).to_contain_text("There is no currency 'XXX'")
    assert find_barriers(page) == []
    with page.expect_download() as download:
        page.get_by_role("button", name="chat JSONL").click()
    assert '"messages"' in download.value.path().read_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="ATIF").click()
    document = atif.Trajectory.model_validate_json(download.value.path().read_text())
    assert document.agent.model_name == "vllm:demo" and len(document.steps) > 3
    expect(page.locator(".run-head")).to_contain_text(re.compile(r"0\.00\d+ USD"))
    page.get_by_role("button", name="Tool schemas").click()
    row = page.locator("tr", has_text="exchange_rate")
    expect(row.locator("td").last).to_have_text(re.compile(r"^\d+$"))
    expect(page.locator("tr", has_text="search_orders")).to_contain_text("not used")
    assert find_barriers(page) == []


def test_a_plan_is_a_graph_and_a_question_is_asked_again_with_another_model(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/ask")
    ask(page, "Find the orders of Ann and Bob")
    expect(page.locator(".markdown").last).to_contain_text("three orders each")
    page.get_by_label("Ask again with").select_option(label="Plan")
    expect(page.locator(".graph .node.finished")).to_have_count(4)
    expect(page.locator(".graph .edge")).to_have_count(3)
    assert find_barriers(page) == []
    page.get_by_label("Ask again with").last.select_option(label="vllm:demo-large")
    expect(page.locator(".markdown").last).to_contain_text("(demo-large)")
    page.reload()
    expect(page.locator(".turn")).to_have_count(3)
    page.get_by_role("link", name="Open run").last.click()
    expect(page.locator(".run-head")).to_contain_text("vllm:demo-large")


def test_a_waiting_question_is_decided_in_place_after_a_reload(
    demo: DemoProject, server: RunningServer, http: httpx.Client, open_page: OpenPage
):
    refuse_all(http)
    page = open_page(f"{server.url}/ask")
    ask(page, "Refund order 1777 please")
    expect(page.get_by_text("Waits for your decision")).to_be_visible()
    page.reload()
    expect(page.get_by_text("Waits for your decision")).to_be_visible()
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("refunded 39 of order 1777").last).to_be_visible()
    assert (demo.folder / "refunds.txt").read_text().count("1777") == 1


def test_runs_are_filtered_and_two_are_compared(server: RunningServer, http: httpx.Client, open_page: OpenPage):
    for number in (1, 2):
        http.post("/v1/ask", json={"question": f"The rates, time {number}", "conversation_id": f"compare{number}"})
    page = open_page(f"{server.url}/runs")
    page.get_by_label("Search questions and answers").fill("time 1")
    expect(page.locator(".run-item")).to_have_count(1)
    assert find_barriers(page) == []
    page.get_by_label("Status").select_option("waiting")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.get_by_label("Status").select_option("")
    page.locator(".run-item").click()
    page.get_by_label("Compare with…").focus()
    page.get_by_label("Compare with…").select_option(label="The rates, time 2")
    expect(page.locator(".comparison > tbody > tr", has_text="exchange_rate").nth(4)).to_be_visible()
    expect(page.locator(".comparison .mark", has_text="=").first).to_be_visible()


def test_a_large_result_is_cut_and_can_be_downloaded(server: RunningServer, http: httpx.Client, open_page: OpenPage):
    call = http.post("/v1/tools/large/call", json={"arguments": {}}).json()
    assert call["is_success"]
    answer = http.post("/v1/ask", json={"question": "what size is it", "conversation_id": "size"}).json()
    page = open_page(f"{server.url}/runs/{answer['run_id']}")
    page.get_by_role("option", name=re.compile("large")).click()
    detail = page.locator(".trace-detail")
    expect(detail).to_contain_text("0123456789")
    assert len(detail.text_content() or "") < 60_000
    with page.expect_download() as download:
        detail.get_by_role("link", name="Whole output").click()
    assert download.value.path().stat().st_size >= 5_000_000


def test_the_page_speaks_chinese_and_remembers_it(server: RunningServer, http: httpx.Client, open_page: OpenPage):
    refuse_all(http)
    page = open_page(f"{server.url}/approvals", locale="zh-CN")
    expect(page.get_by_role("heading", name="审批", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_label("语言").select_option("en")
    expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Approvals")).to_be_visible()


def test_every_shortcut_is_listed_and_works(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/approvals")
    expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Go to Runs")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search questions and answers")).to_be_focused()
    page.keyboard.press("Tab")
    page.locator("h1").click()
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert find_barriers(page) == []


def test_approvals_are_decided_on_a_phone(server: RunningServer, http: httpx.Client, open_page: OpenPage):
    refuse_all(http)
    approval_id = request_refund(http, reason="phone " * 50)
    page = open_page(f"{server.url}/approvals", viewport={"width": 390, "height": 844}, has_touch=True)
    page.locator(".item").tap()
    button = page.get_by_role("button", name="Approve")
    expect(button).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert find_barriers(page) == []
    button.tap()
    expect(page.get_by_text("Approved: refund")).to_be_visible()
    assert http.get(f"/v1/approvals/{approval_id}").json()["state"] == "approved"
    for view in ("ask", "runs", "calls", "tools", "failures", "access", "access/tester", "access/tokens"):
        page.goto(f"{server.url}/{view}")
        expect(page.locator("main h1, main textarea").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert find_barriers(page) == []


def test_a_change_makes_the_page_read_only_what_it_shows(
    server: RunningServer, http: httpx.Client, open_page: OpenPage
):
    page = open_page(f"{server.url}/tools")
    expect(page.locator(".item").first).to_be_visible()
    page.wait_for_load_state("networkidle")  # the stream does not count
    paths: list[str] = []
    page.on("request", lambda request: paths.append(urlsplit(request.url).path))
    with page.expect_request("**/v1/stats"):
        http.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}})
    page.wait_for_load_state("networkidle")
    assert set(paths) == {"/v1/stats"}  # nothing is polled: all else comes by the one stream


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that is started again."""
    with reserved_port() as port:
        yield port


def test_the_page_reconnects_after_a_restart_of_the_server(demo: DemoProject, open_page: OpenPage, port: int):
    with demo.serve(port=port) as first:
        page = open_page(f"{first.url}/approvals")
        expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
    expect(page.get_by_text("The server cannot be reached.").first).to_be_visible()
    with demo.serve(port=port) as second, second.client() as http:
        request_refund(http, reason="after the restart")
        expect(page.get_by_text("The server cannot be reached.")).to_have_count(0)
        expect(page.locator(".items")).to_contain_text("after the restart")


def test_a_question_whose_server_was_killed_is_interrupted_and_resumed(
    demo: DemoProject, open_page: OpenPage, port: int
):
    with demo.serve(port=port) as first:
        page = open_page(f"{first.url}/ask")
        ask(page, "Wait for signal.txt")
        until_sync((demo.folder / "signal.txt.started").exists)
        first.process.kill()
        first.process.wait()
    with demo.serve(port=port):
        page.reload()
        expect(page.locator(".turn .badge")).to_have_text("Interrupted")
        expect(page.get_by_text("Running")).to_have_count(0)
        (demo.folder / "signal.txt").touch()
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_text("The file was found.")).to_be_visible()
