"""The body of a request: JSON, a form, a form in parts, or text."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from ferrule.content import as_text, encode_json
from ferrule.errors import Retry
from ferrule.executors.openapi.operation import Body

FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data"


def encode_body(body: Body, value: Any) -> tuple[bytes, str]:
    """The bytes of a body, and the content type to send them with."""
    if body.media_type in (FORM, PARTS) and not isinstance(value, dict):
        raise Retry(f"{body.argument!r} is sent as a form: it must be an object with its fields.")
    if body.media_type == FORM:
        return urlencode(_fields(value)).encode(), FORM
    if body.media_type == PARTS:
        return _in_parts(value, body.files)
    if body.media_type.endswith("json"):
        return encode_json(value), body.media_type
    return as_text(value).encode("utf-8", "replace"), body.media_type


def _fields(value: dict[str, Any]) -> list[tuple[str, str]]:
    """Lists repeat their field; what a field cannot hold is written as JSON."""
    given = [(name, each) for name, each in value.items() if each is not None]
    return [(name, as_text(item)) for name, each in given for item in (each if isinstance(each, list) else [each])]


def _in_parts(value: dict[str, Any], files: frozenset[str]) -> tuple[bytes, str]:
    import httpx

    parts: list[Any] = [
        (name, (name if name in files else None, text.encode("utf-8", "replace"))) for name, text in _fields(value)
    ]
    if not parts:
        raise Retry("the body is a form without any field. Give at least one.")
    request = httpx.Request("POST", "http://body", files=parts)
    return request.read(), request.headers["content-type"]
