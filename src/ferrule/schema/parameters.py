"""One parameter of a function: its schema, its default, and how its values are made from JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import orjson

from ferrule.errors import SpecError
from ferrule.schema.binding import MISSING
from ferrule.schema.callables import name_of
from ferrule.schema.hints import allows_none, description_in, marks_of, plain_schema
from ferrule.schema.models import Conversion, conversion_of
from ferrule.spec import JsonSchema

EXTRA = inspect.Parameter.VAR_KEYWORD
MANY = inspect.Parameter.VAR_POSITIONAL

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, EXTRA)
_SCALARS = (str, int, bool, type(None))


@dataclass(slots=True, kw_only=True)
class FunctionParameter:
    """A parameter as it was read; lives only as long as its function is read."""

    name: str
    kind: Any
    """As `inspect` calls it: by position, by name, `*args`, `**kwargs`."""
    plain: JsonSchema | None
    """Its schema, when values need no conversion …"""
    conversion: Conversion | None
    """… and otherwise what converts them."""
    description: str
    default: Any
    """MISSING when it must be given."""
    make_default: Callable[[], Any] | None
    """Set when the default stands in a pydantic `Field(...)`, where Python does not see it."""

    @property
    def is_required(self) -> bool:
        return self.default is MISSING and self.make_default is None and self.kind is not MANY

    @property
    def is_passed_as_it_is(self) -> bool:
        return self.plain is not None and self.make_default is None and self.kind in _BY_NAME

    def schema(self, said: JsonSchema) -> JsonSchema:
        """Its property in the function's schema, from what the hint says."""
        schema = _lift_marks(said)
        if self.description:
            schema["description"] = self.description
        default = self._json_default() if not schema.get("writeOnly") else MISSING
        if default is not MISSING:
            schema["default"] = default
        return schema

    def _json_default(self) -> Any:
        """The default, if JSON can say it; if not, the function's own holds, and nobody needs to know it."""
        value = self.make_default() if self.make_default is not None else self.default
        if value is MISSING:
            return MISSING
        try:
            value = value if self.conversion is None else self.conversion.to_json(value)
            if type(value) in _SCALARS:
                return value
            copy = orjson.loads(orjson.dumps(value))
        except (TypeError, ValueError):
            return MISSING
        return copy if copy == value else MISSING


def read_parameter(
    fn: Callable[..., Any], parameter: inspect.Parameter, hint: Any, said: Mapping[str, str]
) -> FunctionParameter:
    """Read one parameter of `fn`, with its hint resolved and what the docstring says about each name."""
    default = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
    make_default = None
    if _is_field(default):
        hint, default = Annotated[hint, default], MISSING
    if marks := marks_of(hint):
        field = next((mark for mark in marks if _is_field(mark)), None)
        if field is not None and default is MISSING and not field.is_required():
            make_default = _default_of(field)
    if default is None and not allows_none(hint):
        hint = Optional[hint]  # noqa: UP045 (`|` does not take every kind of hint)
    if parameter.kind is MANY:
        hint = list[hint]
    plain = plain_schema(hint)
    return FunctionParameter(
        name=parameter.name,
        kind=parameter.kind,
        plain=plain,
        conversion=_conversion(fn, parameter, hint) if plain is None else None,
        description=description_in(marks) or said.get(parameter.name, ""),
        default=default,
        make_default=make_default,
    )


def _conversion(fn: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> Conversion:
    try:
        return conversion_of(hint)
    except SpecError as error:
        raise SpecError(
            f"function {name_of(fn)!r}: parameter {parameter.name!r} has the type hint "
            f"{inspect.formatannotation(hint)}, which JSON cannot express ({error}). Use text, numbers, lists, "
            f"a dataclass, a TypedDict or a pydantic model, or leave the parameter out with functools.partial."
        ) from error


def _lift_marks(schema: JsonSchema) -> JsonSchema:
    """For an optional parameter, what is said about it stands beside the choice, not inside one half of it."""
    options = schema.get("anyOf")
    if not isinstance(options, list):
        return schema
    real = [option for option in options if option != {"type": "null"}]
    if len(real) != 1 or len(options) != 2:
        return schema
    lifted = {word: real[0][word] for word in ("description", "writeOnly") if word in real[0]}
    inner = {word: value for word, value in real[0].items() if word not in lifted}
    return {**schema, "anyOf": [inner if option is real[0] else option for option in options], **lifted}


def _is_field(thing: Any) -> bool:
    return type(thing).__name__ == "FieldInfo" and type(thing).__module__ == "pydantic.fields"


def _default_of(field: Any) -> Callable[[], Any]:
    return lambda: field.get_default(call_default_factory=True)
