"""A JSON Schema as model APIs take it.

The APIs of OpenAI and Anthropic want an object at the top, and no choice between several there; OpenAI also wants
every array to say what is in it. A schema they would refuse is said more loosely: the engine checks the arguments
against the real one in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import count
from typing import Any, TypeAlias

from ferrule.describe.readable import list_under, required_by
from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import properties_of, resolve

_NOT_AT_THE_TOP = (
    "$schema",
    "$id",
    "$comment",
    "title",
    "default",
    "examples",
    "enum",
    "const",
    "not",
    "if",
    "then",
    "else",
)
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("default", "const", "enum", "examples", "required")
_CHOICES = ("anyOf", "oneOf")
_DEEPEST = 8
_MOST_PARTS = 1_000
"""Schemas that are joined into one: a few lines of references can stand for billions."""

_Required: TypeAlias = Callable[[list[str], list[str]], list[str]]


def for_models(schema: JsonSchema) -> JsonSchema:
    """The parameters of an action for a model API; what is given is not changed."""
    try:
        return _for_models(schema)
    except RecursionError:  # nested deeper than anybody could read
        return {"type": "object", "properties": {}}


def _for_models(schema: JsonSchema) -> JsonSchema:
    whole = _one_object(schema, schema, 0, count())
    tidy: JsonSchema = {"type": "object", "properties": _tidy_each(properties_of(whole))}
    if required := required_by(whole):
        tidy["required"] = required
    for word, said in whole.items():
        if word not in ("type", "properties", "required", *_NOT_AT_THE_TOP):
            tidy[word] = _tidy_under(word, said)
    for word in ("$defs", "definitions"):
        if word in schema:
            tidy[word] = _tidy_each(schema[word])
    return tidy


def _one_object(said: Any, root: JsonSchema, depth: int, parts: Iterator[int]) -> JsonSchema:
    """The schema with its references followed and its parts joined."""
    schema = resolve(said, root) if depth < _DEEPEST and next(parts) < _MOST_PARTS else {}
    joined = {word: value for word, value in schema.items() if word not in ("allOf", *_CHOICES)}
    for part in list_under("allOf", schema):
        joined = _joined(joined, _one_object(part, root, depth + 1, parts), _required_by_any)
    for word in _CHOICES:
        options = [_one_object(option, root, depth + 1, parts) for option in list_under(word, schema)]
        if options:
            either = reduce(lambda one, other: _joined(one, other, _required_by_all), options)
            joined = _joined(joined, either, _required_by_any)
    return joined


def _joined(first: JsonSchema, second: JsonSchema, required: _Required) -> JsonSchema:
    both = {**second, **first, "properties": {**properties_of(second), **properties_of(first)}}
    names = required(required_by(first), required_by(second))
    both.pop("required", None)
    return {**both, "required": names} if names else both


def _required_by_any(first: list[str], second: list[str]) -> list[str]:
    return list(dict.fromkeys((*first, *second)))


def _required_by_all(first: list[str], second: list[str]) -> list[str]:
    return [name for name in first if name in second]


def _tidy(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidy(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    tidy = {word: _tidy_under(word, said) for word, said in node.items() if word != "$schema"}
    # Until 2019 JSON Schema wrote the items of a tuple as a list under `items`.
    if isinstance(tidy.get("items"), list):
        tidy["prefixItems"] = tidy.pop("items")
    if tidy.get("type") == "array":
        tidy.setdefault("items", {})
    return tidy


def _tidy_under(word: str, said: Any) -> Any:
    if word in _VALUES:
        return said
    return _tidy_each(said) if word in _NAMED else _tidy(said)


def _tidy_each(schemas: Any) -> Any:
    """Schemas under names, none of which is a word of JSON Schema."""
    if not isinstance(schemas, dict):
        return schemas
    return {name: {} if said is True else _tidy(said) for name, said in schemas.items()}
