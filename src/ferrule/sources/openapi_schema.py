"""Schemas of an OpenAPI document as JSON Schema for the arguments of a call.

OpenAPI's dialects are near JSON Schema but not in it: `nullable`, boolean `exclusiveMinimum`, `type: file`. And
documents in the wild hold what no validator takes. What is understood is kept, the rest is left out: a looser schema
still serves, one that does not compile stops the tool. Members that only answers have (`readOnly`) are left out.

A referenced schema becomes one definition, converted once and shared by all actions that reach it; so recursion is no
matter. A default is told in the description instead of being kept: it is the server's to fill in, and in a request
that changes something (PATCH) a filled-in default would be a change nobody asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from ferrule.sources.openapi_document import OpenApiDocument, texts_in
from ferrule.spec import JsonSchema

MAX_DEPTH: Final = 48
MAX_CONVERTED: Final = 300_000
MAX_DESCRIPTION: Final = 800

_DEFINITIONS: Final = "#/$defs/"
_JSON_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_TYPES: Final = {
    **{name: name for name in _JSON_TYPES},
    "file": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
}
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SCHEMAS: Final = ("items", "additionalProperties", "not", "contains", "propertyNames")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


class OpenApiSchemas:
    """Converts the schemas of one document."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        self._targets: dict[str, Any] = {}
        """What the definition of a name is made from. It is made when it is needed, not while another is made:
        chains of references are longer than Python's stack."""
        self._definitions: dict[str, tuple[JsonSchema, set[str]]] = {}
        """With the names each refers to."""
        self._converted = 0

    def convert(self, schema: Any, depth: int = 0) -> JsonSchema:
        """The schema as JSON Schema; what it refers to is in `definitions_for` it."""
        self._converted += 1
        if self._converted > MAX_CONVERTED:
            hint = "name the operations you need"
            raise self._document.error("the document holds too many schemas", hint)
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return {}
        found = self._reference(schema) if isinstance(schema.get("$ref"), str) else self._keywords(schema, depth)
        description = _description(schema)
        if description:
            found = {"description": description, **found}
        return _or_null(found) if schema.get("nullable") is True or schema.get("x-nullable") is True else found

    def definitions_for(self, schema: JsonSchema) -> dict[str, JsonSchema]:
        """Every definition that can be reached from a converted schema, by name."""
        found: dict[str, JsonSchema] = {}
        waiting = sorted(_names_in(schema))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name], references = self._definition(name)
                waiting += references
        return dict(sorted(found.items()))

    def _definition(self, name: str) -> tuple[JsonSchema, set[str]]:
        if name not in self._definitions:
            definition = self.convert(self._targets[name])
            self._definitions[name] = definition, _names_in(definition)
        return self._definitions[name]

    def _reference(self, schema: JsonSchema) -> JsonSchema:
        ref = schema["$ref"]
        if ref not in self._names:
            self._names[ref] = name = free_name(_last_word(ref), self._taken)
            self._targets[name] = self._document.resolve(schema)
        return {"$ref": f"{_DEFINITIONS}{self._names[ref]}"}

    def _keywords(self, schema: JsonSchema, depth: int) -> JsonSchema:
        found: JsonSchema = {}
        if types := _types(schema.get("type")):
            found["type"] = types[0] if len(types) == 1 else types
        found |= _plain_keywords(schema)
        for word in _SCHEMAS:
            inner = schema.get(word)
            if isinstance(inner, bool) and word == "additionalProperties":
                found[word] = inner
            elif isinstance(inner, dict):
                found[word] = self.convert(inner, depth + 1)
        for word in _LISTS:
            inner = schema.get(word)
            if isinstance(inner, list) and inner:
                found[word] = [self.convert(each, depth + 1) for each in inner]
        if isinstance(schema.get("properties"), dict):
            found |= self._properties(schema, depth)
        elif required := texts_in(schema.get("required")):
            found["required"] = required
        return _with_fitting_enum(found)

    def _properties(self, schema: JsonSchema, depth: int) -> JsonSchema:
        sent = {n: p for n, p in schema["properties"].items() if self._document.resolve(p).get("readOnly") is not True}
        found: JsonSchema = {"properties": {name: self.convert(each, depth + 1) for name, each in sent.items()}}
        left_out = schema["properties"].keys() - sent.keys()
        if required := [name for name in texts_in(schema.get("required")) if name not in left_out]:
            found["required"] = required
        return found


def free_name(name: str, taken: dict[str, int]) -> str:
    """The name, with a number when it is taken. It is taken then, and the number kept: others may want it too."""
    number, free = taken.get(name, 1), name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken[name] = number
    taken.setdefault(free, 1)
    return free


def fits(value: Any, schema: JsonSchema) -> bool:
    """Whether a converted schema that refers to nothing takes a value."""
    import jsonschema_rs

    if _names_in(schema):
        return False
    try:
        return bool(jsonschema_rs.validator_for(schema, offline=True).is_valid(value))
    except ValueError:
        return False


def shortened(text: Any, most: int = MAX_DESCRIPTION) -> str:
    """A description on few lines; what is too long is cut."""
    said = re.sub(r"\s*\n\s*", "\n", text).strip() if isinstance(text, str) else ""
    return said if len(said) <= most else f"{said[:most].rstrip()}…"


def _description(schema: JsonSchema) -> str:
    said = [shortened(schema.get("description"))]
    if "default" in schema and len(default := json.dumps(schema["default"], ensure_ascii=False, default=str)) <= 80:
        said.append(f"Default: {default}.")
    return " ".join(part for part in said if part)


def _types(said: Any) -> list[str]:
    named = [_TYPES.get(name) for name in (said if isinstance(said, list) else [said]) if isinstance(name, str)]
    return [] if None in named else list(dict.fromkeys(name for name in named if name))


def _plain_keywords(schema: JsonSchema) -> JsonSchema:
    """Keywords whose values hold no schemas, as far as they make sense."""
    found: JsonSchema = {}
    for word in _NUMBERS:
        if _is_number(schema.get(word)) and (word != "multipleOf" or schema[word] > 0):
            found[word] = schema[word]
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(exclusive) is True and bound in found:  # OpenAPI before 3.1
            found[exclusive] = found.pop(bound)
    for word in _COUNTS:
        if _is_number(schema.get(word)) and schema[word] >= 0 and schema[word] == int(schema[word]):
            found[word] = int(schema[word])
    if isinstance(schema.get("pattern"), str) and _is_pattern(schema["pattern"]):
        found["pattern"] = schema["pattern"]
    if isinstance(schema.get("format"), str):
        found["format"] = schema["format"]
    for word in ("uniqueItems", "deprecated", "writeOnly"):
        if schema.get(word) is True:
            found[word] = True
    if schema.get("format") == "password":
        found["writeOnly"] = True  # never recorded
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        found["enum"] = list(schema["enum"])
    if "const" in schema:
        found["const"] = schema["const"]
    example = schema.get("example")
    if _is_number(example) or (isinstance(example, str) and 0 < len(example) <= 80):
        found["examples"] = [example]
    return found


def _with_fitting_enum(schema: JsonSchema) -> JsonSchema:
    """Without its type when that lets none of the enumerated values through (`type: integer` beside "1", "2")."""
    if "enum" in schema and "type" in schema:
        only_type = {"type": schema["type"]}
        if not any(fits(value, only_type) for value in schema["enum"]):
            return {word: said for word, said in schema.items() if word != "type"}
    return schema


def _or_null(schema: JsonSchema) -> JsonSchema:
    if isinstance(schema.get("type"), str):
        widened = {**schema, "type": list(dict.fromkeys([schema["type"], "null"]))}
        if "enum" in schema and None not in schema["enum"]:
            widened["enum"] = [*schema["enum"], None]
        return widened
    if not schema.keys() - {"description"}:
        return schema
    description = {"description": schema["description"]} if "description" in schema else {}
    rest = {word: said for word, said in schema.items() if word != "description"}
    return {**description, "anyOf": [rest, {"type": "null"}]}


def _names_in(value: Any) -> set[str]:
    return set(_walk_names(value))


def _walk_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        ref = value.get("$ref")
        if isinstance(ref, str) and ref.startswith(_DEFINITIONS):
            yield ref.removeprefix(_DEFINITIONS)
        for inner in value.values():
            yield from _walk_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk_names(inner)


def _last_word(ref: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", ref.rpartition("/")[2]) or "schema"


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and isfinite(value))


@lru_cache(maxsize=1024)
def _is_pattern(pattern: str) -> bool:
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for({"pattern": pattern}, offline=True)
    except ValueError:
        return False
    return True
