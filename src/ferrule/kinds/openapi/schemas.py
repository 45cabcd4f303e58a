"""Schemas of an OpenAPI document as JSON Schema for the arguments of a call.

OpenAPI's dialects differ from JSON Schema: `nullable`, boolean `exclusiveMinimum`, `type: file`. Real documents also
contain keywords that no validator accepts. What is understood is converted, the rest is left out: a looser schema is
still useful, one that does not compile makes the tool unusable. Properties of responses only (`readOnly`) are left out.

A referenced schema becomes one definition, converted once and shared by all actions that use it, so recursion is not a
problem. A default is mentioned in the description and not kept: the server fills it in, and in a request that changes
something (PATCH) a filled-in default would be an unintended change.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from ferrule.core.schema_limits import BoundedValidator, compile_schema
from ferrule.core.spec import JsonSchema
from ferrule.errors import SpecError
from ferrule.kinds.openapi.document import OpenApiDocument, select_texts

MAX_DEPTH: Final = 48
MAX_CONVERTED: Final = 300_000
MAX_DESCRIPTION: Final = 800

_DEFINITIONS_PREFIX: Final = "#/$defs/"
_JSON_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_JSON_TYPES_BY_NAME: Final = {
    **{name: name for name in _JSON_TYPES},
    "file": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
}
_NUMBER_KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNT_KEYWORDS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SCHEMA_KEYWORDS: Final = ("items", "additionalProperties", "not", "contains", "propertyNames")
_SCHEMA_LIST_KEYWORDS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


class OpenApiSchemaConverter:
    """Converts the schemas of one document."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._used_names: dict[str, int] = {}
        self._targets: dict[str, Any] = {}
        """The schema of each definition by name. It is converted when it is needed, not while another one is converted:
        chains of references may be longer than Python's stack."""
        self._definitions: dict[str, tuple[JsonSchema, set[str]]] = {}
        """Converted definitions, with the names each refers to."""
        self._converted = 0

    def convert(self, schema: Any, depth: int = 0) -> JsonSchema:
        """Convert a schema to JSON Schema. `definitions_for` gives what the result refers to."""
        self._converted += 1
        if self._converted > MAX_CONVERTED:
            hint = "name the operations you need"
            raise self._document.error("the document has too many schemas", hint)
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return {}
        is_reference = isinstance(schema.get("$ref"), str)
        result = self._convert_reference(schema) if is_reference else self._convert_keywords(schema, depth)
        texts = [shorten_description(schema.get("description"))]
        default = json.dumps(schema.get("default"), ensure_ascii=False, default=str)
        if "default" in schema and len(default) <= 80:
            texts.append(f"Default: {default}.")
        if description := " ".join(text for text in texts if text):
            result = {"description": description, **result}
        return _make_nullable(result) if schema.get("nullable") is True or schema.get("x-nullable") is True else result

    def definitions_for(self, schema: JsonSchema) -> dict[str, JsonSchema]:
        """Return every definition that a converted schema refers to, directly or not, by name."""
        definitions: dict[str, JsonSchema] = {}
        pending = sorted(_find_references(schema))
        while pending:
            name = pending.pop()
            if name not in self._definitions:
                definition = self.convert(self._targets[name])
                self._definitions[name] = definition, _find_references(definition)
            if name not in definitions:
                definitions[name], references = self._definitions[name]
                pending += references
        return dict(sorted(definitions.items()))

    def _convert_reference(self, schema: JsonSchema) -> JsonSchema:
        ref = schema["$ref"]
        if ref not in self._names:
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", ref.rpartition("/")[2]) or "schema"
            self._names[ref] = name = make_unique_name(plain, self._used_names)
            self._targets[name] = self._document.resolve(schema)
        return {"$ref": f"{_DEFINITIONS_PREFIX}{self._names[ref]}"}

    def _convert_keywords(self, schema: JsonSchema, depth: int) -> JsonSchema:
        result: JsonSchema = {}
        kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
        types = list(dict.fromkeys(_JSON_TYPES_BY_NAME.get(name) for name in kinds if isinstance(name, str)))
        if types and None not in types:
            result["type"] = types[0] if len(types) == 1 else types
        result |= _copy_plain_keywords(schema)
        for keyword in _SCHEMA_KEYWORDS:
            inner = schema.get(keyword)
            if isinstance(inner, bool) and keyword == "additionalProperties":
                result[keyword] = inner
            elif isinstance(inner, dict):
                result[keyword] = self.convert(inner, depth + 1)
        for keyword in _SCHEMA_LIST_KEYWORDS:
            inner = schema.get(keyword)
            if isinstance(inner, list) and inner:
                result[keyword] = [self.convert(each, depth + 1) for each in inner]
        required = select_texts(schema.get("required"))
        if isinstance(properties := schema.get("properties"), dict):
            writable = {n: p for n, p in properties.items() if self._document.resolve(p).get("readOnly") is not True}
            result["properties"] = {name: self.convert(each, depth + 1) for name, each in writable.items()}
            required = [name for name in required if name in writable or name not in properties]
        if required:
            result["required"] = required
        if "enum" in result and "type" in result:
            only_type = {"type": result["type"]}
            if not any(is_value_valid(value, only_type) for value in result["enum"]):
                del result["type"]  # it excludes all the enumerated values (`type: integer` with "1", "2")
        return result


def make_unique_name(name: str, used_names: dict[str, int]) -> str:
    """Return the name, with a number if it is already in use, and add it to the names in use."""
    number, unique = used_names.get(name, 1), name
    while unique in used_names:
        number += 1
        unique = f"{name}_{number}"
    used_names[name] = number
    used_names.setdefault(unique, 1)
    return unique


def is_value_valid(value: Any, schema: JsonSchema) -> bool:
    """Return whether a converted schema accepts a value; False when it has references."""
    if _find_references(schema):
        return False
    try:
        return BoundedValidator(schema).is_valid(value)
    except (ValueError, SpecError):
        return False


def shorten_description(text: Any, limit: int = MAX_DESCRIPTION) -> str:
    """Remove blank lines from a description, and cut it when it is too long."""
    plain = re.sub(r"\s*\n\s*", "\n", text).strip() if isinstance(text, str) else ""
    return plain if len(plain) <= limit else f"{plain[:limit].rstrip()}…"


def _copy_plain_keywords(schema: JsonSchema) -> JsonSchema:
    """Copy the keywords whose values are not schemas, without invalid values."""
    result: JsonSchema = {}
    for keyword in _NUMBER_KEYWORDS:
        if _is_finite_number(schema.get(keyword)) and (keyword != "multipleOf" or schema[keyword] > 0):
            result[keyword] = schema[keyword]
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(exclusive) is True and bound in result:  # OpenAPI before 3.1
            result[exclusive] = result.pop(bound)
    for keyword in _COUNT_KEYWORDS:
        if _is_finite_number(schema.get(keyword)) and schema[keyword] >= 0 and schema[keyword] == int(schema[keyword]):
            result[keyword] = int(schema[keyword])
    if isinstance(schema.get("pattern"), str) and _is_valid_pattern(schema["pattern"]):
        result["pattern"] = schema["pattern"]
    if isinstance(schema.get("format"), str):
        result["format"] = schema["format"]
    result |= {keyword: True for keyword in ("uniqueItems", "deprecated", "writeOnly") if schema.get(keyword) is True}
    if schema.get("format") == "password":
        result["writeOnly"] = True  # never recorded
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        result["enum"] = list(schema["enum"])
    if "const" in schema:
        result["const"] = schema["const"]
    example = schema.get("example")
    if _is_finite_number(example) or (isinstance(example, str) and 0 < len(example) <= 80):
        result["examples"] = [example]
    return result


def _make_nullable(schema: JsonSchema) -> JsonSchema:
    if isinstance(schema.get("type"), str):
        nullable = {**schema, "type": list(dict.fromkeys([schema["type"], "null"]))}
        if "enum" in schema and None not in schema["enum"]:
            nullable["enum"] = [*schema["enum"], None]
        return nullable
    if not schema.keys() - {"description"}:
        return schema
    description = {"description": schema["description"]} if "description" in schema else {}
    rest = {keyword: value for keyword, value in schema.items() if keyword != "description"}
    return {**description, "anyOf": [rest, {"type": "null"}]}


def _find_references(value: Any) -> set[str]:
    references: set[str] = set()
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            ref = each.get("$ref")
            if isinstance(ref, str) and ref.startswith(_DEFINITIONS_PREFIX):
                references.add(ref.removeprefix(_DEFINITIONS_PREFIX))
            pending += each.values()
        elif isinstance(each, list):
            pending += each
    return references


def _is_finite_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and isfinite(value))


@lru_cache(maxsize=1024)
def _is_valid_pattern(pattern: str) -> bool:
    try:
        compile_schema({"pattern": pattern})
    except ValueError:
        return False
    return True
