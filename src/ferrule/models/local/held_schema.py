"""Schemas as the decoder's grammar takes them.

A grammar holds a model to a schema while it writes. Some schemas have no grammar (patterns that look ahead, unknown
types, references to elsewhere): they are said more loosely. Arguments are checked against the real schema in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import properties_of, resolve, types_of

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_DEEPEST = 6
_LONGEST_TEXT = 200
ANYTHING: JsonSchema = {"type": "object"}


def ever_looser(schema: JsonSchema) -> Iterator[JsonSchema]:
    """A schema, what is left of it without what grammars have no word for, and any object."""
    yield schema
    yield _plain(schema, schema, 0)
    yield ANYTHING


def for_small_models(schema: JsonSchema, said: dict[str, Any]) -> JsonSchema:
    """A schema with what the question says already fixed, and without what is optional and not said.

    A small model copies values wrongly, and fills in all it sees with anything.
    """
    here = resolve(schema, schema)
    properties = properties_of(here)
    required = [name for name in here.get("required") or [] if name in properties]
    wanted = [name for name in properties if name in required or name in said]
    if not wanted:
        return schema
    fixed = {name: {"const": said[name]} if name in said else _bounded(properties[name]) for name in wanted}
    return {**here, "properties": fixed, "required": wanted, "additionalProperties": False}


def _bounded(schema: Any) -> Any:
    """Small models do not find the end of a text."""
    is_text = isinstance(schema, dict) and types_of(schema) == ["string"] and "enum" not in schema
    return {"maxLength": _LONGEST_TEXT, **schema} if is_text else schema


def _plain(said: Any, root: JsonSchema, depth: int) -> JsonSchema:
    schema = resolve(said, root) if depth < _DEEPEST else {}
    for word in ("enum", "const"):
        if word in schema:
            return {word: schema[word]}
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options:
        return {"anyOf": [_plain(option, root, depth + 1) for option in options]}
    types = [kind for kind in types_of(schema) if kind in _TYPES]
    if not types:
        return {"type": "object"} if "properties" in schema else {}
    plain: JsonSchema = {"type": types[0] if len(types) == 1 else types}
    if "object" in types and properties_of(schema):
        plain["properties"] = {name: _plain(inner, root, depth + 1) for name, inner in properties_of(schema).items()}
        plain["required"] = [name for name in schema.get("required") or [] if name in plain["properties"]]
    if "array" in types:
        plain["items"] = _plain(schema.get("items"), root, depth + 1)
    return plain
