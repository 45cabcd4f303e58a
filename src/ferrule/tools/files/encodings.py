"""What a file holds: text in some encoding, a picture, or something else."""

from __future__ import annotations

import codecs
import mimetypes
from dataclasses import dataclass
from typing import Final

from ferrule.errors import Retry

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""In this order: the mark of UTF-16 is the beginning of that of UTF-32."""
_PICTURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_FOR_OTHER_THINGS: Final = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7"})
"""Encodings that no file is written in."""
_TEXT_CONTROLS: Final = frozenset(b"\t\n\r\f\b\x1b")
_MOST_CONTROLS: Final = 0.05
"""Of the bytes of a text may be other control characters."""
_COMMON: Final = 0.7
"""Of the pairs of bytes must be common Chinese characters or signs, in a text taken for Chinese."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a file holds."""

    encoding: str | None
    """None where it holds no text."""
    mime_type: str


def look_at(sample: bytes, name: str, *, is_whole: bool) -> Kind:
    """What a file holds, by its beginning and its name."""
    picture = next((mime for mark, mime in _PICTURES if sample.startswith(mark)), None)
    if sample.startswith(b"RIFF") and sample[8:12] == b"WEBP":
        picture = "image/webp"
    guessed = mimetypes.guess_type(name)[0]
    if picture is not None:
        return Kind(encoding=None, mime_type=picture)
    encoding = _encoding(sample, is_whole)
    if encoding is None:
        is_text = (guessed or "text/").startswith("text/")
        return Kind(encoding=None, mime_type="application/octet-stream" if is_text else str(guessed))
    return Kind(encoding=encoding, mime_type=guessed or "text/plain")


def known_encoding(name: str) -> str:
    """The name of an encoding as Python has it; `Retry` where it is none for text."""
    try:
        found = codecs.lookup(name).name
        "".encode(found)
    except (LookupError, ValueError):  # not known, or not for text
        found = "undefined"
    if found in _FOR_OTHER_THINGS:
        raise Retry(
            f"The encoding {name[:40]!r} is not known. Write utf-8, gb18030, big5, shift_jis, cp1252 or another."
        )
    return found


def _encoding(sample: bytes, is_whole: bool) -> str | None:
    marked = next((encoding for mark, encoding in _MARKS if sample.startswith(mark)), None)
    if marked is not None:
        return marked
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in sample[:65_536])
    if b"\0" in sample or controls > _MOST_CONTROLS * len(sample[:65_536]):
        return None
    if _decodes(sample, "utf-8", is_whole):
        return "utf-8"
    if _is_chinese(sample) and _decodes(sample, "gb18030", is_whole):
        return "gb18030"
    return "cp1252" if _decodes(sample, "cp1252", is_whole) else "latin-1"


def _decodes(sample: bytes, encoding: str, is_whole: bool) -> bool:
    try:
        # The last character of a sample may be cut in two.
        codecs.getincrementaldecoder(encoding)("strict").decode(sample, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True


def _is_chinese(sample: bytes) -> bool:
    """Nearly every text in a Western encoding is some text in GB 18030 too, but not one that anybody would write."""
    pairs = common = at = 0
    while at < len(sample) - 1:
        lead, trail = sample[at], sample[at + 1]
        if lead < 0x81:
            at += 1
            continue
        pairs += 1
        is_usual = 0xB0 <= lead <= 0xD7 or 0xA1 <= lead <= 0xA3
        common += is_usual and trail >= 0xA1
        at += 4 if 0x30 <= trail <= 0x39 else 2
    return pairs > 0 and common >= _COMMON * pairs
