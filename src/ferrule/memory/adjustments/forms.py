"""The ways to point at an element that was seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ferrule.memory.adjustments.failed_selector import Dialect
from ferrule.memory.adjustments.page import ROLES, Element

_PLAIN_NAME = re.compile(r"[A-Za-z_][\w-]*\Z", re.ASCII)
_TELLING: Final = (
    "data-testid",
    "data-test-id",
    "data-test",
    "data-qa",
    "data-cy",
    "aria-label",
    "name",
    "title",
    "href",
)
_LONGEST_VALUE: Final = 120
_LONGEST_TEXT: Final = 60
_MOST_CLASSES: Final = 3
_NAMED_FROM_OUTSIDE: Final = frozenset(
    ("textbox", "searchbox", "combobox", "checkbox", "radio", "switch", "slider", "img")
)
"""Roles whose name is a label beside them, or no text at all."""
_TAG_OF_ROLE: Final = {role: tag for tag, role in reversed(ROLES.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to point at an element."""

    selector: str
    by: str
    """What it goes by: an attribute's name, `text`, `role` …"""
    only_playwright: bool = False
    """No browser by itself understands it."""


def forms_of(element: Element, dialect: Dialect) -> Iterator[Form]:
    """The ways to point at an element, those that last longest first."""
    if dialect == "ref":
        if element.ref:
            yield Form(selector=element.ref, by="ref")
        return
    if element.selector and element.selector.startswith(("/", "(")) == (dialect == "xpath"):
        yield Form(selector=element.selector, by="selector")
    yield from _in_xpath(element) if dialect == "xpath" else _in_css(element)


def _in_css(element: Element) -> Iterator[Form]:
    attributes = element.attributes
    identity = attributes.get("id", "")
    if _PLAIN_NAME.match(identity):
        yield Form(selector=f"#{identity}", by="id")
    for name, value in _telling(element):
        yield Form(selector=f"{element.tag}[{name}={_quoted(value)}]", by=name)
    classes = [name for name in attributes.get("class", "").split() if _PLAIN_NAME.match(name)][:_MOST_CLASSES]
    if classes:
        yield Form(selector=".".join([element.tag, *classes]), by="class")
    words = _words_of(element)
    if words and element.tag:
        yield Form(selector=f"{element.tag}:has-text({_quoted(words)})", by="text", only_playwright=True)
    elif words:
        if element.role not in ("", "text", "generic"):
            yield Form(selector=f"role={element.role}[name={_quoted(words)}]", by="role", only_playwright=True)
        if element.role not in _NAMED_FROM_OUTSIDE:
            yield Form(selector=f":text({_quoted(words)})", by="text", only_playwright=True)


def _in_xpath(element: Element) -> Iterator[Form]:
    tag = element.tag or _TAG_OF_ROLE.get(element.role, "") or "*"
    identity = element.attributes.get("id", "")
    values = [("id", identity)] if identity and len(identity) <= _LONGEST_VALUE else []
    for name, value in [*values, *_telling(element)]:
        if (literal := _literal(value)) is not None:
            yield Form(selector=f"//{'*' if name == 'id' else tag}[@{name}={literal}]", by=name)
    first = element.attributes.get("class", "").split()[:1]
    if first and _PLAIN_NAME.match(first[0]):
        yield Form(selector=f"//{tag}[contains(@class, {_literal(first[0])})]", by="class")
    literal = _literal(_words_of(element))
    if element.text and literal is not None:
        yield Form(selector=f"//{tag}[contains(normalize-space(.), {literal})]", by="text")


def _telling(element: Element) -> Iterator[tuple[str, str]]:
    for name in _TELLING:
        value = element.attributes.get(name, "")
        if 0 < len(value) <= _LONGEST_VALUE and not value.startswith(("#", "javascript:")) and "\n" not in value:
            yield name, value


def _words_of(element: Element) -> str:
    """The element's text, cut between words: part of it finds it as well."""
    if len(element.text) <= _LONGEST_TEXT:
        return element.text
    cut = element.text[:_LONGEST_TEXT]
    return cut.rpartition(" ")[0] or cut


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(value: str) -> str | None:
    """A string of XPath, which knows no escapes."""
    if '"' not in value:
        return f'"{value}"'
    return f"'{value}'" if "'" not in value else None
