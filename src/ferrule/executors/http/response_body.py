"""What a response's bytes are: JSON, text in some character set, or something else."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

from ferrule.content import Audio, Content, Image, Resource
from ferrule.executors.http.guarded_client import Response

_TEXT_TYPES = re.compile(r"text/|application/(?:.*\+)?(?:json|xml|javascript|x-www-form-urlencoded|yaml|x-ndjson)\b")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.I)
_CHARSET_IN_TEXT = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?([A-Za-z0-9_-]+)""")
# Codecs of Python that are no character sets; some take quadratic time.
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7"})


def read_body(response: Response) -> Any:
    """JSON values, text, or a `Content` for what is neither; None for no body at all."""
    if not response.content:
        return None
    media_type, charset = _content_type(response.headers.get("content-type", ""))
    is_text = bool(charset or _TEXT_TYPES.match(media_type))
    text = _text(response.content, charset) if is_text or not media_type else None
    if text is None and is_text:
        text = response.content.decode("utf-8", "replace")
    if text is None:
        return _binary(response, media_type or "application/octet-stream")
    return _json_or_text(text) if not media_type or media_type.endswith("json") else text


def beginning_of_body(response: Response, most: int = 500) -> str:
    """The first words of a body, for messages."""
    text = " ".join(response.content[: 4 * most].decode("utf-8", "replace").split())
    return text if len(text) <= most else f"{text[:most]}…"


def _content_type(header: str) -> tuple[str, str]:
    charset = _CHARSET.search(header)
    return header.partition(";")[0].strip().lower(), charset[1] if charset else ""


def _binary(response: Response, media_type: str) -> Content:
    kind = media_type.partition("/")[0]
    if kind == "image":
        return Image(data=response.content, mime_type=media_type)
    if kind == "audio":
        return Audio(data=response.content, mime_type=media_type)
    return Resource(uri=response.url, data=response.content, mime_type=media_type)


def _text(content: bytes, charset: str) -> str | None:
    """The text, or None when the bytes are none. Without a word from the server it is UTF-8 or what it says itself."""
    if charset and _is_charset(charset):
        return content.decode(charset, "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        said = _CHARSET_IN_TEXT.search(content[:2048])
    if said and _is_charset(said[1].decode()):
        return content.decode(said[1].decode(), "replace")
    return None


def _is_charset(name: str) -> bool:
    try:
        found = codecs.lookup(name)
        "".encode(name)  # codecs such as hex are known, but not for text
    except (LookupError, UnicodeError):
        return False
    return found.name.replace("_", "-") not in _NO_CHARSETS


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
