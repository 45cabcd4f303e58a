"""The short notation of parameters and outputs, turned into JSON Schema.

A notation is the name of a type (`integer`, `any`) or a mapping. A mapping may use the short words (`min`,
`max_length`, …), directly or under `validation`, and any word of JSON Schema beside them; both may be nested to any
depth. Whatever JSON Schema would silently ignore is an error here: a `min` on text, a default of the wrong type, a
pattern that is no pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from ferrule.content import as_text
from ferrule.names import did_you_mean
from ferrule.sources.schema_words import (
    CONSTRAINTS,
    HOLD_LIST,
    HOLD_MAP,
    HOLD_ONE,
    ONLY_FOR,
    OPTION_OF,
    OPTIONS,
    OTHER_NAMES,
    OWN_WORDS,
    PAIRS,
    SAYS_THE_TYPE,
    VERBATIM,
    Option,
)
from ferrule.sources.section import Section, describe_place, kind_of, quoting_hint, section_at
from ferrule.sources.yaml_text import Document, Place
from ferrule.spec import PARAMETER_TYPES, JsonSchema

Schema: TypeAlias = JsonSchema | bool
"""JSON Schema has `true` for anything and `false` for nothing."""

_SEE = "the words there are: " + ", ".join([*OWN_WORDS, *OPTIONS, "items", "properties", "or one of JSON Schema"])


def parameters_schema(section: Section) -> JsonSchema:
    """The parameters of a tool or an action as one JSON Schema of type object."""
    known_errors = len(section.document.errors)
    properties, required = _properties(section, "parameters")
    schema: JsonSchema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if len(section.document.errors) == known_errors:
        _check_whole(section, "parameters", schema)
    return schema


def output_schema(section: Section) -> JsonSchema | None:
    """What a tool or an action gives back: a notation, or just a mapping of names to notations."""
    value = section.values.get("output")
    if value is None:
        return None
    known_errors = len(section.document.errors)
    if isinstance(value, dict) and not any(word in CONSTRAINTS or word in OWN_WORDS for word in value):
        schema: Schema = {"type": "object", "properties": _properties(section, "output")[0]}
    else:
        schema, _ = _read(section.document, (*section.place, "output"), value)
    if not isinstance(schema, dict):
        return {}
    if len(section.document.errors) == known_errors:
        _check_whole(section, "output", schema)
    return schema


def _properties(section: Section, key: str) -> tuple[dict[str, Schema], list[str]]:
    properties: dict[str, Schema] = {}
    required = []
    for name, place, notation in _named(section, key):
        properties[name], is_required = _read(section.document, place, notation)
        if is_required:
            required.append(name)
    return properties, required


def _named(section: Section, key: str) -> Iterator[tuple[str, Place, Any]]:
    """Parameters stand in a list with their names, or in a mapping under their names."""
    if isinstance(section.values.get(key), dict):
        for name, notation in section.values[key].items():
            yield name, (*section.place, key, name), notation
        return
    seen: dict[str, int] = {}
    for each in section.sections(key):
        name = each.required_text("name", "url")
        if not name:
            continue
        line = each.document.line((*each.place, "name"))
        if name in seen:
            each.problem(f"there are two parameters {name!r}", "name", f"the first is in line {seen[name]}: rename one")
        seen.setdefault(name, line)
        if not each.has("type") and not _words_of(each).intersection(SAYS_THE_TYPE):
            each.problem("type is missing", None, "write for instance type: string")
        yield name, each.place, {word: value for word, value in each.values.items() if word != "name"}


def _read(document: Document, place: Place, notation: Any) -> tuple[Schema, bool]:
    """The schema a notation stands for, and whether its value is required."""
    if isinstance(notation, bool):
        return notation, False
    if isinstance(notation, str):
        return ({} if notation == "any" else {"type": _type_name(document, place, notation)}), False
    section = section_at(document, place, notation)
    return _read_mapping(section) if section is not None else ({}, False)


def _read_mapping(section: Section) -> tuple[JsonSchema, bool]:
    section.allow([*OWN_WORDS, *CONSTRAINTS], _SEE)
    schema = _type_of(section)
    if description := section.text("description"):
        schema["description"] = description
    is_required = _read_constraints(section, schema)
    if (validation := section.section("validation")) is not None:
        validation.allow(["required", *CONSTRAINTS], _SEE)
        if isinstance(validation.values.get("required"), bool):
            validation.problem("required must be a list of names here", "required", "write it beside validation")
        _read_constraints(validation, schema)
    _check_order(section, schema)
    if section.flag("secret"):
        schema["writeOnly"] = True
    if _read_default(section, schema):
        return schema, False
    return schema, is_required


def _words_of(section: Section) -> set[str]:
    validation = section.values.get("validation")
    return {*section.values, *(validation if isinstance(validation, dict) else ())}


def _type_of(section: Section) -> JsonSchema:
    kind = section.values.get("type")
    place = (*section.place, "type")
    if kind == "any":
        return {}
    if kind is None:
        said = _words_of(section)
        return next(({"type": only} for word, only in ONLY_FOR.items() if word in said), {})
    if isinstance(kind, str):
        return {"type": _type_name(section.document, place, kind)}
    if isinstance(kind, list) and all(isinstance(each, str) for each in kind):
        names = [each if each == "null" else _type_name(section.document, place, each) for each in kind]
        return {} if "any" in names else {"type": names}
    section.problem(f"type must be one of {', '.join(PARAMETER_TYPES)}, not {kind_of(kind)}", "type")
    return {}


def _type_name(document: Document, place: Place, name: str) -> str:
    if name in PARAMETER_TYPES:
        return name
    meant = OTHER_NAMES.get(name.lower())
    hint = f"write {meant}" if meant else did_you_mean(name, PARAMETER_TYPES).strip()
    hint = hint or f"the types are {', '.join(PARAMETER_TYPES)}"
    document.problem(f"{describe_place(place)}: unknown type {name!r}", place, hint)
    return meant or "string"


def _read_constraints(section: Section, schema: JsonSchema) -> bool:
    """Put into the schema what the section says about values; returns whether it says `required: true`."""
    document, is_required = section.document, False
    for word, value in section.values.items():
        place = (*section.place, word)
        if schema.get("type") in PARAMETER_TYPES and ONLY_FOR.get(word, schema["type"]) != schema["type"]:
            _says_nothing(section, word, schema["type"])
        elif option := OPTION_OF.get(word):
            _read_option(section, word, option, schema)
        elif word == "properties":
            properties, required = _properties(section, word)
            schema["properties"] = {**schema.get("properties", {}), **properties}
            _require(schema, required)
        elif word == "required" and isinstance(value, bool):
            is_required = value
        elif word == "required":
            _require(schema, section.texts(word))
        elif word in HOLD_ONE:
            schema[word] = _read(document, place, value)[0]
        elif word in HOLD_LIST:
            schema[word] = [_read(document, (*place, i), each)[0] for i, each in enumerate(section.entries(word))]
        elif word in HOLD_MAP:
            schema[word] = {n: _read(document, (*place, n), each)[0] for n, each in section.mapping(word).items()}
        elif word == "$ref" and not str(value).startswith("#"):
            # Looking up any other reference would mean going to the network while files are loaded.
            section.problem(f"$ref {value!r} points out of the file", word, "copy the schema to here")
        elif word in VERBATIM:
            schema[word] = value
    return is_required


def _read_option(section: Section, word: str, option: Option, schema: JsonSchema) -> None:
    value = section.values[word]
    if not option.fits(value):
        section.problem(f"{word} must be {option.needs}, not {as_text(value)}", word)
        return
    kind = schema.get("type")
    if isinstance(kind, str) and option.types and kind not in option.types:
        _says_nothing(section, word, kind)
        return
    schema[option.written_as] = value
    if option.written_as == "enum" and kind is not None:
        for index, each in enumerate(value):
            if _misfit({"type": kind}, each):
                place = (*section.place, word, index)
                message = f"{describe_place(place)}: {as_text(each)} is not of type {as_text(kind)}"
                written = section.document.texts.get(place) if kind == "string" else None
                section.document.problem(message, place, quoting_hint(written))


def _says_nothing(section: Section, word: str, kind: str) -> None:
    fitting = [name for name, option in OPTIONS.items() if not option.types or kind in option.types]
    fitting += [name for name, only in ONLY_FOR.items() if only == kind]
    section.problem(f"{word} says nothing about a value of type {kind}", word, f"use {' or '.join(fitting)}")


def _require(schema: JsonSchema, names: list[str]) -> None:
    if names:
        schema["required"] = list(dict.fromkeys([*schema.get("required", ()), *names]))


def _check_order(section: Section, schema: JsonSchema) -> None:
    for low, high in PAIRS:
        if low in schema and high in schema and schema[low] > schema[high]:
            section.problem(f"{low} {schema[low]} is more than {high} {schema[high]}: no value fits")
    if "properties" in schema:
        for name in schema.get("required", ()):
            if name not in schema["properties"]:
                near = did_you_mean(name, schema["properties"]).strip()
                section.problem(f"required names {name!r}, which is not among the properties", None, near or None)


def _read_default(section: Section, schema: JsonSchema) -> bool:
    """Put a default into the schema if there is one. `default: null` just makes the parameter optional."""
    if "default" not in section.values:
        return False
    default = section.values["default"]
    problem = _misfit(schema, default)
    if problem is None:
        schema["default"] = default
    elif default is not None:
        hint = section.quoting_hint("default") if schema.get("type") == "string" else None
        section.problem(f"the default does not fit the parameter itself: {problem}", "default", hint)
    return True


def _misfit(schema: JsonSchema, value: Any) -> str | None:
    """Why a value does not fit a schema; None when it does."""
    import jsonschema_rs

    try:
        validator = jsonschema_rs.validator_for(schema)
    except jsonschema_rs.ValidationError:
        return None  # wrong or not whole (a $ref to elsewhere in the file): the check of the whole says so
    return next((error.message for error in validator.iter_errors(value)), None)


def _check_whole(section: Section, key: str, schema: JsonSchema) -> None:
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for(schema)
    except jsonschema_rs.ValidationError as error:
        steps = [str(step) for step in error.instance_path]
        where = f" (at {'/'.join(steps)})" if steps else ""
        section.problem(f"{key}: this is no valid JSON Schema: {error.message}{where}", key)
