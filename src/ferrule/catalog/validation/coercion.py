"""Coercing arguments and filling in defaults.

Coercion accepts a value that has exactly one sensible reading: "5" for an integer is 5, "true" for a boolean is true,
JSON text for an object is that object, "get" for one of GET and POST is GET, and null for an optional parameter that
does not allow null means that it is absent. A value with two readings stays unchanged.
"""

from __future__ import annotations

import copy
import json
import math
import re
from decimal import Decimal
from typing import Any

from ferrule.core.json_schema import JsonSchema, allowed_types, list_branches, properties_of, resolve_schema
from ferrule.core.patterns import lazy_pattern

_INTEGER = lazy_pattern(r"[+-]?\d{1,300}\Z", re.ASCII)
_NUMBER = lazy_pattern(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\Z", re.ASCII)


def coerce(value: Any, schema: Any, root: JsonSchema) -> Any:
    """Return the value as the schema requires it, if it has one sensible reading. The caller's value is not changed."""
    options = list_branches(resolve_schema(schema, root), root)
    real = _without_null(options)
    if len(real) != 1:  # a text is parsed for a union without texts, if only one of its types fits
        types = [t for option in options for t in allowed_types(option)]
        if not isinstance(value, str) or "string" in types or any(not allowed_types(o) for o in options):
            return value
        return _parse_as_only_type(value, types)
    option = real[0]
    value = _coerce_type(value, allowed_types(option))
    enum = option.get("enum")
    if isinstance(value, str) and isinstance(enum, list) and value not in enum:
        folded = value.strip().casefold()
        same = [member for member in enum if isinstance(member, str) and member.casefold() == folded]
        return same[0] if len(same) == 1 else value
    if isinstance(value, dict):
        return _coerce_object(value, option, root)
    if isinstance(value, list) and isinstance(option.get("items"), dict):
        return [coerce(item, option["items"], root) for item in value]
    return value


def _without_null(options: list[JsonSchema]) -> list[JsonSchema]:
    return [option for option in options if allowed_types(option) != ["null"]]


def _coerce_object(value: dict[str, Any], schema: JsonSchema, root: JsonSchema) -> dict[str, Any]:
    required = set(schema.get("required") or ())
    properties = properties_of(schema)
    coerced = {}
    others = schema.get("additionalProperties")
    for name, item in value.items():
        prop = resolve_schema(properties.get(name, others), root)
        if prop:
            if item is None and name in properties and name not in required and not _allows_null(prop, root):
                continue
            item = coerce(item, prop, root)
        coerced[name] = item
    return coerced


def _allows_null(schema: JsonSchema, root: JsonSchema) -> bool:
    for option in list_branches(schema, root):
        types = allowed_types(option)
        if not types or "null" in types:
            return "enum" not in option or None in option["enum"]
    return False


def _coerce_type(value: Any, types: list[str]) -> Any:
    real = [t for t in types if t != "null"]
    if isinstance(value, (tuple, set, frozenset)) and "array" in real:
        return list(value)
    if isinstance(value, str) and real and "string" not in real:
        return _parse_as_only_type(value, real)
    if real == ["string"] and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


class WholeFloats:
    """Converts 5.0 to 5 wherever a schema requires an integer; reads each schema once, however many values follow."""

    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._branches: dict[int, tuple[bool, JsonSchema | None]] = {}
        """By the id of a schema: whether its numbers are integers, and the only schema of its lists and objects."""

    def convert(self, value: Any, schema: Any) -> Any:
        if not isinstance(value, (float, list, dict)):
            return value
        branches = self._branches.get(id(schema))
        if branches is None:
            branches = self._branches[id(schema)] = self._read(schema)
        is_integer, only = branches
        if isinstance(value, float):
            return int(value) if is_integer and value.is_integer() else value
        if only is None:
            return value
        if isinstance(value, list):
            items = only.get("items")
            return [self.convert(item, items) for item in value]
        properties, others = properties_of(only), only.get("additionalProperties")
        return {name: self.convert(item, properties.get(name, others)) for name, item in value.items()}

    def _read(self, schema: Any) -> tuple[bool, JsonSchema | None]:
        options = list_branches(resolve_schema(schema, self._root), self._root)
        types = {type_ for option in options for type_ in allowed_types(option)}
        real = _without_null(options)
        return "integer" in types and "number" not in types, real[0] if len(real) == 1 else None


def _parse_as_only_type(text: str, types: list[str]) -> Any:
    """Return the text parsed as the only one of the types it can be parsed as; otherwise unchanged."""
    values: list[Any] = []
    for type_ in dict.fromkeys(types):
        if type_ == "number" and "integer" in types and _INTEGER.match(text.strip()):
            continue
        value = _parse_as(text, type_)
        if value is not text:
            values.append(value)
    return values[0] if len(values) == 1 else text


def _parse_as(text: str, type_: str) -> Any:
    stripped = text.strip()
    if type_ == "integer" and _INTEGER.match(stripped):
        return int(stripped)
    if type_ == "integer" and len(stripped) < 300 and _NUMBER.match(stripped):
        number = Decimal(stripped)  # not float, which rounds long numbers
        return int(number) if number == number.to_integral_value() else text
    if type_ == "number" and _NUMBER.match(stripped):
        value = int(stripped) if _INTEGER.match(stripped) else float(stripped)
        return value if math.isfinite(value) else text
    if type_ == "boolean" and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if type_ in ("object", "array") and stripped[:1] == ("{" if type_ == "object" else "["):
        try:
            return json.loads(stripped)
        except (ValueError, RecursionError):
            return text
    return text


# Defaults, at every depth, without changing the caller's values

_WITH_PARTS = frozenset({"properties", "items", "anyOf", "oneOf"})
"""Keywords of schemas whose values may have defaults inside."""


class DefaultsFiller:
    """Fills in the defaults of a schema, whose parts it reads when a value needs them: they may contain themselves."""

    def __init__(self, root: JsonSchema, *, only_required: bool) -> None:
        """With `only_required`, the defaults of optional parameters are left out."""
        self._root, self._only_required = root, only_required
        self._parts: dict[int, tuple[JsonSchema, dict[str, Any], list[str]]] = {}
        """By the id of a schema: the one behind its references and `X | null`, its defaults, and names with more."""

    def fill(self, value: Any) -> Any:
        return self._fill(value, self._root)

    def _fill(self, value: Any, schema: Any) -> Any:
        if not isinstance(value, (dict, list)) or not isinstance(schema, dict):
            return value
        if id(schema) not in self._parts:
            self._parts[id(schema)] = self._read(schema)
        plain, defaults, nested = self._parts[id(schema)]
        if isinstance(value, list):
            items = plain.get("items")
            return [self._fill(item, items) for item in value] if isinstance(items, dict) else value
        properties = properties_of(plain)
        filled = dict(value)
        for name, default in defaults.items():
            if name not in filled:
                filled[name] = copy.deepcopy(default) if isinstance(default, (dict, list)) else default
        for name in nested:
            if name in filled:
                filled[name] = self._fill(filled[name], properties[name])
        return filled

    def _read(self, schema: JsonSchema) -> tuple[JsonSchema, dict[str, Any], list[str]]:
        # `X | null` means X; of several alternatives none is filled in.
        real = _without_null(list_branches(resolve_schema(schema, self._root), self._root))
        plain = real[0] if len(real) == 1 else {}
        required = plain.get("required") or ()
        inner = {name: resolve_schema(prop, self._root) for name, prop in properties_of(plain).items()}
        defaults = {
            name: prop["default"]
            for name, prop in inner.items()
            if "default" in prop and (name in required or not self._only_required)
        }
        return plain, defaults, [name for name, prop in inner.items() if not _WITH_PARTS.isdisjoint(prop)]


def has_default(schema: JsonSchema) -> bool:
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if "default" in part:
                return True
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return False
