"""Arguments that fit a schema, for a tool whose author gave no example.

What the schema itself offers comes first: its constant, its first choice, its default, its example. Otherwise a value
as is typical of its type, format or name, within its bounds. What was made is checked; if it does not fit after all (a
pattern nobody can guess), there is no example rather than a wrong one.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import properties_of, resolve, types_of

_DEEPEST = 8
_MOST_STEPS = 1_000
_LONGEST_TEXT = 200
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
    (re.compile(r"(^|_)(url|uri|link|href)$"), "https://example.com"),
    (re.compile(r"e?mail"), "name@example.com"),
    (re.compile(r"(^|_)(file|path|filename|file_?path)$"), "example.txt"),
    (re.compile(r"(^|_)date$"), "2025-01-31"),
    (re.compile(r"timezone|time_zone"), "Europe/Paris"),
    (re.compile(r"(^|_)(expression|formula)$"), "1 + 1"),
)
_EDGES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
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


class _Unknown(Exception):
    """No value can be thought of."""


class _Root:
    """The whole schema, and how much longer an example of it may be thought about."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self._left = _MOST_STEPS

    def step(self) -> None:
        # A few lines of references can stand for billions of schemas.
        self._left -= 1
        if self._left < 0:
            raise _Unknown


def example_of(schema: JsonSchema) -> JsonSchema | None:
    """Arguments with what is required (or, if nothing is, the first parameter); None if none can be thought of."""
    import jsonschema_rs  # 30 ms to import: only when an example is made

    try:
        fits = jsonschema_rs.validator_for(schema, offline=True).is_valid
        made = _value(schema, _Root(schema), "", 0)
    except (ValueError, ArithmeticError, _Unknown):  # ValueError: no valid schema
        return None
    first = _first_parameter(schema) if made == {} else {}
    return next((example for example in (first, made) if example and fits(example)), made if fits(made) else None)


def _first_parameter(schema: JsonSchema) -> JsonSchema:
    for name, said in properties_of(resolve(schema, schema)).items():
        try:
            return {name: _value(said, _Root(schema), name, 1)}
        except _Unknown:
            break
    return {}


def _value(said: Any, root: _Root, name: str, depth: int) -> Any:
    root.step()
    if said is True:
        return "example"
    if not isinstance(said, dict) or depth > _DEEPEST:
        raise _Unknown
    schema = _one_of(resolve(said, root.schema), root, 0)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("default") is not None and depth:
        return schema["default"]
    if isinstance(schema.get("examples"), list) and schema["examples"]:
        return schema["examples"][0]
    match _type(schema):
        case "object":
            return _object(schema, root, depth)
        case "array":
            return _array(schema, root, name, depth)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _string(schema, name)


def _one_of(schema: JsonSchema, root: _Root, depth: int) -> JsonSchema:
    """The schema with the first of its choices, and all that holds besides, taken into it."""
    root.step()
    if depth > _DEEPEST:
        raise _Unknown
    parts = list(schema.get("allOf") or ())
    for word in ("anyOf", "oneOf"):
        options = [resolve(option, root.schema) for option in schema.get(word) or ()]
        parts += [option for option in options if types_of(option) != ["null"]][:1] or options[:1]
    whole = {word: said for word, said in schema.items() if word not in ("allOf", "anyOf", "oneOf")}
    for part in parts:
        inner = _one_of(resolve(part, root.schema), root, depth + 1)
        properties = {**properties_of(whole), **properties_of(inner)}
        required = [*(whole.get("required") or ()), *(inner.get("required") or ())]
        whole = {**whole, **inner}
        if properties:
            whole["properties"] = properties
        if required:
            whole["required"] = list(dict.fromkeys(required))
    return whole


def _type(schema: JsonSchema) -> str:
    types = types_of(schema)
    if types:
        return next((kind for kind in types if kind != "null"), "null")
    if "properties" in schema or "required" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _object(schema: JsonSchema, root: _Root, depth: int) -> JsonSchema:
    properties = properties_of(schema)
    others = schema.get("additionalProperties", True)
    made = {name: _value(properties.get(name, others), root, name, depth + 1) for name in schema.get("required") or ()}
    for name in properties:
        if len(made) >= schema.get("minProperties", 0):
            break
        made.setdefault(name, _value(properties[name], root, name, depth + 1))
    if len(made) < schema.get("minProperties", 0):
        made["name"] = _value(others, root, "name", depth + 1)
    return made


def _array(schema: JsonSchema, root: _Root, name: str, depth: int) -> list[Any]:
    items = schema.get("items", True)
    firsts = schema.get("prefixItems") or (items if isinstance(items, list) else [])
    made = [_value(item, root, name, depth + 1) for item in firsts]
    least = schema.get("minItems", 0)
    if not made and depth < _DEEPEST and schema.get("maxItems", 1) > 0:
        least = max(least, 1)
    while len(made) < least:
        try:
            made.append(_value(items if not isinstance(items, list) else True, root, name, depth + 1))
        except _Unknown:
            if schema.get("minItems", 0) <= len(made):
                return made
            raise
    return _all_different(made, schema, root) if schema.get("uniqueItems") else made


def _all_different(made: list[Any], schema: JsonSchema, root: _Root) -> list[Any]:
    choices = resolve(schema.get("items"), root.schema).get("enum") or ()
    if choices:
        return list(choices[: len(made)])
    return [
        item if not place or not isinstance(item, (int, str)) else _another(item, place)
        for place, item in enumerate(made)
    ]


def _another(item: int | str, place: int) -> int | str:
    return item + place if isinstance(item, int) else f"{item}{place + 1}"


def _number(schema: JsonSchema) -> int | float:
    import jsonschema_rs

    step = schema.get("multipleOf", 1)
    edges = [schema[word] for word in _EDGES if type(schema.get(word)) in (int, float)]
    tries: list[int | float] = [1, 10, 0, step]
    for edge in edges:
        tries += [edge, edge + step, edge - step, math.ceil(edge / step) * step]
    if edges:
        tries.append((min(edges) + max(edges)) / 2)
    bounds = {word: schema[word] for word in ("type", "multipleOf", *_EDGES) if word in schema}
    fitting = next((number for number in tries if jsonschema_rs.is_valid(bounds, number)), None)
    if fitting is None:
        raise _Unknown
    return int(fitting) if float(fitting).is_integer() else fitting


def _string(schema: JsonSchema, name: str) -> str:
    typical = _BY_FORMAT.get(str(schema.get("format")))
    if typical is None:
        typical = next((value for pattern, value in _BY_NAME if pattern.search(name.lower())), "example")
    if "pattern" in schema:
        return _matching(schema["pattern"], typical)
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", _LONGEST_TEXT))
    if least > _LONGEST_TEXT:
        raise _Unknown
    return (typical + "x" * (least - len(typical)))[:most]


def _matching(pattern: str, typical: str) -> str:
    import jsonschema_rs

    # Not Python's own: a stranger's pattern can keep it busy for ever.
    matches = jsonschema_rs.validator_for({"pattern": pattern}, offline=True).is_valid
    for guess in (typical, *_GUESSES, *_BY_FORMAT.values()):
        if matches(guess):
            return guess
    raise _Unknown
