"""Bodies of requests and responses: values to bytes, and bytes to JSON, text in some character set, or content."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any
from urllib.parse import urlencode

from ferrule.core.content import Audio, Content, Image, Resource, encode_json
from ferrule.core.patterns import lazy_pattern
from ferrule.http.client import HttpResponse

_FORM = "application/x-www-form-urlencoded"
_TEXT_TYPES = lazy_pattern(r"text/|application/(?:.*\+)?(?:json|xml|javascript|x-www-form-urlencoded|yaml|x-ndjson)\b")
_CHARSET = lazy_pattern(r"""charset\s*=\s*["']?([^\s"';]+)""", re.I)
_CHARSET_IN_TEXT = lazy_pattern(rb"""(?:charset|encoding)\s*=\s*["']?([A-Za-z0-9_-]+)""")
# Codecs of Python that do not encode text; some take quadratic time.
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7"})


# Requests


def encode_body(body: Any, headers: dict[str, str]) -> bytes | None:
    """Return the bytes to send; adds a Content-Type header unless there is one. Text is sent as it is."""
    if body is None:
        return None
    content_type = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    if content_type is None:
        headers["Content-Type"] = "application/json" if _is_json_body(body) else "text/plain; charset=utf-8"
    if isinstance(body, str):
        return body.encode("utf-8", "replace")
    if content_type is not None and content_type.startswith(_FORM) and isinstance(body, dict):
        return urlencode(body, doseq=True, errors="replace").encode()
    return encode_json(body)


def _is_json_body(body: Any) -> bool:
    if not isinstance(body, str):
        return True
    try:  # a model may pass its JSON as a text
        return isinstance(json.loads(body), dict | list)
    except (ValueError, RecursionError):
        return False


# Responses


def read_body(response: HttpResponse) -> Any:
    """Return a JSON value, text, or a `Content` for anything else; None for an empty body."""
    if not response.content:
        return None
    header = response.headers.get("content-type", "")
    media_type, stated = header.partition(";")[0].strip().lower(), _CHARSET.search(header)
    charset = stated[1] if stated else ""
    is_text = bool(charset or _TEXT_TYPES.match(media_type))
    text = _decode_text(response.content, charset) if is_text or not media_type else None
    if text is None and is_text:
        text = response.content.decode("utf-8", "replace")
    if text is None:
        return _binary_to_content(response, media_type or "application/octet-stream")
    if media_type and not media_type.endswith("json"):
        return text
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def body_excerpt(response: HttpResponse, max_length: int = 500) -> str:
    """Return the beginning of a body, for messages."""
    text = " ".join(response.content[: 4 * max_length].decode("utf-8", "replace").split())
    return text if len(text) <= max_length else f"{text[:max_length]}…"


def _binary_to_content(response: HttpResponse, media_type: str) -> Content:
    kind = media_type.partition("/")[0]
    if kind == "image":
        return Image(data=response.content, mime_type=media_type)
    if kind == "audio":
        return Audio(data=response.content, mime_type=media_type)
    return Resource(uri=response.url, data=response.content, mime_type=media_type)


def _decode_text(content: bytes, charset: str) -> str | None:
    """Decode UTF-8, or what the text itself declares; return None for other bytes."""
    if charset and _is_text_charset(charset):
        return content.decode(charset, "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        declared = _CHARSET_IN_TEXT.search(content[:2048])
    if declared and _is_text_charset(declared[1].decode()):
        return content.decode(declared[1].decode(), "replace")
    return None


def _is_text_charset(name: str) -> bool:
    try:
        codec = codecs.lookup(name)
        "".encode(name)  # codecs such as hex exist, but not for text
    except (LookupError, UnicodeError):
        return False
    return codec.name.replace("_", "-") not in _NO_CHARSETS


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
