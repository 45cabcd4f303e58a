"""From the bytes of a file to what a caller sees, and back."""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from ferrule.content import Image, Output, describe_part
from ferrule.errors import Refuse, Retry
from ferrule.tools.files.encodings import Kind, known_encoding, look_at
from ferrule.tools.files.workspace import Parts, shown

_SAMPLE: Final = 1_000_000
"""Bytes by which the encoding of a file is known."""
_LARGEST_PICTURE: Final = 5_000_000


def kind_of_content(file: BinaryIO, parts: Parts) -> Kind:
    """What an open file holds."""
    file.seek(0)
    sample = file.read(_SAMPLE)
    return look_at(sample, parts[-1], is_whole=len(sample) < _SAMPLE)


def encoding_of(file: BinaryIO, parts: Parts) -> str:
    """The encoding of an open file, which must hold text."""
    kind = kind_of_content(file, parts)
    if kind.encoding is None:
        raise Refuse(f"{shown(parts)!r} is a binary file ({kind.mime_type}): no text can be put into it.")
    return kind.encoding


@contextmanager
def as_text(file: BinaryIO, encoding: str) -> Iterator[io.TextIOWrapper]:
    """An open file as text from its beginning, its line ends as they are; it stays open afterwards."""
    file.seek(0)
    text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="\n")
    try:
        yield text
    finally:
        text.detach()


def encoded(text: str, encoding: str) -> bytes:
    """Text as bytes."""
    name = known_encoding(encoding)
    try:
        return text.encode(name)
    except UnicodeEncodeError as error:
        said = text[error.start : error.end][:10]
        raise Retry(f"{said!r} cannot be written in {name}: write it in utf-8, or write something else.") from None


def encoded_as_more(text: str, file: BinaryIO, parts: Parts) -> bytes:
    """Text as bytes that go on in the encoding of an open file, without a mark of it in the middle."""
    name = encoding_of(file, parts)
    file.seek(0)
    start = file.read(4)
    if name in ("utf-16", "utf-32"):
        name += "-be" if start.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)) else "-le"
    return encoded(text, name.removesuffix("-sig"))


def picture_of(file: BinaryIO, parts: Parts, kind: Kind) -> Output:
    """A picture for whoever can see; any other file that holds no text is refused."""
    size = os.fstat(file.fileno()).st_size
    if not kind.mime_type.startswith("image/"):
        raise Refuse(
            f"{shown(parts)!r} is a binary file ({kind.mime_type}, {size:,} bytes), which cannot be read as text."
        )
    if size > _LARGEST_PICTURE:
        raise Refuse(f"{shown(parts)!r} is a picture of {size:,} bytes: more than {_LARGEST_PICTURE:,} are not shown.")
    file.seek(0)
    image = Image(data=file.read(_LARGEST_PICTURE), mime_type=kind.mime_type)
    return Output(data={"path": shown(parts), "size": size, "content": [describe_part(image)]}, parts=(image,))
