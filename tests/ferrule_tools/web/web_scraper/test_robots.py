"""What a site allows is respected."""

import pytest

from ferrule_tools.web import web_scraper as robots
from tests.ferrule_tools.web.web_scraper.server import site

pytestmark = pytest.mark.integration

ROBOTS = b"User-agent: *\nDisallow: /private\nAllow: /private/open\n\nUser-agent: rudebot\nDisallow: /\n"
TEXT = {"Content-Type": "text/plain"}
PAGE = (200, TEXT, b"Tea.")


async def test_a_page_that_is_forbidden_is_not_fetched():
    async with site({"/robots.txt": (200, TEXT, ROBOTS), "/private/x": PAGE, "/private/open": PAGE}) as it:
        forbidden, allowed = await it.read("/private/x?q=1"), await it.read("/private/open")
    assert forbidden.error_type == "permission_denied" and "does not let 'ferrule' read" in str(forbidden.error)
    assert allowed.is_success and it.asked("/private/x?q=1") == 0


async def test_the_rules_are_those_for_our_own_name():
    async with site(
        {"/robots.txt": (200, TEXT, ROBOTS), "/": PAGE}, user_agent="RudeBot/2.0 (+https://a.example)"
    ) as it:
        assert (await it.read()).error_type == "permission_denied"
    assert it.server.requests[0].headers["user-agent"] == "RudeBot/2.0 (+https://a.example)"


async def test_the_rules_are_read_once():
    async with site({"/robots.txt": (200, TEXT, ROBOTS), "/": PAGE}) as it:
        for _ in range(3):
            assert (await it.read()).is_success
    assert it.asked("/robots.txt") == 1 and it.asked("/") == 3


async def test_the_rules_are_read_again_after_a_while(monkeypatch):
    monkeypatch.setattr(robots, "CACHE_SECONDS", 0.0)
    async with site({"/": PAGE}) as it:
        for _ in range(2):
            assert (await it.read()).is_success
    assert it.asked("/robots.txt") == 2


async def test_a_redirect_to_a_forbidden_page_is_not_followed():
    async with site({"/robots.txt": (200, TEXT, ROBOTS), "/go": (302, {"Location": "/private/x"}, b"")}) as it:
        result = await it.read("/go")
    assert result.error_type == "permission_denied" and it.asked("/private/x") == 0


@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_a_site_without_rules_allows_everything(status):
    async with site({"/robots.txt": (status, TEXT, b"User-agent: *\nDisallow: /"), "/": PAGE}) as it:
        assert (await it.read()).is_success


async def test_a_site_whose_rules_cannot_be_read_for_now_allows_nothing():
    async with site({"/robots.txt": (503, TEXT, b""), "/": PAGE}) as it:
        result = await it.read()
    assert "may be read: its robots.txt has status 503" in str(result.error)
    assert result.metadata["transient"] and it.asked("/") == 0


@pytest.mark.parametrize(
    ("rules", "times"),
    [(b"\xff\xfe\x00", 1), (b"<html>", 1), (b"Disallow: /" + b"*" * 5_000, 1), (b"User-agent: *\n", 50_000)],
)
async def test_rules_that_are_none_do_no_harm(rules, times):
    async with site({"/robots.txt": (200, TEXT, rules * times), "/": PAGE}) as it:
        assert (await it.read()).is_success


async def test_rules_that_multiply_are_given_up_and_hold_up_nobody_else(monkeypatch):
    monkeypatch.setattr(robots, "RULES_TIMEOUT", 0.5)
    agents = "".join(f"User-agent: a{number}\n" for number in range(6_000))
    rules = agents + "".join(f"Disallow: /{number}\n" for number in range(6_000))
    async with site({"/robots.txt": (200, TEXT, rules.encode()), "/": PAGE}) as it:
        result = await it.read()  # would never end if the loop itself parsed them
    assert "whether" in str(result.error) and "its robots.txt cannot be parsed" in str(result.error)
    assert it.asked("/") == 0


async def test_who_may_can_do_without():
    async with site(
        {"/robots.txt": (200, TEXT, b"User-agent: *\nDisallow: /"), "/": PAGE},
        respect_robots=False,
    ) as it:
        assert (await it.read()).is_success
    assert it.asked("/robots.txt") == 0
