"""Other selectors for an element that was not found."""

import pytest

from ferrule.core.spec import ToolCapability
from ferrule.memory.adjustments import suggest_adjustments

TEXT = {"type": "string"}
READ = ToolCapability(
    name="text",
    description="Read an element.",
    parameters={"selector": {**TEXT, "required": True}, "timeout": {"type": "integer"}},
)
NOT_FOUND = "No element matches 'a.social-count' on https://example.com."
LISTED = (
    f"{NOT_FOUND} On the page: span#n (number, '28.4k', class 'Counter js-social-count'); ul > li:nth-child(2) (text)."
)


def selectors(failed: str, error: str | None = None, avoid: tuple[str, ...] = ()) -> list[str]:
    found = suggest_adjustments(READ, {"selector": failed}, error or f"Element not found: {failed}", avoid=avoid)
    return [one.parameters["selector"] for one in found]


def test_elements_that_the_error_lists_come_first_in_its_order():
    found = suggest_adjustments(READ, {"selector": "a.social-count"}, LISTED)
    assert [one.parameters["selector"] for one in found][:3] == ["span#n", "ul > li:nth-child(2)", 'a[class*="social"]']
    assert found[0].reason == "'a.social-count' found nothing; the error lists the number '28.4k'."
    assert [one.confidence for one in found] == sorted((one.confidence for one in found), reverse=True)
    assert selectors("//a[1]", LISTED.replace("a.social-count", "//a[1]"))[0] == "span#n"


@pytest.mark.parametrize("name", ["ref", "xpath"])
def test_a_listed_selector_is_no_reference_and_no_xpath(name: str):
    click = ToolCapability(name="click", description="", parameters={name: TEXT})
    assert suggest_adjustments(click, {name: "//a"}, LISTED.replace("a.social-count", "//a")) == []


def test_known_failures_are_never_offered_again():
    first = selectors("a.social-count", LISTED)
    second = selectors("a.social-count", LISTED, avoid=tuple(first[:3]))
    assert second and not set(second) & {*first[:3], "a.social-count"}


@pytest.mark.parametrize(
    ("failed", "wider"),
    [
        ("a.social-count", ['a[class*="social"]', '[class*="social"]', 'a[class*="count"]', '[class*="count"]']),
        ("div.list > a.btn.big", ["a.btn.big", 'a[class*="btn"]', '[class*="btn"]', 'a[class*="big"]']),
        ("li.item:nth-child(3)", ["li.item", 'li[class*="item"]', '[class*="item"]']),
        ("#main-title", ['[id*="main"]', '[id*="title"]']),
        ('input[name="user_email"]', ['input[name*="user"]', '[name*="user"]', 'input[name*="email"]']),
        ("//a[text()='Sign in']", []),
        ("text=Sign in", []),
        ("a", []),
    ],
)
def test_without_a_list_selectors_are_widened(failed: str, wider: list[str]):
    assert selectors(failed)[: len(wider) or None] == wider


def test_a_time_out_while_waiting_for_an_element_may_be_about_both():
    error = "Timeout 5000ms exceeded. waiting for locator('a.social-count')"
    found = suggest_adjustments(READ, {"selector": "a.social-count", "timeout": 5000}, error)
    assert {name for one in found for name in one.changed} == {"selector", "timeout"}
    assert {"selector": "a.social-count", "timeout": 10000} in [one.parameters for one in found]


def test_an_error_about_something_else_changes_no_selector():
    assert selectors("a.social-count", "The page crashed") == []
    both = ToolCapability(name="shot", description="", parameters={"selector": TEXT, "path": TEXT})
    call = {"selector": "a.social-count", "path": "/tmp/shots/a.png"}
    found = suggest_adjustments(both, call, "No such file or directory: '/tmp/shots/a.png'")
    assert "selector" not in [name for one in found for name in one.changed]


@pytest.mark.parametrize("piece", ["; ", ": a (", "; a (link, '", "[a=", "a.b", "//", '"', "(", "\n", "> "])
def test_a_long_text_of_anything_is_read(piece: str):
    text = piece * (200_000 // len(piece))
    assert isinstance(selectors(text, f"not found: {text}"), list)
    paths = ToolCapability(name="read", description="", parameters={"path": TEXT})
    assert isinstance(suggest_adjustments(paths, {"path": "a/b.txt"}, "not found", [text]), list)
