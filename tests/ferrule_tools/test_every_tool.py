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
from tests.support.http_servers import Answer, Request, json_answer, serve_http_in_thread
from tests.support.processes import run_python

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
ASKING = "ask_user"  # needs somebody to answer: see below


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


def need_what(name: str) -> None:
    if name.startswith("browser") and not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("needs a Chromium: apt install chromium")


async def test_all_of_them_are_here(opened):
    async with opened:
        known = {tool.id for tool in opened.engine.registry if tool.origin and tool.source in ("builtin", "searxng")}
        assert await opened.get_unavailable_tools() == {}
    assert {name.partition("__")[0] for name in CALLS} | {ASKING} == known


@pytest.mark.parametrize("name", CALLS)
def test_by_the_command(name, project, url):
    need_what(name)
    given = [f"{key}:={json.dumps(value)}" for key, value in arguments(name, url).items()]
    command = ["-m", "ferrule", "--config", "ferrule.toml", "call", name, *given]
    done = run_python(*command, cwd=project, env={**os.environ, **keys(url)})
    assert (done.returncode, done.stderr) == (0, "")
    assert CALLS[name][1] in done.stdout


@pytest.mark.integration
@pytest.mark.parametrize("name", CALLS)
async def test_by_an_agent(name, opened, url):
    need_what(name)
    model = ScriptedModel([{"name": name, "arguments": arguments(name, url)}, "Done."])
    async with opened:
        answer = await Agent(opened, model, policy=Policy(default="allow")).run("Use it")
    assert answer.is_finished
    if name == "finish_task":
        assert answer.text == "It is done."
    else:
        assert CALLS[name][1] in answer.steps[0].text and answer.steps[0].is_success


@pytest.mark.integration
@pytest.mark.parametrize("name", CALLS)
async def test_by_a_client_of_mcp(name, opened, url):
    need_what(name)
    selection = [name] if name in HIDDEN_TOOLS else None
    async with opened:
        async with Client(McpServer(opened).server()) as client:
            assert (name in [one.name for one in (await client.list_tools()).tools]) is (selection is None)
        async with Client(McpServer(opened, tools=selection).server()) as client:
            done = await client.call_tool(name, arguments(name, url))
    assert not done.is_error and CALLS[name][1] in str(done.content)
