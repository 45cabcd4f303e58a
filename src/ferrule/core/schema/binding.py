"""From the JSON arguments of a call to the Python values a function takes.

Most functions take plain JSON, which is passed on unchanged. For any other hint (models, dataclasses, enums, dates,
paths, sets, bytes …) pydantic supplies the schema and the conversion; it is imported when the first function needs it.
"""

from __future__ import annotations

import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from ferrule.core.call import ToolExecutionContext, ValidationError
from ferrule.core.content import REDACTED, encode_json
from ferrule.core.json_schema import JsonSchema, inline_definitions
from ferrule.errors import InvalidArguments, SpecError


@dataclass(frozen=True, slots=True)
class Conversion:
    """Converts between JSON and the values of one hint."""

    adapter: Any

    def from_json(self, value: Any) -> Any:
        """Convert a JSON value. Raises pydantic's ValidationError for a value that only the type refuses."""
        return self.adapter.validate_json(encode_json(value))

    def to_json(self, value: Any) -> Any:
        """Convert a value of this type to JSON. Raises ValueError for a value of another type."""
        return self.adapter.dump_python(value, mode="json", warnings="error")


def make_conversion(hint: Any) -> Conversion:
    """Return the conversion for a hint; raises a SpecError for a hint that cannot be converted from JSON."""
    from pydantic import PydanticUserError, TypeAdapter

    if isinstance(hint, (types.FunctionType, types.BuiltinFunctionType)):
        raise SpecError(f"{hint.__name__!r} is a function, not a type")
    try:
        conversion = Conversion(TypeAdapter(_adapt_hint(hint, {})))
        generate_schemas({"hint": conversion})
    except (PydanticUserError, NameError, TypeError) as error:
        raise SpecError(str(error).split("\n")[0]) from error
    return conversion


def output_schema(hint: Any) -> JsonSchema | None:
    """Return the schema of the results of a function with this return hint, or None when there is none."""
    try:
        schemas, definitions = generate_schemas({"output": make_conversion(hint)}, "serialization")
    except SpecError:
        return None
    return inline_definitions(schemas["output"], definitions)


def generate_schemas(
    conversions: Mapping[str, Conversion], mode: Literal["validation", "serialization"] = "validation"
) -> tuple[dict[str, JsonSchema], dict[str, JsonSchema]]:
    """Return the schema of each conversion, by name, and the definitions that the schemas share."""
    from pydantic import TypeAdapter

    schemas, shared = TypeAdapter.json_schemas(
        [(name, mode, conversion.adapter) for name, conversion in conversions.items()],
        ref_template="#/$defs/{model}",
        schema_generator=_schema_generator(),
    )
    return {name: schema for (name, _), schema in schemas.items()}, shared.get("$defs", {})


@cache
def _schema_generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class ShortJsonSchema(GenerateJsonSchema):
        """Without titles, which only repeat names."""

        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def tagged_union_schema(self, schema: Any) -> JsonSchema:
            union = super().tagged_union_schema(schema)
            union.pop("discriminator", None)  # refers to definitions that may have been inlined
            return union

    return ShortJsonSchema


def _adapt_hint(hint: Any, copies: dict[Any, Any]) -> Any:
    """Return the hint with metadata for pydantic where its own JSON form is not what a model should write."""
    if hint is bytes:
        return Annotated[bytes, _Base64]
    if is_typeddict(hint):
        return copies[hint] if hint in copies else _copy_typeddict(hint, copies)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return Annotated[hint, _NamedTupleAsObject(hint._fields)]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _accept_enum_values(hint, args)
    if origin is None:
        return hint
    inner = tuple(_adapt_hint(arg, copies) for arg in args)
    if all(new is old for new, old in zip(inner, args, strict=True)):
        return hint
    if origin is Annotated:
        return Annotated.__class_getitem__(inner)
    if origin in (Union, types.UnionType):
        return Union.__getitem__(inner)
    return hint.copy_with(inner) if hasattr(hint, "copy_with") else origin[inner]


def _copy_typeddict(typed_dict: Any, copies: dict[Any, Any]) -> Any:
    """Return the same TypedDict made by typing_extensions: before Python 3.12 pydantic accepts no other."""
    import typing_extensions

    create: Any = typing_extensions.TypedDict
    copy = create(typed_dict.__name__, {})
    copies[typed_dict] = copy  # before its fields are read: it may contain itself
    copy.__module__, copy.__doc__ = typed_dict.__module__, typed_dict.__doc__
    hints = get_type_hints(typed_dict, include_extras=True)
    copy.__annotations__ = {name: _adapt_hint(hint, copies) for name, hint in hints.items()}
    copy.__required_keys__ = typed_dict.__required_keys__
    copy.__optional_keys__ = typed_dict.__optional_keys__
    return copy


def _accept_enum_values(hint: Any, values: tuple[Any, ...]) -> Any:
    """Let pydantic accept the values of enum members, which is all that JSON has."""
    from pydantic import BeforeValidator

    members = {value.value: value for value in values if isinstance(value, Enum)}
    by_value = BeforeValidator(lambda value: members.get(value, value) if isinstance(value, Hashable) else value)
    return Annotated[hint, by_value] if members else hint


class _NamedTupleAsObject:
    """Makes pydantic describe a named tuple as an object, which it accepts as well as a list."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> JsonSchema:
        schema: JsonSchema = handler(core_schema)
        if handler.mode == "serialization":  # which returns a list
            return schema
        array = handler.resolve_ref_schema(schema)
        return {
            "type": "object",
            "properties": dict(zip(self.fields, array.get("prefixItems", ()), strict=True)),
            "required": list(self.fields[: array.get("minItems", 0)]),
        }


class _Base64:
    """Makes pydantic read bytes from base64 text, in the standard or the URL-safe alphabet."""

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


# Binding

BoundArguments: TypeAlias = tuple[Sequence[Any], dict[str, Any]]
"""Positional and keyword arguments."""
Bind: TypeAlias = Callable[[dict[str, Any], ToolExecutionContext], BoundArguments]

MISSING: Final = object()

_NO_POSITIONAL: Final = ()


def bind_unchanged(params: dict[str, Any], context: ToolExecutionContext) -> BoundArguments:
    """For functions that take plain JSON by name, as most do."""
    return _NO_POSITIONAL, params


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertingBinder:
    """For all other functions: converts values and passes arguments by position."""

    context_parameter: str | None
    conversions: Mapping[str, Conversion]
    declared: frozenset[str]
    extra: Conversion | None
    """For parameters that are not declared: from the hint of `**kwargs`."""
    secret: frozenset[str]
    defaults: Mapping[str, Callable[[], Any]]
    """Defaults in a pydantic `Field(...)`, which Python does not apply."""
    positional: Mapping[str, Any]
    """Parameters that must be passed by position, in order, with their default or MISSING."""
    variadic: str | None
    """The name of `*args`."""

    def __call__(self, params: dict[str, Any], context: ToolExecutionContext) -> BoundArguments:
        values = self._convert_params(params) if self.conversions or self.extra else dict(params)
        for name, default in self.defaults.items():
            if name not in values:
                values[name] = default()
        if self.context_parameter is not None:
            values[self.context_parameter] = copy(context)
        return self._pop_positional(values), values

    def _convert_params(self, params: dict[str, Any]) -> dict[str, Any]:
        from pydantic import ValidationError as PydanticError

        values: dict[str, Any] = {}
        errors: list[ValidationError] = []
        for name, value in params.items():
            conversion = self.conversions.get(name) if name in self.declared else self.extra
            try:
                values[name] = value if conversion is None else conversion.from_json(value)
            except PydanticError as error:
                errors += _explain_refusal(name, error, is_secret=name in self.secret)
        if errors:
            raise InvalidArguments("; ".join(map(str, errors)), [error.to_dict() for error in errors])
        return values

    def _pop_positional(self, values: dict[str, Any]) -> Sequence[Any]:
        if not self.positional and self.variadic is None:
            return _NO_POSITIONAL
        args = [values.pop(name, default) for name, default in self.positional.items()]
        missing = [name for name, value in zip(self.positional, args, strict=True) if value is MISSING]
        if missing:
            raise InvalidArguments(f"required parameters are missing: {', '.join(missing)}")
        return [*args, *values.pop(self.variadic, ())] if self.variadic else args


def _explain_refusal(name: str, pydantic_error: Any, *, is_secret: bool) -> list[ValidationError]:
    """Return the problems of a value that matches its schema and is still refused by its type."""
    return [
        ValidationError(
            path=".".join([name, *map(str, error["loc"])]),
            message=f"{error['msg']}.",
            expected=error["type"],
            received=REDACTED if is_secret else error["input"],
            code=error["type"],
        )
        for error in pydantic_error.errors(include_url=False, include_context=False)
    ]
