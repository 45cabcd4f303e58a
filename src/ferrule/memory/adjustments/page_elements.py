"""The elements of a web page, read from whatever an observation shows of it.

Tools show pages as HTML, as an outline for screen readers (`link "28.4k stars" [ref=e12]`), as JSON of elements, as a
list of selectors, or as selectors with notes (`a#stars (link, '28.4k stars')`). The patterns stop at the next `<` or
line end, so that reading takes time in proportion to the text even when it is hostile.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern

MAX_ELEMENTS: Final = 20_000
_MAX_JSON_NODES: Final = 100_000
_MAX_INNER_LENGTH: Final = 400
"""Characters after a tag that are searched for its text."""

_ROLE_NAMES: Final = {
    "link": "a",
    "textbox": "input textarea",
    "combobox": "select",
    "navigation": "nav",
    "row": "tr",
    "cell": "td",
    "columnheader": "th",
    "list": "ul ol",
    "listitem": "li",
    "paragraph": "p",
    "heading": "h1 h2 h3 h4 h5 h6",
    **{tag: tag for tag in ("button", "option", "img", "main", "form", "table", "dialog")},
}
ROLES: Final = {tag: role for role, tags in _ROLE_NAMES.items() for tag in tags.split()}
"""What screen readers call a tag."""
_OTHER_ROLES: Final = (
    "searchbox checkbox radio switch slider tab menuitem article region banner status alert generic text".split()
)
_TAGS: Final = frozenset(
    [*ROLES, *"div span label section article header footer aside strong em b i time small code pre".split()]
)
_IGNORED_TAGS: Final = frozenset("html head meta link base br hr path svg g use source track col wbr".split())
_CODE_TAGS: Final = ("script", "style")

_TAG = lazy_pattern(r"<([A-Za-z][\w:-]{0,40})((?:\s[^<>]{0,3000})?)/?>([^<]{0,300})")
_ATTRIBUTE = lazy_pattern(r"([A-Za-z_@:][\w:.-]{0,60})\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))")
_ANY_TAG = lazy_pattern(r"<[^<>]{0,3000}>")
_OUTLINE_LINE = lazy_pattern(
    r"(?:\buid=(?P<uid>[\w-]{1,40})\s+|\[(?P<mark>\w{1,20})\]\s+)?"
    rf"(?<![\w\"'=/.-])(?P<role>{'|'.join([*dict.fromkeys(ROLES.values()), *_OTHER_ROLES])})"
    r"(?:\s+(?:\"(?P<name>(?:[^\"\\\n]|\\.){1,300})\"|'(?P<single>[^'\n]{1,300})'))?"
    r"(?P<marks>(?:\s*\[[^\]\n]{0,60}\]){0,8})(?:[ \t]*:[ \t]*(?P<text>[^\n]{1,300}))?"
)
_REF = lazy_pattern(r"\b(?:ref|uid)=([\w-]+)")
_SELECTOR = lazy_pattern(
    r"(?<![\w=/.#\]-])(?:(?P<tag>[a-z][a-z0-9]{0,20})?"
    r"(?:[#.][A-Za-z_][\w-]{0,80}|\[[a-z][\w-]{0,40}[*^$~|]?=\"[^\"\]\n]{1,120}\"\]){1,8})(?![\w(/@])"
)
_LAST_COMPOUND = lazy_pattern(r"(?:[^\s>+~\[\]]|\[[^\]]*\])+\Z")
_BRACKETS = lazy_pattern(r"\[[^\]]*\]")
_SELECTOR_WITH_NOTE = lazy_pattern(
    r"(?:(?<=: )|(?<=; )|(?<=\A))(?P<selector>(?:(?!: |; )[^\n]){1,300}?) "
    r"\((?P<role>[a-z]{2,20})(?:, '(?P<text>[^'\n]{0,300})')?(?:, class '(?P<class>[^'\n]{1,300})')?\)"
    r"(?=[;.]|\s*\Z)"
)
"""For example `a#stars (link, '28.4k stars'); span#n (number, '3', class 'count')`."""


@dataclass(slots=True, kw_only=True)
class PageElement:
    """One element of a page, as far as the observation shows it."""

    tag: str = ""
    role: str = ""
    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    selector: str = ""
    """As the observation writes it."""
    ref: str = ""
    """The reference by which the tool that showed it knows it."""

    def kind(self) -> str:
        return self.role or ROLES.get(self.tag, self.tag)


def find_elements(texts: Iterable[str]) -> list[PageElement]:
    """Every element the texts show, in their order."""
    return list(islice((element for text in texts for element in _find_elements_in_text(text)), MAX_ELEMENTS))


def _find_elements_in_text(text: str) -> Iterator[PageElement]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            text = text.replace('\\"', '"')  # truncated JSON: what it quotes can still be read
        else:
            yield from _parse_json(value)
            return
    yield from _parse_plain_text(text)


def _parse_plain_text(text: str) -> Iterator[PageElement]:
    if _TAG.search(text):
        yield from _parse_html(text)
    elif with_notes := list(_parse_selectors_with_notes(text)):
        yield from with_notes
    else:
        yield from _parse_outline(text)
        for match in _SELECTOR.finditer(text):
            if match["tag"] is None or match["tag"] in _TAGS:
                yield _selector_to_element(match[0])


def _parse_html(text: str) -> Iterator[PageElement]:
    position = 0
    while match := _TAG.search(text, position):
        position = match.end()
        tag = match[1].lower()
        if tag in _CODE_TAGS:
            end = text.find(f"</{tag}", position)
            position = end if end >= 0 else len(text)
        elif tag not in _IGNORED_TAGS:
            attributes = {name.lower(): html.unescape(a or b or c) for name, a, b, c in _ATTRIBUTE.findall(match[2])}
            content = _visible_text(match[3])
            if attributes or content:
                content = content or _find_inner_text(text, tag, match.end(2))
                yield PageElement(tag=tag, role=attributes.get("role", ""), text=content, attributes=attributes)


def _find_inner_text(text: str, tag: str, start: int) -> str:
    inner = text[start : start + _MAX_INNER_LENGTH].partition(">")[2]
    end = inner.find(f"</{tag}")
    return _visible_text(_ANY_TAG.sub(" ", inner[:end])) if end > 0 else ""


def _visible_text(text: str) -> str:
    return " ".join(html.unescape(text).split()) if text and not text.isspace() else ""


def _parse_selectors_with_notes(text: str) -> Iterator[PageElement]:
    for match in _SELECTOR_WITH_NOTE.finditer(text):
        element = _selector_to_element(match["selector"])
        element.role, element.text = match["role"], " ".join((match["text"] or "").split())
        if match["class"]:
            element.attributes["class"] = match["class"]
        yield element


def _parse_outline(text: str) -> Iterator[PageElement]:
    for match in _OUTLINE_LINE.finditer(text):
        if name := match["name"] or match["single"] or match["text"]:
            ref = _REF.search(match["marks"])
            reference = match["uid"] or (ref[1] if ref else match["mark"]) or ""
            yield PageElement(role=match["role"], text=" ".join(name.replace('\\"', '"').split()), ref=reference)


def _selector_to_element(selector: str) -> PageElement:
    """An element of which only a selector was shown."""
    last = _LAST_COMPOUND.search(selector[:1000])  # the compounds before it say where the element is, not what
    compound = last[0] if last else ""
    tag = re.match(r"[a-z][a-z0-9]*", compound)
    names = _BRACKETS.sub("", compound)
    identity = re.search(r"#([A-Za-z_][\w-]*)", names)
    attributes = {
        **{name.lower(): a or b or c for name, a, b, c in _ATTRIBUTE.findall(compound)},
        "class": " ".join(re.findall(r"\.([A-Za-z_][\w-]*)", names)),
        "id": identity[1] if identity else "",
    }
    attributes = {name: value for name, value in attributes.items() if value}
    return PageElement(tag=tag[0] if tag else "", attributes=attributes, selector=selector)


_SELECTOR_KEYS: Final = ("selector", "css_selector", "cssselector", "css", "locator", "xpath")
_TEXT_KEYS: Final = ("text", "name", "label", "innertext", "textcontent", "value", "content", "title")
_TAG_KEYS: Final = ("tag", "tagname", "nodename")


def _parse_json(value: Any) -> Iterator[PageElement]:
    pending = [value]
    for _ in range(_MAX_JSON_NODES):
        if not pending:
            return
        node = pending.pop()
        if isinstance(node, dict):
            element = _object_to_element({str(key).lower(): value for key, value in node.items()})
            if element is not None:
                yield element
            children = [child for child in node.values() if element is None or isinstance(child, (dict, list))]
            pending += reversed(children)
        elif isinstance(node, list):
            pending += reversed(node)
        elif isinstance(node, str) and len(node) > 2:
            yield from _parse_plain_text(node)


def _object_to_element(node: dict[str, Any]) -> PageElement | None:
    selector, ref = _first_text(node, _SELECTOR_KEYS), _first_text(node, ("ref", "uid"))
    tag, role = _first_text(node, _TAG_KEYS).lower(), _first_text(node, ("role",))
    if not (selector or ref or tag or role):
        return None
    inner = node.get("attributes") or node.get("attrs") or {}
    attributes = {str(k).lower(): str(v) for k, v in inner.items() if v} if isinstance(inner, dict) else {}
    for key, value in node.items():
        name = "class" if key in ("classname", "classes") else key
        if isinstance(value, str) and value and (name in ("id", "class", "href", "title") or "-" in name):
            attributes[name] = value
    by_selector = _selector_to_element(selector)
    return PageElement(
        tag=tag or by_selector.tag,
        role=role,
        text=" ".join(_first_text(node, _TEXT_KEYS)[:300].split()),
        attributes={**by_selector.attributes, **attributes},
        selector=selector,
        ref=ref,
    )


def _first_text(node: dict[str, Any], keys: Iterable[str]) -> str:
    return next((node[key] for key in keys if isinstance(node.get(key), str)), "")
