"""Generating example arguments for a tool whose author gave none.

A value from the schema is used first: its constant, first choice, default or example. Otherwise a typical value for its
type, format or name, within its bounds. The result is validated; if it does not match after all (because of a pattern
that cannot be guessed), no example is better than a wrong one.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from ferrule.catalog.model_schemas import merge_schemas
from ferrule.core.json_schema import allowed_types, properties_of, read_list_keyword, required_names, resolve_schema
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import JsonSchema
from ferrule.errors import SpecError

_MAX_DEPTH = 8
_MAX_STEPS = 1_000
"""Schemas that one example is made from: a few lines of references can expand to billions."""
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
"""Texts that are tried for a pattern."""


class _NoExample(Exception):
    """No value could be generated."""


def generate_example(schema: JsonSchema) -> JsonSchema | None:
    """Return arguments with the required parameters, or with the first one where none is required.

    Returns None if no valid arguments could be generated.
    """
    try:
        is_valid = BoundedValidator(schema).is_valid
        example = _ExampleMaker(schema).make(schema, "")
    except (ValueError, SpecError, ArithmeticError, _NoExample):  # ValueError: not a valid schema
        return None
    if example == {} and (properties := properties_of(resolve_schema(schema, schema))):
        name, inner = next(iter(properties.items()))
        with suppress(_NoExample):
            first = {name: _ExampleMaker(schema).make(inner, name, 1)}
            example = first if is_valid(first) else example
    return example if is_valid(example) else None


class _ExampleMaker:
    """Makes one value for a schema."""

    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._steps = _MAX_STEPS

    def make(self, schema: Any, name: str, depth: int = 0) -> Any:
        self._count_step()
        if schema is True:
            return "example"
        schema = self._merge_options(schema, depth)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        if schema.get("default") is not None and depth:
            return schema["default"]
        if examples := read_list_keyword("examples", schema):
            return examples[0]
        match _guess_type(schema):
            case "object":
                return self._make_object(schema, depth)
            case "array":
                return self._make_array(schema, name, depth)
            case "integer" | "number":
                return _make_number(schema)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return _make_string(schema, name)

    def _merge_options(self, schema: Any, depth: int) -> JsonSchema:
        """Return the schema with the parts of allOf and the first option of anyOf and oneOf merged into it."""
        self._count_step()
        if depth > _MAX_DEPTH or not isinstance(schema, dict):
            raise _NoExample
        schema = resolve_schema(schema, self._root)
        parts = read_list_keyword("allOf", schema)
        for keyword in ("anyOf", "oneOf"):
            options = [resolve_schema(option, self._root) for option in read_list_keyword(keyword, schema)]
            parts += [option for option in options if allowed_types(option) != ["null"]][:1] or options[:1]
        merged = {keyword: value for keyword, value in schema.items() if keyword not in ("allOf", "anyOf", "oneOf")}
        for part in parts:
            merged = merge_schemas(self._merge_options(part, depth + 1), merged)
        return merged

    def _count_step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise _NoExample

    def _make_object(self, schema: JsonSchema, depth: int) -> JsonSchema:
        properties, others = properties_of(schema), schema.get("additionalProperties", True)
        return {name: self.make(properties.get(name, others), name, depth + 1) for name in required_names(schema)}

    def _make_array(self, schema: JsonSchema, name: str, depth: int) -> list[Any]:
        items = schema.get("items", True)
        if prefix := read_list_keyword("prefixItems", schema):
            return [self.make(item, name, depth + 1) for item in prefix]
        try:
            example = [self.make(items, name, depth + 1) for _ in range(int(schema.get("minItems", 1)) or 1)]
        except _NoExample:
            if schema.get("minItems"):
                raise
            return []
        return example[: schema.get("maxItems")]


def _guess_type(schema: JsonSchema) -> str:
    types = allowed_types(schema)
    if types:
        return next((kind for kind in types if kind != "null"), "null")
    if "properties" in schema or "required" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _make_number(schema: JsonSchema) -> int | float:
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


def _make_string(schema: JsonSchema, name: str) -> str:
    typical = _BY_FORMAT.get(str(schema.get("format")))
    if typical is None:
        typical = next((value for pattern, value in _BY_NAME if pattern.search(name.lower())), "example")
    if "pattern" in schema:
        # Not with `re`: a pattern from outside can make it run without end.
        matches = BoundedValidator({"pattern": schema["pattern"]}).is_valid
        guess = next(filter(matches, (typical, *_GUESSES, *_BY_FORMAT.values())), None)
        if guess is None:
            raise _NoExample
        return guess
    min_length, max_length = int(schema.get("minLength", 0)), int(schema.get("maxLength", _MAX_TEXT_LENGTH))
    if min_length > _MAX_TEXT_LENGTH:
        raise _NoExample
    return (typical + "x" * (min_length - len(typical)))[:max_length]
