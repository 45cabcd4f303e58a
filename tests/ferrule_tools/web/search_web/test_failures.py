"""Providers that do not do what they should."""

import pytest

from tests.ferrule_tools.web.search_web.providers import KEY, asking, brave, page, says, searxng
from tests.support.http_servers import serve_http

pytestmark = pytest.mark.integration

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
