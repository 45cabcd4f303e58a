"""From descriptions of parameters as people write them to JSON Schema.

People write `dict`, `float` or `tuple` where JSON Schema says object, number or array, mark parameters `optional`,
or put `required: true` beside a parameter. Python's names are translated. A type of some other language (`HashMap`,
`char`) is left out: how its values look in JSON is anybody's guess, and no type means any value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.spec import JsonSchema

_TYPES = {
    **{name: name for name in ("string", "number", "integer", "boolean", "array", "object", "null")},
    "str": "string",
    "text": "string",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "int": "integer",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "dict": "object",
    "None": "null",
}
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames", "unevaluatedProperties")


def normalise_schema(raw: Mapping[str, Any]) -> JsonSchema:
    """The same description as valid JSON Schema; what is given is not changed."""
    schema: JsonSchema = {}
    for word, said in raw.items():
        if word == "type":
            _add_type(schema, said)
        elif word in _OF_SCHEMAS and isinstance(said, Mapping):
            schema[word] = {name: _inner(inner) for name, inner in said.items()}
        elif word == "items" and isinstance(said, list):
            schema["prefixItems"] = [_inner(inner) for inner in said]
        elif word in _LISTS_OF_SCHEMAS and isinstance(said, list):
            schema[word] = [_inner(inner) for inner in said]
        elif word in _SCHEMAS:
            schema[word] = _inner(said)
        elif word == "enum" and not isinstance(said, list):
            schema[word] = [said]
        elif word not in ("required", "optional"):
            schema[word] = said
    _add_required(schema, raw)
    return schema


def _inner(said: Any) -> Any:
    if isinstance(said, bool):
        return said
    if isinstance(said, str):  # `status_code: integer`
        said = {"type": said}
    return normalise_schema(said) if isinstance(said, Mapping) else {}


def _add_type(schema: JsonSchema, said: Any) -> None:
    if isinstance(said, list):
        known = [_TYPES.get(str(name)) for name in said]
        if known and None not in known:
            schema["type"] = list(dict.fromkeys(known))
    elif isinstance(said, str) and said in _TYPES:
        schema["type"] = _TYPES[said]


def _add_required(schema: JsonSchema, raw: Mapping[str, Any]) -> None:
    """A list of names stays; `required: true` beside a parameter is added to its parent's list."""
    listed = raw.get("required")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    properties = raw.get("properties")
    if isinstance(properties, Mapping):
        beside = [n for n, said in properties.items() if isinstance(said, Mapping) and said.get("required") is True]
        names += beside
    if names or isinstance(listed, list):
        schema["required"] = list(dict.fromkeys(names))
