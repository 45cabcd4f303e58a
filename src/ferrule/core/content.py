"""What a tool may return: text, JSON, images, audio, resources, or a mix of them.

A tool returns whatever is natural in Python. `Output.of` converts it to `data`, a JSON object for records and
programs, and `parts`, the pieces JSON cannot carry. A dictionary is used as `data`; any other value is returned
under the key `result`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import islice
from pathlib import PurePath
from typing import Any, Final, Literal, TypeAlias

import orjson

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import ExecutionFailed


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

_PART_TYPES = (Text, Image, Audio, Resource)
REDACTED: Final = "[redacted]"
"""Replaces secret values wherever they would be shown or recorded."""
SCALAR_TYPES: Final = frozenset({str, int, float, bool, type(None)})
MAX_DEPTH: Final = 250
"""Levels of dictionaries and lists. With more, recursive functions may exceed Python's stack, and the validator and
other compiled code may even crash.
"""
CUT_MARK: Final = "…"
"""Stands for what is nested too deep."""
_MAX_BITS: Final = 14_000
"""Of an integer in JSON: Python refuses to write more than 4,300 digits."""
_MAX_EXPONENT: Final = 300
"""Decimals beyond it are text: as a number `Decimal("1e9999999")` would have ten million digits."""
_MAX_ITEMS: Final = 100_000
"""Items taken from an object that can be iterated over: it may never end."""


@dataclass(slots=True)
class Output:
    """A tool's return value on its way to the caller. Not frozen, because that would cost more than the rest."""

    data: dict[str, Any]
    parts: tuple[Content, ...] = ()
    original: Any = None
    """The result as another system returned it, for interfaces that pass it on unchanged."""

    @classmethod
    def of(cls, value: Any) -> Output:
        """Convert any value that a tool returned. Values that JSON cannot represent are converted to the closest one.

        Raises ExecutionFailed for an object that has only a name in Python, such as a lock, a connection or a class.
        """
        if type(value) is str:
            return cls({"result": replace_surrogates(value)})
        if type(value) in SCALAR_TYPES:
            return cls({"result": value if type(value) is not float or math.isfinite(value) else None})
        if isinstance(value, Output):
            return value
        if isinstance(value, _PART_TYPES):
            return cls._of_parts([value])
        if isinstance(value, (list, tuple)) and any(isinstance(item, _PART_TYPES) for item in value):
            return cls._of_parts([v if isinstance(v, _PART_TYPES) else Text(text=as_text(v)) for v in value])
        plain = _read_json(encode_json(value, default=_to_json_result))
        return cls(data=plain if isinstance(plain, dict) else {"result": plain})

    @classmethod
    def _of_parts(cls, parts: list[Content]) -> Output:
        return cls(data={"content": [describe_part(p) for p in parts]}, parts=tuple(parts))


_RESULT_FIELDS: Final = frozenset({"success", "result", "error", "_meta"})


def unwrap_reported_result(output: Output) -> Output:
    """Return the result in `{"success": true, "result": …}`; ExecutionFailed for `{"success": false, "error": …}`.

    Any other output is returned unchanged.
    """
    data = output.data
    success = data.get("success")
    if success is False and (data.keys() <= _RESULT_FIELDS or data.get("error")):
        details = {name: value for name, value in data.items() if name not in ("success", "error", "_meta") and value}
        lines = [as_text(data.get("error") or "The tool reported a failure without a message.")]
        raise ExecutionFailed("\n".join([*lines, *([as_text(details)] if details else [])]))
    if success is True and "result" in data and data.keys() <= _RESULT_FIELDS and not data.get("error"):
        result = data["result"]
        return Output(data=result if isinstance(result, dict) else {"result": result}, parts=output.parts)
    return output


def describe_part(part: Content) -> dict[str, Any]:
    """Return a part as JSON, with the size of its data instead of the data."""
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
    """Return a value as a model reads it: text as it is, anything else as JSON."""
    return replace_surrogates(value) if isinstance(value, str) else encode_json(value).decode()


def replace_surrogates(text: str) -> str:
    """Return the text without lone surrogates, which JSON can hold but UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


LONG_NUMBER = lazy_pattern(rb"\d{19}")
"""Finds JSON that may have an integer of more than 64 bits, which orjson reads as a float: not the same number."""
_UNSORTED = orjson.OPT_NON_STR_KEYS
_SORTED = orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def encode_json(
    value: Any,
    *,
    sort_keys: bool = False,
    escape_surrogates: bool = False,
    default: Callable[[Any], Any] | None = None,
) -> bytes:
    """Encode any value as JSON. Values that JSON cannot represent are converted to the closest JSON type.

    `default` converts them instead, and may refuse one by an ExecutionFailed.
    Lone surrogates are replaced, because strict readers reject their escapes, unless `escape_surrogates` is set.
    """
    try:
        if type(value) not in SCALAR_TYPES:
            check_depth(value)
        return orjson.dumps(value, default=default or _to_closest_json, option=_SORTED if sort_keys else _UNSORTED)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error.__cause__, ExecutionFailed):
            raise error.__cause__ from None
        # orjson refuses integers beyond 64 bits and lone surrogates; the standard library does not.
        try:
            plain = _to_json(value, default or _to_closest_json)
        except (KeyboardInterrupt, ExecutionFailed):
            raise
        except BaseException:  # a method of an object in it failed
            plain = safe_str(value)
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)
        return text.encode("utf-8", "backslashreplace" if escape_surrogates else "replace")


def check_depth(value: Any, depth: int = MAX_DEPTH) -> None:
    """Raise RecursionError for a value whose dictionaries and lists are nested more than `depth` deep.

    Call this before orjson encodes a value from outside: orjson writes beyond its memory when tuples are nested
    thousands deep.
    """
    kind = type(value)
    if kind is dict:
        items: Iterable[Any] = value.values()
    elif kind is list or kind is tuple:
        items = value
    elif isinstance(value, dict):  # a class of the caller's own may do anything when it is iterated over
        items = dict.values(value)
    elif isinstance(value, list):
        items = list.__iter__(value)
    elif isinstance(value, tuple):
        items = tuple.__iter__(value)
    else:
        return
    if depth == 0:
        raise RecursionError(f"nested more than {MAX_DEPTH} deep")
    for item in items:
        if type(item) not in SCALAR_TYPES:
            check_depth(item, depth - 1)


def is_nested_deeper(value: Any, max_depth: int) -> bool:
    try:
        check_depth(value, max_depth)
    except RecursionError:
        return True
    return False


def is_larger_than(value: Any, max_bytes: int) -> bool:
    """Return whether a value has more than so many bytes, estimated without encoding it.

    The characters of texts count, and 8 for anything else.
    """
    remaining, pending = max_bytes, [value]
    while pending and remaining >= 0:
        item = pending.pop()
        kind = type(item)  # a class of the caller's own may do anything when it is iterated over
        if kind is str or kind is bytes or kind is bytearray:
            remaining -= len(item)
        elif kind is dict or kind is list or kind is tuple:
            remaining -= 8 * len(item)
            if remaining >= 0:
                pending += item  # the keys, of a dictionary
                if kind is dict:
                    pending += item.values()
    return remaining < 0


def plain_json(value: Any) -> Any:
    """Return the value after a round trip through JSON: dictionaries, lists, text, numbers, booleans, None."""
    if type(value) in SCALAR_TYPES:
        return value
    return _read_json(encode_json(value))


def _read_json(data: bytes) -> Any:
    return json.loads(data) if LONG_NUMBER.search(data) else orjson.loads(data)


def copy_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Copy a value so that the copy shares no dictionary or list with it. What is nested deeper is cut."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return value
    if depth == 0:
        return CUT_MARK
    if kind is list:
        return [item if type(item) in SCALAR_TYPES else copy_json(item, depth - 1) for item in value]
    copied = value.copy()
    for key, item in value.items():
        if type(item) not in SCALAR_TYPES:
            copied[key] = copy_json(item, depth - 1)
    return copied


def _to_closest_json(value: Any) -> Any:
    """Convert an object to the closest JSON value, whatever its own methods raise."""
    try:
        converted = _convert_to_json(value)
        check_depth(converted)
        return converted
    except KeyboardInterrupt:
        raise
    except BaseException:
        return safe_str(value)


def _to_json_result(value: Any) -> Any:
    """Convert like `_to_closest_json`. Raises ExecutionFailed for `<unlocked _thread.lock object at 0x7f…>`."""
    closest, kind = _to_closest_json(value), type(value)
    has_own_text = any("__str__" in vars(base) for base in kind.__mro__[:-1])
    if type(closest) is str and closest[:1] == "<" and not has_own_text:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise ExecutionFailed(
            f"The tool returned an object of the type {name}, which has no form in JSON. "
            "Return text, a number, a list, a dict, a dataclass or a pydantic model with what the caller needs of it."
        )
    return closest


def _convert_to_json(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Decimal, Fraction)):
        return number_to_json(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if hasattr(value, "__iter__"):
        return list(islice(value, _MAX_ITEMS))
    return safe_str(value)


def number_to_json(value: Decimal | Fraction) -> int | float | str:
    """Return the number in JSON with the same digits, of a fraction the nearest one; text where there is none."""
    if isinstance(value, Fraction):
        try:
            return value.numerator if value.denominator == 1 else value.numerator / value.denominator
        except OverflowError:
            return str(value)
    if not value.is_finite() or abs(value.adjusted()) > _MAX_EXPONENT:
        return str(value)
    if value == value.to_integral_value():
        return int(value)
    nearest = float(value)
    return nearest if Decimal(repr(nearest)) == value else str(value)


def safe_str(value: Any) -> str:
    """Return the value as text; where its `__str__` fails, the name of its type."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(value).__name__}>"


def _to_json(
    value: Any, default: Callable[[Any], Any], depth: int = MAX_DEPTH - 10, above: frozenset[int] = frozenset()
) -> Any:
    """Convert a value that orjson refuses to what the standard library can write.

    `depth` leaves room for containers that the value is put into.
    `above`: the ids of the containers around the value, which may contain itself.
    """
    if isinstance(value, int):
        return hex(value) if value.bit_length() > _MAX_BITS else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str):
        return value
    if depth == 0 or id(value) in above:
        return CUT_MARK
    inner = default, depth - 1, above | {id(value)}
    if isinstance(value, dict):
        return {
            json.dumps(key) if key is None or isinstance(key, bool) else safe_str(key): _to_json(item, *inner)
            for key, item in dict.items(value)
        }
    if isinstance(value, (list, tuple)):
        return [_to_json(item, *inner) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _to_json(getattr(value, f.name), *inner) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return _to_json(value.value, *inner)
    return _to_json(value.isoformat() if isinstance(value, (date, time)) else default(value), *inner)
