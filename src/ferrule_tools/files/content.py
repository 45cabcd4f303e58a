"""The content of a file: its kind and encoding, text, parts of a text, pictures."""

from __future__ import annotations

import codecs
import io
import mimetypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

from ferrule.core.content import Image, Output, describe_part
from ferrule.errors import Refuse, Retry
from ferrule_tools.files.path_rules import Parts
from ferrule_tools.files.workspace import display_path

_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""The order matters: the mark of UTF-32-LE begins with that of UTF-16-LE."""
_PICTURE_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_UNUSABLE_ENCODINGS: Final = frozenset(
    {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7"}
)
"""Encodings that files are not written in."""
_TEXT_CONTROLS: Final = frozenset(b"\t\n\r\f\b\x1b")
_MAX_CONTROL_SHARE: Final = 0.05
"""The largest share of control characters that a text may contain."""
_MIN_COMMON_SHARE: Final = 0.7
"""The share of byte pairs that must be common Chinese characters in a Chinese text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentKind:
    encoding: str | None
    """None if it is not text."""
    mime_type: str


def detect_content(sample: bytes, name: str, *, is_whole: bool) -> ContentKind:
    """Detect the content of a file by its beginning and its name."""
    picture = next((mime for mark, mime in _PICTURE_SIGNATURES if sample.startswith(mark)), None)
    if sample.startswith(b"RIFF") and sample[8:12] == b"WEBP":
        picture = "image/webp"
    guessed = mimetypes.guess_type(name)[0]
    if picture is not None:
        return ContentKind(encoding=None, mime_type=picture)
    encoding = _detect_encoding(sample, is_whole)
    if encoding is None:
        is_text = (guessed or "text/").startswith("text/")
        return ContentKind(encoding=None, mime_type="application/octet-stream" if is_text else str(guessed))
    return ContentKind(encoding=encoding, mime_type=guessed or "text/plain")


def encoding_of_mark(content: bytes) -> str | None:
    """Return the encoding that a byte order mark states; None without a mark."""
    return next((encoding for mark, encoding in _BYTE_ORDER_MARKS if content.startswith(mark)), None)


def normalize_encoding(name: str) -> str:
    """Return Python's name of an encoding. Raises Retry if the encoding is unknown or not for text."""
    try:
        encoding = codecs.lookup(name).name
        "".encode(encoding)
    except (LookupError, ValueError):  # not known, or not for text
        encoding = "undefined"
    if encoding.replace("_", "-") in _UNUSABLE_ENCODINGS:
        raise Retry(
            f"The encoding {name[:40]!r} is not known. Write utf-8, gb18030, big5, shift_jis, cp1252 or another."
        )
    return encoding


def _detect_encoding(sample: bytes, is_whole: bool) -> str | None:
    if mark_encoding := encoding_of_mark(sample):
        return mark_encoding
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in sample[:65_536])
    if b"\0" in sample or controls > _MAX_CONTROL_SHARE * len(sample[:65_536]):
        return None
    if _can_decode(sample, "utf-8", is_whole):
        return "utf-8"
    if _looks_chinese(sample) and _can_decode(sample, "gb18030", is_whole):
        return "gb18030"
    return "cp1252" if _can_decode(sample, "cp1252", is_whole) else "latin-1"


def _can_decode(sample: bytes, encoding: str, is_whole: bool) -> bool:
    try:
        # The last character of a sample may be incomplete.
        codecs.getincrementaldecoder(encoding)("strict").decode(sample, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True


def _looks_chinese(sample: bytes) -> bool:
    """Return whether bytes look like GB 18030. Western texts are mostly valid too, but with unusual characters."""
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
    return pairs > 0 and common >= _MIN_COMMON_SHARE * pairs


_SAMPLE_SIZE: Final = 1_000_000
"""Bytes from which the encoding of a file is detected."""
_MAX_IMAGE: Final = 5_000_000


def read_content_kind(file: BinaryIO, parts: Parts) -> ContentKind:
    """Detect the kind of content of an open file."""
    file.seek(0)
    sample = file.read(_SAMPLE_SIZE)
    return detect_content(sample, parts[-1], is_whole=len(sample) < _SAMPLE_SIZE)


def require_text_encoding(file: BinaryIO, parts: Parts) -> str:
    """Return the encoding of an open file. Raises Refuse if the file is not text."""
    kind = read_content_kind(file, parts)
    if kind.encoding is None:
        raise Refuse(f"{display_path(parts)!r} is a binary file ({kind.mime_type}): text cannot be written to it.")
    return kind.encoding


@contextmanager
def wrap_as_text(file: BinaryIO, encoding: str) -> Iterator[io.TextIOWrapper]:
    """Open a file as text from its beginning, with unchanged line ends; the file stays open afterwards."""
    file.seek(0)
    text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="\n")
    try:
        yield text
    finally:
        text.detach()


def encode_text(text: str, encoding: str) -> bytes:
    name = normalize_encoding(encoding)
    try:
        return text.encode(name)
    except UnicodeEncodeError as error:
        invalid = text[error.start : error.end][:10]
        raise Retry(f"{invalid!r} cannot be written in {name}: write it in utf-8, or write something else.") from None


def encode_for_append(text: str, file: BinaryIO, parts: Parts) -> bytes:
    """Encode text in the encoding of an open file, without another byte order mark."""
    name = require_text_encoding(file, parts)
    file.seek(0)
    start = file.read(4)
    if name in ("utf-16", "utf-32"):
        name += "-be" if start.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)) else "-le"
    return encode_text(text, name.removesuffix("-sig"))


def read_image(file: BinaryIO, parts: Parts, kind: ContentKind) -> Output:
    """Return a picture as output. Raises Refuse for any other binary file."""
    size = os.fstat(file.fileno()).st_size
    if not kind.mime_type.startswith("image/"):
        raise Refuse(
            f"{display_path(parts)!r} is a binary file ({kind.mime_type}, {size:,} bytes), "
            "which cannot be read as text."
        )
    if size > _MAX_IMAGE:
        raise Refuse(f"{display_path(parts)!r} is a picture of {size:,} bytes: the limit is {_MAX_IMAGE:,}.")
    file.seek(0)
    image = Image(data=file.read(_MAX_IMAGE), mime_type=kind.mime_type)
    return Output(data={"path": display_path(parts), "size": size, "content": [describe_part(image)]}, parts=(image,))


# Parts of a text file, however long the file or its lines are

MAX_CHARACTERS: Final = 50_000
"""Characters of one output."""
_CHUNK: Final = 65_536


def read_passage(
    text: io.TextIOWrapper, first_line: int, column: int, lines: int
) -> tuple[str, int, tuple[int, int] | None]:
    """Read up to `lines` lines from `first_line` on; fewer if they are long.

    Return the text, its last line, and line and column of what follows; None at the end.
    """
    for line in range(1, first_line):
        piece = text.readline(_CHUNK)
        if not piece:
            raise Retry(f"the file has {line - 1} lines: there is no line {first_line}.")
        while piece and not piece.endswith("\n"):
            piece = text.readline(_CHUNK)
    skipped = column - 1
    while skipped:
        piece = text.readline(min(skipped, _CHUNK))
        if not piece or piece.endswith("\n"):
            raise Retry("the line is shorter than that: there is no such column.")
        skipped -= len(piece)
    pieces: list[str] = []
    line, remaining = first_line, MAX_CHARACTERS
    while remaining and line < first_line + lines:
        piece = text.readline(remaining)
        if not piece:
            break
        pieces.append(piece)
        remaining -= len(piece)
        column = 1 if piece.endswith("\n") else column + len(piece)
        line += piece.endswith("\n")
    next_position = (line, column) if text.read(1) else None
    return "".join(pieces), line - 1 if pieces and pieces[-1].endswith("\n") else line, next_position


def count_lines_and_words(text: io.TextIOWrapper) -> tuple[int, int]:
    """Count lines, with a last one that has no end, and words, which spaces and line ends separate."""
    lines, words, last = 0, 0, "\n"
    while piece := text.read(_CHUNK):
        is_same_word = not last.isspace() and not piece[0].isspace()
        lines, words, last = lines + piece.count("\n"), words + len(piece.split()) - is_same_word, piece[-1]
    return lines + (last != "\n"), words
