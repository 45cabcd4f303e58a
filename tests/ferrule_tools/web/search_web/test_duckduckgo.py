"""DuckDuckGo through ddgs, which makes its own connections."""

import asyncio
import importlib.util
from urllib.parse import parse_qs

import pytest

from ferrule import ToolEngine
from ferrule.errors import Retry
from ferrule_tools.web.search_providers import duckduckgo_region, search_duckduckgo
from ferrule_tools.web.search_web import SearchConfig, SearchQuery, search_tools
from tests.support.http_servers import serve_http
from tests.support.waiting import until

PAGE = """<html><body><div class="result"><div class="links_main links_deep result__body">
<h2><a href="https://tea.example/">Tea <b>leaves</b></a></h2><a href="https://tea.example/">Leaves in water.</a>
</div></div></body></html>"""


@pytest.fixture(scope="module", autouse=True)
def duckduckgo():
    return pytest.importorskip("ddgs.engines.duckduckgo", reason="ddgs is not installed")


async def test_what_ddgs_finds_is_read(duckduckgo, monkeypatch):
    async with serve_http(lambda _: (200, {"Content-Type": "text/html"}, PAGE.encode())) as server:
        monkeypatch.setattr(duckduckgo.Duckduckgo, "search_url", f"{server.url}/html/")
        found = await asyncio.to_thread(search_duckduckgo, "tea", "uk-en", "week", 5)
    assert found == {"pages": [{"title": "Tea leaves", "href": "https://tea.example/", "body": "Leaves in water."}]}
    assert parse_qs(server.requests[0].body.decode()) == {"q": ["tea"], "l": ["uk-en"], "df": ["w"]}


@pytest.mark.parametrize("query", ["!ducky tea", "tea !w", "tea w!", "\\tea", "！g tea", "! tea \\ "])
async def test_no_query_leads_to_another_site(duckduckgo, monkeypatch, query):
    async with serve_http(lambda _: (200, {"Content-Type": "text/html"}, PAGE.encode())) as server:
        monkeypatch.setattr(duckduckgo.Duckduckgo, "search_url", f"{server.url}/html/")
        await asyncio.to_thread(search_duckduckgo, query, "wt-wt", None, 5)
    [sent] = parse_qs(server.requests[0].body.decode())["q"]
    assert "tea" in sent and not set(sent) & set("!！\\")


def test_a_query_without_words_is_not_sent():
    with pytest.raises(Retry, match="has no words"):
        search_duckduckgo("!! \\", "wt-wt", None, 5)


@pytest.mark.parametrize("status", [200, 202, 403])
async def test_nothing_found_may_mean_that_it_answers_no_programs(duckduckgo, monkeypatch, status):
    async with serve_http(lambda _: (status, {"Content-Type": "text/html"}, b"<html><p>Hm</p></html>")) as server:
        monkeypatch.setattr(duckduckgo.Duckduckgo, "search_url", f"{server.url}/html/")
        with pytest.raises(Retry, match="found nothing, or is refusing programs"):
            await asyncio.to_thread(search_duckduckgo, "tea", "wt-wt", None, 5)


@pytest.mark.integration
async def test_it_runs_in_a_process_that_ends_with_the_call(monkeypatch):
    async with serve_http(lambda _: None) as server, ToolEngine() as engine:
        monkeypatch.setenv("DDGS_PROXY", server.url)
        engine.register(*search_tools(SearchConfig(duckduckgo=True), environ={}))
        call = asyncio.create_task(engine.execute("search_web", {"query": "tea"}))
        await until(lambda: server.requests)
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: server.connections == 0)
        assert call.cancelled() and len(server.requests) == 1


@pytest.mark.integration
async def test_a_way_that_is_broken_is_told(monkeypatch):
    monkeypatch.setenv("DDGS_PROXY", "http://127.0.0.1:1")
    async with ToolEngine() as engine:
        engine.register(*search_tools(SearchConfig(duckduckgo=True), environ={}))
        result = await engine.execute("search_web", {"query": "tea"})
    assert "duckduckgo cannot be reached" in str(result.error) and result.metadata["attempts"] > 1


@pytest.mark.parametrize(
    ("language", "region", "sent"),
    [("en", "GB", "uk-en"), ("zh", "CN", "cn-zh"), (None, "JP", "jp-jp"), ("en", None, "wt-wt"), (None, "DE", "wt-wt")],
)
def test_regions_have_names_of_their_own(language, region, sent):
    assert duckduckgo_region(SearchQuery(query="tea", limit=1, language=language, region=region)) == sent


def test_a_package_that_is_not_there_is_needed(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("ferrule_tools._tool_setup.find_spec", lambda name: None if name == "ddgs" else find(name))
    tools = search_tools(SearchConfig(duckduckgo=True), environ={})
    assert {tool.needs for tool in tools} == {"the package ddgs: pip install 'ferrule[search]'"}
