"""Other selectors for an element that was not found."""

from typing import Any

import pytest

from ferrule.core.spec import ToolCapability
from ferrule.memory.adjustments import suggest_adjustments

TEXT = {"type": "string"}
READ = ToolCapability(
    name="text",
    description="Read an element.",
    parameters={"selector": {**TEXT, "required": True}, "timeout": {"type": "integer"}},
)
MISSING = "Element not found: {}"


def selectors(failed: str, *seen: str, error: str = MISSING, avoid: tuple[str, ...] = ()) -> list[str]:
    found = suggest_adjustments(READ, {"selector": failed}, error.format(failed), seen, avoid=avoid)
    return [one.parameters["selector"] for one in found]


PAGE = """<!doctype html><html><head><script>var old = "<a class='social-count'>1</a>";</script></head><body>
<nav><a href="/issues">Issues</a></nav>
<a href="/project/stargazers" class="Link"><svg><path d="M1 2"/></svg>
  <span id="stars-counter" title="28,412" class="Counter js-social-count">28.4k</span> stars</a>
<button class="btn" data-testid="star-button">Star</button></body></html>"""
OUTLINE = """- banner:
  - link "Home" [ref=e2]
  - link "28.4k stars" [ref=e12] [cursor=pointer]:
    - /url: /project/stargazers
  - button "Star" [ref=e14]"""


def test_an_element_that_was_seen_comes_before_anything_wider():
    found = selectors("a.social-count", PAGE)
    assert found[0] == "#stars-counter"
    assert 'a[href="/project/stargazers"]' in found
    assert found.index('a[class*="social"]') > found.index('a[href="/project/stargazers"]')


def test_what_scripts_contain_was_not_seen():
    assert "a.social-count" not in selectors("a.social-link", PAGE)


def test_an_outline_is_read_by_role_and_text():
    assert selectors("a.social-count", OUTLINE)[:2] == ['role=link[name="28.4k stars"]', ':text("28.4k stars")']


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ('{"elements": [{"selector": "#star-count", "tag": "a", "text": "28.4k"}]}', "#star-count"),
        ('[{"tagName": "A", "attributes": {"data-testid": "count"}, "text": "28"}]', 'a[data-testid="count"]'),
        ('{"html": "<a class=\\"js-social-count\\">28.4k</a>"}', "a.js-social-count"),
        ('{"html": "<a class=\\"js-social-count\\">28.4k</a> and it was cut', "a.js-social-count"),
        ("Selectors of this page:\n- #home\n- a.js-social-count\nSee example.com", "a.js-social-count"),
        ("On the page: a#home (link, 'Home'); #n (number, '5', class 'js-social-count').", "#n"),
        ("On the page: ul#social > li:nth-of-type(1) (number, '5'); a > b#count (number, '7').", "a > b#count"),
        ('<a aria-label="Social count">5</a>', 'a[aria-label="Social count"]'),
        ('<a name=count href="#">5</a>', 'a[name="count"]'),
        ("<a title='Say \"count\"'>5</a>", 'a[title="Say \\"count\\""]'),
        ("<a><b>Social count: 5</b></a>", 'b:has-text("Social count: 5")'),
        ('- textbox "Say \\"count\\"" [ref=e1]', 'role=textbox[name="Say \\"count\\""]'),
        ("<a title='Say &quot;count&quot;'>5</a>", 'a[title="Say \\"count\\""]'),
        ("<b>关注数 social 5</b>", 'b:has-text("关注数 social 5")'),
    ],
)
def test_pages_are_shown_in_many_ways(seen: str, found: str):
    assert selectors("a.social-count", seen)[0] == found


def test_words_in_common_decide_and_then_kind_and_numbers():
    seen = '<a href="/a">About</a><a href="/b">12 followers</a><i class="social-total">5</i>'
    assert selectors("a.social-count", seen)[0] == "i.social-total"
    assert selectors("a.other", seen)[0] == 'a[href="/b"]'


def test_what_shares_nothing_is_not_offered():
    assert selectors("input.email", '<p id="intro">Welcome</p>') == selectors("input.email")


def test_known_failures_are_never_offered_again():
    first = selectors("a.social-count", PAGE)
    second = selectors("a.social-count", PAGE, avoid=tuple(first[:3]))
    assert not set(second) & {*first[:3], "a.social-count"}
    assert second


def test_xpath_stays_xpath():
    found = selectors("/html/body/div[2]/a[@class='social-count big']", PAGE)
    assert found[0] == '//*[@id="stars-counter"]'
    assert all(one.startswith(("/", "(")) for one in found)


def test_a_reference_is_answered_with_references():
    click = ToolCapability(
        name="click", description="", parameters={"element": TEXT, "ref": {**TEXT, "required": True}}
    )
    found = suggest_adjustments(click, {"element": "stars link", "ref": "e99"}, "Ref e99 not found", [OUTLINE])
    assert found[0].parameters == {"element": "stars link", "ref": "e12"}


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
def test_without_a_page_selectors_are_widened(failed: str, wider: list[str]):
    assert selectors(failed)[: len(wider) or None] == wider


def test_a_time_out_while_waiting_for_an_element_is_about_the_selector_first():
    error = "Timeout 5000ms exceeded. waiting for locator('a.social-count')"
    found = suggest_adjustments(READ, {"selector": "a.social-count", "timeout": 5000}, error, [PAGE])
    assert found[0].changed == ("selector",)
    assert {"selector": "a.social-count", "timeout": 10000} in [one.parameters for one in found]


def test_each_suggestion_says_why():
    found = suggest_adjustments(READ, {"selector": "a.social-count"}, "no element", [OUTLINE])
    assert found[0].reason == (
        "'a.social-count' found nothing; the link '28.4k stars' was seen, and this points at it by its role."
    )
    assert [one.confidence for one in found] == sorted((one.confidence for one in found), reverse=True)


def test_an_error_about_something_else_changes_no_selector():
    assert selectors("a.social-count", PAGE, error="The page crashed") == []
    both = ToolCapability(name="shot", description="", parameters={"selector": TEXT, "path": TEXT})
    call = {"selector": "a.social-count", "path": "/tmp/shots/a.png"}
    found = suggest_adjustments(both, call, "No such file or directory: '/tmp/shots/a.png'", [PAGE])
    assert "selector" not in [name for one in found for name in one.changed]


HOSTILE = ["<", "<a ", '<a x="', 'link "', "a.b", "[a=", "{", "[", "- ", "<b>", "<script>", "//", '"', "(", "x: ", "\n"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_long_page_of_anything_is_read(piece: str):
    seen: Any = piece * (200_000 // len(piece))
    assert selectors("a.social-count", seen)
    paths = ToolCapability(name="read", description="", parameters={"path": TEXT})
    assert isinstance(suggest_adjustments(paths, {"path": "a/b.txt"}, "not found", [seen]), list)


def test_of_many_observations_the_newest_counts():
    old, new = '<a id="old-count">1</a>', '<a id="new-count">1</a>'
    assert selectors("a.social-count", old, new)[0] == "#new-count"
    assert "#old-count" not in selectors("a.social-count", old, " " * 1_000_000)
