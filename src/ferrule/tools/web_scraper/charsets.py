"""The text of a page's bytes: by its mark, by what the server or the page says, else by what it looks like."""

from __future__ import annotations

import codecs
import re
from typing import Final

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""In this order: the mark of UTF-16 is the beginning of that of UTF-32."""
_IN_HEADER: Final = re.compile(r"""charset\s*=\s*["']?([^\s"';,]+)""", re.I)
_IN_PAGE: Final = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,500}?(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_:.-]+)""", re.I
)
_LOOKED_AT: Final = 4_096
_WIDER: Final = {
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
"""Browsers read more than the name says, and pages rely on it."""
_NO_CHARSETS: Final = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7"})
_ONE_BYTE: Final = re.compile(r"cp125\d|iso8859-\d+|koi8-\w+|mac-\w+|cp874")


def text_of_page(content: bytes, content_type: str) -> str:
    """The page as text. Bytes that are no characters become U+FFFD; nothing is refused."""
    marked = next((charset for mark, charset in _MARKS if content.startswith(mark)), None)
    if marked is not None:
        return content.decode(marked, "replace")
    said = [charset for charset in (_in_header(content_type), _in_page(content)) if charset]
    # A server may say Latin-1 of everything it has. What is UTF-8 by chance is next to never in Latin-1.
    if not said or _ONE_BYTE.fullmatch(said[0]):
        said = ["utf-8", *said]
    for charset in [*said, "utf-8"]:
        try:
            return content.decode(charset)
        except UnicodeDecodeError:
            continue
    looks_like = _guess(content)
    return content.decode(looks_like or next((each for each in said if each != "utf-8"), "utf-8"), "replace")


def _in_header(content_type: str) -> str | None:
    found = _IN_HEADER.search(content_type)
    return _known(found[1]) if found else None


def _in_page(content: bytes) -> str | None:
    found = _IN_PAGE.search(content[:_LOOKED_AT])
    charset = _known(found[1].decode("ascii")) if found else None
    # Whoever can read this mark in ASCII is not in UTF-16, whatever it says.
    return "utf-8" if charset is not None and charset.startswith(("utf-16", "utf-32")) else charset


def _known(name: str) -> str | None:
    try:
        found = codecs.lookup(name.strip()).name
        "".encode(found)  # codecs such as hex are known, but not for text
    except (LookupError, ValueError):
        return None
    return None if found.replace("_", "-") in _NO_CHARSETS else _WIDER.get(found, found)


def _guess(content: bytes) -> str | None:
    from charset_normalizer import from_bytes

    said = b" ".join(re.sub(rb"<[^<>]*>", b" ", content[:500_000]).split())
    best = from_bytes(said[:20_000]).best()
    return None if best is None else _known(best.encoding)
