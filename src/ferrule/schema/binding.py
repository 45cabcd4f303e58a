"""From the arguments of a call, which are JSON, to what a Python function takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ferrule.call import ToolExecutionContext, ValidationError
from ferrule.errors import InvalidArguments
from ferrule.schema.models import Conversion

Bound: TypeAlias = tuple[Sequence[Any], dict[str, Any]]
"""Arguments by position, and by name."""
Bind: TypeAlias = Callable[[dict[str, Any], ToolExecutionContext], Bound]

MISSING: Final = object()
REDACTED: Final = "[redacted]"

_NONE_BY_POSITION: Final = ()


def bind_as_they_are(params: dict[str, Any], context: ToolExecutionContext) -> Bound:
    """For functions that take plain JSON by name, as most do: every call passes here, so it does nothing."""
    return _NONE_BY_POSITION, params


def bind_with_context(name: str, params: dict[str, Any], context: ToolExecutionContext) -> Bound:
    """For functions that take plain JSON and, under this name, their context."""
    return _NONE_BY_POSITION, {**params, name: context}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """For functions that want more: converted values, arguments by position."""

    context_parameter: str | None
    conversions: Mapping[str, Conversion]
    declared: frozenset[str]
    extra: Conversion | None
    """For parameters that are not declared: the hint of `**kwargs`."""
    secret: frozenset[str]
    defaults: Mapping[str, Callable[[], Any]]
    """Those that Python would not give by itself, because they stand in a `Field(...)`."""
    positional: Mapping[str, Any]
    """What must be passed by position, in order, with its default or MISSING."""
    variadic: str | None
    """The name of `*args`."""

    def __call__(self, params: dict[str, Any], context: ToolExecutionContext) -> Bound:
        values = self._convert(params) if self.conversions or self.extra else dict(params)
        for name, make in self.defaults.items():
            if name not in values:
                values[name] = make()
        if self.context_parameter is not None:
            values[self.context_parameter] = context
        return self._take_positional(values), values

    def _convert(self, params: dict[str, Any]) -> dict[str, Any]:
        from pydantic import ValidationError as Refusal

        values: dict[str, Any] = {}
        errors: list[ValidationError] = []
        for name, value in params.items():
            conversion = self.conversions.get(name) if name in self.declared else self.extra
            try:
                values[name] = value if conversion is None else conversion.from_json(value)
            except Refusal as refusal:
                errors += _explain(name, refusal, secret=name in self.secret)
        if errors:
            raise InvalidArguments("; ".join(map(str, errors)), [error.to_dict() for error in errors])
        return values

    def _take_positional(self, values: dict[str, Any]) -> Sequence[Any]:
        if not self.positional and self.variadic is None:
            return _NONE_BY_POSITION
        args = [values.pop(name, default) for name, default in self.positional.items()]
        missing = [name for name, value in zip(self.positional, args, strict=True) if value is MISSING]
        if missing:
            raise InvalidArguments(f"required parameters are missing: {', '.join(missing)}")
        return [*args, *values.pop(self.variadic, ())] if self.variadic else args


def _explain(name: str, refusal: Any, *, secret: bool) -> list[ValidationError]:
    """What a type said about a value that its schema had let through."""
    return [
        ValidationError(
            path=".".join([name, *map(str, found["loc"])]),
            message=f"{found['msg']}.",
            expected=found["type"],
            received=REDACTED if secret else found["input"],
            code=found["type"],
        )
        for found in refusal.errors(include_url=False, include_context=False)
    ]
