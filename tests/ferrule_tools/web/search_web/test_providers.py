"""Each provider in its own words, one form of results."""

import json

import pytest

from tests.ferrule_tools.web.search_web.providers import KEY, KEYS, asked, asking, brave, page, searxng, tavily

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
