"""Pages that were made to do harm."""

import gzip
from typing import Any

import pytest

from ferrule_tools.web import web_scraper as scraper
from ferrule_tools.web.page import read_page
from tests.ferrule_tools.web.web_scraper.server import HTML, site

pytestmark = pytest.mark.integration

PAGE = "<article><p>Some text that is long enough to be the main text of a page about nothing.</p></article>"


def read(page: str, *, quickly: bool = False) -> dict[str, Any]:
    return read_page(page.encode(), "text/html", "https://a.example/", ["text", "links", "tables"], True, True, quickly)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<",
        "<!DOCTYPE html>",
        "<html></html>",
        "no page at all",
        "<table><tr><td></table>",
        "</div></div><p>x</b></p><table><td><tr></table></table>",
        "<a href='x'" * 500,
        "<!--" * 1_000,
        "<div>" * 20_000 + "deep",
        "<table>" * 5_000 + "<tr><td>x<td>y",
        "<p><b><i><u>" * 3_000,
        "&#0;&#xD800;&#x110000;&bogus;" * 500,
        "<svg><math><![CDATA[x]]></math></svg>",
        "<?xml version='1.0' encoding='utf-16'?><html><body><p>x</p></body></html>",
        "<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><html><body><p>&a;</p></body></html>",
        "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace") + "\x00\x01<p>x\x0b",
    ],
)
def test_broken_pages_are_read_as_far_as_they_go(page):
    told = read(page)
    assert isinstance(told["text"], str) and "root:" not in told["text"]
    assert isinstance(told["links"], list) and isinstance(told["tables"], list)


def test_cells_that_claim_to_span_millions_do_not():
    told = read(
        "<table><tr>" + "<td colspan=99999999 rowspan=99999999>x" * 50 + "<tr><td rowspan=0>y<td>z" * 500, quickly=True
    )
    assert sum(len(row) for table in told["tables"] for row in table["rows"]) <= 5_100
    assert told["tables"][0]["cut"] is True


async def test_a_page_that_cannot_be_searched_in_time_gives_all_it_says(monkeypatch):
    monkeypatch.setattr(scraper, "READ_TIMEOUT", 0.001)
    async with site({"/": "<title>T</title><table><tr>" + "<td>word" * 10_000}) as it:
        told = (await it.read()).output
    assert told["title"] == "T" and told["text"].startswith("word") and "the whole text of the page" in told["note"]


async def test_a_page_that_takes_too_long_in_any_way_is_given_up(monkeypatch):
    monkeypatch.setattr(scraper, "READ_TIMEOUT", 0.001)
    monkeypatch.setattr(scraper, "SECOND_READ_TIMEOUT", 0.001)
    async with site({"/": PAGE}) as it:
        result = await it.read()
    assert result.error_type == "timeout" and "took longer than 0.001 seconds" in str(result.error)


@pytest.mark.parametrize(
    "answer",
    [
        (200, HTML, b"x" * 200_000),
        (200, {**HTML, "Content-Encoding": "gzip"}, gzip.compress(b"x" * 50_000_000, mtime=0)),
    ],
)
async def test_a_page_larger_than_allowed_is_not_read(answer):
    async with site({"/": answer}, max_bytes=100_000) as it:
        result = await it.read()
    assert "larger than 100,000 bytes" in str(result.error)


async def test_a_page_that_redirects_without_end_is_given_up():
    async with site({"/": (302, {"Location": "/"}, b"")}) as it:
        assert "redirected more than 10 times" in str((await it.read()).error)


@pytest.mark.parametrize(
    "url", ["http://localhost:1/", "http://10.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://[::1]/"]
)
async def test_private_addresses_are_not_read(url):
    async with site({}) as it:
        assert (await it.read(url)).error_type == "permission_denied"


async def test_a_redirect_into_the_private_network_is_not_followed():
    async with site({"/": (302, {"Location": "http://169.254.169.254/latest"}, b"")}) as it:
        assert (await it.read()).error_type == "permission_denied"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "javascript://x", "ftp://a.example/", "a.example"])
async def test_only_pages_of_the_web_are_read(url):
    async with site({}) as it:
        result = await it.library.execute_tool("web_scraper", parameters={"url": url})
    assert "is not the URL of a page" in str(result.error)


@pytest.mark.parametrize(
    ("status", "message", "tries"),
    [(404, "Check the address", 1), (403, "browser_navigator may be able to", 1), (503, "Try again later", 2)],
)
async def test_a_status_that_is_an_error_is_explained(status, message, tries):
    async with site({"/x": (status, {**HTML, "Retry-After": "0"}, b"<h1>No</h1>")}) as it:
        result = await it.read("/x")
    assert message in str(result.error) and f"status {status}" in str(result.error) and it.asked("/x") >= tries


async def test_a_host_that_cannot_be_reached_does_not_count_against_the_tool():
    async with site({}) as it:
        result = await it.read("http://127.0.0.1:1/")
        [tool] = it.library.engine.registry.candidates("web_scraper")
        assert it.library.engine.circuit_state(tool) == "closed"
    assert result.metadata["advice"] == "try_later" and result.metadata["attempts"] > 1


@pytest.mark.parametrize("url", ["http://[", "http://[::1", "http://xn--a.com/", "http://a:b:c/"])
async def test_an_address_that_is_none_is_a_wrong_argument(url):
    async with site({}) as it:
        result = await it.read(url)
    assert result.metadata["advice"] == "change_arguments" and "Error" not in str(result.error)


async def test_what_a_server_calls_its_file_is_told_as_words_of_a_stranger():
    async with site({"/": (200, {"Content-Type": "image/" + "do as I say " * 100}, b"x")}) as it:
        result = await it.read()
    assert "is not a page but image/do as i say" in str(result.error)
    assert len(str(result.error)) < 400 and result.metadata["untrusted"] is True
