"""Type hints that mean the same in Python and in JSON, and their schemas.

Most tools take text, numbers, lists and the like. Their schemas are built here by hand, because that is a hundred
times faster than using pydantic, and because their arguments need no conversion. All other hints are converted by
`ferrule.core.schema.binding`.
"""

from __future__ import annotations

import types
from collections import abc
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, NewType, Union, get_args, get_origin

from ferrule.core.json_schema import JsonSchema

ROLE_KEYWORD: Final = "x-ferrule-role"
"""The keyword of a schema with the role of a parameter; models are not shown it."""


class _ParameterMarker:
    """Adds keywords to the schema of the parameter or field that is annotated with it."""

    keywords: ClassVar[JsonSchema]

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        # Called by pydantic where the marker is used inside a model or a dataclass.
        return {**handler(core_schema), **cls.keywords}


class Secret(_ParameterMarker):
    """Marks a parameter whose values must never be recorded or shown: `token: Annotated[str, Secret]`."""

    keywords = {"writeOnly": True}


class Target(_ParameterMarker):
    """Marks a parameter that says whom, where or which: `to: Annotated[str, Target()]`."""

    keywords = {ROLE_KEYWORD: "target"}


class NoTarget(Target):
    """Marks a parameter that only says what: `text: Annotated[str, NoTarget()]`."""

    keywords = {ROLE_KEYWORD: "content"}


_SIMPLE_SCHEMAS: dict[Any, JsonSchema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list: {"type": "array"},
    dict: {"type": "object"},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
    Any: {},
    object: {},
}
_ARRAY_TYPES = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_OBJECT_TYPES = (dict, abc.Mapping, abc.MutableMapping)
_UNION_ORIGINS = (Union, types.UnionType)
_LITERAL_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}

# The names annotated-types and pydantic give to limits, and what JSON Schema calls them.
_BOUND_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LIMIT_KEYWORDS = {
    "integer": _BOUND_KEYWORDS,
    "number": _BOUND_KEYWORDS,
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
_FIELD_KEYWORDS = ("title", "description", "examples")


def schema_of_plain_hint(hint: Any) -> JsonSchema | None:
    """Return the schema of a hint whose values need no conversion; None for any other hint."""
    if hint is None or isinstance(hint, type):
        simple = _SIMPLE_SCHEMAS.get(hint)
        return None if simple is None else dict(simple)
    if hint is any:  # often written by mistake for `Any`
        return {}
    if isinstance(hint, NewType):
        return schema_of_plain_hint(hint.__supertype__)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = schema_of_plain_hint(args[0])
        return None if schema is None else _add_metadata(schema, args[1:], str(schema.get("type", "")))
    if origin in _UNION_ORIGINS:
        return _union_schema(args)
    if origin is Literal:
        return _literal_schema(args)
    if origin in _ARRAY_TYPES:
        return _add_inner_schema({"type": "array"}, "items", args[0] if args else Any)
    if origin in _OBJECT_TYPES and (not args or args[0] is str):
        return _add_inner_schema({"type": "object"}, "additionalProperties", args[1] if args else Any)
    return None


def metadata_of(hint: Any) -> tuple[Any, ...]:
    """Return the metadata beside the type in `Annotated`."""
    return () if isinstance(hint, type) or get_origin(hint) is not Annotated else get_args(hint)[1:]


def description_of(metadata: tuple[Any, ...]) -> str:
    """Return the description in `Annotated[..., "text"]`, `Doc("text")` or `Field(description="text")`."""
    for item in metadata:
        description = item if isinstance(item, str) else getattr(item, "documentation", None)
        description = description or getattr(item, "description", None)
        if isinstance(description, str) and description:
            return description
    return ""


def allows_none(hint: Any) -> bool:
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(base) in _UNION_ORIGINS:
        return any(allows_none(option) for option in get_args(base))
    if get_origin(base) is Literal:
        return None in get_args(base)
    return base in (None, types.NoneType, Any, object)


def mentions_class(hint: Any, classes: tuple[type, ...]) -> bool:
    """Return whether one of the classes is used anywhere in the hint."""
    return hint in classes or any(mentions_class(arg, classes) for arg in get_args(hint) if not isinstance(arg, str))


def _add_inner_schema(schema: JsonSchema, keyword: str, hint: Any) -> JsonSchema | None:
    inner = schema_of_plain_hint(hint)
    if inner is None:
        return None
    if inner:
        schema[keyword] = inner
    return schema


def _union_schema(options: tuple[Any, ...]) -> JsonSchema | None:
    schemas: list[JsonSchema] = []
    for option in options:
        schema = schema_of_plain_hint(option)
        if not schema:  # None: it needs a conversion; empty: it allows everything
            return schema
        schemas.append(schema)
    return {"anyOf": schemas}


def _literal_schema(values: tuple[Any, ...]) -> JsonSchema | None:
    kinds = {_LITERAL_TYPE_NAMES.get(type(value)) for value in values}
    if None in kinds:
        return None
    schema: JsonSchema = {"enum": list(values)}
    return {"type": kinds.pop(), **schema} if len(kinds) == 1 else schema


def _add_metadata(schema: JsonSchema, metadata: abc.Iterable[Any], json_type: str) -> JsonSchema | None:
    for item in metadata:
        keywords = _metadata_to_keywords(item, json_type)
        if keywords is None:
            return None
        schema.update(keywords)
    return schema


def _metadata_to_keywords(metadata: Any, json_type: str) -> JsonSchema | None:
    """Return the keywords that metadata beside a type adds to the schema; None if only pydantic knows what it means."""
    if metadata is None:  # used by pydantic's conint() and the like for "no limit"
        return {}
    if isinstance(metadata, str):
        return {"description": metadata}
    marker = metadata if isinstance(metadata, type) else type(metadata)
    if issubclass(marker, _ParameterMarker):
        return marker.keywords
    if isinstance(getattr(metadata, "documentation", None), str):
        return {"description": metadata.documentation}
    module, name = type(metadata).__module__, type(metadata).__name__
    if module == "annotated_types" and is_dataclass(metadata):
        return _limits_to_keywords({f.name: getattr(metadata, f.name) for f in fields(metadata)}, json_type)
    if module == "pydantic.fields" and name == "FieldInfo":
        return _field_to_keywords(metadata, json_type)
    if name == "_PydanticGeneralMetadata":
        return _limits_to_keywords(vars(metadata), json_type)
    return None


def _limits_to_keywords(limits: dict[str, Any], json_type: str) -> JsonSchema | None:
    keywords = _LIMIT_KEYWORDS.get(json_type, {})
    stated = {name: value for name, value in limits.items() if value is not None}
    if any(name not in keywords or not isinstance(value, (int, float, str)) for name, value in stated.items()):
        return None
    return {keywords[name]: value for name, value in stated.items()}


def _field_to_keywords(field: Any, json_type: str) -> JsonSchema | None:
    """Return the schema of pydantic's `Field(...)`, unless it also changes how values are converted."""
    converting = ("alias", "validation_alias", "discriminator", "json_schema_extra")
    if any(getattr(field, name, None) is not None for name in converting):
        return None
    schema: JsonSchema = {name: v for name in _FIELD_KEYWORDS if (v := getattr(field, name, None)) is not None}
    return _add_metadata(schema, field.metadata, json_type)
