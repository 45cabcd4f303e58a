"""Each provider in its own words, one form of results."""

import json

import pytest

from ferrule import ToolEngine
from ferrule.errors import SetupError
from ferrule_tools.web.search_web import SearchConfig, search_tools
from tests.ferrule_tools.web.search_web.providers import (
    KEY,
    KEYS,
    asked,
    asking,
    brave,
    never,
    page,
    says,
    searxng,
    tavily,
)
from tests.support.http_servers import serve_http

pytestmark = pytest.mark.integration

FOUND = {
    "title": "Tea",
    "url": "https://tea.example/",
    "snippet": "Leaves in water.",
    "date": "2026-03-05",
    "source": "brave",
}


async def test_brave_is_asked_with_its_key_and_its_results_come_in_one_form():
    async with asking(brave=brave(page(date="2026-03-05T00:00:00"))) as it:
        result = await it.library.execute_tool("search_web", parameters={"query": " tea  leaves ", "limit": 3})
    assert result.output == {"results": [FOUND], "untrusted": True}
    [request] = it.requests
    assert request.headers["x-subscription-token"] == KEY
    assert request.path.startswith("/res/v1/web/search?")
    assert asked(request) == {"q": "tea leaves", "count": "3", "text_decorations": "false", "result_filter": "web"}


async def test_brave_takes_every_filter():
    async with asking(brave=brave(page(url="https://docs.tea.example/"))) as it:
        filters = {"language": "zh-CN", "time_range": "week", "exclude_sites": ["https://www.Spam.example/x"]}
        result = await it.search(**filters, site="tea.example", safe="strict")
    assert asked(it.requests[0]) == {
        "q": "tea site:tea.example -site:spam.example",
        "count": "10",
        "text_decorations": "false",
        "result_filter": "web",
        "freshness": "pw",
        "safesearch": "strict",
        "search_lang": "zh-hans",
        "country": "CN",
    }
    assert len(result.output["results"]) == 1 and "notes" not in result.output


@pytest.mark.parametrize(
    ("language", "sent"),
    [
        ("ja", "jp"),
        ("pt-BR", "pt-br"),
        ("zh", "zh-hans"),
        ("zh-TW", "zh-hant"),
        ("zh-Hant", "zh-hant"),
        ("zh_Hans", "zh-hans"),
        ("zh-Hant-HK", "zh-hant"),
        ("en-US", "en"),
        ("en_GB", "en-gb"),
        ("no", "nb"),
    ],
)
async def test_brave_has_names_of_its_own_for_some_languages(language, sent):
    async with asking(brave=brave(page())) as it:
        await it.search(language=language)
    assert asked(it.requests[0])["search_lang"] == sent


async def test_what_a_provider_cannot_do_is_said():
    async with asking(brave=brave(page())) as it:
        result = await it.search(language="eo", region="AQ")
    assert result.output["notes"] == ["brave does not support language and region, so it was ignored."]
    assert not {"search_lang", "country"} & set(asked(it.requests[0]))


async def test_tavily_is_asked_with_its_key():
    async with asking(tavily=tavily(page())) as it:
        result = await it.search(
            region="uk", language="en", time_range="day", safe="off", exclude_sites=["spam.example"]
        )
    [request] = it.requests
    assert (request.method, request.path) == ("POST", "/search")
    assert request.headers["authorization"] == f"Bearer {KEYS['TAVILY_API_KEY']}"
    assert json.loads(request.body) == {
        "query": "tea",
        "max_results": 10,
        "search_depth": "basic",
        "topic": "general",
        "time_range": "day",
        "country": "united kingdom",
        "exclude_domains": ["spam.example"],
    }
    assert result.output["notes"] == ["tavily does not support language and safe, so it was ignored."]
    assert result.output["results"][0]["source"] == "tavily"


async def test_searxng_is_asked_at_its_url_which_may_be_this_machine():
    async with asking(searxng=searxng(page(date="2026-03-05T10:00:00"))) as it:
        result = await it.search(language="en", region="US", time_range="month", safe="moderate", site="tea.example")
    assert asked(it.requests[0]) == {
        "q": "tea site:tea.example",
        "format": "json",
        "language": "en-US",
        "time_range": "month",
        "safesearch": "1",
    }
    assert result.output["results"] == [{**FOUND, "date": "2026-03-05T10:00:00", "source": "searxng"}]


async def test_no_more_results_come_than_were_asked_for():
    pages = [page(url=f"https://tea.example/{number}") for number in range(30)]
    async with asking(searxng=searxng(*pages)) as it:
        few, many = await it.search(limit=2), await it.search(limit=999)
    assert (len(few.output["results"]), len(many.output["results"])) == (2, 20)


async def test_sites_are_kept_to_whatever_the_provider_does():
    pages = [page(url=url) for url in ("https://tea.example/a", "https://nottea.example/", "https://bad.tea.example/")]
    async with asking(searxng=searxng(*pages)) as it:
        result = await it.search(site="www.tea.example", exclude_sites=["bad.tea.example"])
    assert [each["url"] for each in result.output["results"]] == ["https://tea.example/a"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"query": "  "}, "The query is empty"),
        ({"language": "english!"}, "is not a language code. Write it like en"),
        ({"region": "USA"}, "is not a country code. Write its two letters"),
        ({"site": "not a site"}, "is not a site. Write it like"),
        ({"exclude_sites": ["http://[bad"]}, "is not a site"),
    ],
)
async def test_filters_that_cannot_be_are_explained(params, message):
    async with asking(searxng=searxng(page())) as it:
        result = await it.search(**params)
    assert message in str(result.error) and it.requests == []


async def test_a_query_too_long_for_brave_is_said():
    async with asking(brave=brave()) as it:
        assert "50 words at most" in str((await it.search(query="tea " * 60)).error)


async def test_a_chinese_site_is_the_same_in_both_its_spellings():
    urls = ["https://xn--fsqu00a.xn--fiqs8s/a", "https://例子.中国/b", "https://other.example/"]
    async with asking(searxng=searxng(*(page(url=url) for url in urls))) as it:
        wanted, unwanted = await it.search(site="例子.中国"), await it.search(exclude_sites=["xn--fsqu00a.xn--fiqs8s"])
    assert [each["url"] for each in wanted.output["results"]] == urls[:2]
    assert [each["url"] for each in unwanted.output["results"]] == urls[2:]


async def test_halves_of_characters_are_searched_as_question_marks():
    async with asking(searxng=searxng(page())) as it:
        assert (await it.search(query="tea\ud800")).is_success
    assert asked(it.requests[0])["q"] == "tea?"


# Failures


FORBIDDEN = b"<!doctype html><title>403 Forbidden</title>"


def brave_error(code: str, detail: str) -> dict[str, object]:
    return {"type": "ErrorResponse", "error": {"id": "1", "status": 422, "code": code, "detail": detail, "meta": {}}}


async def test_a_search_without_results_is_empty_and_no_failure():
    async with asking(brave=brave()) as it:
        result = await it.search()
    assert result.is_success and result.output == {"results": []}


async def test_a_key_that_brave_does_not_know_is_named_but_not_shown():
    answer = says(brave_error("SUBSCRIPTION_TOKEN_INVALID", f"not valid: {KEY}"), 422)
    async with asking(brave=answer) as it:
        result = await it.search()
    assert result.error == "brave does not know the key in BRAVE_API_KEY. A person must set a valid one."
    assert result.error_type == "permission_denied" and len(it.requests) == 1


async def test_what_a_provider_says_about_an_error_is_told_without_the_key():
    answer = says(brave_error("VALIDATION", f"Unable to validate {KEY}"), 422)
    async with asking(brave=answer) as it:
        result = await it.search()
        [record] = await it.library.engine.query_call_records()
    assert result.error == "brave answered with status 422: Unable to validate [redacted]"
    assert result.metadata["untrusted"] is True and KEY not in str(record.to_dict())


async def test_a_key_does_not_show_where_an_error_is_cut():
    async with asking(brave=says(b"x" * 190 + KEY.encode(), 500)) as it:
        result = await it.search()
    assert "xxx[redacted]" in str(result.error) and f"x{KEY[:5]}" not in str(result.to_dict())


@pytest.mark.parametrize(
    ("status", "detail", "message"),
    [
        (401, "Unauthorized: missing or invalid API key.", "tavily does not know the key in TAVILY_API_KEY"),
        (432, "This request exceeds your plan's set usage limit.", "searches no more for now: This request exceeds"),
        (400, "Invalid topic.", "tavily answered with status 400: Invalid topic."),
    ],
)
async def test_errors_of_tavily_are_told(status, detail, message):
    answer = says({"detail": {"error": detail}}, status)
    async with asking(tavily=answer) as it:
        result = await it.search()
    assert message in str(result.error) and len(it.requests) == 1
    assert result.metadata.get("untrusted", False) is (detail in str(result.error))


async def test_a_searxng_that_answers_no_programs_says_what_to_change():
    async with asking(searxng=says(FORBIDDEN, 403)) as it:
        result = await it.search()
    assert "add json to search.formats in the settings.yml" in str(result.error)


async def test_engines_that_did_not_answer_searxng_are_named():
    silent = [["google", "CAPTCHA"], ["bing", "timeout"]]
    async with asking(searxng=searxng(unresponsive_engines=silent)) as it:
        result = await it.search()
    assert "its engines did not answer: google (CAPTCHA), bing (timeout)" in str(result.error)
    assert result.metadata["untrusted"] is True


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "3600"}, {"X-RateLimit-Remaining": "0, 0", "X-RateLimit-Reset": "1, 99999"}],
)
async def test_a_provider_that_wants_us_to_wait_too_long_is_not_waited_for(headers):
    async with asking(brave=says(brave_error("RATE_LIMITED", "Too many."), 429, **headers)) as it:
        result = await it.search()
    assert len(it.requests) == 1 and result.metadata["transient"] and result.metadata["retry_after"] >= 3600


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Please log in</html>",
        b"",
        b"[]",
        b'{"results": 7}',
        b'{"results": [1]}',
        b'{"results": [], "unresponsive_engines": [[]]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
async def test_what_is_no_answer_is_shown_as_what_it_is(body):
    async with asking(searxng=says(body)) as it:
        result = await it.search()
    assert "searxng did not return search results in JSON but:" in str(result.error)
    assert result.metadata["untrusted"] is True


async def test_an_answer_that_is_too_large_is_not_read():
    async with asking(searxng=says(b" " * 4_000_000)) as it:
        result = await it.search()
    assert "larger than 3,000,000 bytes" in str(result.error)


async def test_a_key_does_not_follow_a_redirect_to_another_host():
    async with serve_http(brave(page())) as elsewhere:
        async with asking(brave=says(b"", 302, Location=f"http://localhost:{elsewhere.port}/")) as it:
            result = await it.search()
        assert result.error_type == "permission_denied" and elsewhere.requests == []


# Several providers


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
