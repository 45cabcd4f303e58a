"""Checking the arguments of a call against its tool's parameters.

A check is compiled once per action, on first use, and then costs less than a microsecond for arguments that are
right. Arguments that are wrong are looked at again, slowly: in lenient mode what can be read in only one way is
coerced, and what is still wrong is explained, all of it at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ferrule.call import ValidationError, ValidationResult
from ferrule.content import copy_json, plain_json
from ferrule.errors import SpecError
from ferrule.spec import ToolCapability, ToolSpec
from ferrule.validation.coercion import coerce, whole_numbers
from ferrule.validation.defaults import compile_defaults
from ferrule.validation.messages import explain, unknown_parameter
from ferrule.validation.schema_walk import properties_of, resolve

MAX_ERRORS = 20
_SPEAKS_OF_OTHERS = frozenset(
    [
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "propertyNames",
        "dependentSchemas",
        "dependencies",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
    ]
)


class ParameterCheck:
    """The compiled check of one action's parameters."""

    def __init__(self, capability: ToolCapability, *, strict: bool = False) -> None:
        import jsonschema_rs  # 30 ms to import: only when a call is checked

        self._strict = strict
        self._schema = schema = resolve(capability.schema, capability.schema)
        try:
            # offline: a schema that points elsewhere must not make us fetch what it points to.
            self._validator = jsonschema_rs.validator_for(capability.schema, offline=True)
        except ValueError as error:
            raise SpecError(f"The parameters of {capability.name!r} are not a valid JSON Schema: {error}") from None
        self._is_valid = self._validator.is_valid
        self._fill = compile_defaults(capability.schema)
        self._secret = capability.secret_names
        properties = properties_of(schema)
        self._known = frozenset(properties)
        # Parameters nobody described are refused or left out, unless the schema says itself what to do with them, or
        # describes parameters elsewhere than in its properties.
        self._closed = _SPEAKS_OF_OTHERS.isdisjoint(schema)
        self._integers = tuple(n for n, p in properties.items() if "integer" in str(p))
        """Parameters that are or hold integers."""

    def accept(self, params: Any) -> dict[str, Any] | None:
        """The arguments ready for use, when there is nothing to say about them; this is every good call's way."""
        if type(params) is not dict or (self._closed and not (params.keys() <= self._known)):
            return None
        filled = self._fill(params) if self._fill is not None else params.copy()
        try:
            if not self._is_valid(filled):
                return None
        except ValueError:  # a value JSON has no word for
            return None
        for name, value in filled.items():
            kind = type(value)
            if kind is float and name in self._integers or kind is dict or kind is list:
                # JSON Schema takes 5.0 for an integer; Python functions do not. And what the tool does to its
                # arguments must not happen to those of its caller.
                filled[name] = self._own_copy(name, value)
        return filled

    def _own_copy(self, name: str, value: Any) -> Any:
        copied = copy_json(value)
        if name not in self._integers:
            return copied
        return whole_numbers(copied, properties_of(self._schema).get(name), self._schema)

    def check(self, params: Mapping[str, Any] | None) -> ValidationResult:
        if params is not None and not isinstance(params, Mapping):
            return _not_an_object(params)
        given = dict(params or {})
        if (odd := _not_a_number(given)) is not None:
            return ValidationResult(is_valid=False, errors=[odd])
        unknown = tuple(name for name in given if name not in self._known) if self._closed else ()
        if unknown and self._strict:
            return self._explain(given, unknown)
        kept = {name: value for name, value in given.items() if name not in unknown} if unknown else given
        accepted = self.accept(kept)
        if accepted is None and not self._strict:
            accepted = self.accept(coerce(plain_json(kept), self._schema, self._schema))
        if accepted is None:
            return self._explain(given, ())
        return ValidationResult(is_valid=True, validated_params=accepted, ignored=unknown)

    def _explain(self, given: dict[str, Any], unknown: tuple[str, ...]) -> ValidationResult:
        errors = [unknown_parameter([name], self._schema) for name in unknown]
        params = plain_json(given)
        if not self._strict:  # what could be read is not worth a word
            params = coerce(params, self._schema, self._schema)
        filled = self._fill(params) if self._fill is not None else params
        for found in self._validator.iter_errors(filled):
            errors += explain(found, schema=self._schema, params=params, secret=self._secret)
            if len(errors) >= MAX_ERRORS:
                break
        return ValidationResult(is_valid=False, errors=errors or [_not_json(given)])


class ToolParameterValidator:
    """Checks arguments of any tool, compiling each tool's check once."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        # Checks are kept with the action they were made for: an id alone may be given to another object later.
        self._checks: dict[int, tuple[ToolCapability, ParameterCheck]] = {}

    def validate(
        self, tool: ToolSpec | ToolCapability, params: Mapping[str, Any] | None, *, action: str | None = None
    ) -> ValidationResult:
        capability = tool.capability(action) if isinstance(tool, ToolSpec) else tool
        if capability is None:
            assert isinstance(tool, ToolSpec)
            raise SpecError(f"Say which action of {tool.tool_id!r} to check. {tool.describe_actions(action)}")
        return self.check_of(capability).check(params)

    def check_of(self, capability: ToolCapability) -> ParameterCheck:
        known = self._checks.get(id(capability))
        if known is None:
            if len(self._checks) >= 20_000:  # actions that were replaced long ago
                self._checks.clear()
            known = (capability, ParameterCheck(capability, strict=self.strict))
            self._checks[id(capability)] = known
        return known[1]


def _not_a_number(params: dict[str, Any]) -> ValidationError | None:
    """NaN and infinity are no JSON: read as null they would mean that nothing was given."""
    for name, value in params.items():
        if isinstance(value, float) and not math.isfinite(value):
            return ValidationError(
                path=name, message=f"must be a number, not {value}.", expected="a number", received=None, code="type"
            )
    return None


def _not_json(params: dict[str, Any]) -> ValidationError:
    """Strict mode takes no Python object in the place of the JSON it would become."""
    odd = next((name for name, value in params.items() if plain_json(value) != value), "")
    return ValidationError(
        path=odd,
        message=f"must be a value JSON has a word for, not a Python {type(params.get(odd)).__name__}.",
        expected="JSON",
        received=type(params.get(odd)).__name__,
        code="type",
    )


def _not_an_object(params: Any) -> ValidationResult:
    error = ValidationError(
        path="",
        message=f"arguments must be an object of names and values, not {type(params).__name__}.",
        expected="an object",
        received=type(params).__name__,
        code="type",
    )
    return ValidationResult(is_valid=False, errors=[error])
