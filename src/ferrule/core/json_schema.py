"""Reading and rewriting JSON Schema: references, branches, normalization, definitions.

Schemas come from other people's files and servers. The functions that read one skip what is malformed instead of
raising an error: one bad tool must not spoil a list or a search. Calling such a tool reports what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ferrule.errors import SpecError

JsonSchema: TypeAlias = dict[str, Any]

MAX_REFERENCES = 32
"""References that are followed from one schema: they may form a cycle."""


# Reading


def resolve_schema(schema: Any, root: JsonSchema) -> JsonSchema:
    """Return the schema with local references followed; an empty one where there is nothing to follow."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            return {}
        if not isinstance(schema.get("$ref"), str):
            return schema
        schema = {**follow_reference(schema, root), **{key: value for key, value in schema.items() if key != "$ref"}}
    return {}


def list_branches(schema: JsonSchema, root: JsonSchema) -> list[JsonSchema]:
    """Return the schemas a value may follow: those of anyOf/oneOf, else the schema itself."""
    return list(_iterate_branches(schema, root, set()))


def _iterate_branches(schema: JsonSchema, root: JsonSchema, visited: set[str]) -> Iterator[JsonSchema]:
    options = next((schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)), None)
    if options is None:
        yield schema
        return
    for option in options:
        reference = option.get("$ref") if isinstance(option, dict) else None
        if isinstance(reference, str):
            if reference in visited:  # a union that contains itself
                continue
            visited.add(reference)
        yield from _iterate_branches(resolve_schema(option, root), root, visited)


def allowed_types(schema: JsonSchema) -> list[str]:
    """Return the JSON types a schema allows; empty when it does not say."""
    types = schema.get("type")
    if isinstance(types, str):
        return [types]
    return [name for name in types if isinstance(name, str)] if isinstance(types, list) else []


def properties_of(schema: JsonSchema) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def read_list_keyword(keyword: str, schema: JsonSchema) -> list[Any]:
    """Return the value of a keyword that should be a list; an empty one if it is not."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def required_names(schema: JsonSchema) -> list[str]:
    return [name for name in read_list_keyword("required", schema) if isinstance(name, str)]


def secret_properties(schema: JsonSchema) -> frozenset[str]:
    """Return the properties with something `writeOnly` anywhere in them."""
    properties = {**properties_of(follow_reference(schema, schema)), **properties_of(schema)}
    return frozenset(name for name, inner in properties.items() if _contains_secret(inner, schema))


def _contains_secret(schema: Any, root: JsonSchema) -> bool:
    visited: set[str] = set()
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            if part.get("writeOnly") is True:
                return True
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in visited:
                visited.add(reference)
                pending.append(follow_reference(part, root))
            pending += [inner for key, inner in part.items() if key not in _NO_SUBSCHEMAS]
    return False


_NO_SUBSCHEMAS = frozenset({"default", "examples", "enum", "const", "description", "$defs", "definitions"})


def follow_reference(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Return what a local `$ref` points to; empty where there is none."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return {}
    target: Any = root
    for part in reference.split("/")[1:]:
        if isinstance(target, list):
            index = int(part) if part.isdecimal() and len(part) < 10 else len(target)
            target = target[index] if index < len(target) else None
        else:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        if target is None:
            break
    return target if isinstance(target, dict) else {}


# From the parameters of a tool as people and files write them to valid JSON Schema


def is_whole_schema(parameters: Mapping[str, Any]) -> bool:
    """Return whether parameters are a whole JSON Schema; else they map names to mappings."""
    if isinstance(parameters.get("type"), (str, list)):
        return True
    if any(isinstance(parameters.get(key), str) for key in ("$ref", "$schema")):
        return True
    if any(isinstance(parameters.get(key), list) for key in ("required", "allOf", "anyOf", "oneOf", "enum")):
        return True
    # `properties` may be the name of a parameter: then its value has a type like that of any other.
    inner = parameters.get("properties")
    return isinstance(inner, dict) and bool(inner) and all(isinstance(value, (dict, bool)) for value in inner.values())


def parameters_to_schema(parameters: Mapping[str, Any]) -> JsonSchema:
    """Return the schema of a map such as `{"url": {"type": "string", "required": True}}`."""
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in parameters.items():
        if not isinstance(parameter, dict):
            raise SpecError(f"parameter {name!r} must be a mapping such as {{'type': 'string'}}, not {parameter!r}")
        # `required: true` beside a parameter is not JSON Schema; a list there is (of a nested object) and stays.
        inner = {k: v for k, v in parameter.items() if not (k == "required" and isinstance(v, bool))}
        if inner.get("type") == "any":
            del inner["type"]
        if parameter.get("required") is True:
            required.append(name)
        properties[name] = inner
    schema: JsonSchema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


# Definitions

_DEFINITION_PREFIX = "#/$defs/"


def inline_definitions(schema: JsonSchema, definitions: dict[str, JsonSchema]) -> JsonSchema:
    """Return the schema with definitions written where they are used, if that is one place or they are only an enum.

    What is used more often, or contains itself, stays a definition. Definitions lose their titles, which repeat
    the names of classes.
    """
    untitled = {name: {k: v for k, v in inner.items() if k != "title"} for name, inner in definitions.items()}
    uses = Counter(_find_references(schema))
    for inner in untitled.values():
        uses.update(_find_references(inner))
    # A definition that is used once cannot contain itself: that would be a second use.
    inlined = {name: inner for name, inner in untitled.items() if uses[name] == 1 or "enum" in inner}
    result: JsonSchema = _inline_references(schema, inlined)
    shared = {name: _inline_references(inner, inlined) for name, inner in untitled.items() if name not in inlined}
    return {**result, "$defs": shared} if shared else result


def _find_references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        name = _definition_name(node)
        if name is not None:
            yield name
        for value in node.values():
            yield from _find_references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _find_references(value)


def _inline_references(node: Any, inlined: dict[str, JsonSchema]) -> Any:
    if isinstance(node, list):
        return [_inline_references(value, inlined) for value in node]
    if not isinstance(node, dict):
        return node
    name = _definition_name(node)
    if name is None or name not in inlined:
        return {key: _inline_references(value, inlined) for key, value in node.items()}
    # Keywords beside a reference describe this use of the definition, and win.
    beside = {key: _inline_references(value, inlined) for key, value in node.items() if key != "$ref"}
    return {**_inline_references(inlined[name], inlined), **beside}


def _definition_name(node: dict[str, Any]) -> str | None:
    reference = node.get("$ref")
    return (
        reference.removeprefix(_DEFINITION_PREFIX)
        if isinstance(reference, str) and reference.startswith(_DEFINITION_PREFIX)
        else None
    )
