"""Type hints whose values must be made from JSON: models, dataclasses, enums, dates, paths, sets, bytes …

pydantic knows them all. It is imported when the first function needs it, and asked for two things: the schema of a
hint, and the conversion of a JSON value to what the function wants.
"""

from __future__ import annotations

import types
from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from ferrule.content import encode_json
from ferrule.errors import SpecError
from ferrule.schema.definitions import settle_definitions
from ferrule.spec import JsonSchema


@dataclass(frozen=True, slots=True)
class Conversion:
    """Between JSON and the values of one hint."""

    hint: Any
    adapter: Any

    def from_json(self, value: Any) -> Any:
        """Raises pydantic's ValidationError for a value that fits the schema and yet will not do."""
        return self.adapter.validate_json(encode_json(value))

    def to_json(self, value: Any) -> Any:
        """Raises a ValueError for a value that is none of this hint."""
        return self.adapter.dump_python(value, mode="json", warnings="error")


def conversion_of(hint: Any) -> Conversion:
    """Raises a SpecError for a hint no JSON value can be made into."""
    from pydantic import PydanticUserError, TypeAdapter

    if isinstance(hint, (types.FunctionType, types.BuiltinFunctionType)):
        raise SpecError(f"{hint.__name__!r} is a function, not a type")
    try:
        conversion = Conversion(hint, TypeAdapter(_readable(hint, {})))
        _schemas({"hint": conversion}, "validation")
    except (PydanticUserError, NameError, TypeError) as error:
        raise SpecError(str(error).split("\n")[0]) from error
    return conversion


def input_schemas(conversions: Mapping[str, Conversion]) -> tuple[dict[str, JsonSchema], dict[str, JsonSchema]]:
    """The schema of each, by name, and the definitions they share."""
    return _schemas(conversions, "validation")


def output_schema(hint: Any) -> JsonSchema | None:
    """What a function with this return hint gives back, or None when JSON Schema cannot say."""
    try:
        schemas, definitions = _schemas({"output": conversion_of(hint)}, "serialization")
    except SpecError:
        return None
    return settle_definitions(schemas["output"], definitions)


def _schemas(
    conversions: Mapping[str, Conversion], mode: Literal["validation", "serialization"]
) -> tuple[dict[str, JsonSchema], dict[str, JsonSchema]]:
    from pydantic import TypeAdapter

    asked = [(name, mode, conversion.adapter) for name, conversion in conversions.items()]
    said, shared = TypeAdapter.json_schemas(asked, ref_template="#/$defs/{model}", schema_generator=_generator())
    return {name: schema for (name, _), schema in said.items()}, shared.get("$defs", {})


@cache
def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class WordsForModels(GenerateJsonSchema):
        """Leaves out what only repeats names."""

        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def tagged_union_schema(self, schema: Any) -> JsonSchema:
            union = super().tagged_union_schema(schema)
            union.pop("discriminator", None)  # points at definitions that may be gone when all is put together
            return union

    return WordsForModels


def _readable(hint: Any, seen: dict[Any, Any]) -> Any:
    """The hint with notes for pydantic where it would read something else than a model should write."""
    if hint is bytes:
        return Annotated[bytes, _Base64]
    if is_typeddict(hint):
        return seen[hint] if hint in seen else _twin(hint, seen)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return Annotated[hint, _ByName(hint._fields)]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _literal(hint, args)
    if origin is None:
        return hint
    inner = tuple(_readable(arg, seen) for arg in args)
    if all(new is old for new, old in zip(inner, args, strict=True)):
        return hint
    if origin is Annotated:
        return Annotated.__class_getitem__(inner)
    if origin in (Union, types.UnionType):
        return Union.__getitem__(inner)
    return hint.copy_with(inner) if hasattr(hint, "copy_with") else origin[inner]


def _twin(typed_dict: Any, seen: dict[Any, Any]) -> Any:
    """The same TypedDict as typing_extensions makes it: before Python 3.12 pydantic reads no other."""
    import typing_extensions

    make: Any = typing_extensions.TypedDict
    twin = make(typed_dict.__name__, {})
    seen[typed_dict] = twin  # known before its fields are, for it may contain itself
    twin.__module__, twin.__doc__ = typed_dict.__module__, typed_dict.__doc__
    hints = get_type_hints(typed_dict, include_extras=True)
    twin.__annotations__ = {name: _readable(hint, seen) for name, hint in hints.items()}
    twin.__required_keys__ = typed_dict.__required_keys__
    twin.__optional_keys__ = typed_dict.__optional_keys__
    return twin


def _literal(hint: Any, values: tuple[Any, ...]) -> Any:
    """pydantic takes members of an enum here, but not their values, which is all that JSON can say."""
    from pydantic import BeforeValidator

    members = {value.value: value for value in values if isinstance(value, Enum)}
    by_value = BeforeValidator(lambda said: members.get(said, said) if isinstance(said, Hashable) else said)
    return Annotated[hint, by_value] if members else hint


class _ByName:
    """Tells pydantic to describe a named tuple as an object, which it takes as well as a list."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> JsonSchema:
        said: JsonSchema = handler(core_schema)
        if handler.mode == "serialization":  # it gives back a list
            return said
        listed = handler.resolve_ref_schema(said)
        return {
            "type": "object",
            "properties": dict(zip(self.fields, listed.get("prefixItems", ()), strict=True)),
            "required": list(self.fields[: listed.get("minItems", 0)]),
        }


class _Base64:
    """Tells pydantic that bytes come as base64 text, of either alphabet."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._decode,
            serialization=core_schema.plain_serializer_function_ser_schema(cls._encode, when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> JsonSchema:
        return {"type": "string", "contentEncoding": "base64"}

    @staticmethod
    def _decode(value: Any) -> bytes:
        if not isinstance(value, str):
            raise ValueError("must be base64 text")
        text = value.strip().rstrip("=").replace("-", "+").replace("_", "/")
        return b64decode(text + "=" * (-len(text) % 4), validate=True)

    @staticmethod
    def _encode(value: bytes) -> str:
        return b64encode(value).decode()
