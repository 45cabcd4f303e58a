"""Numbers as a schema allows them."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias, TypeGuard

from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import types_of

Number: TypeAlias = int | float

_HUGE: Final = 1e300


def is_number(value: Any) -> TypeGuard[Number]:
    """A number one can reckon with: no boolean, nothing endless."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _HUGE


def lowest(schema: JsonSchema) -> Number | None:
    """The least number a schema allows, as far as it says one."""
    said = [schema["minimum"]] if is_number(schema.get("minimum")) else []
    beyond = schema.get("exclusiveMinimum")
    if is_number(beyond):
        said.append(math.floor(beyond) + 1 if _is_integer(schema) else beyond + _a_little(beyond))
    return max(said, default=None)


def highest(schema: JsonSchema) -> Number | None:
    """The greatest."""
    said = [schema["maximum"]] if is_number(schema.get("maximum")) else []
    beyond = schema.get("exclusiveMaximum")
    if is_number(beyond):
        said.append(math.ceil(beyond) - 1 if _is_integer(schema) else beyond - _a_little(beyond))
    return min(said, default=None)


def between(value: Number, low: Number | None, high: Number | None) -> Number:
    """The number itself, or the bound it is beyond."""
    if low is not None and value < low:
        return low
    if high is not None and value > high:
        return high
    return value


def as_allowed(value: Number, schema: JsonSchema) -> Number:
    """The number in steps of `multipleOf`, downwards; whole where the schema wants integers."""
    step = schema.get("multipleOf")
    if is_number(step) and step > 0 and value % step:
        value = value // step * step
    return int(value) if _is_integer(schema) else value


def _is_integer(schema: JsonSchema) -> bool:
    return [kind for kind in types_of(schema) if kind != "null"] == ["integer"]


def _a_little(bound: Number) -> float:
    return max(abs(bound) / 100, 0.01)
