"""Reading a JSON Schema beside a value: which schema holds for a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ferrule.spec import JsonSchema

MAX_REF_HOPS = 32


def resolve(schema: Any, root: JsonSchema) -> JsonSchema:
    """The schema with local references followed; an empty one where there is nothing to follow."""
    for _ in range(MAX_REF_HOPS):
        if not isinstance(schema, dict):
            return {}
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return schema
        target = _at(root, ref)
        rest = {k: v for k, v in schema.items() if k != "$ref"}
        schema = {**target, **rest} if isinstance(target, dict) else rest
    return {}


def branches(schema: JsonSchema, root: JsonSchema) -> list[JsonSchema]:
    """The schemas a value may follow: those of anyOf/oneOf, else the schema itself."""
    return list(_branches(schema, root, set()))


def _branches(schema: JsonSchema, root: JsonSchema, seen: set[str]) -> Iterator[JsonSchema]:
    options = next((schema[word] for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list)), None)
    if options is None:
        yield schema
        return
    for option in options:
        ref = option.get("$ref") if isinstance(option, dict) else None
        if isinstance(ref, str):
            if ref in seen:  # a union that contains itself
                continue
            seen.add(ref)
        yield from _branches(resolve(option, root), root, seen)


def types_of(schema: JsonSchema) -> list[str]:
    """The JSON types a schema names; empty when it does not say."""
    said = schema.get("type")
    if isinstance(said, str):
        return [said]
    if isinstance(said, list):
        return [t for t in said if isinstance(t, str)]
    return []


def properties_of(schema: JsonSchema) -> dict[str, Any]:
    said = schema.get("properties")
    return said if isinstance(said, dict) else {}


def _at(root: JsonSchema, ref: str) -> Any:
    if ref != "#" and not ref.startswith("#/"):
        return None
    found: Any = root
    for part in ref.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found
