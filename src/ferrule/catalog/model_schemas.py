"""The actions of tools in the formats of model APIs and MCP."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import count
from typing import Any

from ferrule.core.content import encode_json
from ferrule.core.json_schema import properties_of, read_list_keyword, required_names, resolve_schema
from ferrule.core.schema.hints import ROLE_KEYWORD
from ferrule.core.spec import JsonSchema, ToolCapability, ToolSpec
from ferrule.texts.shorten import estimate_tokens, shorten

_MAX_OPENAI_DESCRIPTION = 1024
"""Characters; OpenAI refuses the whole request if one description is longer."""


@dataclass(frozen=True, kw_only=True)
class NamedAction:
    """An action and its name for models. `DescriptionEngine.actions_by_name` makes each one once."""

    name: str
    spec: ToolSpec
    capability: ToolCapability

    @property
    def description(self) -> str:
        return self.capability.description or self.spec.description

    @cached_property
    def openai_schema(self) -> dict[str, Any]:
        """Return the format of OpenAI's API and compatible ones. Callers share it and must not change it."""
        function = {
            "name": self.name,
            "description": shorten(self.description, _MAX_OPENAI_DESCRIPTION),
            "parameters": shorten_schema(self.capability.schema_or_empty),
        }
        return {"type": "function", "function": function}

    @cached_property
    def anthropic_schema(self) -> dict[str, Any]:
        """Return the format of Anthropic's API."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": shorten_schema(self.capability.schema_or_empty),
        }

    @cached_property
    def mcp_schema(self) -> dict[str, Any]:
        """Return the format of an MCP server's list."""
        schema: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "inputSchema": simplify_schema(self.capability.schema_or_empty),
        }
        if len(self.spec.capabilities) == 1 and self.spec.name != self.spec.tool_id:
            schema["title"] = self.spec.name
        output = self.capability.output
        if output is not None and output.get("type") == "object":
            schema["outputSchema"] = output
        # Only what the tool promises: MCP clients assume the worst of everything else.
        effects = self.spec.effects_of(self.capability)
        promises = {
            "readOnlyHint": effects.read_only,
            "destructiveHint": effects.destructive,
            "idempotentHint": effects.idempotent,
        }
        hints = self.capability.annotations or {hint: True for hint, holds in promises.items() if holds}
        return {**schema, "annotations": hints} if hints else schema

    @cached_property
    def tokens(self) -> int:
        """Estimate how many tokens the schema takes."""
        return estimate_schema_tokens(self.openai_schema)


def estimate_schema_tokens(schema: Mapping[str, Any]) -> int:
    return estimate_tokens(encode_json(schema).decode())


def shorten_schema(schema: JsonSchema) -> JsonSchema:
    """Return the parameters of an action as models read them in every request, without anything redundant.

    Without `null` as an alternative where it can omit the argument, empty defaults, `additionalProperties` without
    a schema, and titles that only repeat a name. The engine checks the arguments against the original.
    """
    parameters = simplify_schema(schema, shorten=True)
    required = required_names(parameters)
    properties = {
        name: schema if name in required or not isinstance(schema, dict) else _without_null(schema)
        for name, schema in properties_of(parameters).items()
    }
    return {**parameters, "properties": properties}


def _is_redundant(keyword: str, value: Any, name: str) -> bool:
    """Return whether a keyword tells a model nothing: `additionalProperties: false`, or a title like the name."""
    if keyword == "title" and isinstance(value, str):  # pydantic makes `Start Time` of `start_time`
        return re.sub(r"[\s_-]", "", value).casefold() == re.sub(r"[_-]", "", name).casefold()
    return keyword == "additionalProperties" and (isinstance(value, bool) or value == {})


def _without_null(schema: JsonSchema) -> JsonSchema:
    schema = {k: v for k, v in schema.items() if k != "default" or v not in (None, "", [], {})}
    options = schema.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        others = [option for option in options if option != {"type": "null"}]
        schema = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
        return {**others[0], **schema} if len(others) == 1 else {**schema, "anyOf": others}
    if isinstance(schema.get("type"), list) and "null" in schema["type"]:
        types = [kind for kind in schema["type"] if kind != "null"]
        schema["type"] = types[0] if len(types) == 1 else types
    return schema


# Simplifying a JSON Schema for model APIs.
#
# The APIs of OpenAI and Anthropic require an object at the top, without alternatives; OpenAI also requires `items` in
# every array. A schema they would refuse is replaced by a looser one: the engine checks the arguments against the
# original in any case.

_NOT_AT_TOP_LEVEL = frozenset("$schema $id $comment title default examples enum const not if then else".split())
_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUE_KEYWORDS = ("default", "const", "enum", "examples", "required")
_ALTERNATIVE_KEYWORDS = ("anyOf", "oneOf")
_MAX_DEPTH = 8
_MAX_PARTS = 1_000
"""Schemas that are merged into one: a few lines of references can expand to billions."""


def simplify_schema(schema: JsonSchema, *, shorten: bool = False) -> JsonSchema:
    """Return the parameters of an action for a model API; the original is not changed.

    With `shorten`, keywords that tell a model nothing are left out.
    """
    try:
        return _simplify_top_level(schema, shorten)
    except RecursionError:  # nested too deep
        return {"type": "object", "properties": {}}


def _simplify_top_level(schema: JsonSchema, shorten: bool) -> JsonSchema:
    merged = _merge_parts(schema, schema, 0, count())
    clean: JsonSchema = {"type": "object", "properties": _clean_schema_map(properties_of(merged), shorten)}
    if required := required_names(merged):
        clean["required"] = required
    for keyword, value in merged.items():
        is_left_out = keyword in _NOT_AT_TOP_LEVEL or (shorten and _is_redundant(keyword, value, ""))
        if keyword not in ("type", "properties", "required") and not is_left_out:
            clean[keyword] = _clean_keyword(keyword, value, shorten)
    for keyword in ("$defs", "definitions"):
        if keyword in schema:
            clean[keyword] = _clean_schema_map(schema[keyword], shorten)
    return clean


def _merge_parts(schema: Any, root: JsonSchema, depth: int, parts: Iterator[int]) -> JsonSchema:
    """Follow the references of a schema and merge its allOf, anyOf and oneOf into one object."""
    schema = resolve_schema(schema, root) if depth < _MAX_DEPTH and next(parts) < _MAX_PARTS else {}
    merged = {keyword: value for keyword, value in schema.items() if keyword not in ("allOf", *_ALTERNATIVE_KEYWORDS)}
    for part in read_list_keyword("allOf", schema):
        merged = merge_schemas(merged, _merge_parts(part, root, depth + 1, parts))
    for keyword in _ALTERNATIVE_KEYWORDS:
        options = [_merge_parts(option, root, depth + 1, parts) for option in read_list_keyword(keyword, schema)]
        if options:
            # What only some of the alternatives require is optional.
            any_option = reduce(partial(merge_schemas, all_required=False), options)
            merged = merge_schemas(merged, any_option)
    return merged


def merge_schemas(first: JsonSchema, second: JsonSchema, *, all_required: bool = True) -> JsonSchema:
    """Merge two schemas of objects. `all_required`: what one of them requires is required, else only what both do."""
    both = {**second, **first, "properties": {**properties_of(second), **properties_of(first)}}
    in_first, in_second = required_names(first), required_names(second)
    names = [*in_first, *in_second] if all_required else [name for name in in_first if name in in_second]
    both.pop("required", None)
    return {**both, "required": list(dict.fromkeys(names))} if names else both


def _clean_schema(node: Any, name: str, shorten: bool) -> Any:
    if isinstance(node, list):
        return [_clean_schema(inner, "", shorten) for inner in node]
    if not isinstance(node, dict):
        return node
    clean = {
        keyword: _clean_keyword(keyword, value, shorten)
        for keyword, value in node.items()
        if keyword not in ("$schema", ROLE_KEYWORD) and not (shorten and _is_redundant(keyword, value, name))
    }
    # Until 2019 JSON Schema wrote the items of a tuple as a list under `items`.
    if isinstance(clean.get("items"), list):
        clean["prefixItems"] = clean.pop("items")
    if clean.get("type") == "array":
        clean.setdefault("items", {})
    return clean


def _clean_keyword(keyword: str, value: Any, shorten: bool) -> Any:
    if keyword in _VALUE_KEYWORDS:
        return value
    return _clean_schema_map(value, shorten) if keyword in _MAPS_OF_SCHEMAS else _clean_schema(value, "", shorten)


def _clean_schema_map(schemas: Any, shorten: bool) -> Any:
    """Return a map of names to schemas: the names are not keywords of JSON Schema."""
    if not isinstance(schemas, dict):
        return schemas
    return {name: {} if schema is True else _clean_schema(schema, name, shorten) for name, schema in schemas.items()}
