"""What a tool may give back: text, JSON, images, audio, resources, or a mix of them.

A tool returns whatever is natural in Python. `Output.of` turns it into what travels on: `data`, a JSON object
that is recorded and read by programs, and `parts`, the pieces JSON cannot carry. A dictionary is its own data;
any other value stands under `result`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final, Literal, TypeAlias

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    data: bytes
    mime_type: str = "image/png"
    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    data: bytes
    mime_type: str = "audio/wav"
    kind: Literal["audio"] = "audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something with an address: a file, a page, a row."""

    uri: str
    text: str | None = None
    data: bytes | None = None
    mime_type: str | None = None
    kind: Literal["resource"] = "resource"


Content: TypeAlias = Text | Image | Audio | Resource

_PARTS = (Text, Image, Audio, Resource)
_CONTAINERS = frozenset({dict, list})
_PLAIN = frozenset({str, int, float, bool, type(None)})
DEEPEST: Final = 250
"""Levels of dictionaries and lists; who walks through more of them may come to the end of Python's stack."""


@dataclass(slots=True)
class Output:
    """A tool's return value on its way to the caller. Nobody changes it; to freeze it would cost more than the rest."""

    data: dict[str, Any]
    parts: tuple[Content, ...] = ()

    @classmethod
    def of(cls, value: Any) -> Output:
        """Any value a tool returned. Values JSON cannot say are converted, not refused."""
        if type(value) is str:
            return cls({"result": whole_text(value)})
        if type(value) in _PLAIN:
            return cls({"result": value if type(value) is not float or math.isfinite(value) else None})
        if isinstance(value, Output):
            return value
        if isinstance(value, _PARTS):
            return cls._of_parts([value])
        if isinstance(value, (list, tuple)) and any(isinstance(item, _PARTS) for item in value):
            return cls._of_parts([v if isinstance(v, _PARTS) else Text(text=as_text(v)) for v in value])
        plain = plain_json(value)
        return cls(data=plain if isinstance(plain, dict) else {"result": plain})

    @classmethod
    def _of_parts(cls, parts: list[Content]) -> Output:
        return cls(data={"content": [describe_part(p) for p in parts]}, parts=tuple(parts))


def describe_part(part: Content) -> dict[str, Any]:
    """A part as JSON that says what it is without carrying its bytes."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    described: dict[str, Any] = {"type": part.kind}
    if part.mime_type:
        described["mime_type"] = part.mime_type
    if isinstance(part, Resource):
        described["uri"] = part.uri
        if part.text is not None:
            described["text"] = part.text
    if part.data is not None:
        described["size"] = len(part.data)
    return described


def as_text(value: Any) -> str:
    """A value as a model reads it: text as it is, anything else as JSON."""
    return whole_text(value) if isinstance(value, str) else encode_json(value).decode()


def whole_text(text: str) -> str:
    """The text without halves of characters, which JSON can hold and nobody can write down or send."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_deep(value: Any, most: int) -> bool:
    """Whether dictionaries and lists are nested more than so deep in it."""
    within: list[Iterator[Any]] = [iter((value,))]
    while within:
        for item in within[-1]:
            if isinstance(item, (dict, list, tuple)):
                if len(within) > most:
                    return True
                within.append(iter(item.values() if isinstance(item, dict) else item))
                break
        else:
            within.pop()
    return False


_AS_IT_IS = orjson.OPT_NON_STR_KEYS
_SORTED = orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def encode_json(value: Any, *, sort_keys: bool = False) -> bytes:
    """JSON of any value. What JSON has no word for becomes the nearest thing it has; nothing is refused."""
    try:
        return orjson.dumps(value, default=_nearest, option=_SORTED if sort_keys else _AS_IT_IS)
    except (TypeError, ValueError, RecursionError):
        # orjson refuses integers beyond 64 bits and lone surrogates; the standard library does not.
        return _encode_anything(value, sort_keys)


def plain_json(value: Any) -> Any:
    """The value as JSON reads it back: dictionaries, lists, text, numbers, booleans, None."""
    if type(value) in _PLAIN:
        return value
    # Not orjson: it reads integers beyond 64 bits as floats, which are not the same numbers.
    return json.loads(encode_json(value))


def copy_json(value: Any) -> Any:
    """A copy that shares no container with the original."""
    if type(value) is dict:
        copied = value.copy()
        for key, item in value.items():
            if type(item) in _CONTAINERS:
                copied[key] = copy_json(item)
        return copied
    if type(value) is list:
        return [copy_json(item) if type(item) in _CONTAINERS else item for item in value]
    return value


def _nearest(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        try:
            return dump(mode="json")
        except Exception:  # a model's own code: what it cannot say is said in words
            return _in_words(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, _PARTS):
        return describe_part(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (PurePath, Decimal)):
        return str(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if hasattr(value, "__iter__"):
        return list(value)
    return _in_words(value)


def _in_words(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _encode_anything(value: Any, sort_keys: bool) -> bytes:
    def convert(item: Any) -> Any:
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return {f.name: getattr(item, f.name) for f in dataclasses.fields(item)}
        if hasattr(item, "isoformat"):
            return item.isoformat()
        return _nearest(item)

    try:
        if is_deep(value, DEEPEST):
            raise RecursionError
        text = json.dumps(
            value, default=convert, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys
        )
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(_sayable(value, 20), ensure_ascii=False, default=_in_words)
    return text.encode("utf-8", "replace")


def _sayable(value: Any, depth: int) -> Any:
    """The nearest thing the standard library can write: it refuses odd keys, very long integers and circles."""
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {_in_words(key): _sayable(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_sayable(item, depth - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 10_000:
        return hex(value)
    return value if type(value) in _PLAIN else _in_words(value)
