"""Type hints that mean the same in Python and in JSON.

Most tools take text, numbers, lists and the like. Their schemas are written down here by hand, because that is a
hundred times faster than asking pydantic and because their arguments need no conversion: what JSON brings is what
the function wants. Every other hint is the business of `models`.
"""

from __future__ import annotations

import types
from collections import abc
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from ferrule.schema.secret import is_secret
from ferrule.spec import JsonSchema

_SIMPLE: dict[Any, JsonSchema] = {
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
_ARRAYS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_OBJECTS = (dict, abc.Mapping, abc.MutableMapping)
_UNIONS = (Union, types.UnionType)
_LITERALS = {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}

# The names annotated-types and pydantic give to limits, and what JSON Schema calls them.
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LIMITS = {
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
_FIELD_WORDS = ("title", "description", "examples")


def plain_schema(hint: Any) -> JsonSchema | None:
    """The schema of a hint whose values need no conversion; None for any other hint."""
    if hint is None or isinstance(hint, type):
        simple = _SIMPLE.get(hint)
        return None if simple is None else dict(simple)
    if hint is any:  # what is written for `Any` by those who do not import it
        return {}
    if isinstance(hint, NewType):
        return plain_schema(hint.__supertype__)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(args[0], args[1:])
    if origin in _UNIONS:
        return _union(args)
    if origin is Literal:
        return _literal(args)
    if origin in _ARRAYS:
        return _with_inner({"type": "array"}, "items", args[0] if args else Any)
    if origin in _OBJECTS and (not args or args[0] is str):
        return _with_inner({"type": "object"}, "additionalProperties", args[1] if args else Any)
    return None


def marks_of(hint: Any) -> tuple[Any, ...]:
    """What stands beside the type in `Annotated`."""
    return () if isinstance(hint, type) or get_origin(hint) is not Annotated else get_args(hint)[1:]


def description_in(marks: tuple[Any, ...]) -> str:
    """What `Annotated[..., "text"]`, `Doc("text")` or `Field(description="text")` says about a parameter."""
    for mark in marks:
        said = mark if isinstance(mark, str) else getattr(mark, "documentation", None)
        said = said or getattr(mark, "description", None)
        if isinstance(said, str) and said:
            return said
    return ""


def allows_none(hint: Any) -> bool:
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(base) in _UNIONS:
        return any(allows_none(option) for option in get_args(base))
    if get_origin(base) is Literal:
        return None in get_args(base)
    return base in (None, types.NoneType, Any, object)


def mentions(hint: Any, classes: tuple[type, ...]) -> bool:
    """Whether one of the classes stands anywhere in the hint."""
    return hint in classes or any(mentions(arg, classes) for arg in get_args(hint) if not isinstance(arg, str))


def _with_inner(schema: JsonSchema, keyword: str, hint: Any) -> JsonSchema | None:
    inner = plain_schema(hint)
    if inner is None:
        return None
    if inner:
        schema[keyword] = inner
    return schema


def _union(options: tuple[Any, ...]) -> JsonSchema | None:
    schemas: list[JsonSchema] = []
    for option in options:
        schema = plain_schema(option)
        if schema is None:
            return None
        if not schema:
            return {}
        schemas.append(schema)
    return {"anyOf": schemas}


def _literal(values: tuple[Any, ...]) -> JsonSchema | None:
    kinds = {_LITERALS.get(type(value)) for value in values}
    if None in kinds:
        return None
    schema: JsonSchema = {"enum": list(values)}
    return {"type": kinds.pop(), **schema} if len(kinds) == 1 else schema


def _annotated(base: Any, marks: tuple[Any, ...]) -> JsonSchema | None:
    schema = plain_schema(base)
    if schema is None:
        return None
    for mark in marks:
        said = _said_by(mark, str(schema.get("type", "")))
        if said is None:
            return None
        schema.update(said)
    return schema


def _said_by(mark: Any, kind: str) -> JsonSchema | None:
    """What a mark beside a type adds to the schema; None for one whose meaning only pydantic knows."""
    if mark is None:  # how pydantic's conint() and the like say "nothing here"
        return {}
    if isinstance(mark, str):
        return {"description": mark}
    if is_secret(mark):
        return {"writeOnly": True}
    if isinstance(getattr(mark, "documentation", None), str):
        return {"description": mark.documentation}
    module, name = type(mark).__module__, type(mark).__name__
    if module == "annotated_types" and is_dataclass(mark):
        return _limits({f.name: getattr(mark, f.name) for f in fields(mark)}, kind)
    if module == "pydantic.fields" and name == "FieldInfo":
        return _field(mark, kind)
    if name == "_PydanticGeneralMetadata":
        return _limits(vars(mark), kind)
    return None


def _limits(settings: dict[str, Any], kind: str) -> JsonSchema | None:
    words = _LIMITS.get(kind, {})
    schema: JsonSchema = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name not in words or not isinstance(value, (int, float, str)):
            return None
        schema[words[name]] = value
    return schema


def _field(field: Any, kind: str) -> JsonSchema | None:
    """What pydantic's `Field(...)` says, where it says nothing about how values are converted."""
    converting = ("alias", "validation_alias", "discriminator", "json_schema_extra")
    if any(getattr(field, name, None) is not None for name in converting):
        return None
    schema: JsonSchema = {name: v for name in _FIELD_WORDS if (v := getattr(field, name, None)) is not None}
    for mark in field.metadata:
        said = _said_by(mark, kind)
        if said is None:
            return None
        schema.update(said)
    return schema
