"""What the page shows to whom: tokens, sessions, and a viewer who may not decide anything."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from tests.server.serving import RunningServer
from tests.web.conftest import OpenPage, expect, find_barriers
from tests.web.demo import DemoProject

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def tokens(demo: DemoProject) -> dict[str, str]:
    return {role: demo.create_token(role, "--role", role) for role in ("viewer", "caller", "approver")}


@pytest.fixture(scope="module")
def server(demo: DemoProject, tokens: dict[str, str]) -> Iterator[RunningServer]:
    with demo.serve() as server:
        yield server


def sign_in(page: "Page", token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_be_visible()


def test_a_token_is_exchanged_for_a_session(server: RunningServer, tokens: dict[str, str], open_page: OpenPage):
    page = open_page(f"{server.url}/runs")
    assert find_barriers(page) == []
    page.get_by_label("Token").fill("frl_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("This token is not valid.")).to_be_visible()
    sign_in(page, tokens["viewer"])
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    assert tokens["viewer"] not in page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_viewer_has_no_button_that_would_be_refused(
    server: RunningServer, tokens: dict[str, str], open_page: OpenPage
):
    with server.client(tokens["caller"]) as http:
        http.post("/v1/tools/refund/call", json={"arguments": {"order": 1, "amount": 2}})
    own = open_page(f"{server.url}/approvals")
    sign_in(own, tokens["caller"])
    expect(own.get_by_text("Your token may not approve.")).to_be_visible()
    for name in ("Approve", "Edit", "Refuse"):
        assert own.get_by_role("button", name=name).count() == 0
    own.keyboard.press("a")  # does nothing
    page = open_page(f"{server.url}/ask")
    sign_in(page, tokens["viewer"])
    expect(page.get_by_text("Your token may look, but not ask.")).to_be_visible()
    assert page.locator("textarea").count() == 0
    page.goto(f"{server.url}/approvals")
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()  # it is of somebody else
    with server.client(tokens["caller"]) as http:
        assert len(http.get("/v1/approvals").json()["approvals"]) == 1


def test_a_caller_asks_and_an_approver_decides(server: RunningServer, tokens: dict[str, str], open_page: OpenPage):
    asking, deciding = open_page(f"{server.url}/ask"), open_page(f"{server.url}/approvals")
    sign_in(asking, tokens["caller"])
    sign_in(deciding, tokens["approver"])
    asking.get_by_label("Question").fill("Refund order 1002")
    asking.keyboard.press("Enter")
    expect(asking.get_by_text("Waits for an approval")).to_be_visible()
    assert asking.get_by_role("button", name="Approve").count() == 0
    deciding.locator(".item", has_text="1002").click()
    deciding.get_by_role("button", name="Approve").click()
    expect(asking.get_by_text("refunded 39 of order 1002").last).to_be_visible()
