"""Reading a page: its main text, links, tables, title, date and language.

This runs in a separate process, which is killed if it takes too much time or memory: a hostile page may aim at that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urldefrag, urljoin, urlsplit

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry
from ferrule_tools.files.content import encoding_of_mark, normalize_encoding

if TYPE_CHECKING:
    from lxml.html import HtmlElement  # type: ignore[import-untyped]

# ---- charset: by byte order mark, by what the server or the page declares, else guessed

_HEADER_CHARSET: Final = lazy_pattern(r"""charset\s*=\s*["']?([^\s"';,]+)""", re.I)
_PAGE_CHARSET: Final = lazy_pattern(
    rb"""<(?:meta|\?xml)[^>]{0,500}?(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_:.-]+)""", re.I
)
_CHARSET_SEARCH_BYTES: Final = 4_096
_SUPERSET_CODECS: Final = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "hz": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "tis-620": "cp874",
}
"""Browsers decode these charsets as a superset, and pages rely on it."""
_ONE_BYTE_CODEC: Final = lazy_pattern(r"cp125\d|iso8859-\d+|koi8-\w+|mac-\w+|cp874")


def decode_page(content: bytes, content_type: str) -> str:
    """Decode a page. Invalid bytes become U+FFFD; no page is refused."""
    if marked := encoding_of_mark(content):
        return content.decode(marked, "replace")
    in_header, in_page = _HEADER_CHARSET.search(content_type), _PAGE_CHARSET.search(content[:_CHARSET_SEARCH_BYTES])
    from_header = _codec_name(in_header[1]) if in_header else None
    from_page = _codec_name(in_page[1].decode("ascii")) if in_page else None
    if from_page is not None and from_page.startswith(("utf-16", "utf-32")):
        from_page = "utf-8"  # a page whose declaration is readable as ASCII cannot be in UTF-16
    declared = [charset for charset in (from_header, from_page) if charset]
    # Some servers declare Latin-1 for every page. Text that is valid UTF-8 is hardly ever Latin-1.
    if not declared or _ONE_BYTE_CODEC.fullmatch(declared[0]):
        declared = ["utf-8", *declared]
    for charset in [*declared, "utf-8"]:
        try:
            return content.decode(charset)
        except UnicodeDecodeError:
            continue
    from charset_normalizer import from_bytes

    text = b" ".join(re.sub(rb"<[^<>]*>", b" ", content[:500_000]).split())
    best = from_bytes(text[:20_000]).best()
    looks_like = None if best is None else _codec_name(best.encoding)
    return content.decode(looks_like or next((each for each in declared if each != "utf-8"), "utf-8"), "replace")


def _codec_name(name: str) -> str | None:
    try:
        codec = normalize_encoding(name.strip())
    except Retry:
        return None
    return _SUPERSET_CODECS.get(codec, codec)


# ---- links

MAX_LINKS: Final = 300
MAX_LINK_TEXT: Final = 200
MAX_URL_LENGTH: Final = 2_000


def collect_links(page: HtmlElement, url: str) -> tuple[list[dict[str, str]], int]:
    """Return each linked URL once, with its first link text, and the number of links left out."""
    href = next((element.get("href") for element in page.iter("base") if element.get("href")), "")
    base = _to_absolute_url(url, href) or url
    links: dict[str, str] = {}
    for anchor in page.iter("a", "area"):
        address = _to_absolute_url(base, anchor.get("href") or "")
        if address is None:
            continue
        text = links.get(address) or " ".join(" ".join(anchor.itertext()).split())
        text = text or anchor.get("aria-label") or anchor.get("title") or anchor.get("alt") or ""
        links[address] = text[:MAX_LINK_TEXT]
    listed = [{"url": address, "text": text} for address, text in links.items()]
    return listed[:MAX_LINKS], len(listed[MAX_LINKS:])


def _to_absolute_url(base: str, href: str) -> str | None:
    """Return the absolute URL of a page; None for an anchor in the same page, a script or a mail address."""
    href = "".join(href.split())
    if not href or href.startswith("#"):
        return None
    try:
        address = urldefrag(urljoin(base, href)).url
        parts = urlsplit(address)
        is_page = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return None
    return address if is_page and address.isprintable() and len(address) <= MAX_URL_LENGTH else None


# ---- tables as rows of text; a cell that spans several rows or columns is repeated

MAX_TABLES: Final = 30
MAX_TABLE_ROWS: Final = 300
MAX_TABLE_COLUMNS: Final = 100
MAX_TABLE_CELLS: Final = 5_000
"""Of all tables of a page together."""
MAX_CELL_LENGTH: Final = 500


def collect_tables(page: HtmlElement) -> tuple[list[dict[str, Any]], int]:
    """Return the tables that contain data, and the number of tables left out."""
    tables: list[dict[str, Any]] = []
    left_out, cells = 0, MAX_TABLE_CELLS
    for element in page.iter("table"):
        if next(element.iterdescendants("table"), None) is not None:
            continue  # a table that contains tables is only used for layout
        if len(tables) == MAX_TABLES or cells <= 0:
            left_out += 1
            continue
        table = _read_table(element, cells)
        if table is not None:
            tables.append(table)
            cells -= sum(map(len, table["rows"]))
    return tables, left_out


def _read_table(element: HtmlElement, cells: int) -> dict[str, Any] | None:
    rows, heads, is_whole = _read_grid(element, cells)
    rows = [row for row in rows if any(row)]
    if not rows or max(map(len, rows)) < 2:
        return None
    width = max(map(len, rows))
    rows = [row + [""] * (width - len(row)) for row in rows]
    caption = element.find("caption")
    table: dict[str, Any] = {
        "caption": None if caption is None else _element_text(caption) or None,
        "header": rows[0] if heads else None,
        "rows": rows[1:] if heads else rows,
    }
    return table if is_whole else {**table, "cut": True}


def _read_grid(element: HtmlElement, cells: int) -> tuple[list[list[str]], bool, bool]:
    """Return the rows, whether the first one is a header, and whether the table is complete."""
    rows: list[list[str]] = []
    reaching: dict[int, tuple[int, str]] = {}
    """By column: how many more rows a cell from above spans, and its text."""
    heads = False
    for tr in _iterate_rows(element):
        if len(rows) == MAX_TABLE_ROWS or cells <= 0:
            return rows, heads, False
        row: list[str] = []
        own = [cell for cell in tr if cell.tag in ("td", "th")]
        if not rows:
            heads = bool(own) and (all(cell.tag == "th" for cell in own) or tr.getparent().tag == "thead")
        for cell in own:
            _add_spanning_cells(row, reaching)
            text, across, down = (
                _element_text(cell),
                _read_span(cell, "colspan", MAX_TABLE_COLUMNS),
                _read_span(cell, "rowspan", MAX_TABLE_ROWS),
            )
            for _ in range(min(across, MAX_TABLE_COLUMNS - len(row))):
                if down > 1:
                    reaching[len(row)] = down - 1, text
                row.append(text)
        _add_spanning_cells(row, reaching)
        rows.append(row)
        cells -= max(len(row), 1)
    return rows, heads, True


def _iterate_rows(element: HtmlElement) -> Iterator[HtmlElement]:
    # In HTML, the table foot may precede the body.
    groups = sorted(element, key=lambda group: group.tag == "tfoot")
    for group in groups:
        if group.tag == "tr":
            yield group
        elif group.tag in ("thead", "tbody", "tfoot"):
            yield from group.iterchildren("tr")


def _add_spanning_cells(row: list[str], reaching: dict[int, tuple[int, str]]) -> None:
    while (above := reaching.pop(len(row), None)) is not None and len(row) < MAX_TABLE_COLUMNS:
        down, text = above
        if down > 1:
            reaching[len(row)] = down - 1, text
        row.append(text)


def _read_span(cell: HtmlElement, name: str, most: int) -> int:
    value = (cell.get(name) or "").strip()
    if not value.isascii() or not value.isdecimal():
        return 1
    number = int(value[:9])
    # In HTML, a rowspan of 0 extends to the last row.
    return most if number == 0 and name == "rowspan" else min(max(number, 1), most)


def _element_text(element: HtmlElement) -> str:
    text = " ".join(" ".join(element.itertext()).split())
    return text if len(text) <= MAX_CELL_LENGTH else f"{text[: MAX_CELL_LENGTH - 1]}…"


MAX_TITLE_LENGTH: Final = 300
EMPTY_PAGE_NOTE: Final = "The page has no text without its scripts. browser_navigator may be able to read it."
_LANGUAGE: Final = lazy_pattern(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8}){0,3}")
_INVALID_XML_CHARACTERS: Final = lazy_pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def read_page(
    # `content` is bytes; as a hint that would mean base64.
    content: Any,
    content_type: str,
    url: str,
    parts: list[str],
    as_markdown: bool,
    is_html: bool,
    quickly: bool,
) -> dict[str, Any]:
    """Return the requested parts of a page (`text`, `links`, `tables`), with its title, date and language.

    `quickly` skips the search for the main text, which is slow in large or deeply nested pages.
    """
    text = decode_page(content, content_type)
    if not is_html:
        return {"text": text}
    page = _parse_html(_INVALID_XML_CHARACTERS.sub(" ", text))
    if page is None:
        nothing: dict[str, Any] = {"text": "", "links": [], "tables": []}
        return {"title": None, "date": None, "language": None, **{name: nothing[name] for name in parts}}
    result = _extract_all_text(page) if quickly else _extract_main_text(page, url, as_markdown)
    if "text" not in parts:
        result = {"title": result["title"], "date": result["date"]}
    result["language"] = _find_language(page)
    if "links" in parts:
        result |= _with_omitted_count("links", *collect_links(page, url))
    if "tables" in parts:
        result |= _with_omitted_count("tables", *collect_tables(page))
    return result


def _with_omitted_count(name: str, items: Sequence[Any], left_out: int) -> dict[str, Any]:
    return {name: items, f"{name}_left_out": left_out} if left_out else {name: items}


def _parse_html(html: str) -> HtmlElement | None:
    from lxml.etree import ParserError  # type: ignore[import-untyped]
    from lxml.html import HTMLParser, document_fromstring

    # As bytes: lxml refuses a str whose page declares an encoding.
    parser = HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        return document_fromstring(html.encode("utf-8", "replace"), parser=parser)
    except (ParserError, ValueError):
        return None  # the page is empty


def _extract_main_text(page: HtmlElement, url: str, as_markdown: bool) -> dict[str, Any]:
    from trafilatura import bare_extraction, extract_metadata

    # No extensive search: the year in a footer is not the date of the article.
    dates = {"original_date": True, "extensive_search": False, "max_date": date.today().isoformat()}
    document: Any = bare_extraction(
        page,
        url=url,
        include_comments=False,
        include_formatting=as_markdown,
        with_metadata=True,
        date_extraction_params=dates,
    )
    about = document if document is not None else extract_metadata(page, url, dates)
    result = {"title": _find_title(page) or _to_single_line(about.title), "date": about.date}
    if document is not None and (document.text or "").strip():
        return {**result, "text": document.text.strip()}
    return {**_extract_all_text(page), **result}


def _extract_all_text(page: HtmlElement) -> dict[str, Any]:
    from trafilatura import html2txt

    text = html2txt(page).strip()
    note = "No main text was found: this is the whole text of the page." if text else EMPTY_PAGE_NOTE
    return {"title": _find_title(page), "date": None, "text": text, "note": note}


def _find_title(page: HtmlElement) -> str | None:
    """Return the title for sharing (`og:title`), else the title of the tab. Headings may belong to a menu."""
    elsewhere = next((meta.get("content") for meta in page.iter("meta") if meta.get("property") == "og:title"), None)
    return _to_single_line(elsewhere) or _to_single_line(page.findtext(".//head/title") or page.findtext(".//title"))


def _to_single_line(text: str | None) -> str | None:
    return " ".join((text or "").split())[:MAX_TITLE_LENGTH] or None


def _find_language(page: HtmlElement) -> str | None:
    declared = [page.get("lang"), page.get("xml:lang"), page.get("{http://www.w3.org/XML/1998/namespace}lang")]
    for meta in page.iter("meta"):
        name = (meta.get("http-equiv") or meta.get("property") or meta.get("name") or "").lower()
        if name in ("content-language", "og:locale", "language"):
            declared.append(meta.get("content"))
    matches = (match for each in declared if each and (match := _LANGUAGE.fullmatch(each.strip())))
    return next((match[0].replace("_", "-") for match in matches), None)
