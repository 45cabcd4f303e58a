"""Adjustments of selectors that matched nothing: selectors of observed elements first, then less strict ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

from ferrule.catalog.search.terms import extract_terms
from ferrule.core.patterns import lazy_pattern
from ferrule.memory.adjustments.failed_call import Adjustment, FailedCall, quote_value
from ferrule.memory.adjustments.page_elements import ROLES, PageElement, find_elements
from ferrule.memory.call_identity import LOCATORS

_MAX_SELECTOR_LENGTH: Final = 1000
_MAX_ELEMENTS: Final = 6
_SELECTORS_PER_ELEMENT: Final = 2
_MIN_SIMILARITY: Final = 0.2
_PREFIX_LENGTH: Final = 4
_MAX_TEXT_LENGTH: Final = 60
_MAX_VALUE_LENGTH: Final = 120

_LOCATOR_NAME = lazy_pattern(r"selector|xpath|选择器", re.I)
_UNUSABLE_ELEMENT = lazy_pattern(
    r"not (?:visible|interactable|clickable|attached)|intercepts pointer|strict mode violation|stale element"
    r"|(?:in|not a )valid selector|不可见|不可点击",
    re.I,
)
_NAME_IN_SELECTOR = lazy_pattern(r"\"([^\"]*)\"|'([^']*)'|[#.]([\w-]+)|=\s*([\w -]+)")
_COMBINATOR = lazy_pattern(r"[\s>+~]+(?![^\[(]*[\])])")
_TAG = lazy_pattern(r"(?:role=)?([A-Za-z][\w-]*)")
_XPATH_TAG = lazy_pattern(r"/([A-Za-z][\w-]*)[^/]*\Z")


def replace_selector(call: FailedCall) -> Iterator[Adjustment]:
    if not (call.is_timeout or call.is_not_found or _UNUSABLE_ELEMENT.search(call.error)):
        return
    failed = {
        name: value
        for name, value in call.texts()
        if _is_locator_parameter(call, name) and call.error_may_concern(value)
    }
    if not failed:
        return
    error = call.error
    for value in failed.values():
        error = error.replace(value, " ")  # what remains may show a part of the page
    elements = find_elements([error, *call.observations])
    for name, value in failed.items():
        yield from _suggest_observed_elements(call, name, value, elements)
        for step, selector in enumerate(_relax_selector(value)):
            reason = f"{quote_value(value)} found nothing; this is less strict."
            yield call.with_value(name, selector, reason, 0.3 - 0.02 * min(step, 9))


def _is_locator_parameter(call: FailedCall, name: str) -> bool:
    if name.lower() in LOCATORS and not (name == "element" and "ref" in call.parameters):
        return True
    return _LOCATOR_NAME.search(f"{name} {call.schema_of(name).get('description', '')}") is not None


# ---- selectors of observed elements


def _suggest_observed_elements(
    call: FailedCall, name: str, failed: str, elements: list[PageElement]
) -> Iterator[Adjustment]:
    kind, terms = _kind_of(failed), _terms_of(call, name, failed)
    ratings = ((_rate_similarity(element, kind, terms), -at) for at, element in enumerate(elements))
    for score, at in nlargest(_MAX_ELEMENTS, ratings):
        element = elements[-at]
        selectors = (
            (selector, by)
            for selector, by in _make_selectors(element, name, failed)
            if selector != failed and selector not in call.failed_values
        )
        for step, (selector, by) in enumerate(
            islice(selectors, _SELECTORS_PER_ELEMENT if score >= _MIN_SIMILARITY else 0)
        ):
            content = f" {quote_value(element.text[:60])}" if element.text else ""
            reason = (
                f"{quote_value(failed)} found nothing; the {element.kind() or 'element'}{content} was seen, "
                f"and this points at it by its {by}."
            )
            yield call.with_value(name, selector, reason, 0.35 + 0.55 * score - 0.02 * step)


def _kind_of(selector: str) -> str:
    """What the selector looks for, as screen readers call it: `link` for `a.count`; empty if it does not say."""
    if _is_xpath(selector):
        tag = _XPATH_TAG.search(selector)
    else:
        tag = _TAG.match(_last_compound(selector))
    return ROLES.get(tag[1].lower(), tag[1].lower()) if tag else ""


def _terms_of(call: FailedCall, name: str, selector: str) -> frozenset[str]:
    """The words of the selector's names and strings, and of the other parameters."""
    names = " ".join("".join(groups) for groups in _NAME_IN_SELECTOR.findall(selector[:_MAX_SELECTOR_LENGTH]))
    others = " ".join(text for other, text in call.texts() if other != name)
    return frozenset(extract_terms(f"{names} {others[:_MAX_SELECTOR_LENGTH]}"))


def _rate_similarity(element: PageElement, kind: str, terms: frozenset[str]) -> float:
    """How well an element matches the failed selector, 0 to 1: by its words, its kind, and whether it has a number."""
    text = " ".join([element.text[:200], *(value[:200] for value in element.attributes.values())])
    words = _share_of_terms(terms, text)
    is_same_kind = bool(kind) and kind in (element.kind(), element.tag)
    if not words and not is_same_kind:
        return 0.0
    has_number = any(char.isdigit() for char in element.text)
    joined = 0.2 if element.role == "text" else 0.0  # outlines join the texts of several elements
    return 0.65 * words + 0.25 * is_same_kind + 0.1 * has_number - joined


def _share_of_terms(terms: frozenset[str], text: str) -> float:
    """The share of the terms that a text contains; a term that only begins the same counts half."""
    folded = text.lower()
    if text.isascii() and not any(term[:3] in folded for term in terms):  # true for most elements of a large page
        return 0.0
    words = set(extract_terms(text))
    prefixes = {word[:_PREFIX_LENGTH] for word in words if len(word) >= _PREFIX_LENGTH}
    total = sum(1.0 if term in words else 0.5 if term[:_PREFIX_LENGTH] in prefixes else 0.0 for term in terms)
    return total / len(terms) if terms else 0.0


_PLAIN_NAME = lazy_pattern(r"[A-Za-z_][\w-]*\Z", re.ASCII)
_STABLE_ATTRIBUTES: Final = (
    "data-testid",
    "data-test",
    "data-qa",
    "aria-label",
    "name",
    "href",
    "title",
    "placeholder",
)
_LABELLED_ROLES: Final = frozenset("textbox searchbox combobox checkbox radio switch slider img".split())
"""Roles whose name is a label beside the element, so that its own text does not find it."""


def _make_selectors(element: PageElement, name: str, failed: str) -> Iterator[tuple[str, str]]:
    """The selectors of an element with what each uses, the most stable first, in the syntax of the failed one."""
    if name.lower() in ("ref", "uid"):
        if element.ref:
            yield element.ref, "ref"
    elif "xpath" in name.lower() or _is_xpath(failed):
        yield from _make_xpath_selectors(element)
    else:
        if element.selector and not _is_xpath(element.selector):
            yield element.selector, "selector"
        yield from _make_css_selectors(element)


def _make_css_selectors(element: PageElement) -> Iterator[tuple[str, str]]:
    if _PLAIN_NAME.match(identity := element.attributes.get("id", "")):
        yield f"#{identity}", "id"
    for attribute, value in _list_stable_attributes(element):
        yield f"{element.tag}[{attribute}={_quote_css_string(value)}]", attribute
    classes = [name for name in element.attributes.get("class", "").split() if _PLAIN_NAME.match(name)][:3]
    if classes:
        yield ".".join([element.tag, *classes]), "class"
    if not (text := _shorten_text(element.text)):
        return
    if element.tag:
        yield f"{element.tag}:has-text({_quote_css_string(text)})", "text"
        return
    if element.role not in ("", "text", "generic"):
        yield f"role={element.role}[name={_quote_css_string(text)}]", "role"
    if element.role not in _LABELLED_ROLES:
        yield f":text({_quote_css_string(text)})", "text"


def _make_xpath_selectors(element: PageElement) -> Iterator[tuple[str, str]]:
    identity = element.attributes.get("id", "")
    for attribute, value in [*([("id", identity)] if identity else []), *_list_stable_attributes(element)]:
        if '"' not in value:  # XPath has no escapes
            yield f'//*[@{attribute}="{value}"]', attribute
    if element.text and '"' not in element.text:
        yield f'//{element.tag or "*"}[contains(normalize-space(.), "{_shorten_text(element.text)}")]', "text"


def _list_stable_attributes(element: PageElement) -> Iterator[tuple[str, str]]:
    for name in _STABLE_ATTRIBUTES:
        value = element.attributes.get(name, "")
        if 0 < len(value) <= _MAX_VALUE_LENGTH and not value.startswith(("#", "javascript:")) and "\n" not in value:
            yield name, value


def _shorten_text(text: str) -> str:
    """The text, cut between words: a part of it matches as well."""
    cut = text[:_MAX_TEXT_LENGTH]
    return text if cut == text else cut.rpartition(" ")[0] or cut


def _quote_css_string(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---- less strict selectors, for when no page was observed

_SELECTOR_PIECE = lazy_pattern(r"(?P<tag>\A[A-Za-z][\w-]*)|#(?P<id>[\w-]+)|\.(?P<class>[\w-]+)")
_POSITION = lazy_pattern(r":(?:nth-[\w-]+\([^)]*\)|(?:first|last|only)-(?:child|of-type))")
_EXACT_ATTRIBUTE = lazy_pattern(r"\[([\w-]+)=[\"']?([^\"'\]]+)[\"']?\]")
_LETTERS = lazy_pattern(r"[A-Za-z]{3,}")


def _is_xpath(selector: str) -> bool:
    return selector.startswith(("/", "./", "(/", "xpath="))


def _last_compound(selector: str) -> str:
    """The part of a CSS selector that names the element itself, not what it is nested in."""
    return _COMBINATOR.split(selector[:_MAX_SELECTOR_LENGTH].strip())[-1]


def _relax_selector(selector: str) -> Iterator[str]:
    """Less strict CSS selectors, the strictest first: without position and nesting, then by parts of names."""
    if _is_xpath(selector) or "=" in selector.partition("[")[0]:  # `text=…` and others that are not CSS
        return
    compound = _POSITION.sub("", _last_compound(selector))
    if compound != selector and any(mark in compound for mark in "#.["):
        yield compound
    pieces = list(_SELECTOR_PIECE.finditer(_EXACT_ATTRIBUTE.sub("", compound)))
    tag = next((piece["tag"] for piece in pieces if piece["tag"]), "")
    names = [(kind, piece[kind]) for kind in ("class", "id") for piece in pieces if piece[kind]]
    for attribute, value in [*names, *_EXACT_ATTRIBUTE.findall(compound)]:
        for word in _LETTERS.findall(value)[:4]:
            yield f'{tag}[{attribute}*="{word}"]'
            yield f'[{attribute}*="{word}"]'
