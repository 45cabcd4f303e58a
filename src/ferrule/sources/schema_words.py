"""The words of the short notation: which there are, what each needs, and what it is called in JSON Schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

OTHER_NAMES: Final = {
    "int": "integer",
    "long": "integer",
    "str": "string",
    "text": "string",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "dict": "object",
    "map": "object",
    "mapping": "object",
    "json": "object",
}


@dataclass(frozen=True, slots=True)
class Option:
    """A word that limits the values of some types."""

    written_as: str
    fits: Callable[[Any], bool]
    needs: str
    types: tuple[str, ...]
    """The types it says something about; none named: all."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: Any) -> bool:
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for({"pattern": value})
    except jsonschema_rs.ValidationError:
        return False
    return True


_NUMBERS = ("number", "integer")
OPTIONS: Final = {
    "min": Option("minimum", _is_number, "a number", _NUMBERS),
    "max": Option("maximum", _is_number, "a number", _NUMBERS),
    "min_length": Option("minLength", _is_count, "a whole number from 0", ("string",)),
    "max_length": Option("maxLength", _is_count, "a whole number from 0", ("string",)),
    "min_items": Option("minItems", _is_count, "a whole number from 0", ("array",)),
    "max_items": Option("maxItems", _is_count, "a whole number from 0", ("array",)),
    "pattern": Option("pattern", _is_pattern, "a regular expression", ("string",)),
    "enum": Option("enum", lambda v: isinstance(v, list) and bool(v), "a list of the allowed values", ()),
}
OPTION_OF: Final = {**OPTIONS, **{option.written_as: option for option in OPTIONS.values()}}
ONLY_FOR: Final = {"items": "array", "properties": "object"}
PAIRS: Final = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))

# Words of JSON Schema, by what they hold: one schema, a list of them, a mapping of names to them, or anything else.
HOLD_ONE: Final = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
HOLD_LIST: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
HOLD_MAP: Final = frozenset({"patternProperties", "$defs", "dependentSchemas"})
VERBATIM: Final = frozenset(
    {
        *("$ref", "const", "format", "title", "examples", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties", "dependentRequired"),
        *("contentEncoding", "contentMediaType", "readOnly", "writeOnly", "deprecated", "$comment"),
    }
)

CONSTRAINTS: Final = (*OPTION_OF, "properties", *sorted(HOLD_ONE | HOLD_LIST | HOLD_MAP | VERBATIM))
"""What may be said about values, beside a parameter's own words or under `validation`."""
OWN_WORDS: Final = ("type", "required", "default", "description", "validation", "secret")
SAYS_THE_TYPE: Final = ("anyOf", "oneOf", "allOf", "$ref", "enum", "const", "items", "properties")
"""Words after which no `type` is missed."""
