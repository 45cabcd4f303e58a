"""The short notation of parameters and outputs, converted to JSON Schema.

A notation is the name of a type (`integer`, `any`) or a mapping. A mapping may use the short keywords (`min`,
`max_length`, …), directly or under `validation`, and any keyword of JSON Schema beside them; both may be nested to any
depth. What JSON Schema would silently ignore is an error here: a `min` for text, a default of the wrong type, a
pattern that is not a regular expression.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ferrule.core.content import as_text
from ferrule.core.names import did_you_mean
from ferrule.core.schema.hints import ROLE_KEYWORD
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import PARAMETER_TYPES, JsonSchema
from ferrule.errors import SpecError
from ferrule.kinds.yaml.models import USER_KEYS, ParameterName, SchemaNotationSection, validate_section
from ferrule.kinds.yaml.reader import Document, Place, describe_place, describe_value, quoting_hint

Schema: TypeAlias = JsonSchema | bool
"""JSON Schema has `true` for anything and `false` for nothing."""

_TYPE_ALIASES: Final = {
    **dict.fromkeys(("int", "long"), "integer"),
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    **dict.fromkeys(("dict", "map", "mapping", "json"), "object"),
}
_SHORT_KEYWORDS: Final = {
    "min": "minimum",
    "max": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
    "pattern": "pattern",
    "enum": "enum",
}
"""The short keywords, and what JSON Schema calls them."""
_TYPES_BY_KEYWORD: Final = {
    **dict.fromkeys(("minimum", "maximum"), ("number", "integer")),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), ("string",)),
    **dict.fromkeys(("minItems", "maxItems", "items"), ("array",)),
    "properties": ("object",),
}
"""The types that a keyword applies to. A keyword that is not listed applies to all types."""
_MIN_MAX_PAIRS: Final = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))

# Keywords of JSON Schema by their content: a schema, a list of schemas, schemas by name, or anything else.
_SCHEMA_KEYWORDS: Final = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
)
_SCHEMA_LIST_KEYWORDS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA_MAPPING_KEYWORDS: Final = frozenset({"patternProperties", "$defs", "dependentSchemas"})
_VERBATIM_KEYWORDS: Final = frozenset(
    {
        *("$ref", "const", "format", "title", "examples", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties", "dependentRequired"),
        *("contentEncoding", "contentMediaType", "readOnly", "writeOnly", "deprecated", "$comment"),
    }
)
_CONSTRAINT_KEYWORDS: Final = (
    *dict.fromkeys([*_SHORT_KEYWORDS, *_SHORT_KEYWORDS.values()]),
    *("properties", *_SCHEMA_KEYWORDS, *_SCHEMA_LIST_KEYWORDS, *_SCHEMA_MAPPING_KEYWORDS, *_VERBATIM_KEYWORDS),
)
_NOTATION_KEYWORDS: Final = ("type", "required", "default", "description", "validation", "secret", "role")
_TYPE_IMPLYING_KEYWORDS: Final = frozenset({"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "items", "properties"})
"""A parameter with one of these needs no `type`."""
_KEYWORDS_HINT: Final = "the keywords are: " + ", ".join(
    [*_NOTATION_KEYWORDS, *_SHORT_KEYWORDS, "items", "properties", "or one of JSON Schema"]
)


@dataclass(frozen=True, slots=True)
class _Notation:
    """One mapping of a notation and its place."""

    document: Document
    place: Place
    values: dict[str, Any]

    def problem(self, message: str, key: str | None = None, hint: str | None = None) -> None:
        place = self.place if key is None else (*self.place, key)
        self.document.problem(f"{describe_place(self.place)}: {message}", place, hint)

    def check_keys(self, allowed: Collection[str]) -> None:
        for key in self.values:
            if key not in allowed and not key.startswith(USER_KEYS):
                hint = did_you_mean(key, allowed).strip() or _KEYWORDS_HINT
                self.problem(f"unknown key {key!r}", key, hint)

    @property
    def keywords(self) -> set[str]:
        validation = self.values.get("validation")
        return {*self.values, *(validation if isinstance(validation, dict) else ())}


def read_parameters_schema(document: Document, place: Place, value: Any) -> JsonSchema:
    """Read the parameters of a tool or an action as one JSON Schema of type object."""
    errors = len(document.errors)
    properties, required = _read_properties(document, place, value)
    schema: JsonSchema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return _check_schema(document, place, schema, errors)


def read_output_schema(document: Document, place: Place, value: Any) -> JsonSchema | None:
    """Read what a tool or an action returns: a notation, or a mapping of names to notations."""
    if value is None:
        return None
    errors = len(document.errors)
    if isinstance(value, dict) and not any(
        word in _CONSTRAINT_KEYWORDS or word in _NOTATION_KEYWORDS for word in value
    ):
        schema: Schema = {"type": "object", "properties": _read_properties(document, place, value)[0]}
    else:
        schema, _ = _read_notation(document, place, value)
    return _check_schema(document, place, schema, errors) if isinstance(schema, dict) else {}


def _read_properties(document: Document, place: Place, value: Any) -> tuple[dict[str, Schema], list[str]]:
    properties: dict[str, Schema] = {}
    required = []
    for name, inner, notation in _list_named_notations(document, place, value):
        properties[name], is_required = _read_notation(document, inner, notation)
        if is_required:
            required.append(name)
    return properties, required


def _list_named_notations(document: Document, place: Place, value: Any) -> Iterator[tuple[str, Place, Any]]:
    """Yield parameters from a list of mappings with names, or from a mapping of names."""
    if isinstance(value, dict):
        yield from ((name, (*place, name), notation) for name, notation in value.items())
        return
    if not isinstance(value, (list, type(None))):
        message = f"{describe_place(place)} must be a list, not {describe_value(value)}"
        document.problem(message, place, "start each entry with '- '")
        return
    lines: dict[str, int] = {}
    for index, entry in enumerate(value or []):
        inner = (*place, index)
        if (parameter := validate_section(ParameterName, entry, document, inner)) is None:
            continue
        name, notation = parameter.name, _Notation(document, inner, entry)
        if name in lines:
            hint = f"the first is in line {lines[name]}: rename one"
            notation.problem(f"there are two parameters {name!r}", "name", hint)
        lines.setdefault(name, document.line((*inner, "name")))
        if entry.get("type") is None and not notation.keywords & _TYPE_IMPLYING_KEYWORDS:
            notation.problem("type is missing", None, "write for instance type: string")
        yield name, inner, {key: each for key, each in entry.items() if key != "name"}


def _read_notation(document: Document, place: Place, value: Any) -> tuple[Schema, bool]:
    """Return the schema of a notation, and whether its value is required."""
    if isinstance(value, bool):
        return value, False
    if isinstance(value, str):
        return ({} if value == "any" else {"type": _check_type_name(document, place, value)}), False
    section = validate_section(SchemaNotationSection, value, document, place)
    return ({}, False) if section is None else _read_mapping(_Notation(document, place, value), section)


def _read_mapping(notation: _Notation, section: SchemaNotationSection) -> tuple[JsonSchema, bool]:
    notation.check_keys([*_NOTATION_KEYWORDS, *_CONSTRAINT_KEYWORDS])
    schema = _read_type(notation)
    if section.description:
        schema["description"] = section.description
    is_required = _read_constraints(notation, schema)
    if section.validation:
        validation = _Notation(notation.document, (*notation.place, "validation"), section.validation)
        validation.check_keys(["required", *_CONSTRAINT_KEYWORDS])
        if isinstance(section.validation.get("required"), bool):
            validation.problem("required must be a list of names here", "required", "write it beside validation")
        _read_constraints(validation, schema)
    _check_consistency(notation, schema)
    if section.secret:
        schema["writeOnly"] = True
    if section.role is not None:
        schema[ROLE_KEYWORD] = section.role
    has_default = _read_default(notation, schema)
    return schema, is_required and not has_default


def _read_type(notation: _Notation) -> JsonSchema:
    document, place, kind = notation.document, (*notation.place, "type"), notation.values.get("type")
    if kind is None:
        implied = [of for word, of in (("items", "array"), ("properties", "object")) if word in notation.keywords]
        return {"type": implied[0]} if implied else {}
    if kind == "any":
        return {}
    if isinstance(kind, str):
        return {"type": _check_type_name(document, place, kind)}
    if isinstance(kind, list) and all(isinstance(each, str) for each in kind):
        names = [each if each == "null" else _check_type_name(document, place, each) for each in kind]
        return {} if "any" in names else {"type": names}
    notation.problem(f"type must be one of {', '.join(PARAMETER_TYPES)}, not {describe_value(kind)}", "type")
    return {}


def _check_type_name(document: Document, place: Place, name: str) -> str:
    if name in PARAMETER_TYPES:
        return name
    alias = _TYPE_ALIASES.get(name.lower())
    hint = f"write {alias}" if alias else did_you_mean(name, PARAMETER_TYPES).strip()
    hint = hint or f"the types are {', '.join(PARAMETER_TYPES)}"
    document.problem(f"{describe_place(place)}: unknown type {name!r}", place, hint)
    return alias or "string"


def _read_constraints(notation: _Notation, schema: JsonSchema) -> bool:
    """Put the constraints of a mapping into the schema. Return whether the mapping has `required: true`."""
    is_required = False
    for key, value in notation.values.items():
        word = _SHORT_KEYWORDS.get(key, key)
        if value is None or key in ("type", "default", "description", "validation", "secret", "role"):
            continue
        if word == "required" and isinstance(value, bool):
            is_required = value
        elif not _is_keyword_applicable(word, schema.get("type")):
            kind = schema["type"]
            usable = [short for short, word in _SHORT_KEYWORDS.items() if _is_keyword_applicable(word, kind)]
            usable += [word for word in ("items", "properties") if _is_keyword_applicable(word, kind)]
            notation.problem(f"{key} has no meaning for a value of type {kind}", key, f"use {' or '.join(usable)}")
        elif (problem := _find_value_problem(word, value)) is not None:
            notation.problem(f"{key} {problem}", key)
        else:
            _add_constraint(notation, key, word, value, schema)
    return is_required


def _add_constraint(notation: _Notation, key: str, word: str, value: Any, schema: JsonSchema) -> None:
    document, place = notation.document, (*notation.place, key)
    if word == "properties":
        properties, required = _read_properties(document, place, value)
        schema["properties"] = {**schema.get("properties", {}), **properties}
        _add_required(schema, required)
    elif word == "required":
        _add_required(schema, value)
    elif word in _SCHEMA_KEYWORDS:
        schema[word] = _read_notation(document, place, value)[0]
    elif word in _SCHEMA_LIST_KEYWORDS:
        schema[word] = [_read_notation(document, (*place, i), each)[0] for i, each in enumerate(value)]
    elif word in _SCHEMA_MAPPING_KEYWORDS:
        schema[word] = {name: _read_notation(document, (*place, name), each)[0] for name, each in value.items()}
    elif word == "$ref" and not str(value).startswith("#"):
        # Resolving any other reference would mean network requests while files are loaded.
        notation.problem(f"$ref {value!r} points out of the file", key, "copy the schema to here")
    elif word in _VERBATIM_KEYWORDS or word in _SHORT_KEYWORDS.values():
        schema[word] = value
        kind = schema.get("type")
        for index, each in enumerate(value if word == "enum" and kind is not None else ()):
            if _find_violation({"type": kind}, each):
                place = (*notation.place, "enum", index)
                message = f"{describe_place(place)}: {as_text(each)} is not of type {as_text(kind)}"
                document.problem(message, place, quoting_hint(document.texts.get(place) if kind == "string" else None))


def _find_value_problem(word: str, value: Any) -> str | None:
    """Return why a keyword cannot have this value, or None."""
    if word in _SCHEMA_LIST_KEYWORDS:
        return None if isinstance(value, list) else f"must be a list, not {describe_value(value)}"
    if word in _SCHEMA_MAPPING_KEYWORDS:
        return None if isinstance(value, dict) else f"must be a mapping, not {describe_value(value)}"
    if word == "enum" and value == []:
        return "must have a value"
    if word == "$ref" or word in _SCHEMA_KEYWORDS or word == "properties":
        return None
    problem = _find_schema_problem({word: value})
    return None if problem is None else f"is not valid: {problem}"


def _is_keyword_applicable(word: str, kind: Any) -> bool:
    return not isinstance(kind, str) or kind in _TYPES_BY_KEYWORD.get(word, PARAMETER_TYPES)


def _add_required(schema: JsonSchema, names: list[str]) -> None:
    if names:
        schema["required"] = list(dict.fromkeys([*schema.get("required", ()), *names]))


def _check_consistency(notation: _Notation, schema: JsonSchema) -> None:
    for low, high in _MIN_MAX_PAIRS:
        if low in schema and high in schema and schema[low] > schema[high]:
            notation.problem(f"{low} {schema[low]} is more than {high} {schema[high]}: no value fits")
    if "properties" in schema:
        for name in schema.get("required", ()):
            if name not in schema["properties"]:
                near = did_you_mean(name, schema["properties"]).strip()
                notation.problem(f"required names {name!r}, which is not among the properties", None, near or None)


def _read_default(notation: _Notation, schema: JsonSchema) -> bool:
    """Put a default into the schema if there is one. `default: null` just makes the parameter optional."""
    if "default" not in notation.values:
        return False
    default = notation.values["default"]
    problem = _find_violation(schema, default)
    if problem is None:
        schema["default"] = default
    elif default is not None:
        text = notation.document.texts.get((*notation.place, "default"))
        hint = quoting_hint(text) if schema.get("type") == "string" else None
        notation.problem(f"the default does not fit the parameter itself: {problem}", "default", hint)
    return True


def _find_violation(schema: JsonSchema, value: Any) -> str | None:
    """Return why a value does not fit a schema, or None."""
    import jsonschema_rs

    try:
        check = BoundedValidator(schema)
    except (jsonschema_rs.ValidationError, SpecError):
        return None  # invalid or incomplete (a $ref to elsewhere in the file): the check of the whole schema reports it
    if not check.permits(value):
        return "it is too long to be matched with the patterns"
    return next((error.message for error in check.validator.iter_errors(value)), None)


def _check_schema(document: Document, place: Place, schema: JsonSchema, errors: int) -> JsonSchema:
    """Report a schema that is not valid, unless the document has got more than these errors while it was read."""
    if len(document.errors) == errors and (problem := _find_schema_problem(schema)) is not None:
        document.problem(f"{describe_place(place)}: this is not a valid JSON Schema: {problem}", place)
    return schema


def _find_schema_problem(schema: JsonSchema) -> str | None:
    import jsonschema_rs

    try:
        BoundedValidator(schema)
    except SpecError as error:
        return str(error)
    except jsonschema_rs.ValidationError as error:
        steps = [str(step) for step in error.instance_path][1:]
        return error.message + (f" (at {'/'.join(steps)})" if steps else "")
    return None
