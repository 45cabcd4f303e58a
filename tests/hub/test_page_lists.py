"""Answers that are lists of pages become one list."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ferrule.hub import ToolHub
from ferrule.hub.synthesis import merge_page_lists, merge_pages, normalize_page_url
from tests.hub.recording_tools import CallRecorder, engine_with


def pages(*urls: str, **more: Any) -> list[dict[str, Any]]:
    return [{"url": url, **more} for url in urls]


async def test_two_lists_are_merged_and_the_best_of_each_comes_first():
    recorder = CallRecorder()
    first = recorder.search("find", {"results": pages("https://a.example", "https://b.example/x/"), "untrusted": True})
    other = recorder.search("find", {"results": pages("http://www.b.example/x", "https://c.example")}, source="mcps")
    async with engine_with(first, other) as engine:
        result = await ToolHub(engine).execute("find", {"query": "tea"})
    assert {page["url"] for page in result.output["results"][:2]} == {"https://a.example", "http://www.b.example/x"}
    assert len(result.output["results"]) == 3 and result.output["untrusted"] is True
    assert result.metadata["synthesis"] == "lists" and result.metadata["_meta"]["source_count"] == 2


def test_what_only_one_of_them_knows_is_kept():
    first = {"url": "https://a.example", "title": "", "date": None, "source": "one"}
    again = {"url": "https://a.example/", "title": "A", "date": "2026-01-01", "source": "two"}
    assert merge_pages([first, again]) == [
        {"url": "https://a.example", "title": "A", "date": "2026-01-01", "source": "one, two"}
    ]


def test_other_lists_in_the_answers_are_put_together():
    outputs = [{"results": pages("a"), "notes": ["x"], "query": "q"}, {"results": pages("b"), "notes": ["y"]}]
    assert merge_page_lists(outputs) == {"results": pages("a", "b"), "notes": ["x", "y"], "query": "q"}


def test_answers_that_are_no_lists_of_pages_are_left_to_others():
    good = {"results": pages("a")}
    for other in (
        {},
        {"results": "a"},
        {"results": ["a"]},
        {"results": [{"title": "a"}]},
        {"results": [{"url": None}]},
    ):
        assert merge_page_lists([good, other]) is None


@given(st.lists(st.lists(st.sampled_from(["https://a.example", "http://a.example/", "b", "c", "c#x"]))))
def test_every_page_comes_once(lists):
    merged = merge_page_lists([{"results": pages(*urls)} for urls in lists] or [{"results": []}])
    assert merged is not None
    keys = [normalize_page_url(page["url"]) for page in merged["results"]]
    assert len(keys) == len(set(keys)) and set(keys) == {normalize_page_url(url) for urls in lists for url in urls}


def test_halves_of_characters_in_an_address_do_no_harm():
    [first] = merge_pages(pages("https://a.example/?q=\ud800", "http://a.example/?q=\ud800"))
    assert first["url"] == "https://a.example/?q=\ud800"
