"""Turning arguments that are nearly right into right ones, where there is only one way to read them.

"5" for an integer is 5, "true" for a boolean is true, JSON text for an object is that object, "get" for one of
GET and POST is GET, and null for an optional parameter that takes no null means it was not given. Nothing that
could be meant in two ways is touched.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
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
    others = schema.get("additionalProperties")
    for name, item in value.items():
        prop = resolve(properties.get(name, others), root)
        if prop:
            if item is None and name in properties and name not in required and not _allows_null(prop, root):
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
    if isinstance(value, str) and wanted and "string" not in wanted:
        return _only_reading(value, wanted)
    if wanted == ["string"] and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def whole_numbers(value: Any, schema: Any, root: JsonSchema) -> Any:
    """5.0 as 5 wherever the schema wants an integer."""
    schema = resolve(schema, root)
    options = branches(schema, root)
    if isinstance(value, float):
        types = {t for option in options for t in types_of(option)}
        return int(value) if "integer" in types and "number" not in types and value.is_integer() else value
    real = [option for option in options if types_of(option) != ["null"]]
    if len(real) != 1:
        return value
    option = real[0]
    if isinstance(value, list):
        return [whole_numbers(item, option.get("items"), root) for item in value]
    if isinstance(value, dict):
        others = option.get("additionalProperties")
        return {k: whole_numbers(v, properties_of(option).get(k, others), root) for k, v in value.items()}
    return value


def _scalar_of_union(value: Any, options: list[JsonSchema]) -> Any:
    """Text for a union of other things: the one thing it can be read as."""
    types = [t for option in options for t in types_of(option)]
    if not isinstance(value, str) or "string" in types or any(not types_of(o) for o in options):
        return value
    return _only_reading(value, types)


def _only_reading(text: str, types: list[str]) -> Any:
    readings: list[Any] = []
    for kind in dict.fromkeys(types):
        if kind == "number" and "integer" in types and _INTEGER.match(text.strip()):
            continue
        read = _from_text(text, kind)
        if read is not text:
            readings.append(read)
    return readings[0] if len(readings) == 1 else text


def _from_text(text: str, wanted: str) -> Any:
    stripped = text.strip()
    if wanted == "integer" and _INTEGER.match(stripped):
        return int(stripped)
    if wanted == "integer" and len(stripped) < 300 and _NUMBER.match(stripped):
        number = Decimal(stripped)  # not float, which rounds what is long
        return int(number) if number == number.to_integral_value() else text
    if wanted == "number" and _NUMBER.match(stripped):
        read = int(stripped) if _INTEGER.match(stripped) else float(stripped)
        return read if math.isfinite(read) else text
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
