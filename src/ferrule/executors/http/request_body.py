"""What a caller gave for a body, as bytes and with a word about what they are."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from ferrule.content import encode_json

_FORM = "application/x-www-form-urlencoded"


def encode_body(body: Any, headers: dict[str, str]) -> bytes | None:
    """The bytes to send; says in the headers what they are unless the caller did. Text is sent as it is."""
    if body is None:
        return None
    said = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    if said is None:
        headers["Content-Type"] = "application/json" if _is_json(body) else "text/plain; charset=utf-8"
    if isinstance(body, str):
        return body.encode("utf-8", "replace")
    if said is not None and said.startswith(_FORM) and isinstance(body, dict):
        return urlencode(body, doseq=True, errors="replace").encode()
    return encode_json(body)


def _is_json(body: Any) -> bool:
    if not isinstance(body, str):
        return True
    try:  # a model may write its JSON out itself
        return isinstance(json.loads(body), dict | list)
    except (ValueError, RecursionError):
        return False
