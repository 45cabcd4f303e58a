"""What administrators do in a real browser: the policy, tokens, the audit, and MCP servers that changed."""

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from tests.server.serving import RunningServer
from tests.web.conftest import OpenPage, expect, find_barriers
from tests.web.demo import DemoProject

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(demo: DemoProject) -> Iterator[RunningServer]:
    demo.change_mail_server()
    with demo.serve() as server:
        yield server


def test_a_rule_is_shown_with_the_calls_it_decided_about(server: RunningServer, open_page: OpenPage):
    with server.client() as http:
        http.post("/v1/tools/search_orders/call", json={"arguments": {"customer": "Ann", "limit": 2000}})
    page = open_page(f"{server.url}/access")
    rule = page.locator("button.rule").first
    expect(rule).to_contain_text("limit > 100")
    expect(rule).to_contain_text("1 call")
    rule.click()
    expect(page.locator(".matched")).to_contain_text("2000")
    assert find_barriers(page) == []
    page.locator(".matched a").click()
    expect(page.locator(".trace-detail")).to_contain_text("Ask for fewer.")


def test_a_call_is_tried_without_being_made(server: RunningServer, open_page: OpenPage):
    page = open_page(f"{server.url}/access/tester")
    result = page.get_by_role("region", name="Result")
    for tool, arguments, outcome in (
        ("refund", '{"order": 1, "amount": 5}', "A person would be asked"),
        ("search_orders", '{"customer": "Ann", "limit": 5000}', "The call would be refused"),
        ("search_orders", '{"customer": "Ann", "limit": 5}', "The call would run"),
    ):
        page.get_by_label("Tool").fill(tool)
        page.get_by_label("Arguments as JSON").fill(arguments)
        page.get_by_role("button", name="Predict").click()
        expect(result).to_contain_text(outcome)
    page.get_by_label("Tool").fill("add")
    page.get_by_label("Arguments as JSON").fill('{"a": 1}')
    page.get_by_role("button", name="Predict").click()
    expect(result).to_contain_text("would not run")
    assert find_barriers(page) == []


def test_a_changed_mcp_server_is_shown_and_accepted(server: RunningServer, open_page: OpenPage):
    with server.client() as http:
        http.post("/v1/tools/mail/call", json={"action": "list_messages", "arguments": {}})
        page = open_page(f"{server.url}/tools/mail")
        panel = page.get_by_role("region", name="MCP server")
        expect(panel).to_contain_text("send_message has changed since it was accepted")
        expect(panel.locator(".added").last).to_contain_text("archive@example.com")
        panel.get_by_text("Log (").click()
        expect(panel).to_contain_text("connected to the mailbox")
        assert find_barriers(page) == []
        panel.get_by_role("button", name="Accept").click()
        page.get_by_role("dialog").get_by_role("button", name="Accept").click()
        expect(panel).not_to_contain_text("has changed since")
        assert http.get("/v1/servers/mail").json()["changes"] == []


def test_tokens_are_created_and_revoked_and_it_is_audited(server: RunningServer, open_page: OpenPage):
    """The last test of the file: from the first token on, every request needs one."""
    page = open_page(f"{server.url}/access/tokens")
    page.get_by_role("button", name="New token").click()
    expect(page.locator("form .notice")).to_contain_text("From the first token on")
    page.get_by_label("Name").fill("root")
    page.get_by_role("button", name="Create").click()
    root = page.get_by_role("textbox", name="New token").input_value()
    assert root.startswith("frl_")
    expect(page.locator(".settings")).to_contain_text("root")  # it is signed in with it
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name").fill("ci")
    page.get_by_label("Only these tools").fill("search_orders, mail*")
    page.get_by_label("May at most").select_option("read_only")
    page.get_by_role("button", name="Create").click()
    secret = page.get_by_role("textbox", name="New token").input_value()
    with server.client(secret) as http:
        assert http.get("/v1/me").json()["token"]["tools"] == ["mail*", "search_orders"]
        assert find_barriers(page) == []
        row = page.locator("tr", has_text="ci")
        row.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(row).to_contain_text("revoked")
    page.get_by_role("button", name="Audit").click()
    expect(page.locator("tbody tr").first).to_contain_text("revoked the token")
    expect(page.locator("tbody")).to_contain_text("accepted changes of")
    assert find_barriers(page) == []
