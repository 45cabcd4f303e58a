"""Reading a page: its main text, links, tables, title, date and language.

This runs in a process of its own, which is ended when it takes too long or too much: pages may be made to that end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from ferrule.tools.web_scraper.charsets import text_of_page
from ferrule.tools.web_scraper.links import links_of
from ferrule.tools.web_scraper.tables import tables_of

if TYPE_CHECKING:
    from lxml.html import HtmlElement  # type: ignore[import-untyped]

LONGEST_TITLE: Final = 300
NOTHING: Final = "The page says nothing without its scripts. browser_navigator may be able to read it."
_LANGUAGE: Final = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8}){0,3}")
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def read_page(
    # `content` is bytes; as a hint that would mean base64.
    content: Any,
    content_type: str,
    url: str,
    wanted: list[str],
    as_markdown: bool,
    is_html: bool,
    quickly: bool,
) -> dict[str, Any]:
    """What is wanted of a page: `text`, `links`, `tables`; and always what the page is. Other texts are only texts.

    `quickly` does without the search for the main text, which takes its time in large or twisted pages.
    """
    said = text_of_page(content, content_type)
    if not is_html:
        return {"text": said}
    page = _parsed(_NOT_XML.sub(" ", said))
    if page is None:
        nothing: dict[str, Any] = {"text": "", "links": [], "tables": []}
        return {"title": None, "date": None, "language": None, **{name: nothing[name] for name in wanted}}
    told = _all(page) if quickly else _main(page, url, as_markdown)
    if "text" not in wanted:
        told = {"title": told["title"], "date": told["date"]}
    told["language"] = _language(page)
    if "links" in wanted:
        told |= _listed("links", *links_of(page, url))
    if "tables" in wanted:
        told |= _listed("tables", *tables_of(page))
    return told


def _listed(name: str, found: Sequence[Any], left_out: int) -> dict[str, Any]:
    return {name: found, f"{name}_left_out": left_out} if left_out else {name: found}


def _parsed(html: str) -> HtmlElement | None:
    from lxml.etree import ParserError  # type: ignore[import-untyped]
    from lxml.html import HTMLParser, document_fromstring

    # As bytes: of text, lxml refuses pages that say how they are encoded.
    parser = HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        return document_fromstring(html.encode("utf-8", "replace"), parser=parser)
    except (ParserError, ValueError):
        return None  # there is nothing in it


def _main(page: HtmlElement, url: str, as_markdown: bool) -> dict[str, Any]:
    from trafilatura import bare_extraction, extract_metadata

    # No search all over the page: a footer's year is no date of an article.
    dates = {"original_date": True, "extensive_search": False, "max_date": date.today().isoformat()}
    found: Any = bare_extraction(
        page,
        url=url,
        include_comments=False,
        include_formatting=as_markdown,
        with_metadata=True,
        date_extraction_params=dates,
    )
    about = found if found is not None else extract_metadata(page, url, dates)
    told = {"title": _title(page) or _line(about.title), "date": about.date}
    if found is not None and (found.text or "").strip():
        return {**told, "text": found.text.strip()}
    return {**_all(page), **told}


def _all(page: HtmlElement) -> dict[str, Any]:
    from trafilatura import html2txt

    text = html2txt(page).strip()
    note = "No main text was found: this is all the page says." if text else NOTHING
    return {"title": _title(page), "date": None, "text": text, "note": note}


def _title(page: HtmlElement) -> str | None:
    """As the page wants to be called elsewhere, else as a browser calls it; headings may be those of a menu."""
    elsewhere = next((meta.get("content") for meta in page.iter("meta") if meta.get("property") == "og:title"), None)
    return _line(elsewhere) or _line(page.findtext(".//head/title") or page.findtext(".//title"))


def _line(said: str | None) -> str | None:
    return " ".join((said or "").split())[:LONGEST_TITLE] or None


def _language(page: HtmlElement) -> str | None:
    said = [page.get("lang"), page.get("xml:lang"), page.get("{http://www.w3.org/XML/1998/namespace}lang")]
    for meta in page.iter("meta"):
        name = (meta.get("http-equiv") or meta.get("property") or meta.get("name") or "").lower()
        if name in ("content-language", "og:locale", "language"):
            said.append(meta.get("content"))
    found = (match for each in said if each and (match := _LANGUAGE.fullmatch(each.strip())))
    return next((match[0].replace("_", "-") for match in found), None)
