"""Escapes for what databases reject in a text: NUL characters and lone surrogates.

They are written as an escape, so that ids and arguments come back exactly as they were: a mark, which Unicode reserves
for such purposes, and four digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.core.patterns import lazy_pattern

ESCAPE_MARK = "\ufdd0"
_REJECTED = lazy_pattern(f"[\0{ESCAPE_MARK}\ud800-\udfff]")
_ESCAPE = lazy_pattern(f"{ESCAPE_MARK}([0-9a-f]{{4}})")


def escape_text(text: str) -> str:
    """Escape everything in a text that a database rejects."""
    if text.isascii() and "\0" not in text:  # nearly all ids
        return text
    return _REJECTED.sub(lambda match: f"{ESCAPE_MARK}{ord(match[0]):04x}", text)


def unescape_text(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text) if ESCAPE_MARK in text else text


def map_texts(function: Callable[[str], str], value: Any) -> Any:
    """Apply the function to every text and name in a JSON value."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, dict):
        return {function(name): map_texts(function, member) for name, member in value.items()}
    return [map_texts(function, item) for item in value] if isinstance(value, list) else value


def to_storable_text(text: str) -> str:
    """Replace what databases reject, for a place that has no escapes."""
    return _REJECTED.sub("\ufffd", text)
