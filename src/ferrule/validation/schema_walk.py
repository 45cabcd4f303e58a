"""Reading a JSON Schema beside a value: which schema holds for a part of it."""

from __future__ import annotations

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
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list):
            return [branch for option in options for branch in branches(resolve(option, root), root)]
    return [schema]


def types_of(schema: JsonSchema) -> list[str]:
    """The JSON types a schema names; empty when it does not say."""
    said = schema.get("type")
    if isinstance(said, str):
        return [said]
    if isinstance(said, list):
        return [t for t in said if isinstance(t, str)]
    return []


def only_branch(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """The schema of a value that is there: `X | null` means X. Empty when several could hold."""
    real = [b for b in branches(schema, root) if types_of(b) != ["null"]]
    return real[0] if len(real) == 1 else {}


def properties_of(schema: JsonSchema) -> dict[str, Any]:
    said = schema.get("properties")
    return said if isinstance(said, dict) else {}


def _at(root: JsonSchema, ref: str) -> Any:
    if not ref.startswith("#"):
        return None
    found: Any = root
    for part in ref[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found
