"""Generating example arguments for a tool whose author gave none.

A value from the schema is used first: its constant, first choice, default or example. Otherwise a typical value for its
type, format or name, within its bounds. The result is validated; if it does not match after all (because of a pattern
that cannot be guessed), there is no example rather than a wrong one.
"""

from __future__ import annotations

import math
from typing import Any

from ferrule.core.json_schema import allowed_types, properties_of, resolve_schema
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import JsonSchema
from ferrule.errors import SpecError

_MAX_DEPTH = 8
_MAX_STEPS = 1_000
_MAX_TEXT_LENGTH = 200
_BY_FORMAT = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "name@example.com",
    "idn-email": "name@example.com",
    "uri": "https://example.com",
    "iri": "https://example.com",
    "url": "https://example.com",
    "uri-reference": "/path",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "3f2b8c1e-5d4a-4e6f-9a7b-0c1d2e3f4a5b",
    "json": "{}",
    "regex": ".*",
    "json-pointer": "/name",
    "byte": "aGVsbG8=",
}
_BY_NAME = (
    (lazy_pattern(r"(^|_)(url|uri|link|href)$"), "https://example.com"),
    (lazy_pattern(r"e?mail"), "name@example.com"),
    (lazy_pattern(r"(^|_)(file|path|filename|file_?path)$"), "example.txt"),
    (lazy_pattern(r"(^|_)date$"), "2025-01-31"),
    (lazy_pattern(r"timezone|time_zone"), "Europe/Paris"),
    (lazy_pattern(r"(^|_)(expression|formula)$"), "1 + 1"),
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_GUESSES = (
    "example",
    "Example",
    "abc",
    "ABC",
    "a",
    "A",
    "1",
    "12",
    "123",
    "1234",
    "12345",
    "0001",
    "#aabbcc",
    "a-b",
    "A1",
)


class _NoExample(Exception):
    """No value could be generated."""


class _RootSchema:
    """The whole schema, and how many more steps may be spent on an example."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self._steps = _MAX_STEPS

    def count_step(self) -> None:
        # A few lines of references can expand to billions of schemas.
        self._steps -= 1
        if self._steps < 0:
            raise _NoExample


def generate_example(schema: JsonSchema) -> JsonSchema | None:
    """Arguments with the required parameters (or, if there are none, the first one); None if that is impossible."""
    try:
        is_valid = BoundedValidator(schema).is_valid
        required = _generate_value(schema, _RootSchema(schema), "", 0)
    except (ValueError, SpecError, ArithmeticError, _NoExample):  # ValueError: not a valid schema
        return None

    if required == {} and (first := _generate_first_parameter(schema)) and is_valid(first):
        return first
    return required if is_valid(required) else None


def _generate_first_parameter(schema: JsonSchema) -> JsonSchema:
    for name, inner in properties_of(resolve_schema(schema, schema)).items():
        try:
            return {name: _generate_value(inner, _RootSchema(schema), name, 1)}
        except _NoExample:
            break
    return {}


def _generate_value(schema: Any, root: _RootSchema, name: str, depth: int) -> Any:
    root.count_step()
    if schema is True:
        return "example"
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        raise _NoExample
    schema = _merge_first_option(resolve_schema(schema, root.schema), root, 0)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("default") is not None and depth:
        return schema["default"]
    if isinstance(schema.get("examples"), list) and schema["examples"]:
        return schema["examples"][0]
    match _guess_type(schema):
        case "object":
            return _generate_object(schema, root, depth)
        case "array":
            return _generate_array(schema, root, name, depth)
        case "integer" | "number":
            return _generate_number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _generate_string(schema, name)


def _merge_first_option(schema: JsonSchema, root: _RootSchema, depth: int) -> JsonSchema:
    """Return the schema with the parts of allOf and the first option of anyOf and oneOf merged into it."""
    root.count_step()
    if depth > _MAX_DEPTH:
        raise _NoExample
    parts = list(schema.get("allOf") or ())
    for keyword in ("anyOf", "oneOf"):
        options = [resolve_schema(option, root.schema) for option in schema.get(keyword) or ()]
        parts += [option for option in options if allowed_types(option) != ["null"]][:1] or options[:1]
    merged = {keyword: value for keyword, value in schema.items() if keyword not in ("allOf", "anyOf", "oneOf")}
    for part in parts:
        inner = _merge_first_option(resolve_schema(part, root.schema), root, depth + 1)
        properties = {**properties_of(merged), **properties_of(inner)}
        required = [*(merged.get("required") or ()), *(inner.get("required") or ())]
        merged = {**merged, **inner}
        if properties:
            merged["properties"] = properties
        if required:
            merged["required"] = list(dict.fromkeys(required))
    return merged


def _guess_type(schema: JsonSchema) -> str:
    types = allowed_types(schema)
    if types:
        return next((kind for kind in types if kind != "null"), "null")
    if "properties" in schema or "required" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _generate_object(schema: JsonSchema, root: _RootSchema, depth: int) -> JsonSchema:
    properties = properties_of(schema)
    others = schema.get("additionalProperties", True)
    example = {n: _generate_value(properties.get(n, others), root, n, depth + 1) for n in schema.get("required") or ()}
    for name in properties:
        if len(example) >= schema.get("minProperties", 0):
            break
        example.setdefault(name, _generate_value(properties[name], root, name, depth + 1))
    if len(example) < schema.get("minProperties", 0):
        example["name"] = _generate_value(others, root, "name", depth + 1)
    return example


def _generate_array(schema: JsonSchema, root: _RootSchema, name: str, depth: int) -> list[Any]:
    items = schema.get("items", True)
    prefix = schema.get("prefixItems") or (items if isinstance(items, list) else [])
    example = [_generate_value(item, root, name, depth + 1) for item in prefix]
    min_items = schema.get("minItems", 0)
    if not example and depth < _MAX_DEPTH and schema.get("maxItems", 1) > 0:
        min_items = max(min_items, 1)
    while len(example) < min_items:
        try:
            example.append(_generate_value(items if not isinstance(items, list) else True, root, name, depth + 1))
        except _NoExample:
            if schema.get("minItems", 0) <= len(example):
                return example
            raise
    return _make_unique(example, schema, root) if schema.get("uniqueItems") else example


def _make_unique(example: list[Any], schema: JsonSchema, root: _RootSchema) -> list[Any]:
    choices = resolve_schema(schema.get("items"), root.schema).get("enum") or ()
    if choices:
        return list(choices[: len(example)])
    for position, item in enumerate(example[1:], 1):
        if isinstance(item, (int, str)):
            example[position] = item + position if isinstance(item, int) else f"{item}{position + 1}"
    return example


def _generate_number(schema: JsonSchema) -> int | float:
    import jsonschema_rs

    step = schema.get("multipleOf", 1)
    bounds = [schema[keyword] for keyword in _BOUNDS if type(schema.get(keyword)) in (int, float)]
    candidates: list[int | float] = [1, 10, 0, step]
    for bound in bounds:
        candidates += [bound, bound + step, bound - step, math.ceil(bound / step) * step]
    if bounds:
        candidates.append((min(bounds) + max(bounds)) / 2)
    limits = {keyword: schema[keyword] for keyword in ("type", "multipleOf", *_BOUNDS) if keyword in schema}
    example = next((number for number in candidates if jsonschema_rs.is_valid(limits, number)), None)
    if example is None:
        raise _NoExample
    return int(example) if float(example).is_integer() else example


def _generate_string(schema: JsonSchema, name: str) -> str:
    typical = _BY_FORMAT.get(str(schema.get("format")))
    if typical is None:
        typical = next((value for pattern, value in _BY_NAME if pattern.search(name.lower())), "example")
    if "pattern" in schema:
        return _guess_matching_text(schema["pattern"], typical)
    min_length, max_length = int(schema.get("minLength", 0)), int(schema.get("maxLength", _MAX_TEXT_LENGTH))
    if min_length > _MAX_TEXT_LENGTH:
        raise _NoExample
    return (typical + "x" * (min_length - len(typical)))[:max_length]


def _guess_matching_text(pattern: str, typical: str) -> str:
    # Not with `re`: a pattern from outside can make it run for ever.
    matches = BoundedValidator({"pattern": pattern}).is_valid
    for guess in (typical, *_GUESSES, *_BY_FORMAT.values()):
        if matches(guess):
            return guess
    raise _NoExample
