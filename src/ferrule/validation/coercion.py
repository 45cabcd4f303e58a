"""Turning arguments that are nearly right into right ones, where there is only one way to read them.

"5" for an integer is 5, "true" for a boolean is true, JSON text for an object is that object, "get" for one of
GET and POST is GET, and null for an optional parameter that takes no null means it was not given. Nothing that
could be meant in two ways is touched.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import branches, properties_of, resolve, types_of

_INTEGER = re.compile(r"[+-]?\d{1,300}\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\Z", re.ASCII)


def coerce(value: Any, schema: Any, root: JsonSchema) -> Any:
    """The value as the schema wants it, as far as that is unambiguous; the caller's own value is not changed."""
    schema = resolve(schema, root)
    options = branches(schema, root)
    real = [option for option in options if types_of(option) != ["null"]]
    if len(real) != 1:
        return _scalar_of_union(value, options)
    option = real[0]
    value = _as_type(value, types_of(option))
    value = _as_enum_member(value, option.get("enum"))
    if isinstance(value, dict):
        return _object(value, option, root)
    if isinstance(value, list) and isinstance(option.get("items"), dict):
        return [coerce(item, option["items"], root) for item in value]
    return value


def _object(value: dict[str, Any], schema: JsonSchema, root: JsonSchema) -> dict[str, Any]:
    required = set(schema.get("required") or ())
    properties = properties_of(schema)
    coerced = {}
    for name, item in value.items():
        if name in properties:
            prop = resolve(properties[name], root)
            if item is None and name not in required and not _allows_null(prop, root):
                continue
            item = coerce(item, prop, root)
        coerced[name] = item
    return coerced


def _allows_null(schema: JsonSchema, root: JsonSchema) -> bool:
    for option in branches(schema, root):
        types = types_of(option)
        if not types or "null" in types:
            return "enum" not in option or None in option["enum"]
    return False


def _as_type(value: Any, types: list[str]) -> Any:
    wanted = [t for t in types if t != "null"]
    if isinstance(value, (tuple, set, frozenset)) and "array" in wanted:
        return list(value)
    if isinstance(value, str) and len(wanted) == 1:
        return _from_text(value, wanted[0])
    if wanted == ["string"] and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if wanted == ["integer"] and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _scalar_of_union(value: Any, options: list[JsonSchema]) -> Any:
    """Text for a union of other things: the one thing it can be read as."""
    types = [t for option in options for t in types_of(option)]
    if not isinstance(value, str) or "string" in types or any(not types_of(o) for o in options):
        return value
    readings: list[Any] = []
    for kind in dict.fromkeys(types):
        if kind == "number" and "integer" in types and _INTEGER.match(value.strip()):
            continue
        read = _from_text(value, kind)
        if read is not value:
            readings.append(read)
    return readings[0] if len(readings) == 1 else value


def _from_text(text: str, wanted: str) -> Any:
    stripped = text.strip()
    if wanted == "integer" and _INTEGER.match(stripped):
        return int(stripped)
    if wanted == "integer" and _NUMBER.match(stripped) and float(stripped).is_integer():
        return int(float(stripped))
    if wanted == "number" and _NUMBER.match(stripped):
        return int(stripped) if _INTEGER.match(stripped) else float(stripped)
    if wanted == "boolean" and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if wanted in ("object", "array") and stripped[:1] == ("{" if wanted == "object" else "["):
        try:
            return json.loads(stripped)
        except (ValueError, RecursionError):
            return text
    return text


def _as_enum_member(value: Any, enum: Any) -> Any:
    if not isinstance(enum, list) or value in enum or not isinstance(value, str):
        return value
    folded = value.strip().casefold()
    same = [member for member in enum if isinstance(member, str) and member.casefold() == folded]
    return same[0] if len(same) == 1 else value
