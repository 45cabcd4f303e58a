"""Every tool in the box, called in each of the three ways people call tools: the command, an agent, a client of MCP."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from ferrule import Agent, UnifiedToolLibrary
from ferrule.policy.policy import Policy
from ferrule.server.mcp import HIDDEN_TOOLS, McpServer
from ferrule.testing import ScriptedModel
from ferrule_tools.browser.chromium import CHROMIUM_PROGRAMS
from tests.support.http_servers import Answer, Request, json_answer, serve_http_in_thread
from tests.support.processes import run_python

pytestmark = pytest.mark.integration

PAGE = "<html><head><title>Tea</title></head><body><article><h1>Tea</h1><p>{}</p></article></body></html>".format(
    "Tea is made of leaves and hot water, and many people drink it every day of their lives. " * 5
)
FOUND = {"query": "tea", "results": [{"title": "Tea", "url": "https://tea.example/", "content": "Leaves in water."}]}
SAID = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "small",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Tea, of course."}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}
TEXT = "Tea is a drink. It is made of leaves. People like it."

CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "calculator": ({"expression": "6 * 7"}, "42"),
    "echo": ({"message": "hello"}, "hello"),
    "get_time": ({"timezone": "Tokyo"}, "Asia/Tokyo"),
    "http_request": ({"url": "{url}/api/items"}, "green tea"),
    "file_processor__read": ({"path": "notes.txt"}, "buy tea"),
    "list_workspace_files": ({}, "notes.txt"),
    "search_files": ({"query": "tea"}, "notes.txt"),
    "data_analyzer__query": ({"sql": "select sum(price) as total from shop", "tables": {"shop": "shop.csv"}}, "7.5"),
    "database_query__query": ({"sql": "select name from drinks where price < :most", "parameters": {"most": 3}}, "tea"),
    "search_web": ({"query": "tea"}, "tea.example"),
    "advanced_web_search": ({"query": "tea", "language": "en"}, "tea.example"),
    "web_scraper": ({"url": "{url}/page"}, "leaves and hot water"),
    "api_caller": ({"api": "shop", "path": "items"}, "green tea"),
    "browser_navigator__navigate": ({"url": "{url}/page"}, "Tea"),
    "python_executor": ({"code": "sum(n * n for n in range(4))"}, "14"),
    "ask_model": ({"prompt": "What shall I drink?"}, "Tea, of course."),
    "summarize": ({"text": TEXT}, "Tea, of course."),
    "notify": ({"message": "The tea is ready."}, "log"),
    "finish_task": ({"message": "It is done."}, "It is done."),
    "get_conversation_history": ({"query": "all"}, "Nothing was asked before"),
}
ASKING = "ask_user"  # needs somebody to answer
REPRESENTATIVES = ("calculator", "http_request", "file_processor__read", "data_analyzer__query")
"""A command for each of these; `make test-all` has one for every tool."""


def answer(request: Request) -> Answer:
    if request.method == "POST":
        return json_answer(SAID)
    if request.path.startswith("/search"):
        return json_answer(FOUND)
    if request.path.startswith("/api/items"):
        return json_answer([{"name": "green tea"}])
    if request.path == "/page":
        return Answer(200, {"Content-Type": "text/html"}, PAGE.encode())
    return Answer(404)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_http_in_thread(answer) as server:
        yield server.url


@pytest.fixture(scope="module")
def project(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which everything is set up."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "work").mkdir()
    (folder / "work/notes.txt").write_text("buy tea\n")
    (folder / "work/shop.csv").write_text("name,price\ntea,2.5\ncoffee,5\n")
    with sqlite3.connect(folder / "drinks.db") as database:
        database.execute("create table drinks (name text, price real)")
        database.execute("insert into drinks values ('tea', 2.5), ('coffee', 5)")
    database.close()
    (folder / "ferrule.toml").write_text(
        f"""
[store]
url = "sqlite:///calls.db"
[http]
allow_private_addresses = true
[tools]
workspace = "work"
[tools.search_web]
searxng = "{url}"
[tools.web_scraper]
respect_robots = false
[tools.api_caller.apis.shop]
base_url = "{url}/api"
[tools.database_query.databases.drinks]
url = "sqlite:///drinks.db"
[tools.notify.channels.log]
kind = "log"
path = "messages.jsonl"
[tools.ask_model]
model = "openai:small"
"""
    )
    return folder


@pytest.fixture
def opened(project: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> UnifiedToolLibrary:
    for name, value in keys(url).items():
        monkeypatch.setenv(name, value)
    return UnifiedToolLibrary.open(project / "ferrule.toml")


def keys(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-test-0123456789abcdef"}


def arguments(name: str, url: str) -> dict[str, Any]:
    said, _ = CALLS[name]
    return {key: value.replace("{url}", url) if isinstance(value, str) else value for key, value in said.items()}


def available_calls() -> list[str]:
    has_browser = any(map(shutil.which, CHROMIUM_PROGRAMS))
    return [name for name in CALLS if has_browser or not name.startswith("browser")]


async def test_all_of_them_are_here(opened):
    async with opened:
        known = {tool.id for tool in opened.engine.registry if tool.origin and tool.source in ("builtin", "searxng")}
        assert await opened.get_unavailable_tools() == {}
    assert {name.partition("__")[0] for name in CALLS} | {ASKING} == known


@pytest.mark.parametrize(
    "name",
    [name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.long) for name in available_calls()],
)
def test_by_the_command(name, project, url):
    given = [f"{key}:={json.dumps(value)}" for key, value in arguments(name, url).items()]
    command = ["-m", "ferrule", "--config", "ferrule.toml", "call", name, *given]
    done = run_python(*command, cwd=project, env={**os.environ, **keys(url)})
    assert (done.returncode, done.stderr) == (0, "")
    assert CALLS[name][1] in done.stdout


async def test_by_an_agent(opened, url):
    texts = {}
    async with opened:
        for name in available_calls():
            model = ScriptedModel([{"name": name, "arguments": arguments(name, url)}, "Done."])
            answer = await Agent(opened, model, policy=Policy(default="allow")).run("Use it")
            assert answer.is_finished, name
            texts[name] = answer.text if name == "finish_task" else answer.steps[0].text
    assert {name: text for name, text in texts.items() if CALLS[name][1] not in text} == {}


async def test_by_a_client_of_mcp(opened, url):
    results = {}
    async with opened:
        async with Client(McpServer(opened).server()) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
        async with Client(McpServer(opened, tools=list(CALLS)).server()) as client:
            for name in available_calls():
                results[name] = await client.call_tool(name, arguments(name, url))
    assert listed & set(CALLS) == set(CALLS) - set(HIDDEN_TOOLS)
    wrong = {name: done for name, done in results.items() if done.is_error or CALLS[name][1] not in str(done.content)}
    assert wrong == {}
