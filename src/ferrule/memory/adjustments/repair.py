"""Arguments that do not fit the schema, made to fit it: misspelt names and choices, wrong types, numbers out of range.

All of it goes into one suggestion, because the call passes only when all of it is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ferrule.content import copy_json, plain_json
from ferrule.memory.adjustments.call import Adjustment, FailedCall, shown
from ferrule.memory.adjustments.choices import meant_by_the_error
from ferrule.memory.adjustments.numbers import as_allowed, between, highest, is_number, lowest
from ferrule.names import near_names
from ferrule.spec import JsonSchema
from ferrule.validation.coercion import coerce
from ferrule.validation.schema_walk import types_of

_YES: Final = frozenset({"yes", "y", "on", "1", "true", "是"})
_NO: Final = frozenset({"no", "n", "off", "0", "false", "否"})
_BETWEEN_ITEMS = re.compile(r"\s*[,，;；、\n]\s*")


@dataclass(slots=True)
class _Repair:
    """The arguments on their way to being right."""

    parameters: dict[str, Any]
    changed: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    confidence: float = 0.9

    def note(self, names: list[str], reason: str, confidence: float) -> None:
        self.changed += names
        self.reasons.append(reason)
        self.confidence = min(self.confidence, confidence)


def repaired_by_the_schema(call: FailedCall) -> Iterator[Adjustment]:
    repair = _Repair(parameters=plain_json(copy_json(call.parameters)))
    _right_names(call, repair)
    _right_values(call, repair)
    if repair.changed:
        yield Adjustment(
            parameters=repair.parameters,
            changed=tuple(dict.fromkeys(repair.changed)),
            reason=" ".join(repair.reasons),
            confidence=repair.confidence,
        )


def _right_names(call: FailedCall, repair: _Repair) -> None:
    for name in [name for name in call.parameters if _is_strange(call, name)]:
        free = [known for known in call.properties if known not in repair.parameters]
        meant = [known for known in meant_by_the_error(call.error) if known in free]
        near = near_names(name, meant, most=1) or near_names(name, free, most=1)
        if near:
            _rename(repair, name, near[0])
            repair.note([name, near[0]], f"There is no parameter {name!r}; {near[0]!r} is the nearest.", 0.85)
        elif (only := _only_missing(call, repair)) is not None:
            _rename(repair, name, only)
            repair.note([name, only], f"There is no parameter {name!r}, and {only!r} is required and missing.", 0.6)


def _is_strange(call: FailedCall, name: Any) -> bool:
    """Whether a name is none of the action's. Where others are welcome, the error must speak of it."""
    if not isinstance(name, str) or name in call.properties or name in call.secret or not call.properties:
        return False
    return not call.takes_others or name in call.error


def _rename(repair: _Repair, name: str, to: str) -> None:
    repair.parameters = {to if key == name else key: value for key, value in repair.parameters.items()}


def _only_missing(call: FailedCall, repair: _Repair) -> str | None:
    missing = [name for name in call.required if name not in repair.parameters and name in call.properties]
    strange = [name for name in repair.parameters if name not in call.properties]
    return missing[0] if len(missing) == len(strange) == 1 else None


def _right_values(call: FailedCall, repair: _Repair) -> None:
    for name, value in list(repair.parameters.items()):
        if name not in call.properties or name in call.secret:
            continue
        right, reason, confidence = _right_value(name, value, call)
        if reason:
            repair.parameters[name] = right
            repair.note([name], reason, confidence)


def _right_value(name: str, value: Any, call: FailedCall) -> tuple[Any, str, float]:
    """The value as it should be, why, and how sure that is; no reason where nothing is wrong."""
    schema = call.schema_of(name)
    right = _as_kind(coerce(value, call.properties[name], call.root), schema)
    if not _same(right, value):
        return right, f"{name!r} should be {_kind_of(schema)}: {shown(right)} instead of {shown(value)}.", 0.85
    enum = schema.get("enum")
    if isinstance(enum, list) and isinstance(value, str) and value not in enum:
        near = near_names(value, [option for option in enum if isinstance(option, str)], most=1)
        if near:
            return near[0], f"{name!r} may be {shown(near[0])}, not {shown(value)}.", 0.8
    if is_number(value):
        nearest = as_allowed(between(value, lowest(schema), highest(schema)), schema)
        if nearest != value:
            return nearest, f"{name!r} may be {nearest} at the nearest, not {value}.", 0.75
    return value, "", 0.0


def _as_kind(value: Any, schema: JsonSchema) -> Any:
    """A value of another type as a person would read it, where the lenient check would not dare to."""
    kinds = [kind for kind in types_of(schema) if kind != "null"]
    if kinds == ["boolean"] and isinstance(value, (str, int)) and not isinstance(value, bool):
        said = str(value).strip().casefold() if isinstance(value, str) or abs(value) < 2 else ""
        return True if said in _YES else False if said in _NO else value
    if kinds == ["array"] and isinstance(value, str):
        return _BETWEEN_ITEMS.split(value.strip()) if value.strip() else []
    if kinds == ["array"] and value is not None and not isinstance(value, list):
        return [value]
    if kinds and "array" not in kinds and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value


def _kind_of(schema: JsonSchema) -> str:
    if isinstance(schema.get("enum"), list):
        return "one of the listed values"
    return " or ".join(types_of(schema)) or "written otherwise"


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
