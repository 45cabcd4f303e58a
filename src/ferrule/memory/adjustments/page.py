"""The elements of a page, from whatever an observation shows of it.

Tools show pages in many ways: as HTML, as an outline for screen readers (`link "28.4k stars" [ref=e12]`), as JSON of
elements, as a list of selectors, or as selectors with notes (`a#stars (link, '28.4k stars')`). Each is read for what it
says; nothing is built up from it. The patterns stop at the next `<` or line end, so that reading takes time in
proportion to the text, whatever stands in it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

MOST_ELEMENTS: Final = 20_000
_MOST_NODES: Final = 100_000
_MOST_INSIDE: Final = 400
"""Characters after a tag that are searched for its text."""

ROLES: Final = {
    "a": "link",
    "button": "button",
    "input": "textbox",
    "textarea": "textbox",
    "select": "combobox",
    "option": "option",
    "img": "img",
    "nav": "navigation",
    "main": "main",
    "form": "form",
    "table": "table",
    "tr": "row",
    "td": "cell",
    "th": "columnheader",
    "ul": "list",
    "ol": "list",
    "li": "listitem",
    "p": "paragraph",
    "dialog": "dialog",
    **{f"h{level}": "heading" for level in range(1, 7)},
}
"""What screen readers call a tag."""
_OTHER_ROLES: Final = ("searchbox", "checkbox", "radio", "switch", "slider", "tab", "menuitem") + (
    "article",
    "region",
    "banner",
    "status",
    "alert",
    "generic",
    "text",
)
_OTHER_TAGS: Final = ("div", "span", "label", "section", "article", "header", "footer", "aside") + (
    "strong",
    "em",
    "b",
    "i",
    "time",
    "small",
    "code",
    "pre",
)
_TAGS: Final = frozenset([*ROLES, *_OTHER_TAGS])
_SILENT: Final = frozenset(
    ("html", "head", "meta", "link", "base", "br", "hr", "path", "svg", "g", "use", "source", "track", "col", "wbr")
)
_CODE: Final = ("script", "style")

_TAG = re.compile(r"<([A-Za-z][\w:-]{0,40})((?:\s[^<>]{0,3000})?)/?>([^<]{0,300})")
_ATTRIBUTE = re.compile(r"([A-Za-z_@:][\w:.-]{0,60})\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))")
_ANY_TAG = re.compile(r"<[^<>]{0,3000}>")
_OUTLINE = re.compile(
    r"(?:\buid=(?P<uid>[\w-]{1,40})\s+|\[(?P<mark>\w{1,20})\]\s+)?"
    rf"(?<![\w\"'=/.-])(?P<role>{'|'.join([*dict.fromkeys(ROLES.values()), *_OTHER_ROLES])})"
    r"(?:\s+(?:\"(?P<name>(?:[^\"\\\n]|\\.){1,300})\"|'(?P<said>[^'\n]{1,300})'))?"
    r"(?P<marks>(?:\s*\[[^\]\n]{0,60}\]){0,8})(?:[ \t]*:[ \t]*(?P<text>[^\n]{1,300}))?"
)
_REF = re.compile(r"\b(?:ref|uid)=([\w-]+)")
_LISTED = re.compile(
    r"(?<![\w=/.#\]-])(?:(?P<tag>[a-z][a-z0-9]{0,20})?"
    r"(?:[#.][A-Za-z_][\w-]{0,80}|\[[a-z][\w-]{0,40}[*^$~|]?=\"[^\"\]\n]{1,120}\"\]){1,8})(?![\w(/@])"
)
_LAST = re.compile(r"(?:[^\s>+~\[\]]|\[[^\]]*\])+\Z")
_BRACKETS = re.compile(r"\[[^\]]*\]")
_NOTED = re.compile(
    r"(?:(?<=: )|(?<=; )|(?<=\A))(?P<selector>(?:(?!: |; )[^\n]){1,300}?) "
    r"\((?P<role>[a-z]{2,20})(?:, '(?P<text>[^'\n]{0,300})')?(?:, class '(?P<class>[^'\n]{1,300})')?\)"
    r"(?=[;.]|\s*\Z)"
)
"""A selector and what it points at: `a#stars (link, '28.4k stars'); span#n (number, '3', class 'count')`"""


@dataclass(slots=True, kw_only=True)
class Element:
    """One thing on a page, as far as the observation tells."""

    tag: str = ""
    role: str = ""
    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    selector: str = ""
    """As the observation itself writes it."""
    ref: str = ""
    """The mark by which the tool that showed it knows it."""

    def kind(self) -> str:
        return self.role or ROLES.get(self.tag, self.tag)


def elements_in(texts: Iterable[str]) -> list[Element]:
    """Every element the texts show, in their order."""
    return list(islice((element for text in texts for element in _elements_of(text)), MOST_ELEMENTS))


def _elements_of(text: str) -> Iterator[Element]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            text = text.replace('\\"', '"')  # JSON that was cut off: what is quoted in it can still be read
        else:
            yield from _of_json(said)
            return
    yield from _of_text(text)


def _of_text(text: str) -> Iterator[Element]:
    if _TAG.search(text):
        yield from _of_html(text)
        return
    noted = list(_of_notes(text))
    yield from noted
    if not noted:
        yield from _of_outline(text)
        yield from _of_list(text)


def _of_html(text: str) -> Iterator[Element]:
    at = 0
    while found := _TAG.search(text, at):
        at = found.end()
        tag = found[1].lower()
        if tag in _CODE:
            end = text.find(f"</{tag}", at)
            at = end if end >= 0 else len(text)
        elif tag not in _SILENT:
            attributes = {name.lower(): html.unescape(a or b or c) for name, a, b, c in _ATTRIBUTE.findall(found[2])}
            said = _plain(found[3])
            if attributes or said:
                said = said or _text_inside(text, tag, found.end(2))
                yield Element(tag=tag, role=attributes.get("role", ""), text=said, attributes=attributes)


def _text_inside(text: str, tag: str, start: int) -> str:
    inside = text[start : start + _MOST_INSIDE].partition(">")[2]
    end = inside.find(f"</{tag}")
    return _plain(_ANY_TAG.sub(" ", inside[:end])) if end > 0 else ""


def _plain(text: str) -> str:
    return " ".join(html.unescape(text).split()) if text and not text.isspace() else ""


def _of_notes(text: str) -> Iterator[Element]:
    for found in _NOTED.finditer(text):
        element = listed(found["selector"])
        element.role, element.text = found["role"], " ".join((found["text"] or "").split())
        if found["class"]:
            element.attributes["class"] = found["class"]
        yield element


def _of_outline(text: str) -> Iterator[Element]:
    for found in _OUTLINE.finditer(text):
        said = found["name"] or found["said"] or found["text"]
        if said:
            ref = _REF.search(found["marks"])
            name = found["uid"] or (ref[1] if ref else found["mark"]) or ""
            yield Element(role=found["role"], text=" ".join(said.replace('\\"', '"').split()), ref=name)


def _of_list(text: str) -> Iterator[Element]:
    for found in _LISTED.finditer(text):
        if found["tag"] is None or found["tag"] in _TAGS:
            yield listed(found[0])


def listed(selector: str) -> Element:
    """An element of which only a selector is known."""
    last = _LAST.search(selector[:1000])  # what comes before says where it is, not what it is
    itself = last[0] if last else ""
    said = {name.lower(): a or b or c for name, a, b, c in _ATTRIBUTE.findall(itself)}
    tag = re.match(r"[a-z][a-z0-9]*", itself)
    names = _BRACKETS.sub("", itself)
    classes = re.findall(r"\.([A-Za-z_][\w-]*)", names)
    identity = re.search(r"#([A-Za-z_][\w-]*)", names)
    attributes = {**said, "class": " ".join(classes), "id": identity[1] if identity else ""}
    return Element(
        tag=tag[0] if tag else "",
        attributes={name: value for name, value in attributes.items() if value},
        selector=selector,
    )


_SELECTOR_KEYS: Final = ("selector", "css_selector", "cssselector", "css", "locator", "xpath")
_TEXT_KEYS: Final = ("text", "name", "label", "innertext", "textcontent", "value", "content", "title")
_TAG_KEYS: Final = ("tag", "tagname", "nodename")


def _of_json(said: Any) -> Iterator[Element]:
    waiting = [said]
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        part = waiting.pop()
        if isinstance(part, dict):
            element = _of_object({str(key).lower(): value for key, value in part.items()})
            if element is not None:
                yield element
            inside = [inner for inner in part.values() if element is None or isinstance(inner, (dict, list))]
            waiting += reversed(inside)
        elif isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, str) and len(part) > 2:
            yield from _of_text(part)


def _of_object(said: dict[str, Any]) -> Element | None:
    selector, ref = _first(said, _SELECTOR_KEYS), _first(said, ("ref", "uid"))
    tag, role = _first(said, _TAG_KEYS).lower(), _first(said, ("role",))
    if not (selector or ref or tag or role):
        return None
    inner = said.get("attributes") or said.get("attrs") or {}
    attributes = {str(k).lower(): str(v) for k, v in inner.items() if v} if isinstance(inner, dict) else {}
    for key, value in said.items():
        name = "class" if key in ("classname", "classes") else key
        if isinstance(value, str) and value and (name in ("id", "class", "href", "title") or "-" in name):
            attributes[name] = value
    known = listed(selector)
    return Element(
        tag=tag or known.tag,
        role=role,
        text=" ".join(_first(said, _TEXT_KEYS)[:300].split()),
        attributes={**known.attributes, **attributes},
        selector=selector,
        ref=ref,
    )


def _first(said: dict[str, Any], keys: Iterable[str]) -> str:
    return next((said[key] for key in keys if isinstance(said.get(key), str)), "")
