"""Several providers are candidates of one name."""

import pytest

from ferrule import ToolEngine
from ferrule.errors import SetupError
from ferrule_tools.web.search_web import SearchConfig, search_tools
from tests.ferrule_tools.web.search_web.providers import KEYS, asking, brave, never, page, says, searxng, tavily

pytestmark = pytest.mark.integration


def test_each_provider_that_is_set_up_is_a_source_of_its_own():
    tools = search_tools(SearchConfig(searxng="http://localhost:8888", duckduckgo=True), environ=KEYS)
    assert [(tool.id, tool.source) for tool in tools if tool.id == "search_web"] == [
        ("search_web", "searxng"),
        ("search_web", "brave"),
        ("search_web", "tavily"),
        ("search_web", "duckduckgo"),
    ]
    assert len(tools) == 8 and not any(tool.needs for tool in tools)


async def test_without_a_provider_the_tools_say_what_they_need():
    tools = search_tools(SearchConfig(brave_key="MY_BRAVE"), environ={"MY_BRAVE": " "})
    assert [tool.id for tool in tools] == ["search_web", "advanced_web_search"]
    async with ToolEngine() as engine:
        engine.register(*tools)
        result = await engine.execute("search_web", {"query": "tea"})
    assert result.error_type == "tool_not_found"
    assert 'set [tools.search_web] searxng = "https://…"' in str(result.error) and "MY_BRAVE" in str(result.error)


async def test_a_model_sees_one_tool_however_many_providers_there_are():
    async with asking(brave=never, searxng=never) as it:
        names = [schema["function"]["name"] for schema in it.library.schemas()]
    assert names.count("search_web") == names.count("advanced_web_search") == 1


async def test_a_provider_that_fails_is_backed_up_by_another():
    async with asking(brave=says({}, 400), searxng=searxng(page())) as it:
        results = [await it.search(query=f"tea {number}") for number in range(6)]
    assert all(result.output["results"][0]["source"] == "searxng" for result in results)
    assert {source for result in results for source in result.metadata["_meta"]["sources"]} == {"searxng"}


async def test_a_provider_that_finds_nothing_is_backed_up_by_another():
    async with asking(brave=brave(), searxng=searxng(page())) as it:
        results = [await it.search(query=f"tea {number}") for number in range(6)]
    assert all(result.output["results"] for result in results)


async def test_a_provider_that_does_not_answer_is_overtaken():
    async with asking(brave=never, searxng=searxng(page())) as it:
        results = [await it.search(query=f"tea {number}") for number in range(6)]
    assert all(result.metadata["_meta"]["source"] == "searxng" for result in results)


async def test_when_all_fail_each_is_named():
    async with asking(brave=says({}, 400), searxng=says(b"<html>", 400)) as it:
        result = await it.search()
    assert "advanced_web_search (brave): brave answered with status 400" in str(result.error)
    assert "advanced_web_search (searxng): searxng answered with status 400" in str(result.error)


async def test_combined_all_are_asked_and_each_page_comes_once():
    shared = page(url="https://tea.example/shared")
    one, other = brave(page(url="https://brave.example/"), shared), tavily(shared, page(url="https://tavily.example/"))
    async with asking(combine=True, brave=one, tavily=other) as it:
        result = await it.search(language="en")
    sources = {each["url"]: sorted(each["source"].split(", ")) for each in result.output["results"]}
    assert len(sources) == 3 and sources["https://tea.example/shared"] == ["brave", "tavily"]
    assert result.output["notes"] == ["tavily does not support language, so it was ignored."]
    assert result.output["untrusted"] is True and result.metadata["synthesis"] == "lists"


async def test_the_same_search_is_not_paid_for_twice():
    async with asking(searxng=searxng(page())) as it:
        for _ in range(3):
            assert (await it.search()).output["results"]
    assert len(it.requests) == 1


def test_a_key_in_the_place_of_its_variable_is_refused_unseen():
    with pytest.raises(SetupError, match="brave_key must be the name of an environment variable") as refused:
        SearchConfig(brave_key="BSA-0123456789")
    assert "BSA-0123456789" not in str(refused.value)
