"""Photographs every view of the web page, light and dark, wide and on a phone: `make screenshots`."""

import os
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ferrule_tools.browser.chromium import CHROMIUM_FLAGS
from tests.server.serving import RunningServer
from tests.web.conftest import find_program
from tests.web.demo import demo_project

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "screenshots"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


def make_data(server: RunningServer) -> dict[str, str]:
    """Questions, calls and approvals to look at; returns the ids of a failed run and of one to compare with it."""
    with server.client() as http:
        questions = {"rates": "What are the rates of the euro?", "again": "And the rates of today?"}
        questions |= {"refund": "Refund order 1001, it arrived broken", "france": "What is the capital of France?"}
        runs = {
            name: http.post("/v1/ask", json={"question": question, "conversation_id": name}).json()["run_id"]
            for name, question in questions.items()
        }
        plan = {"question": "Find the orders of Ann and Bob", "conversation_id": "plan", "strategy": "plan"}
        http.post("/v1/ask", json=plan)
        batch = [{"tool": "search_orders", "arguments": {"customer": f"Customer {n}"}} for n in range(25)]
        for number in range(8):
            http.post("/v1/calls", json={"calls": batch[: 5 + 5 * (number % 4)]})
            http.post("/v1/tools/exchange_rate/call", json={"arguments": {"currency": "EUR" if number % 3 else "USD"}})
        http.post("/v1/tools/search_orders/call", json={"arguments": {"customer": "Ann", "limit": 5000}})
        http.post("/v1/tools/refund/call", json={"arguments": {"order": 1002, "amount": 58.5, "reason": "returned"}})
        http.post("/v1/tools/mail/call", json={"action": "list_messages", "arguments": {}})
        return runs


def photograph(page: Page, server: RunningServer, runs: dict[str, str], suffix: str) -> None:
    """Take one picture of each view."""
    is_wide = suffix.startswith("wide")

    def take(name: str, path: str, *awaited: str, click: str = "", full: bool = False) -> None:
        page.goto(f"{server.url}/{path}")
        if click:
            page.locator(click).first.click()
        for selector in awaited:
            page.locator(selector).first.wait_for()
        page.screenshot(path=FOLDER / f"{name}-{suffix}.png", full_page=full)

    take("approvals", "approvals", "article.request" if is_wide else ".item")
    if not is_wide:
        page.locator(".item").first.click()
        page.locator("article.request").wait_for()
        page.screenshot(path=FOLDER / f"approval-{suffix}.png")
    page.get_by_role("button", name="Edit").click()
    page.locator(".decision .tool-form").wait_for()
    page.screenshot(path=FOLDER / f"edit-{suffix}.png")
    take("runs", "runs", ".run-item")
    take("run", f"runs/{runs['rates']}", ".trace-detail .facts", click=".failing button")
    page.locator(".bar-row").last.scroll_into_view_if_needed()
    page.screenshot(path=FOLDER / f"trace-{suffix}.png")
    page.get_by_role("button", name="Tool schemas").click()
    page.locator("th.number").first.wait_for()
    page.screenshot(path=FOLDER / f"schemas-{suffix}.png")
    take("comparison", f"runs/{runs['rates']}/compare/{runs['again']}", ".comparison tbody tr")
    take("calls", "calls", ".plot path.line-0", ".call-row")
    take("call", "calls", ".trace-detail .facts", click=".call-row:has-text('exchange_rate')")
    take("tool", "tools/refund", ".tool-form", ".item" if is_wide else ".tool-form")
    take("tools", "tools", ".item")
    take("server", "tools/mail", ".server .diff")
    take("failures", "failures", ".pattern")
    take("policy", "access", ".matched", click="button.rule")
    page.goto(f"{server.url}/access/tester")
    page.get_by_label("Tool").fill("refund")
    page.get_by_label("Arguments as JSON").fill('{\n  "order": 1001,\n  "amount": 39\n}')
    page.get_by_role("button", name="Predict").click()
    page.get_by_role("heading", name="A person would be asked").wait_for()
    page.screenshot(path=FOLDER / f"tester-{suffix}.png")
    take("tokens", "access/tokens", "form.tool-form", click="button:has-text('New token')")
    take("ask", "ask/rates", ".call", click="button:has-text('Trace')")
    take("plan", "ask/plan", ".graph .node", click="button:has-text('Trace')")
    take("waiting", "ask/refund", ".waiting-title", ".decision")


def take_all(server: RunningServer, flags: list[str]) -> None:
    """The pictures in all sizes and colours."""
    runs = make_data(server)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_program(), args=flags)
        for theme in ("light", "dark"):
            for kind, size in (("wide", WIDE), ("phone", PHONE)):
                page = browser.new_page(viewport=size, color_scheme=theme, locale="en-US")  # type: ignore[arg-type]
                photograph(page, server, runs, f"{kind}-{theme}")
                page.close()
        page = browser.new_page(viewport=WIDE, locale="zh-CN")  # type: ignore[arg-type]
        page.goto(f"{server.url}/runs/{runs['rates']}")
        page.locator(".bar-row").first.wait_for()
        page.screenshot(path=FOLDER / "run-chinese.png")
        browser.close()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    flags = [*CHROMIUM_FLAGS, *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with tempfile.TemporaryDirectory() as folder, demo_project(Path(folder)) as project:
        project.change_mail_server()
        with project.serve() as server:
            take_all(server, flags)
    print(f"{len(list(FOLDER.glob('*.png')))} screenshots are in {FOLDER.relative_to(ROOT)}/.")


if __name__ == "__main__":
    main()
