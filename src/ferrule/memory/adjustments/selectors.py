"""Other selectors for an element that was not found: of elements that were seen first, then wider ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

from ferrule.memory.adjustments.call import Adjustment, FailedCall, shown
from ferrule.memory.adjustments.failed_selector import FailedSelector, read_selector
from ferrule.memory.adjustments.forms import Form, forms_of
from ferrule.memory.adjustments.page import Element, elements_in
from ferrule.memory.adjustments.symptoms import says_missing, says_time_out, says_unusable_element
from ferrule.memory.adjustments.widening import wider
from ferrule.memory.parameters import LOCATORS
from ferrule.search.words import terms_of

_DESCRIBED = re.compile(r"selector|xpath|选择器", re.I)
_PLAYWRIGHT = re.compile(r"playwright|locator\(|getBy[A-Z]|waiting for", re.I)
_DIGIT = re.compile(r"\d")
_PREFIX: Final = 4
_MOST_ELEMENTS: Final = 6
_FORMS_EACH: Final = 2
_LIKE_ENOUGH: Final = 0.2
_BY_KIND_ALONE: Final = 0.35


def other_selectors(call: FailedCall) -> Iterator[Adjustment]:
    time_out = says_time_out(call.error)
    if not (time_out or says_missing(call.error) or says_unusable_element(call.error)):
        return
    failed = [(name, value) for name, value in call.texts() if _is_locator(call, name) and call.blames(value)]
    if not failed:
        return
    elements = elements_in([_beside(failed, call.error), *call.observations])
    playwright = _PLAYWRIGHT.search(call.error) is not None
    for name, value in failed:
        about = " ".join(text for other, text in call.texts() if other != name)
        selector = read_selector(name, value, about=about)
        yield from _seen(call, name, selector, elements, playwright=playwright or selector.speaks_playwright)
        for step, (text, how) in enumerate(wider(selector)):
            yield call.with_value(
                name, text, f"{shown(value)} found nothing; this is wider, {how}.", 0.3 - 0.02 * min(step, 9)
            )


def _beside(failed: list[tuple[str, str]], error: str) -> str:
    """What an error shows of the page, without the selectors it quotes."""
    for _, value in failed:
        error = error.replace(value, " ")
    return error


def _is_locator(call: FailedCall, name: str) -> bool:
    if name.lower() in LOCATORS and not (name == "element" and "ref" in call.parameters):
        return True
    return _DESCRIBED.search(f"{name} {call.schema_of(name).get('description', '')}") is not None


def _seen(
    call: FailedCall, name: str, selector: FailedSelector, elements: list[Element], *, playwright: bool
) -> Iterator[Adjustment]:
    best = nlargest(_MOST_ELEMENTS, ((_likeness(one, selector), -at) for at, one in enumerate(elements)))
    enough = [(likeness, elements[-at]) for likeness, at in best if likeness >= _LIKE_ENOUGH]
    # What shares no word is little more than a guess: a few of those.
    for likeness, element in [one for rank, one in enumerate(enough) if one[0] > _BY_KIND_ALONE or rank < 3]:
        forms = (form for form in forms_of(element, selector.dialect) if not _fails(form.selector, selector, call))
        for step, form in enumerate(islice(forms, _FORMS_EACH)):
            confidence = 0.35 + 0.55 * likeness - 0.02 * step
            confidence -= 0.05 if form.only_playwright and not playwright else 0.0
            # Outlines run texts of several elements together.
            confidence -= 0.1 if element.role == "text" else 0.0
            confidence -= 0.05 if _is_shared(form, element, elements) else 0.0
            yield call.with_value(name, form.selector, _reason(form, element, selector), confidence)


def _likeness(element: Element, wanted: FailedSelector) -> float:
    """How much an element looks like what was looked for, 0 to 1: by its words, its kind, and whether it counts."""
    said = " ".join([element.text[:200], *(value[:200] for value in element.attributes.values())])
    words = _share(wanted.terms, said)
    kind = 1.0 if wanted.kind and wanted.kind in (element.kind(), element.tag) else 0.0
    if not words and not kind:
        return 0.0
    return 0.65 * words + 0.25 * kind + (0.1 if _DIGIT.search(element.text) else 0.0)


def _share(wanted: frozenset[str], text: str) -> float:
    """The share of the wanted words that a text has; one that only begins alike counts half."""
    folded = text.lower()
    if text.isascii() and not any(word[:3] in folded for word in wanted):  # most elements of a large page
        return 0.0
    said = set(terms_of(text))
    beginnings = {word[:_PREFIX] for word in said if len(word) >= _PREFIX}
    found = sum(1.0 if word in said else 0.5 if word[:_PREFIX] in beginnings else 0.0 for word in wanted)
    return found / len(wanted) if wanted else 0.0


def _fails(text: str, selector: FailedSelector, call: FailedCall) -> bool:
    return text == selector.text or text in call.avoid


def _is_shared(form: Form, element: Element, elements: list[Element]) -> bool:
    """Whether other elements that were seen would be found too."""
    if form.by in ("text", "role"):
        return sum(one.text == element.text and one.kind() == element.kind() for one in elements) > 1
    value = element.attributes.get(form.by)
    return value is not None and sum(one.attributes.get(form.by) == value for one in elements) > 1


def _reason(form: Form, element: Element, selector: FailedSelector) -> str:
    what = element.kind() or "element"
    said = f" {shown(element.text[:60])}" if element.text else ""
    return f"{shown(selector.text)} found nothing; the {what}{said} was seen, and this points at it by its {form.by}."
